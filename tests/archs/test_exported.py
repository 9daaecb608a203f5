"""Exports say what was verified with transformers: for checkpoints of the zoo and of tests/data/families, and for such
with random options.
"""

from __future__ import annotations

import re

import pytest

from . import exported

LINES = {each["name"]: each for each in exported.lines()}
EVERY = 3  # so many of random options in a usual run
RANDOM = re.compile(r"-\d\d-\d+$")  # the names of cases with random options
PARAMETERS = [
    pytest.param(name, marks=[pytest.mark.slow] if RANDOM.search(name) and number % EVERY else [])
    for number, name in enumerate(LINES)
]


@pytest.mark.parametrize("name", PARAMETERS)
def test_export_is_the_verified_one(name: str) -> None:
    recorded = LINES[name]
    assert exported.again(recorded) == {"config": recorded["config"], "names": recorded["names"]}


def test_there_are_enough() -> None:
    assert len(LINES) > 300
