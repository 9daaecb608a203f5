"""The schema of metadata keys: type, bounds and meaning of every key that is written or read.

`schema.json` has a line for each; conversion, runtime, editing, validation and the docs (`docs/keys.md`) all read this
one table. NAME stands for the architecture's name, * for anything.
"""

import fnmatch
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .values import FLOATS, INTEGERS, GgufType, Value, ValueType, array_of

U32, U64, I32, F32, BOOL, STRING = (
    ValueType[each] for each in ("UINT32", "UINT64", "INT32", "FLOAT32", "BOOL", "STRING")
)
INTEGER_ARRAYS = (U32, I32)  # llama.cpp reads lists of integers of either type
MAX_VALUES = {U32: (1 << 32) - 1, I32: (1 << 31) - 1}
ITEMS = {F32: "f", BOOL: "b"}  # `dtype.kind` of array items other than integers
TINY = 1e-30  # the minimum of values "above 0"


@dataclass(frozen=True)
class Key:
    """A metadata key.

    minimum, maximum: bounds of its value; of numbers that memory is allocated by there is always a maximum. array:
    always an array. per_layer: a number, or an array with an item for each layer; longer: or for more layers than the
    file has. shaping: shapes of tensors depend on it. flags: items of its array may also be booleans. infinite: may be
    infinite. any_width: programs read integers of any width. choices: all valid values. known: values in use; others
    are not refused. unread: read by llama.cpp, but not by the runtime here. role: of the special token whose id it is.
    meaning: one phrase. added: when we write it and llama.cpp's converter does not. absent: the default where a file
    lacks it, "=KEY" for another key's value, None for none. old: its names in older files.
    """

    type: ValueType
    minimum: float | None = None
    maximum: float | None = None
    array: bool = False
    per_layer: bool = False
    longer: bool = False
    shaping: bool = False
    flags: bool = False
    infinite: bool = False
    any_width: bool = False
    choices: tuple[str | int, ...] = ()
    known: tuple[str | int, ...] = ()
    unread: bool = False
    role: str = ""
    meaning: str = ""
    added: str = ""
    absent: Any = None
    old: tuple[str, ...] = ()

    @property
    def gguf_type(self) -> GgufType:
        """Return the type of a single value, or of the array where the key is always one."""
        return array_of(GgufType(self.type)) if self.array else GgufType(self.type)

    def list_type(self, data: Any) -> GgufType:
        """Return the type of a list with an item for each layer; integers as in llama.cpp's converter."""
        flags = self.flags and len(data) and all(isinstance(item, (bool, np.bool_)) for item in data)
        items = BOOL if flags else I32 if self.type is U32 else self.type
        return array_of(GgufType(items))

    def allows(self, value: Value) -> bool:
        """Return whether the value has exactly the type that programs read the key as."""
        stored, is_list = value.element or value.type, value.type is ValueType.ARRAY
        either = is_list and (stored is BOOL or (self.type in INTEGER_ARRAYS and stored in INTEGER_ARRAYS))
        return self.is_like(value) and (self.any_width or stored is self.type or either)

    def counts(self, items: int, layers: int, mtp_layers: int = 0) -> bool:
        """Return whether `items` items are one for each layer; mtp_layers: MTP layers at the end, which lists may leave
        out.
        """
        return items in (layers, layers - mtp_layers) or (self.longer and items > layers)

    def is_like(self, value: Value) -> bool:
        """Return whether the value has a compatible type: integers of any width are integers, floats of any width
        floats.
        """
        if value.type is not ValueType.ARRAY:
            return not self.array and self._alike(value.type)
        return (self.array or self.per_layer) and (self._alike(value.element) or (self.flags and value.element is BOOL))

    def _alike(self, stored: ValueType | None) -> bool:
        return self.type is stored or any(self.type in same and stored in same for same in (INTEGERS, FLOATS))

    def wrong(self, data: Any) -> str | None:
        """Return what is wrong with a key's plain data: "is 0; 1 or more is expected". None: nothing.

        Integers of any width are integers, and may stand for floats.
        """
        if not isinstance(data, (int, float, str, bytes, np.generic)):
            return self._wrong_items(data) if self.array or self.per_layer else f"is a list; {self} is expected"
        if self.array or not self._is_sort(data):
            return f"is {data!r}; {'a list' if self.array else self} is expected"
        if not isinstance(data, str):
            data = data.item() if isinstance(data, np.generic) else data
            if isinstance(data, float) and (math.isnan(data) or (math.isinf(data) and not self.infinite)):
                return f"is {data}; a finite number is expected"
            if self.minimum is not None and data < self.minimum:
                return f"is {data}; {'more than 0' if self.minimum == TINY else f'{self.minimum} or more'} is expected"
            if data > (maximum := MAX_VALUES.get(self.type, math.inf) if self.maximum is None else self.maximum):
                return f"is {data}; at most {maximum} is expected"
        known = ", ".join(map(str, self.choices))
        return f"is {data!r}; known are {known}" if self.choices and data not in self.choices else None

    def _is_sort(self, data: object) -> bool:
        if self.type is STRING:
            return isinstance(data, str)
        if self.type is BOOL:
            return isinstance(data, (bool, np.bool_, int))
        whole = isinstance(data, (int, np.integer)) and not isinstance(data, bool)
        return whole or (self.type is F32 and isinstance(data, (float, np.floating)))

    def _wrong_items(self, data: Any) -> str | None:
        if self.type is STRING:
            return None  # lists of texts are decoded only when asked for
        items = np.asarray(data) if isinstance(data, (list, tuple, np.ndarray)) else np.empty(0, object)
        sorts = ITEMS.get(self.type, "") + ("b" if self.flags else "") + "iu"
        if items.ndim != 1 or (items.size and items.dtype.kind not in sorts):
            return f"has items of another type; {self} is expected"
        if items.dtype.kind == "f" and (np.isnan(items).any() or not (self.infinite or np.isfinite(items).all())):
            return "has items that are not finite"
        if self.minimum is not None and items.size and items.min() < min(self.minimum, 0):
            return f"has the item {items.min()}; {min(self.minimum, 0):g} or more is expected"
        maximum = MAX_VALUES.get(self.type, math.inf) if self.maximum is None else self.maximum
        if items.size and items.max() > maximum:
            return f"has the item {items.max()}; at most {maximum} is expected"
        return None

    def __str__(self) -> str:
        """Describe the expected value."""
        each = {STRING: "a text", BOOL: "true or false", F32: "a number"}.get(self.type, "a whole number")
        return f"a list of {each.partition(' ')[2]}s" if self.array else each


