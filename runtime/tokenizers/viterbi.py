"""PLaMo's tokenizer: the tokens with the greatest sum of scores, searched from the end of a text to its beginning.

Source: the tokenizer's code of PLaMo 2's checkpoints.
"""

from collections.abc import Sequence
from functools import cache, cached_property

import numpy as np
from gguf.constants import TokenType

from archs.vocab.listed import TokenList, byte_of

UNIT = 1e4  # scores are summed as multiples of its inverse
UNKNOWN = 10_000_000  # cost of a character without a token; it becomes bytes
TEXT = (TokenType.NORMAL, TokenType.USER_DEFINED)  # types that text can become


class BestTokens:
    """Model "plamo2"."""

    def __init__(self, tokens: TokenList) -> None:
        self.tokens = tokens
        self._bytes_of = cache(lambda number: tokens.as_bytes(number, str.encode))

    def encode(self, text: str, start: bool) -> list[int]:
        costs, lengths = [0] * (len(text) + 1), [1] * len(text)
        for i in range(len(text) - 1, -1, -1):
            best = costs[i + 1] + UNKNOWN
            for length in self._lengths.get(text[i], ()):
                entry = self._tokens.get(text[i : i + length])
                if entry is not None and i + length <= len(text) and (cost := costs[i + length] + entry[0]) < best:
                    best, lengths[i] = cost, length
            costs[i] = best
        return self._along(text, lengths)

    def _along(self, text: str, lengths: list[int]) -> list[int]:
        ids, at = list[int](), 0
        while at < len(text):
            piece = text[at : at + lengths[at]]
            if piece in self._tokens:
                ids.append(self._tokens[piece][1])
            else:
                ids += [self._of_byte.get(byte, 0) for byte in piece.encode()]
            at += lengths[at]
        return ids

    def piece(self, number: int) -> bytes:
        return self._bytes_of(number)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._bytes_of, ids)).decode("utf-8", "replace")

    @cached_property
    def _tokens(self) -> dict[str, tuple[int, int]]:
        """Return cost and id of the tokens that text can become; of equal texts the last."""
        usual = np.isin(self.tokens.types, TEXT).nonzero()[0].tolist()
        texts, scores = self.tokens.texts, self.tokens.scores
        return {texts[i]: (-round(float(scores[i]) * UNIT), i) for i in usual if texts[i]}

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """Return token lengths by the first character, the longest first, which wins at equal costs."""
        by_first: dict[str, set[int]] = {}
        for text in self._tokens:
            by_first.setdefault(text[0], set()).add(len(text))
        return {first: sorted(lengths, reverse=True) for first, lengths in by_first.items()}

    @cached_property
    def _of_byte(self) -> dict[int, int]:
        numbers = (self.tokens.types == TokenType.BYTE).nonzero()[0].tolist()
        return {byte_of(self.tokens.texts[i])[0]: i for i in numbers}
