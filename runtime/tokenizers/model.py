"""What every kind of vocabulary has to answer."""

from collections.abc import Sequence
from typing import Protocol


class TokenizerModel(Protocol):
    """Text to ids and back, for one kind of vocabulary.

    add_bos, add_eos: whether tokens go around a text where the file does not say.
    """

    add_bos: bool
    add_eos: bool

    def encode(self, text: str, start: bool) -> list[int]:
        """Ids of a piece of text without special tokens. start: the piece begins the whole text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids in a row; control tokens as they are written."""
