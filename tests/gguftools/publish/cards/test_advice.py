"""What is advised follows from what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from gguftools.publish.cards.advice import GIB, WORST, advice, choices
from gguftools.publish.cards.folder import PublishedFile
from gguftools.publish.report.results import Curve, Measured

NO_MODEL: Any = None  # which advice does not read


def measured(type: str, size: int, kl: float, same: float) -> PublishedFile:
    figures = {"kl_divergence.mean": kl, "kl_divergence.standard_error": kl / 100, "same_top": same}
    curve = Curve([], [])
    found = Measured(f"m-{type}.gguf", type, figures, False, {}, curve, curve, [], [], {})
    return PublishedFile(f"m-{type}.gguf", "model", NO_MODEL, size, 1, found)


@pytest.mark.parametrize(
    ("kl", "same", "words"),
    [
        (0.0005, 0.98, "hardly any difference from the original"),
        (0.0005, 0.95, "very close to the original"),
        (0.009, 0.6, "answers differ often"),  # an even distribution: small divergences, other tokens at the top
        (0.02, 0.92, "close to the original"),
        (0.05, 0.85, "answers differ now and then"),
        (2.0, 0.99, WORST),
    ],
)
def test_words_hold_for_divergence_and_for_top_tokens(kl: float, same: float, words: str) -> None:
    file = measured("Q4_K_M", 10, kl, same)
    assert advice(file, [file]) == words


def test_a_file_that_a_smaller_one_beats_is_named_and_never_chosen() -> None:
    good, bad = measured("Q5_K_M", 5 * GIB, 0.01, 0.95), measured("Q5_0", 6 * GIB, 0.02, 0.93)
    small = measured("Q4_K_M", 4 * GIB, 0.03, 0.9)
    files = [bad, good, small]
    assert advice(bad, files) == "Q5_K_M is smaller and closer"
    chosen = choices(files, {each.name: each.size for each in files}.__getitem__)
    assert [(each.memory, each.file.type) for each in chosen] == [(6, "Q5_K_M")]
    less = choices(files, lambda name: 2 * {each.name: each.size for each in files}[name])
    assert [(each.memory, each.file.type) for each in less] == [(10, "Q4_K_M"), (12, "Q5_K_M")]
