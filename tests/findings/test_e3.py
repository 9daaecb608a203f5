"""E3: the tensors of Nomic Embed are exported with a prefix that its checkpoints don't have."""

from __future__ import annotations

import json

from ..archs.checkpoints import FAMILIES
from .exports import exported


def test_names_are_those_of_the_checkpoint(tmp_path):
    _, shapes = exported("nomic-bert", tmp_path)
    spec = json.loads((FAMILIES / "nomic-bert" / "spec.json").read_text(encoding="utf-8"))
    assert shapes == {name: tuple(shape) for name, _, shape, *_ in spec["tensors"]}
