"""What is recorded of files without keys is what llama.cpp computes (see `tests.verify.absent_keys`)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests import absent_keys, absent_vocabularies

from .absent_keys import Reference, cases_of, compiled
from .absent_vocabularies import Cutter

# Folders of llama.cpp's source, and of its libraries.
SOURCE, LIBRARIES = (os.environ.get(f"GGUFTOOLS_LLAMA_CPP{part}", "") for part in ("", "_LIBRARIES"))
MODELS = ("gemma3", "gemma2-46-layers", "deepseek-v2-first", "minicpm", "grok1", "modernbert", "t5")
CLOSE = 1e-4  # of the std: processors sum in another order

pytestmark = [
    pytest.mark.verify,
    pytest.mark.skipif(not SOURCE or not LIBRARIES, reason="set GGUFTOOLS_LLAMA_CPP and GGUFTOOLS_LLAMA_CPP_LIBRARIES"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(Path(SOURCE), Path(LIBRARIES), tmp_path_factory.mktemp("absent_keys"))


@pytest.mark.parametrize("name", MODELS)
def test_recorded_logits_are_llama_cpps(program, name, tmp_path):
    found = cases_of(absent_keys.descriptions()[name], Reference(program, tmp_path))
    recorded = absent_keys.cases()[name]
    assert [(each.drop, each.outcome) for each in found] == [(each.drop, each.outcome) for each in recorded]
    for ours, theirs in zip(recorded, found, strict=True):
        if ours.rows is not None:
            assert np.abs(ours.rows - theirs.rows).max() < CLOSE * theirs.std, ours.name


def test_recorded_ids_are_llama_cpps(program, tmp_path):
    vocabulary, cases = absent_vocabularies.recorded()["bert"]
    assert Cutter(program, tmp_path).cut(vocabulary, cases) == cases
