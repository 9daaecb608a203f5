"""What can be done to metadata: small operations, each of which checks and applies itself."""

import re
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from gguf.constants import Keys, TokenType

from archs.metadata import GgufType, Metadata
from archs.schema import SPECIAL_TOKENS, TOKEN_TYPES, TOKENS
from archs.values import value_of
from quants.errors import GgufToolsError, OptionError, VocabularyError
from quants.spelling import did_you_mean, quote

from .checks import removal_problem
from .text import ArgumentText

ITEM = re.compile(r"(.+)\[(\d{1,15})\]", re.DOTALL)
ORDINARY = (TokenType.NORMAL, TokenType.BYTE, TokenType.UNUSED)


@dataclass
class Conduct:
    """How operations are applied. force: do what the model cannot have, too. warnings: what the user should hear."""

    force: bool = False
    warnings: list[str] = field(default_factory=list)

    def refuse(self, error: GgufToolsError) -> None:
        if not self.force:
            raise error
        self.warnings.append(str(error))


class Operation(Protocol):
    """One change of metadata."""

    def apply(self, metadata: Metadata, conduct: Conduct) -> None:
        """Change the metadata. Raises OptionError, VocabularyError for what cannot be done."""


@dataclass(frozen=True)
class Set:
    """Store a value: plain data, or a Value. type: "UINT32", "ARRAY/INT8"; else as the key has it, or the schema.

    KEY[INDEX], where no key is called so, is an item of the array KEY, as of `SetItem`.
    """

    key: str
    value: Any
    type: str | None = None

    def apply(self, metadata: Metadata, conduct: Conduct) -> None:
        _check_key(self.key)
        if self.key not in metadata and (item := ITEM.fullmatch(self.key)):
            SetItem(item[1], int(item[2]), self.value).apply(metadata, conduct)
            return
        wanted = None if self.type is None else GgufType.named(self.type)
        try:
            metadata[self.key] = self.value if wanted is None else value_of(self.key, self.value, wanted)
        except OptionError as error:
            raise OptionError(str(error), error.hint or f"give {self.key} another `type`") from error


@dataclass(frozen=True)
class SetType:
    """Store a key's value as another type; a text is read as it."""

    key: str
    type: str

    def apply(self, metadata: Metadata, conduct: Conduct) -> None:
        _check_key(self.key)
        if self.key not in metadata:
            raise OptionError(f"there is no key {self.key!r} to give a type, and no value for it")
        data = metadata[self.key]
        Set(self.key, ArgumentText(data) if isinstance(data, str) else data, self.type).apply(metadata, conduct)


@dataclass(frozen=True)
class SetItem:
    """Store `value` as an item of the array `key`; index: counted from 0."""

    key: str
    index: int
    value: Any

    def apply(self, metadata: Metadata, conduct: Conduct) -> None:
        _check_key(self.key)
        if self.key not in metadata:
            raise OptionError(f"there is no key {self.key!r} to set an item of", did_you_mean(self.key, metadata))
        value = metadata.value(self.key)
        items = value.gguf_type.items
        if items is None or items.items is not None:
            problem = f"{self.key!r} is {value.gguf_type}; items are set of arrays of single values"
            raise OptionError(problem, f"set {self.key} as a whole")
        data = np.array(value.data) if isinstance(value.data, np.ndarray) else list(value.data)
        if not isinstance(self.index, int) or not 0 <= self.index < len(data):
            raise OptionError(f"{self.key!r} has no item {self.index}: it has {len(data)}, from 0 on")
        data[self.index] = value_of(f"{self.key}[{self.index}]", self.value, items).data
        metadata[self.key] = replace(value, data=data)


@dataclass(frozen=True)
class Remove:
    """Remove a key."""

    key: str

    def apply(self, metadata: Metadata, conduct: Conduct) -> None:
        _check_removable(self.key, metadata, conduct)
        del metadata[self.key]


@dataclass(frozen=True)
class Rename:
    """Give the key `old` the name `new`; it stays where it is."""

    old: str
    new: str

    def apply(self, metadata: Metadata, conduct: Conduct) -> None:
        _check_removable(self.old, metadata, conduct)
        _check_key(self.new)
        if self.new in metadata:
            problem = f"{self.old!r} cannot be renamed: there is a {self.new!r} already"
            raise OptionError(problem, hint=f"`remove` {self.new} first")
        values = {self.new if key == self.old else key: metadata.value(key) for key in metadata}
        metadata.clear()
        metadata.update(values)


def _check_key(key: Any) -> None:
    if not isinstance(key, str):
        raise OptionError(f"{quote(key)} was given as a key; a text was expected")
    if not key:
        raise OptionError("a key needs a name")


def _check_removable(key: str, metadata: Metadata, conduct: Conduct) -> None:
    _check_key(key)
    if key not in metadata:
        raise OptionError(f"there is no key {key!r}", did_you_mean(key, metadata))
    problem = removal_problem(key, metadata)
    if problem is not None and not conduct.force:
        raise OptionError(problem, hint="`force` does it anyway")


@dataclass(frozen=True)
class SetChatTemplate:
    """Store a chat template, Jinja text; name: of a further one. It is tried on sample conversations."""

    text: str
    name: str = ""

    @property
    def key(self) -> str:
        return f"{Keys.Tokenizer.CHAT_TEMPLATE}.{self.name}" if self.name else Keys.Tokenizer.CHAT_TEMPLATE

    def apply(self, metadata: Metadata, conduct: Conduct) -> None:
        Set(self.key, self.text).apply(metadata, conduct)


@dataclass(frozen=True)
class SetSpecialToken:
    """Store which token has a role ("eos"), by its text or id, which must be in the vocabulary."""

    role: str
    token: str | int

    @property
    def key(self) -> str:
        """Return the key of its id. Raises OptionError for an unknown role."""
        if self.role not in SPECIAL_TOKENS:
            hint = did_you_mean(self.role, SPECIAL_TOKENS, f"they are {', '.join(SPECIAL_TOKENS)}")
            raise OptionError(f"there is no special token {self.role!r}", hint)
        return SPECIAL_TOKENS[self.role]

    def apply(self, metadata: Metadata, conduct: Conduct) -> None:
        number = self._id(metadata)
        types = metadata.get(TOKEN_TYPES, ())
        if number < len(types) and types[number] == TokenType.NORMAL:
            warning = f"token {number}, {quote(metadata[TOKENS][number])}, is an ordinary one, not a control token"
            conduct.warnings.append(warning)
        metadata[self.key] = number

    def _id(self, metadata: Metadata) -> int:
        tokens = metadata.get(TOKENS)
        if tokens is None:
            raise VocabularyError("the file has no vocabulary to find the token in")
        if not isinstance(self.token, (int, str)):
            raise VocabularyError(f"{quote(self.token)} was given as a token; its text or its id was expected")
        if isinstance(self.token, str) and not self.token.isdecimal():
            texts, types = list(tokens), metadata.get(TOKEN_TYPES, ())
            if self.token not in texts:
                special = (text for text, type in zip(texts, types, strict=False) if type not in ORDINARY)
                hint = did_you_mean(self.token, [text for text in special if isinstance(text, str)])
                raise VocabularyError(f"no token of the vocabulary is {quote(self.token)}", hint)
            return texts.index(self.token)
        number = int(self.token)
        if not 0 <= number < len(tokens):
            raise VocabularyError(f"there is no token {number}: the vocabulary has the tokens 0 to {len(tokens) - 1}")
        return number
