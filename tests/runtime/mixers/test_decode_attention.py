"""A few tokens behind a cache in models that are no list of operations, beside the same text at once."""

import numpy as np
import pytest

from runtime.kv_cache import CacheType
from runtime.mixers import decode_attention

from ..graph.test_compiled import FAMILIES, HEADS, TOKENS, in_steps, model_of


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each attention took that read the cache as it is kept."""
    seen, attend = [], decode_attention.attend_few

    def count(forward, *rest):  # type: ignore[no-untyped-def]
        seen.append(forward.length)
        return attend(forward, *rest)

    monkeypatch.setattr("runtime.mixers.self_attention.attend_few", count)
    return seen


def without_steps(family: str, threads: int = 1, **more: object):  # type: ignore[no-untyped-def]
    model = model_of(family, threads=threads, **more)
    model.__dict__["_compiled"] = None
    return model


@pytest.mark.parametrize("sizes", [[1], [8, 3, 60, 1], [66, 5]])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_text_at_once(family: str, sizes: list[int], calls: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decode_attention, "MIN_WORK", 1)  # so that threads share
    whole = model_of(family, precision="exact").forward(TOKENS)
    found = in_steps(without_steps(family, 2), TOKENS, sizes)
    tolerance = 1e-3 if family.startswith("wide") else 1e-5  # the larger products of texts are of 16 bits
    assert np.abs(found - whole).max() < tolerance * whole.std()
    assert calls


@pytest.mark.parametrize(("kind", "family"), [("f16", "llama"), ("q8_0", "wide windows")])
def test_rounded_caches_are_those_of_texts(kind: CacheType, family: str, calls: list[int]):
    found, wanted = ([], [])
    for results, split in ((found, [1]), (wanted, [20])):
        model = without_steps(family)
        cache = model.new_cache(kind)
        first = model.forward(TOKENS[:40], cache)
        results += [first, in_steps(model, TOKENS[:60], split, cache)]
    assert len(calls) == 2 * 20
    assert np.abs(found[1] - wanted[1]).max() < 2e-2 * wanted[1].std()
    assert np.abs(found[1] - wanted[1]).mean() < 2e-3 * wanted[1].std()


def test_others_take_the_usual_way(calls: list[int]):
    sinks = {f"blk.{i}.attn_sinks.weight": (HEADS,) for i in range(2)}
    model = without_steps("llama", more=sinks)
    assert np.abs(in_steps(model, TOKENS[:9], [1]) - model.forward(TOKENS[:9])).max() < 1e-4
    assert not calls
