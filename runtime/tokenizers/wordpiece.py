"""WordPiece (BERT), on the `tokenizers` library. Words begin with U+2581 in the file, continuations with nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from gguf.constants import Keys, TokenType

from .model import Tokens

__all__ = ["WordPieces"]


class WordPieces:
    """Model "bert"."""

    add_bos = True
    add_eos = True

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def encode(self, text: str, start: bool) -> list[int]:
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        from tokenizers import decoders

        text: str = decoders.WordPiece().decode([self._text(number) for number in ids])
        return text

    def _text(self, number: int) -> str:
        """A token as vocab.txt has it."""
        text = self.tokens.texts[number]
        if self.tokens.types[number] != TokenType.NORMAL:
            return text
        return text[1:] if text.startswith("▁") else "##" + text

    @cached_property
    def _library(self) -> Any:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        unknown = self.tokens.id(Keys.Tokenizer.UNK_ID)
        vocabulary = {self._text(number): number for number in range(len(self.tokens.texts))}
        tokenizer = Tokenizer(
            models.WordPiece(vocabulary, unk_token="[UNK]" if unknown is None else self._text(unknown))
        )
        tokenizer.normalizer = normalizers.BertNormalizer(
            lowercase=self.tokens.flag("tokenizer.ggml.normalizer.lowercase", True),
            strip_accents=self.tokens.metadata.get("tokenizer.ggml.normalizer.strip_accents"),
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer
