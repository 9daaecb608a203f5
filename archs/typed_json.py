"""Read JSON by type: a table gives the type of each key; an error names file, key, value and what was expected."""

import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quants.errors import GgufToolsError, ModelError

MAX_WHOLE = 2**32 - 1  # of GGUF's UINT32
MAX_NUMBER, MIN_NUMBER = 1e30, 1e-30  # in float32 with room for products
INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}  # as transformers 5 writes them: {"__float__": "Infinity"}
UNBOUNDED = 1 << 30  # characters, items
SHOWN = 60  # characters of a wrong value in a message


@dataclass(frozen=True)
class Place:
    """The location of a value. limits: the largest counts by limit name (`Whole.limit`) that the rest of a model
    allows.
    """

    file: str
    key: str = ""
    error: type[GgufToolsError] = ModelError
    limits: Mapping[str, int] = field(default_factory=dict)

    def inside(self, key: object) -> "Place":
        return Place(self.file, f"{self.key}.{key}" if self.key else str(key), self.error, self.limits)

    def wrong(self, value: object, expected: str, hint: str | None = None) -> GgufToolsError:
        return self.error(f'{self.file}: "{self.key}" is {shown(value)}; {expected} was expected', hint)


def shown(value: object) -> str:
    """Return a JSON value in one short line, without formatting the rest of a long one."""
    if isinstance(value, dict):
        value = dict(itertools.islice(value.items(), SHOWN))
    text = json.dumps(value[:SHOWN] if isinstance(value, (list, str)) else value, default=repr)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


class FieldType:
    """The type of a key's value: `read` returns the value to use, or raises the error for its place."""

    expected = "anything"
    types: tuple[type, ...] = (object,)

    def read(self, value: Any, at: Place) -> Any:
        """Return the value itself, if it has the JSON type."""
        if not self.takes(value):
            raise at.wrong(value, self.expected)
        return value

    def takes(self, value: object) -> bool:
        """Return whether the value has the JSON type, whatever it contains."""
        return isinstance(value, self.types) and (bool in self.types or not isinstance(value, bool))


@dataclass(frozen=True)
class Whole(FieldType):
    """An integer, also if written as 2.0. limit: another bound, by its name in the place's limits."""

    minimum: int = 0
    maximum: int = MAX_WHOLE
    limit: str = ""
    types = (int, float)

    @property
    def expected(self) -> str:  # type: ignore[override]
        return f"a whole number of at least {self.minimum}"

    def read(self, value: Any, at: Place) -> int:
        number = int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value
        if type(number) is not int or number < self.minimum:
            raise at.wrong(value, self.expected)
        limit = min(self.maximum, at.limits.get(self.limit, self.maximum))
        if number > limit:
            why = "the checkpoint's tensors go with no more" if limit < self.maximum else None
            raise at.wrong(value, f"a whole number from {self.minimum} to {limit}", why)
        return number


@dataclass(frozen=True)
class Number(FieldType):
    """A finite number, as float. infinite: infinity is allowed."""

    minimum: float = -MAX_NUMBER
    maximum: float = MAX_NUMBER
    infinite: bool = False
    types = (int, float)

    @property
    def expected(self) -> str:  # type: ignore[override]
        if self.minimum == MIN_NUMBER:
            return "a number above 0" + (f", at most {self.maximum:g}" if self.maximum != MAX_NUMBER else "")
        return f"a number from {self.minimum:g} to {self.maximum:g}"

    def read(self, value: Any, at: Place) -> float:
        number = value
        if self.infinite and isinstance(value, dict):
            number = INFINITIES.get(str(value.get("__float__")))
        unbounded = self.infinite and isinstance(number, float) and math.isinf(number)
        if type(number) not in (int, float) or not (unbounded or self.minimum <= number <= self.maximum):
            raise at.wrong(value, self.expected)
        return float(number)


class Flag(FieldType):
    """True or false."""

    expected = "true or false"
    types = (bool,)


@dataclass(frozen=True)
class Text(FieldType):
    """A string, one of `choices` if there are any, or one that fully matches the regular expression `form`.

    max_length: maximum number of characters.
    """

    choices: tuple[str, ...] = ()
    form: str = ""
    max_length: int = UNBOUNDED
    types = (str,)

    @property
    def expected(self) -> str:  # type: ignore[override]
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        bound = (
            f" like {self.form}"
            if self.form
            else f" of at most {self.max_length} characters" * (self.max_length < UNBOUNDED)
        )
        return f"a string{bound}"

    def read(self, value: Any, at: Place) -> str:
        text: str = super().read(value, at)
        chosen = not self.choices or text in self.choices
        if len(text) > self.max_length or not chosen or (self.form and not re.fullmatch(self.form, text)):
            raise at.wrong(value, self.expected)
        return text


@dataclass(frozen=True)
class ListOf(FieldType):
    """A list of one type. length: number of items, if fixed; max_items: their maximum number; per_layer: one for each
    layer (the place's limit "of layers", once it is known).
    """

    item: FieldType
    length: int | None = None
    per_layer: bool = False
    max_items: int = UNBOUNDED
    types = (list,)

    @property
    def expected(self) -> str:  # type: ignore[override]
        count = f" of {self.length}" if self.length else f" of at most {self.max_items}" * (self.max_items < UNBOUNDED)
        return f"a list{count} ({self.item.expected} each)"

    def read(self, value: Any, at: Place) -> list[Any]:
        if not isinstance(value, list) or len(value) > self.max_items or self.length not in (None, len(value)):
            raise at.wrong(value, self.expected)
        exact = at.limits.get("of layers") if self.per_layer else None
        if exact is not None and len(value) != exact:
            raise at.error(f'{at.file}: "{at.key}" has {len(value)} entries; one a layer, {exact}, was expected')
        return [self.item.read(each, at.inside(i)) for i, each in enumerate(value)]


@dataclass(frozen=True)
class MapOf(FieldType):
    """An object with values of one type. keys: a regular expression that each key matches."""

    item: FieldType
    keys: str = ""
    types = (dict,)
    expected = "an object"

    def read(self, value: Any, at: Place) -> dict[str, Any]:
        for key in super().read(value, at):
            if self.keys and not re.fullmatch(self.keys, key):
                raise at.error(f'{at.file}: "{at.key}" has the key {shown(key)}; one like {self.keys} was expected')
        return {key: self.item.read(each, at.inside(key)) for key, each in value.items()}


@dataclass(frozen=True)
class Fields(FieldType):
    """An object whose known keys have these types, or null; other keys are left as they are."""

    table: Mapping[str, FieldType]
    types = (dict,)
    expected = "an object"

    def read(self, value: Any, at: Place) -> dict[str, Any]:
        return {
            key: self.table[key].read(each, at.inside(key)) if key in self.table and each is not None else each
            for key, each in super().read(value, at).items()
        }


@dataclass(frozen=True)
class Either(FieldType):
    """Any of several types: the first that has the value's JSON type."""

    choices: tuple[FieldType, ...]

    @property
    def expected(self) -> str:  # type: ignore[override]
        return ", or ".join(each.expected for each in self.choices)

    def read(self, value: Any, at: Place) -> Any:
        for each in self.choices:
            if each.takes(value):
                return each.read(value, at)
        raise at.wrong(value, self.expected)


class Anything(FieldType):
    """Any value."""

    types = (object, bool)


class Unread(FieldType):
    """A key that others of its type have, and that is ignored here."""

    def read(self, value: Any, at: Place) -> None:
        return None


def read_fields(
    content: object, table: Mapping[str, FieldType], file: str, error: type[GgufToolsError] = ModelError
) -> dict[str, Any]:
    """Return the object of a JSON file, its known keys checked. Raises `error` for a value of another type."""
    if not isinstance(content, dict):
        raise error(f"{file} holds {shown(content)}; an object was expected")
    return Fields(table).read(content, Place(file, error=error))
