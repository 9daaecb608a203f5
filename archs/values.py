"""Values as GGUF files store them: their types, the type of plain data, and equality."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf.constants import GGUFValueType as ValueType
from numpy.typing import NDArray

from quants.errors import OptionError
from quants.spelling import quote

ARRAY_TYPES = {
    ValueType.UINT8: "u1",
    ValueType.INT8: "i1",
    ValueType.UINT16: "u2",
    ValueType.INT16: "i2",
    ValueType.UINT32: "u4",
    ValueType.INT32: "i4",
    ValueType.FLOAT32: "f4",
    ValueType.BOOL: "u1",
    ValueType.UINT64: "u8",
    ValueType.INT64: "i8",
    ValueType.FLOAT64: "f8",
}
UNSIGNED = (ValueType.UINT8, ValueType.UINT16, ValueType.UINT32, ValueType.UINT64)
INTEGERS = (*UNSIGNED, ValueType.INT8, ValueType.INT16, ValueType.INT32, ValueType.INT64)
FLOATS = (ValueType.FLOAT32, ValueType.FLOAT64)
INTEGER_TYPES = (ValueType.UINT32, ValueType.INT32, ValueType.INT64, ValueType.UINT64)  # the first that fits
SORTS: dict[ValueType, tuple[tuple[Any, ...], str]] = {  # the Python types stored as a type, and their name in messages
    ValueType.STRING: ((str, bytes), "a string"),
    ValueType.BOOL: ((bool, np.bool_), "true or false"),
    **dict.fromkeys(INTEGERS, ((int, np.integer), "an integer")),
    **dict.fromkeys(FLOATS, ((int, float, np.integer, np.floating), "a number")),
}
MAX_ARRAY_DEPTH = 4

__all__ = ["GgufType", "Value", "ValueType", "array_of", "is_list", "numbers", "type_of", "value_of"]


@dataclass(frozen=True)
class GgufType:
    """The type of a value, of an array with that of its items: "UINT32", "ARRAY/INT8", "ARRAY/ARRAY/STRING"."""

    type: ValueType
    items: "GgufType | None" = None

    def __str__(self) -> str:
        return self.type.name if self.items is None else f"{self.type.name}/{self.items}"

    @classmethod
    def named(cls, text: str) -> "GgufType":
        """Return the type that `str` shows as this text. Raises OptionError."""
        known, text = [each.name for each in ValueType], str(text)
        *arrays, last = text.upper().split("/")
        if last not in known or last == "ARRAY" or set(arrays) - {"ARRAY"} or len(arrays) > MAX_ARRAY_DEPTH:
            scalars = ", ".join(name for name in known if name != "ARRAY")
            hint = f"types are {scalars}, and ARRAY/ before any of them"
            raise OptionError(f"{text!r} is not a type of values", hint=hint)
        gguf_type = cls(ValueType[last])
        for _ in arrays:
            gguf_type = cls(ValueType.ARRAY, gguf_type)
        return gguf_type


@dataclass(frozen=True, eq=False)
class Value:
    """A metadata value; equal to another that is stored as the same type and bytes.

    data: int, float, bool or str (bytes where a string is not UTF-8); for an ARRAY any sequence of those, which may
    decode its items only when asked (a reader's) or be a numpy array; for nested arrays a sequence of Values.
    element: the type of an ARRAY's items.
    """

    data: Any
    type: ValueType
    element: ValueType | None = None

    @property
    def gguf_type(self) -> GgufType:
        """Return the type; of nested arrays, that of the first item."""
        if self.type is not ValueType.ARRAY:
            return GgufType(self.type)
        if self.element is not ValueType.ARRAY:
            return array_of(GgufType(ValueType.STRING if self.element is None else self.element))
        return array_of(self.data[0].gguf_type if len(self.data) else array_of(GgufType(ValueType.STRING)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Value):
            return NotImplemented
        a, b = self.data, other.data
        if (self.type, self.element) != (other.type, other.element):
            return False
        if a is b:
            return True
        if self.type is not ValueType.ARRAY:
            return bool(_stored(a, self.type) == _stored(b, self.type))
        if len(a) != len(b):
            return False
        if self.element in (None, ValueType.ARRAY, ValueType.STRING):
            return bool(a == b) if type(a) is type(b) else list(a) == list(b)
        return numbers(a, self.element).tobytes() == numbers(b, self.element).tobytes()

    __hash__ = None  # type: ignore[assignment]


def _stored(data: Any, type: ValueType) -> Any:
    """Return a scalar that equals another if files store the same: floats by their bits, so that NaN is NaN."""
    if type not in FLOATS:
        return data
    with np.errstate(over="ignore"):
        return np.asarray(data).astype(ARRAY_TYPES[type]).tobytes()


def array_of(items: GgufType) -> GgufType:
    return GgufType(ValueType.ARRAY, items)


def is_list(data: Any) -> bool:
    return hasattr(data, "__len__") and not isinstance(data, (str, bytes, Mapping))


def value_of(key: str, data: Any, gguf_type: GgufType | None) -> Value:
    """Return plain data as a value of the given type (None: the one that follows from the data). Raises OptionError.

    data: may also be a function that gives it, from the type.
    """
    try:
        data = data(gguf_type) if callable(data) else data
        return _fitted(data, gguf_type or type_of(data))
    except (ValueError, TypeError, OverflowError) as error:
        raise OptionError(f"{key!r} is {gguf_type}: {error}" if gguf_type else f"{key!r}: {error}") from error


def type_of(data: Any) -> GgufType:
    """Return the type of plain data: for integers the first of UINT32, INT32, INT64, UINT64 that holds them all.

    Raises ValueError if there is none.
    """
    if isinstance(data, np.ndarray) and data.ndim:
        codes = {code: each for each, code in ARRAY_TYPES.items() if each is not ValueType.BOOL}
        codes["b1"] = ValueType.BOOL
        code = f"{data.dtype.kind}{data.dtype.itemsize}"
        if data.ndim != 1 or code not in codes:
            raise ValueError(f"an array of {data.dtype} of shape {data.shape} has no GGUF type")
        return array_of(GgufType(codes[code]))
    return array_of(_common_type(data)) if is_list(data) else _common_type([data])


def _common_type(items: Any) -> GgufType:
    if not len(items):
        raise ValueError("an empty array could be of any type")
    for name in (ValueType.BOOL, ValueType.STRING):
        if not _misfit(items, name):
            return GgufType(name)
    if all(map(is_list, items)):
        return type_of(items[0])
    if not _misfit(items, ValueType.INT64):
        for each in INTEGER_TYPES:
            limits = np.iinfo(ARRAY_TYPES[each])
            if limits.min <= min(items) and max(items) <= limits.max:
                return GgufType(each)
        raise ValueError("no GGUF type holds integers of more than 64 bits")
    if not _misfit(items, ValueType.FLOAT32):
        return GgufType(ValueType.FLOAT32)
    raise ValueError("the items are of different types" if len(items) > 1 else f"{quote(items[0])} has no GGUF type")


def _misfit(items: Any, type: ValueType) -> str:
    """Return what is wrong with the first item that cannot be stored as a type; "" if all can."""
    sorts, what = SORTS[type]
    flags = type is ValueType.BOOL
    wrong = (item for item in items if not isinstance(item, sorts) or (isinstance(item, bool) and not flags))
    return next((f"{quote(item)} is not {what}" for item in wrong), "")


def _check_items(items: Any, type: ValueType) -> None:
    if wrong := _misfit(items, type):
        raise ValueError(wrong)
    if type is not ValueType.STRING:
        numbers(items, type)


def _fitted(data: Any, gguf_type: GgufType) -> Value:
    """Raise ValueError if the data is of another type or out of range."""
    type, items = gguf_type.type, gguf_type.items
    if items is None:
        data = data[()] if isinstance(data, np.ndarray) and not data.ndim else data
        if type is not ValueType.STRING and not np.isscalar(data):
            raise ValueError(f"{quote(data)} is not a single value")
        _check_items([data], type)
        plain = bool if type is ValueType.BOOL else int if type in INTEGERS else float
        return Value(data if type is ValueType.STRING else plain(data), type)
    if not is_list(data):
        raise ValueError(f"{quote(data)} is not an array")
    if items.items is not None:
        return Value([_fitted(item, items) for item in data], type, ValueType.ARRAY)
    if isinstance(data, np.ndarray):
        data = numbers(data, items.type)
        return Value(data.view(np.bool_) if items.type is ValueType.BOOL else data, type, items.type)
    _check_items(data, items.type)
    return Value(data, type, items.type)


def numbers(data: Any, element: ValueType) -> NDArray[Any]:
    """Return items of a number array in their stored type. Raises ValueError for one that the type can't hold."""
    wanted = np.dtype(ARRAY_TYPES[element])
    if not len(data):
        return np.empty(0, wanted)
    if element in INTEGERS and not isinstance(data, np.ndarray):
        # numpy would turn a list of small and very large integers into floats
        if not all(isinstance(item, (int, np.integer)) for item in data):
            raise ValueError("an item is not an integer")
        _check_limits(min(data), max(data), wanted)
        return np.array(data, wanted)
    given = np.asarray(data)
    if given.ndim != 1 or given.dtype.kind not in "biuf":
        raise ValueError(f"a list of numbers was expected, not {given.dtype} of shape {given.shape}")
    if element is ValueType.BOOL:
        if not np.isin(given, (0, 1)).all():
            raise ValueError("an item is neither true nor false")
    elif element in INTEGERS:
        if given.dtype.kind not in "iu":
            raise ValueError(f"items of type {given.dtype} are not integers")
        _check_limits(given.min(), given.max(), wanted)
    else:
        with np.errstate(over="ignore"):
            stored = given.astype(wanted)
        if (np.isinf(stored) & np.isfinite(given)).any():
            raise ValueError(f"an item is too large for {element.name}")
        return stored
    return given.astype(wanted)


def _check_limits(lowest: Any, highest: Any, wanted: np.dtype[Any]) -> None:
    limits = np.iinfo(wanted)
    if int(lowest) < limits.min or int(highest) > limits.max:
        if lowest == highest:
            raise ValueError(f"{lowest} is not from {limits.min} to {limits.max}")
        raise ValueError(f"items from {lowest} to {highest}; {limits.min} to {limits.max} are allowed")
