"""DRY: repetitions by a plain count, and breakers of real vocabularies beside llama.cpp's."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gguftools.io.gguf.reader import open_gguf
from runtime.sampling.candidates import candidates
from runtime.sampling.dry import breakers_of, dry, repetitions, since_breaker
from runtime.tokenizer import Tokenizer, tokenizer_from_metadata

from ...verify.sampling import BREAKERS

CASES = json.loads(BREAKERS.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizers(shared: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("vocabularies")

    @cache
    def tokenizer(name: str) -> tuple[Tokenizer, list[bytes]]:
        path = folder / f"{name}.gguf"
        path.write_bytes(lzma.decompress((shared / f"vocabs/{name}.gguf.xz").read_bytes()))
        made = tokenizer_from_metadata(open_gguf(path).metadata)
        return made, made.pieces

    return tokenizer


@pytest.mark.parametrize("name", sorted({case["vocabulary"] for case in CASES}))
def test_penalties_with_breakers_are_those_of_llama(name, tokenizers):
    tokenizer, pieces = tokenizers(name)
    found = cache(lambda texts: breakers_of(texts, pieces, lambda text: tokenizer.encode(text, add_special=False)))
    for case in CASES:
        if case["vocabulary"] == name:
            of = candidates(np.zeros(len(pieces), np.float32))
            left = dry(of, np.array(case["history"]), 1.0, 1.75, 2, found(tuple(case["breakers"])))
            less = {int(token): float(-left.logits[token]) for token in np.flatnonzero(left.logits)}
            assert less == pytest.approx({int(token): amount for token, amount in case["less"].items()}), case


def alike(history, place: int, most: int) -> int:
    """How many tokens up to a place equal the latest."""
    count = 0
    while count < min(place + 1, most) and history[place - count] == history[-1 - count]:
        count += 1
    return count


@pytest.mark.parametrize("kinds", [1, 2, 5])
def test_repetitions_by_a_plain_count(kinds):
    generator = np.random.default_rng(kinds)
    for size in (1, 2, 3, 30):
        history = generator.integers(0, kinds, size)
        for most in (0, 1, 4, 100):
            assert repetitions(history, most).tolist() == [alike(history, place, most) for place in range(size - 1)]


def test_the_last_breaker_counts():
    breakers = {7: [(), (1, 2)], 8: [(9,)]}
    assert since_breaker(np.array([3, 7, 4, 5]), breakers) == 2
    assert since_breaker(np.array([3, 7, 1, 2, 5]), breakers) == 1  # the longer of two
    assert since_breaker(np.array([3, 8, 4, 5]), breakers) == 4  # no tail follows
    assert since_breaker(np.array([3, 8, 9, 5]), breakers) == 1
    assert since_breaker(np.array([3, 8]), breakers) == 2


def test_breakers_of_a_small_vocabulary():
    pieces = [b"a", b" b", b"ba", b"a b", b"\xe3\x80", b"\x82", b"\xe3", b"b"]
    found = breakers_of([" b", "ba", "", "\u3002"], pieces, lambda text: [pieces.index(text.encode())])
    assert found == {1: [(), (0,)], 2: [()], 3: [(), (0,)], 4: [(5,)], 7: [(0,)]}  # no token is the middle byte alone


def test_a_breaker_is_never_punished():
    of = candidates(np.zeros(6, np.float32))
    history = np.array([0, 1, 2, 0, 1])
    assert dry(of, history, 1.0, 2.0, 2).logits[2] == -1
    assert dry(of, history, 1.0, 2.0, 2, {2: [()]}).logits[2] == 0


def test_long_repetitions_do_not_overflow():
    left = dry(candidates(np.zeros(3, np.float32)), np.zeros(3000, np.int64), 1.0, 4.0, 2)
    assert np.isfinite(left.logits).all()
    assert left.logits[0] < -1e30
