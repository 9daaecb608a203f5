"""Special tokens strip the white space that the `tokenizers` library strips, which is not Python's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archs.vocab.files import AddedToken
from runtime.tokenizers.special import Splitter

from ...archs.vocab.small_tokenizers import tokenizer

CONTROLS = ("\x1c", "\x1d", "\x1e", "\x1f")


@pytest.mark.parametrize("character", CONTROLS)
def test_separators_are_no_white_space(character: str) -> None:
    splitter = Splitter([(7, AddedToken("<m>", lstrip=True, rstrip=True))])
    text = f"a {character} <m> {character} b"
    assert list(splitter.split(text)) == [(0, f"a {character}"), 7, (len(text) - 3, f"{character} b")]


def stripping(content: dict[str, Any]) -> None:
    content["added_tokens"][3].update(lstrip=True, rstrip=True, special=False)


@pytest.mark.parametrize("character", CONTROLS)
def test_ids_are_those_of_the_library(character: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    text = f"a {character} <tool_call> {character} b"
    changes = {"tokenizer.json": stripping, "tokenizer_config.json": lambda content: content.clear()}
    ours = tokenizer("bpe", tmp_path, changes)
    theirs = Tokenizer.from_file(str(tmp_path / "bpe" / "tokenizer.json"))
    assert ours.encode(text) == theirs.encode(text).ids
