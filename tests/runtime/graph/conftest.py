"""A small model of the zoo."""

from __future__ import annotations

import pytest

import gguftools

from ... import zoo, zoo_build


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph")
    zoo_build.build(zoo.ZOO, "qwen2", folder / "qwen2")
    return gguftools.load(folder / "qwen2")
