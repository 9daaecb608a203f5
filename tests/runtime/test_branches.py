"""Texts that begin alike, computed together, give what each gives alone."""

from __future__ import annotations

import numpy as np
import pytest

from gguftools.models.model import open
from runtime.branches import Branches, Tree
from runtime.model import RunningModel

from ..conftest import DATA

E2E = DATA / "golden" / "e2e"


def test_where_tokens_are():
    trees = Tree([1, 2], ([3], [], [4, 5])), Tree([], ([6, 7],))
    branches = Branches(trees)
    assert branches.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert branches.positions.tolist() == [0, 1, 2, 2, 3, 0, 1]
    assert branches.starts == [0, 5]
    assert [trees[0].offset(2, position) for position in range(4)] == [0, 1, 3, 4]


@pytest.mark.parametrize("name", ["tiny-dense-f16.gguf", "tiny-moe-f16.gguf"])
def test_as_each_text_alone(name):
    source = open(E2E / name)
    net = RunningModel(source.metadata, source.tensors, precision="exact")
    assert net.branches
    rng = np.random.default_rng(1)
    trees = tuple(
        Tree(rng.integers(5, 100, trunk).tolist(), tuple(rng.integers(5, 100, n).tolist() for n in lengths))
        for trunk, lengths in ((7, (3, 1, 6)), (1, (4,)), (0, (2, 5)), (3, (0, 2)), (4, (0,)))
    )
    branches = Branches(trees)
    logits = net.branched_logits(branches).float32()
    assert len(logits) == len(branches.tokens) == sum(tree.tokens for tree in trees)
    for start, tree in zip(branches.starts, trees, strict=True):
        for i, branch in enumerate(tree.branches):
            text = [*tree.trunk, *branch]
            rows = [start + tree.offset(i, position) for position in range(len(text))]
            np.testing.assert_allclose(logits[rows], net.logits(text), atol=1e-4)
