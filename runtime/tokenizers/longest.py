"""RWKV's tokenizer: always the longest token that matches the rest of the text.

Source: BlinkDL's `rwkv_tokenizer.py`.
"""

from collections.abc import Sequence
from functools import cache, cached_property

from gguf.constants import Keys, TokenType

from archs.vocab.listed import TokenList
from archs.vocab.rwkv import spelled_bytes


class LongestTokens:
    """Model "rwkv"."""

    def __init__(self, tokens: TokenList) -> None:
        self.tokens = tokens
        self._bytes_of = cache(lambda number: tokens.as_bytes(number, spelled_bytes))

    def encode(self, text: str, start: bool) -> list[int]:
        data, at, ids = text.encode(), 0, list[int]()
        while at < len(data):
            lengths = self._lengths.get(data[at : at + 2], ())
            length = next((each for each in lengths if data[at : at + each] in self._numbers), 1)
            ids.append(self._numbers.get(data[at : at + length], self._unknown))
            at += length
        return ids

    def piece(self, number: int) -> bytes:
        return self._bytes_of(number)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._bytes_of, ids)).decode("utf-8", "replace")

    @cached_property
    def _numbers(self) -> dict[bytes, int]:
        """Return the tokens that text can become; of equal tokens the last."""
        normal = (self.tokens.types == TokenType.NORMAL).nonzero()[0].tolist()
        return {spelled: number for number in normal if (spelled := self._bytes_of(number))}

    @cached_property
    def _lengths(self) -> dict[bytes, list[int]]:
        """Return the lengths of tokens of two or more bytes, by the first two bytes, the longest first."""
        by_start: dict[bytes, set[int]] = {}
        for spelled in self._numbers:
            if len(spelled) > 1:
                by_start.setdefault(spelled[:2], set()).add(len(spelled))
        return {first: sorted(lengths, reverse=True) for first, lengths in by_start.items()}

    @cached_property
    def _unknown(self) -> int:
        """Return the token for a byte that the vocabulary lacks."""
        return self.tokens.id(Keys.Tokenizer.UNK_ID) or 0