def _key(
    type: str,
    choices: Sequence[str | int] = (),
    known: Sequence[str | int] = (),
    old: Sequence[str] = (),
    **fields: Any,
) -> Key:
    array, _, item = type.rpartition("/")
    return Key(ValueType[item], array=bool(array), choices=tuple(choices), known=tuple(known), old=tuple(old), **fields)


TABLE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_bytes())
KEYS = {name: _key(**fields) for name, fields in TABLE.items()}
OF_MODELS = {name.removeprefix("NAME."): key for name, key in KEYS.items() if name.startswith("NAME.")}
MODEL = {name: key for name, key in OF_MODELS.items() if not key.unread}
PATTERNS = [
    (re.compile(fnmatch.translate(re.sub(r"^NAME\.", "*.", name))), key) for name, key in KEYS.items() if "*" in name
]
SPECIAL_TOKENS = {key.role: name for name, key in KEYS.items() if key.role}  # the keys of their ids
ELSEWHERE = {name: key for name, key in KEYS.items() if name.startswith(("xielu.", "powerinfer.", "diffusion."))}
ADDED_TOKENS = "tokenizer.huggingface.added_tokens"
NORMALIZER, PRE_TOKENIZER, POST_PROCESSOR = (
    f"tokenizer.huggingface.{block}" for block in ("normalizer", "pre_tokenizer", "post_processor")
)
PREPEND_SCHEME = "tokenizer.huggingface.prepend_scheme"
TOKENS, TOKEN_TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"


def find(key: str, architecture: str | None = None) -> Key | None:
    """Return the schema of a key; None for an unknown one. architecture: whose keys count; None: any."""
    if known := KEYS.get(key):
        return known
    name = key.partition(".")[0] if architecture is None else architecture
    if name and key.startswith(f"{name}.") and (known := OF_MODELS.get(key.removeprefix(f"{name}."))):
        return known
    return next((known for pattern, known in PATTERNS if pattern.match(key)), None)
