"""Gemma 4's assistants: what they say is what transformers' do, and texts stay the same.

tests/data/drafts/gemma4-assistant-truth.json: recorded by `tests.verify.drafts` from transformers.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import gguftools
from quants.errors import GgufToolsError
from runtime.kv_cache import CACHE_TYPES
from runtime.sampling.parameters import Sampling
from runtime.speculation.assistants import Assistant, AssistantDrafter
from runtime.speculation.draft_files import reader_of
from runtime.speculation.drafts import Drawing
from runtime.speculation.parameters import Drafting
from tests.archs import checkpoints
from tests.archs.drafts import DRAFTS, build

from .toys import logits_asked, primed


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and its assistant."""
    folder = tmp_path_factory.mktemp("assistant")
    draft, target = build("gemma4-assistant", folder)
    gguftools.convert(target, folder / "target.gguf", "f32")
    gguftools.convert(draft, folder / "draft.gguf", "f32")
    return folder / "target.gguf", folder / "draft.gguf"


def test_logits_are_those_of_transformers(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch):
    truth = json.loads((DRAFTS / "gemma4-assistant-truth.json").read_text(encoding="utf-8"))
    model, file = gguftools.load(pair[0]), gguftools.open(pair[1])
    assistant = reader_of(model, file.metadata, file.tensors)
    assert isinstance(assistant, Assistant)
    sampler = primed(Sampling(temperature=0))
    drafter = AssistantDrafter(assistant, Drawing(sampler, Drafting(3), model.vocabulary_size))
    asked = logits_asked(drafter.drawing, monkeypatch)
    cache, text, seen = model.new_cache(), truth["text"], 0
    drafter.look(cache)
    for each in truth["drafts"]:
        part = each["part"]
        drafter.follow(model.lazy_forward(text[seen : part - 1], cache).x)
        asked.clear()
        drafter.propose(text[:part], 3, sampler.state)
        wanted = np.array(each["logits"])
        assert np.abs(np.array(asked) - wanted).max() < 1e-4 * wanted.std()
        seen = part - 1


def test_greedy_texts_are_those_without_a_draft(pair: tuple[Path, Path]):
    model = gguftools.open(pair[0])
    for kind in CACHE_TYPES[:2]:
        plain, drafted = (
            model.generate([7, 130, 22], Sampling(temperature=0), max_tokens=16, draft=draft, cache_type=kind)
            for draft in (None, pair[1])
        )
        assert [each.token for each in drafted] == [each.token for each in plain]
        assert drafted.speculated is not None
        assert drafted.speculated.drafted > 8


def test_what_is_kept_is_read_as_it_is(pair: tuple[Path, Path]):
    model = gguftools.load(pair[0])
    caches = [model.new_cache(kind) for kind in CACHE_TYPES[:2]]
    for cache in caches:
        model.forward([7, 130, 22], cache)
    for one, other in zip(*(cache.read(3) for cache in caches), strict=True):
        assert one.shape == other.shape == (3, *one.shape[1:])
        np.testing.assert_allclose(one, other, atol=1e-2)


def test_what_does_not_fit_is_refused(pair: tuple[Path, Path], tmp_path: Path):
    model, file = gguftools.load(pair[0]), gguftools.open(pair[1])
    assert not gguftools.validate(pair[1]).problems
    name = "gemma4-assistant"
    wrong = [
        ({f"{name}.embedding_length_out": 32}, "nextn.pre_projection.weight"),
        ({f"{name}.attention.key_length": 64, f"{name}.attention.value_length": 64}, "blk.1.attn_q.weight"),
        ({f"{name}.block_count": 3}, "has 2 items; the model has 3 layers"),
        ({f"{name}.attention.head_count": "x"}, "attention.head_count"),
    ]
    for keys, said in wrong:
        with pytest.raises(GgufToolsError, match=said):
            reader_of(model, {**file.metadata, **keys}, file.tensors)
    checkpoints.build("gemma3n", tmp_path / "gemma3n")
    gguftools.convert(tmp_path / "gemma3n", tmp_path / "other.gguf", "f32")
    with pytest.raises(GgufToolsError, match="was made for another model than one of gemma3n"):
        reader_of(gguftools.load(tmp_path / "other.gguf"), file.metadata, file.tensors)
