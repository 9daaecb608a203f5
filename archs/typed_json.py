"""Read JSON by type: a table gives the type of each key; an error names file, key, value and what was expected."""

import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quants.errors import GgufToolsError, ModelError

WHOLE_MOST = 2**32 - 1  # of GGUF's UINT32
NUMBER_MOST, NUMBER_LEAST = 1e30, 1e-30  # in float32 with room for products
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


class Kind:
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
class Whole(Kind):
    """An integer, also if written as 2.0. limit: another bound, by its name in the place's limits."""

    least: int = 0
    most: int = WHOLE_MOST
    limit: str = ""
    types = (int, float)

    @property
    def expected(self) -> str:  # type: ignore[override]
        return f"a whole number of at least {self.least}"

    def read(self, value: Any, at: Place) -> int:
        number = int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value
        if type(number) is not int or number < self.least:
            raise at.wrong(value, self.expected)
        most = min(self.most, at.limits.get(self.limit, self.most))
        if number > most:
            why = "the checkpoint's tensors go with no more" if most < self.most else None
            raise at.wrong(value, f"a whole number from {self.least} to {most}", why)
        return number


@dataclass(frozen=True)
class Number(Kind):
    """A finite number, as float. infinite: infinity is allowed."""

    least: float = -NUMBER_MOST
    most: float = NUMBER_MOST
    infinite: bool = False
    types = (int, float)

    @property
    def expected(self) -> str:  # type: ignore[override]
        if self.least == NUMBER_LEAST:
            return "a number above 0" + (f", at most {self.most:g}" if self.most != NUMBER_MOST else "")
        return f"a number from {self.least:g} to {self.most:g}"

    def read(self, value: Any, at: Place) -> float:
        number = value
        if self.infinite and isinstance(value, dict):
            number = INFINITIES.get(str(value.get("__float__")))
        unbounded = self.infinite and isinstance(number, float) and math.isinf(number)
        if type(number) not in (int, float) or not (unbounded or self.least <= number <= self.most):
            raise at.wrong(value, self.expected)
        return float(number)


class Flag(Kind):
    """True or false."""

    expected = "true or false"
    types = (bool,)


@dataclass(frozen=True)
class Text(Kind):
    """A string, one of `choices` if there are any, or one that fully matches the regular expression `form`.

    most: maximum number of characters.
    """

    choices: tuple[str, ...] = ()
    form: str = ""
    most: int = UNBOUNDED
    types = (str,)

    @property
    def expected(self) -> str:  # type: ignore[override]
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        bound = f" like {self.form}" if self.form else f" of at most {self.most} characters" * (self.most < UNBOUNDED)
        return f"a string{bound}"

    def read(self, value: Any, at: Place) -> str:
        text: str = super().read(value, at)
        chosen = not self.choices or text in self.choices
        if len(text) > self.most or not chosen or (self.form and not re.fullmatch(self.form, text)):
            raise at.wrong(value, self.expected)
        return text


@dataclass(frozen=True)
class ListOf(Kind):
    """A list of one type. length: number of items, if fixed; most: their maximum number; per_layer: one for each layer
    (the place's limit "of layers", once it is known).
    """

    item: Kind
    length: int | None = None
    per_layer: bool = False
    most: int = UNBOUNDED
    types = (list,)

    @property
    def expected(self) -> str:  # type: ignore[override]
        count = f" of {self.length}" if self.length else f" of at most {self.most}" * (self.most < UNBOUNDED)
        return f"a list{count} ({self.item.expected} each)"

    def read(self, value: Any, at: Place) -> list[Any]:
        if not isinstance(value, list) or len(value) > self.most or self.length not in (None, len(value)):
            raise at.wrong(value, self.expected)
        exact = at.limits.get("of layers") if self.per_layer else None
        if exact is not None and len(value) != exact:
            raise at.error(f'{at.file}: "{at.key}" has {len(value)} entries; one a layer, {exact}, was expected')
        return [self.item.read(each, at.inside(i)) for i, each in enumerate(value)]


@dataclass(frozen=True)
class MapOf(Kind):
    """An object with values of one type. keys: a regular expression that each key matches."""

    item: Kind
    keys: str = ""
    types = (dict,)
    expected = "an object"

    def read(self, value: Any, at: Place) -> dict[str, Any]:
        for key in super().read(value, at):
            if self.keys and not re.fullmatch(self.keys, key):
                raise at.error(f'{at.file}: "{at.key}" has the key {shown(key)}; one like {self.keys} was expected')
        return {key: self.item.read(each, at.inside(key)) for key, each in value.items()}


@dataclass(frozen=True)
class Fields(Kind):
    """An object whose known keys have these types, or null; other keys are left as they are."""

    table: Mapping[str, Kind]
    types = (dict,)
    expected = "an object"

    def read(self, value: Any, at: Place) -> dict[str, Any]:
        return {
            key: self.table[key].read(each, at.inside(key)) if key in self.table and each is not None else each
            for key, each in super().read(value, at).items()
        }


@dataclass(frozen=True)
class Either(Kind):
    """Any of several types: the first that has the value's JSON type."""

    kinds: tuple[Kind, ...]

    @property
    def expected(self) -> str:  # type: ignore[override]
        return ", or ".join(kind.expected for kind in self.kinds)

    def read(self, value: Any, at: Place) -> Any:
        for kind in self.kinds:
            if kind.takes(value):
                return kind.read(value, at)
        raise at.wrong(value, self.expected)


class Anything(Kind):
    """Any value."""

    types = (object, bool)


class Unread(Kind):
    """A key that others of its type have, and that is ignored here."""

    def read(self, value: Any, at: Place) -> None:
        return None


def read_fields(
    content: object, table: Mapping[str, Kind], file: str, error: type[GgufToolsError] = ModelError
) -> dict[str, Any]:
    """Return the object of a JSON file, its known keys checked. Raises `error` for a value of another type."""
    if not isinstance(content, dict):
        raise error(f"{file} holds {shown(content)}; an object was expected")
    return Fields(table).read(content, Place(file, error=error))
