"""Vocabularies that lack a key cut texts as llama.cpp does: each key of each kind, left out in turn."""

from __future__ import annotations

import pytest

from tests import absent_vocabularies
from tests.absent_vocabularies import compare


@pytest.mark.parametrize("name", sorted(absent_vocabularies.recorded()))
def test_vocabulary_without_each_key(name: str) -> None:
    found = list(compare(*absent_vocabularies.recorded()[name]))
    bad = [each for each in found if each.verdict in ("differs", "crashed", "refused here")]
    assert not [f"{each.case.name}: {each.verdict}, {each.problem}" for each in bad]


def test_every_kind_is_compared() -> None:
    kinds = {vocabulary.keys["tokenizer.ggml.model"][-1] for vocabulary, _ in absent_vocabularies.recorded().values()}
    assert kinds == {"bert", "gemma4", "gpt2", "llama", "plamo2", "rwkv", "t5"}
