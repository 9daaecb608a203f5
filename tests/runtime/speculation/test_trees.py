"""Drafts that branch: what each token sees, and what is kept of them."""

from pathlib import Path

import numpy as np
import pytest

import gguftools
from runtime.model import RunningModel
from runtime.speculation.acceptance import Candidate
from runtime.speculation.trees import DraftTree, chain, comb
from tests import zoo_build
from tests.archs import checkpoints
from tests.zoo import ZOO

TEXT = np.arange(20, 60)
PARENTS = (-1, 0, 0, 1, 1, 2, 5)
DRAFTED = [7, 8, 9, 10, 11, 12, 13]
PATHS = [[0, 1, 3], [0, 1, 4], [0, 2, 5, 6]]


def model_of(entry: str, folder: Path) -> RunningModel:
    if (ZOO / entry).exists():
        zoo_build.build(ZOO, entry, folder / entry)
    else:
        checkpoints.build(entry, folder / entry)
    gguftools.convert(folder / entry, folder / "f32.gguf", "f32")
    return gguftools.load(folder / "f32.gguf")


@pytest.mark.parametrize(
    ("entry", "kind"),
    [("olmoe", "f32"), ("gemma3", "f16"), *((each, "f32") for each in ("gemma3", "gpt-oss-bf16", "llama4"))],
)
def test_a_token_sees_the_text_and_those_it_follows_on(entry: str, kind: str, tmp_path: Path, shared: Path):
    model, close = model_of(entry, tmp_path), 1e-4 if kind == "f32" else 0.01
    assert model.trees
    cache = model.new_cache(kind)
    model.forward(TEXT, cache)
    found = model.lazy_forward(DRAFTED, cache, PARENTS).float32()
    for path in PATHS:
        alone = model.new_cache(kind)
        model.forward(TEXT, alone)
        wanted = model.forward([DRAFTED[place] for place in path], alone)
        assert np.abs(found[path] - wanted).max() < close * wanted.std()
    cache.keep_rows(len(TEXT), np.array(PATHS[2]))  # as if that path stood
    assert cache.length == alone.length
    after, wanted = model.forward([5, 6], cache), model.forward([5, 6], alone)
    assert np.abs(after - wanted).max() < close * wanted.std()


@pytest.mark.parametrize("entry", ["mamba", "bloom", "gemma2", "deepseek-v2-lite", "phi3-longrope"])
def test_models_that_check_chains_alone(entry: str, tmp_path: Path, shared: Path):
    assert not model_of(entry, tmp_path).trees


def test_shapes():
    one, two, three = (Candidate(token) for token in (1, 2, 3))
    assert chain([one, two]) == DraftTree((one, two), (-1, 0))
    tree = comb([[one, two], [three]])
    assert (tree.parents, tree.depths, tree.is_chain) == ((-1, -1, 0), [0, 0, 1], False)
    assert [tree.children(each) for each in (-1, 0, 1)] == [[0, 1], [2], []]
    assert DraftTree().is_chain
