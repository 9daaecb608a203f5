"""Tokenize a text with a file's tokenizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quants.arguments import PathLike, wrong

from ..metadata.prompts import check_unicode
from .model import Model, opened_gguf, path_of


@dataclass(frozen=True)
class Tokens:
    """A text's tokens.

    ids: their numbers in the vocabulary; pieces: the bytes of each. prompt_count: how many tokens `generate` reads of
    this text, with those in front of it and control tokens that are written in it.
    """

    file: Path
    ids: list[int]
    pieces: list[bytes]
    prompt_count: int

    def as_dict(self, count_only: bool = False) -> dict[str, Any]:
        """Return plain data; bytes of a piece that are not UTF-8 become U+FFFD. count_only: without ids and pieces."""
        counts = {"file": str(self.file), "count": len(self.ids), "prompt_count": self.prompt_count}
        if count_only:
            return counts
        return counts | {"ids": self.ids, "pieces": [piece.decode("utf-8", "replace") for piece in self.pieces]}


def tokenize(source: PathLike | Model, text: str, *, special: bool = False) -> Tokens:
    """Tokenize a text with a file's tokenizer.

    source: a GGUF file, any shard of a split set, its URL, or a Model. special: parse control tokens written in the
    text, and add those that the file says stand around texts (BOS, EOS).
    Raises OptionError for what is no text, VocabularyError for a text that is not Unicode or a vocabulary that is
    missing or unknown, FileError.
    """
    from runtime.generation import prompt_ids

    if not isinstance(text, str):
        raise wrong("text", text, "a text")
    check_unicode(text)
    tokenizer = opened_gguf(source).tokenizer
    ids = tokenizer.encode(text, add_special=special, parse_special=special)
    pieces = [tokenizer.piece(number) for number in ids]
    return Tokens(path_of(source), ids, pieces, len(prompt_ids(tokenizer, text)))
