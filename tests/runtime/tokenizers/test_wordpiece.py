"""WordPiece reads U+2581 in a text as any other character."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ...archs.vocab.small_tokenizers import tokenizer

TEXTS = ["a▁b", "a▁", "x▁▁y", "ab ▁▁ cd", "▁a▁"]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_library(text: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    ours = tokenizer("wordpiece", tmp_path)
    theirs = Tokenizer.from_file(str(tmp_path / "wordpiece" / "tokenizer.json"))
    assert ours.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False).ids


def test_a_continuation_that_looks_like_a_word(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    def change(content: dict[str, Any]) -> None:
        content["model"]["vocab"]["##▁a"] = 304

    ours = tokenizer("wordpiece", tmp_path, {"tokenizer.json": change})
    theirs = Tokenizer.from_file(str(tmp_path / "wordpiece" / "tokenizer.json"))
    for text in ("a▁a", "a a▁ab", "▁a"):
        assert ours.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False).ids
