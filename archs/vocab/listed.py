"""The token list of a GGUF file, on which every vocabulary type builds."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gguf.constants import Keys, TokenType
from numpy.typing import NDArray

from quants.errors import VocabularyError

from ..schema import ADDED_TOKENS, NORMALIZER
from ..small_files import parse_json
from ..typed_json import ListOf, Place, shown
from .absent import FORMER, assumed_flag, assumed_id
from .checked import TOKEN
from .files import AddedToken
from .named import Named, named

BYTE = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class TokenList:
    """The token list of a file. metadata: all its keys; arrays may be lazy sequences or numpy arrays."""

    metadata: Mapping[str, Any]

    @property
    def model(self) -> str:
        """Return `tokenizer.ggml.model`."""
        return str(self.metadata.get(Keys.Tokenizer.MODEL))

    @cached_property
    def size(self) -> int:
        return len(self._array(Keys.Tokenizer.LIST))

    @cached_property
    def texts(self) -> list[str]:
        return [as_text(item) for item in self._array(Keys.Tokenizer.LIST)]

    @cached_property
    def stored_types(self) -> NDArray[np.int32]:
        """Return gguf.TokenType of each token as stored; without stored types all NORMAL, except bytes, known by their
        texts.
        """
        if Keys.Tokenizer.TOKEN_TYPE not in self.metadata:
            has_bytes = self.model in ("llama", "gemma4", "plamo2")
            types = [TokenType.BYTE if has_bytes and BYTE.fullmatch(text) else TokenType.NORMAL for text in self.texts]
            return np.array(types, np.int32)
        return self._of_each(Keys.Tokenizer.TOKEN_TYPE, "types", np.int32)

    @cached_property
    def types(self) -> NDArray[np.int32]:
        """Return gguf.TokenType of each token; the names of some decide theirs."""
        types: NDArray[np.int32] = self.stored_types.copy()
        for row, type in self.named.types.items():
            types[row] = type
        return types

    @cached_property
    def named(self) -> Named:
        """Return the types and ends decided by token names."""
        return named(self)

    @cached_property
    def added(self) -> dict[int, AddedToken]:
        """Return added tokens with properties that the list lacks; for some even the text."""
        entries = ListOf(TOKEN).read(parse_json(self.metadata.get(ADDED_TOKENS, "[]")), Place(ADDED_TOKENS))
        return {entry["id"]: AddedToken.of(entry) for entry in entries}

    @property
    def normalizes(self) -> bool:
        """Return whether a text goes through a normalizer that may create or destroy matches of added tokens."""
        return self.model == "bert" or NORMALIZER in self.metadata

    @cached_property
    def matched_normalized(self) -> dict[int, AddedToken]:
        """Return the added tokens matched in normalized text: non-special ones that are marked so. The vocabulary's
        model matches them.
        """
        return {number: token for number, token in self.added.items() if token.is_normalized} if self.normalizes else {}

    @cached_property
    def unlisted(self) -> dict[int, str]:
        """Return the texts of added tokens for which the list only has an unused row."""
        unused = set((self.types == TokenType.UNUSED).nonzero()[0].tolist())
        return {number: token.content for number, token in self.added.items() if number in unused}

    @cached_property
    def scores(self) -> NDArray[np.float32]:
        """Return the score of each token; all 0 if the file has none."""
        if Keys.Tokenizer.SCORES not in self.metadata:
            return np.zeros(self.size, np.float32)
        return self._of_each(Keys.Tokenizer.SCORES, "scores", np.float32)

    def as_bytes(self, number: int, spelled: Callable[[str], bytes]) -> bytes:
        """Return the bytes of a token; spelled: the bytes of a normal token's text."""
        text, type = self.unlisted.get(number, self.texts[number]), self.types[number]
        if type == TokenType.BYTE:
            return byte_of(text)
        return spelled(text) if type == TokenType.NORMAL else text.encode()

    def _array(self, key: str) -> Sequence[Any]:
        if key not in self.metadata:
            raise VocabularyError(f"the file's vocabulary lacks {key}")
        return self.metadata[key]  # type: ignore[no-any-return]

    def _of_each(self, key: str, what: str, dtype: Any) -> NDArray[Any]:
        numbers = np.asarray(self._array(key), dtype)
        if len(numbers) < self.size:
            raise VocabularyError(f"the file has {self.size} tokens, but {what} for {len(numbers)}")
        return numbers[: self.size]  # rows after the last token belong to none

    def merges(self) -> Sequence[Any]:
        """Return the merges. Kimi K2's files may have none: its words are whole tokens or bytes."""
        if self.metadata.get(Keys.Tokenizer.PRE) == "kimi-k2" and Keys.Tokenizer.MERGES not in self.metadata:
            return ()
        return self._array(Keys.Tokenizer.MERGES)

    def block(self, key: str) -> Any:
        """Return a block of tokenizer.json stored under a key; None for none. Raises VocabularyError."""
        try:
            content = parse_json(self.metadata.get(key, "null"))
        except ValueError as error:
            raise VocabularyError(f"{key} is not JSON: {error}") from error
        if content is not None and not isinstance(content, dict):
            raise VocabularyError(f"{key} is {shown(content)}; a block of tokenizer.json was expected")
        return content

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return a flag from the metadata. default: if absent; None: the default of `absent.py`."""
        usual = assumed_flag(self.metadata, key) if default is None else default
        return bool(self.metadata.get(key, usual))

    def stated(self, key: str) -> int | None:
        """Return a token id from the metadata, by the key or its former name; None if absent or past the vocabulary."""
        number = self.metadata.get(key, self.metadata.get(FORMER.get(key, "")))
        return int(number) if number is not None and 0 <= int(number) < self.size else None

    def id(self, key: str) -> int | None:
        """Return a token id from the metadata, or its default (`absent.py`)."""
        stated = self.stated(key)
        return assumed_id(self.metadata, key, self.size) if stated is None else stated


def as_text(item: Any) -> str:
    """Return a string of the file, which may be bytes that are not UTF-8."""
    return item if isinstance(item, str) else bytes(item).decode("utf-8", "backslashreplace")


def byte_of(text: str) -> bytes:
    """Return the byte of a token like <0x0A>. Raises VocabularyError for another text."""
    try:
        return bytes.fromhex(text[3:5]) if text[:3] == "<0x" and text[5:] == ">" else bytes((-1,))
    except ValueError as error:
        raise VocabularyError(f"token {text!r} is of type byte, but not written as <0x00>") from error
