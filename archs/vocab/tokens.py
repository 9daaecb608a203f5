"""The token list of a vocabulary under construction: text, type and score of every row of the embedding."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from gguf.constants import Keys, TokenType

from quants.errors import VocabularyError

from ..metadata import Metadata
from .files import AddedToken, TokenizerFiles

UNUSED_SCORE = -10000.0
ADDED_SCORE = -1000.0
# like special tokens; the bars may be one
LOOKS_SPECIAL = re.compile(r"<(?=\|).*(?<=\|)>|<(?=｜).*(?<=｜)>|<unused.*>|<pad>|<mask>|<2mass>|\[@BOS@\]", re.DOTALL)
NAMED_TYPES = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)  # which the pieces of a text don't have
OTHER = "the tokenizer belongs to another checkpoint, or its embedding was not resized"  # a hint


@dataclass
class Tokens:
    """texts, types (gguf.TokenType), scores: one of each for a row of the embedding."""

    texts: list[str]
    types: list[int]
    scores: list[float]

    @staticmethod
    def unused(rows: int, files: TokenizerFiles | None = None, last: int = -1) -> "Tokens":
        """Return rows that no token of the vocabulary uses yet.

        Raises VocabularyError if the embedding has no row for the last token of tokenizer.json.
        """
        if files is not None and last >= rows:
            file = files.folder / "tokenizer.json"
            raise VocabularyError(f"{file} has a token {last}, but the embedding only {rows} rows", OTHER)
        return Tokens([f"[PAD{i}]" for i in range(rows)], [int(TokenType.UNUSED)] * rows, [UNUSED_SCORE] * rows)

    def put(self, row: int, text: str, type: int, score: float = 0.0) -> None:
        """Set a row; one past the embedding is unreachable and left out."""
        if row < len(self.texts):
            self.texts[row], self.types[row], self.scores[row] = text, int(type), score

    def put_added(self, added: Mapping[int, AddedToken], score: float = 0.0) -> None:
        for row, token in added.items():
            self.put(row, plain_text(token), type_of_added(token), score)

    def write(self, metadata: Metadata, model: str, pre: str, scores: bool) -> None:
        metadata[Keys.Tokenizer.MODEL] = model
        if pre:
            metadata[Keys.Tokenizer.PRE] = pre
        metadata[Keys.Tokenizer.LIST] = self.texts
        if scores:
            metadata[Keys.Tokenizer.SCORES] = np.array(self.scores, np.float32)
        metadata[Keys.Tokenizer.TOKEN_TYPE] = np.array(self.types, np.int32)


def missing_bytes(texts: Iterable[str | bytes]) -> list[int]:
    """Return the bytes without a token, if others have one; Gemma's tokenizer.json has the tab itself in place of
    one.
    """
    known = set(texts)
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in known and not (byte == 9 and "\t" in known)]
    return missing if len(missing) < 256 else []


def type_of_added(token: AddedToken) -> TokenType:
    """Return the type of an added token: control token or user-visible text. Published tokenizers mark some control
    tokens as ordinary (command-r, deepseek-coder, gemma).
    """
    control = token.special or LOOKS_SPECIAL.fullmatch(token.content)
    return TokenType.CONTROL if control else TokenType.USER_DEFINED


def plain_text(token: AddedToken) -> str:
    """Return how an added token's text is stored: with plain spaces unless it is a control token."""
    return token.content if type_of_added(token) is TokenType.CONTROL else token.content.replace("▁", " ")
