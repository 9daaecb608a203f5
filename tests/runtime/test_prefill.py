"""Prompts in pieces, beside the same text at once, and shared by several texts."""

import numpy as np
import pytest

from quants.errors import OptionError
from runtime import prefill
from runtime.kv_cache import CacheType
from runtime.prefill import Prefill, PrefillOptions, chunk_size

from .graph.test_compiled import FAMILIES, TOKENS, model_of


@pytest.mark.parametrize("family", FAMILIES)
def test_in_pieces_it_is_the_text_at_once(family: str, monkeypatch: pytest.MonkeyPatch):
    """Pieces of a size for texts, and a last one for single tokens."""
    monkeypatch.setattr(prefill, "CHUNK", 22)
    model = model_of(family, threads=2)
    cache, logits, seconds = Prefill(model, TOKENS).read()
    whole = model_of(family, precision="exact").forward(TOKENS)
    assert logits.shape == (1, whole.shape[1])
    assert np.abs(logits[0] - whole[-1]).max() < 1e-5 * whole.std()
    assert cache.length == len(TOKENS)
    assert seconds > 0


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_texts_get_caches_of_their_own(kind: CacheType):
    model = model_of("wide heads")
    shared = Prefill(model, TOKENS, PrefillOptions(kind, texts=2, more=30))
    (one, logits, first), (two, again, second) = shared.read(), shared.read()
    assert first > 0 == second
    assert again is logits
    assert one.room == two.room == len(TOKENS) + 30
    before = model.forward([3], one)
    model.forward([5, 6], two)
    one.truncate(len(TOKENS))
    np.testing.assert_array_equal(model.forward([3], one), before)
    with pytest.raises(ValueError, match="more texts ask"):
        shared.read()


def test_an_interruption_lets_it_begin_anew(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefill, "CHUNK", 22)

    def interrupted(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    model = model_of("llama")
    broken = Prefill(model, TOKENS, PrefillOptions(texts=2, progress=interrupted))
    with pytest.raises(KeyboardInterrupt):
        broken.read()
    broken.progress = None
    np.testing.assert_array_equal(broken.read()[1], Prefill(model, TOKENS).read()[1])


def test_progress_is_told():
    told: list[tuple[int, int]] = []
    options = PrefillOptions(progress=lambda done, total: told.append((done, total)))
    Prefill(model_of("llama"), TOKENS, options).read()
    assert told == [(0, len(TOKENS)), (len(TOKENS), len(TOKENS))]


def test_room_is_not_taken_for_tokens_that_may_never_come():
    cache, *_ = Prefill(model_of("llama"), TOKENS[:4], PrefillOptions(more=10**12)).read()
    assert cache.room == 4 + prefill.ROOM_AT_ONCE


def test_texts_whose_length_turns_them_pass_at_once():
    keys = {"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 2000}
    model = model_of("llama", keys=keys, more={f"rope_factors_{each}.weight": (8,) for each in ("long", "short")})
    assert model.network.scaling is not None
    assert model.network.scaling.type == "longrope"
    assert [chunk_size(model, tokens) for tokens in (1500, 3000)] == [prefill.CHUNK, 3000]


def test_a_cache_of_a_type_that_there_is_not():
    with pytest.raises(OptionError, match="'q4_0' is not known"):
        Prefill(model_of("llama"), TOKENS, PrefillOptions("q4_0"))  # type: ignore[arg-type]
