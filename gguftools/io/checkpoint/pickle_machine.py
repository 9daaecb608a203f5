"""Run the pickles of PyTorch's files, without PyTorch and without calling what they name.

The machine knows the instructions that state dictionaries consist of, and the names in ALLOWED. Any other name or
instruction is refused, and so is what takes more memory than weights need. Python's own unpickler bounds neither its
stack nor its strings, and does not tell at which byte it stopped.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quants import Format
from quants.errors import FileError
from quants.spelling import quote

from ..gguf.reader import MAX_VALUES
from .dtypes import checkpoint_formats

MAX_PICKLE = 64 << 20  # bytes; a tensor takes two or three hundred
MAX_INSTRUCTIONS = 2_000_000  # a tensor takes thirty
MAX_STACK = 1 << 18  # some writers put all tensors of a dictionary there at once
MAX_KEY = 512
MAX_DIMENSIONS = 64


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split())


STORAGES = _pairs(
    "DoubleStorage=F64 FloatStorage=F32 HalfStorage=F16 BFloat16Storage=BF16 LongStorage=I64 IntStorage=I32 "
    "ShortStorage=I16 CharStorage=I8 ByteStorage=U8 BoolStorage=BOOL ComplexFloatStorage=C64 UntypedStorage=U8"
)
DTYPES = _pairs(
    "float64=F64 double=F64 float32=F32 float=F32 float16=F16 half=F16 bfloat16=BF16 int64=I64 long=I64 int32=I32 "
    "int=I32 int16=I16 short=I16 int8=I8 uint8=U8 uint16=U16 uint32=U32 uint64=U64 bool=BOOL complex64=C64 "
    "float8_e4m3fn=F8_E4M3 float8_e5m2=F8_E5M2 float8_e4m3fnuz=F8_E4M3FNUZ float8_e5m2fnuz=F8_E5M2FNUZ "
    "float8_e8m0fnu=F8_E8M0"
)
FUNCTIONS = {
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_tensor_v3"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_parameter_with_state"),
}
ALLOWED = (
    FUNCTIONS
    | {("torch", name) for name in (*STORAGES, *DTYPES)}
    | {("torch.storage", "UntypedStorage"), ("torch.storage", "TypedStorage")}
)


@dataclass(frozen=True)
class Global:
    """Name a function or type in a pickle."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Storage:
    """Describe `count` numbers of one type, stored under a key, from number `first` on."""

    key: str
    format: Format
    count: int
    first: int = 0


@dataclass(frozen=True)
class Strided:
    """Describe a tensor of a pickle: numbers of a storage, `strides` apart."""

    storage: Storage
    format: Format
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_MARK = object()


@dataclass
class PickleMachine:
    """Run a pickle on a stack. No instruction calls anything but the methods below."""

    path: Path
    data: bytes | memoryview
    position: int = 0
    end: int = 0
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    storage_formats: dict[str, Format] = field(default_factory=dict)

    def error(self, text: str, hint: str | None = None) -> FileError:
        return FileError(f"{self.path}: pickle, byte {self.position}: {text}", hint=hint)

    def run(self, position: int) -> tuple[Any, int]:
        """Run the pickle at `position`; return its value, and where the next one begins."""
        self.position, self.stack, self.memo = position, [], {}
        self.end = min(len(self.data), position + MAX_PICKLE)
        for _ in range(MAX_INSTRUCTIONS):
            code = self.take(1)[0]
            if code == STOP:
                return self.pop(), self.position
            step = INSTRUCTIONS.get(code)
            if step is None:
                raise self.error(f"instruction {bytes([code])!r} is not one that weights need")
            step(self)
            if len(self.stack) > MAX_STACK:
                raise self.error(f"it piles up {MAX_STACK:,} values, more than weights need")
        raise self.error(f"it goes on after {MAX_INSTRUCTIONS:,} instructions, more than weights need")

    def take(self, size: int) -> bytes | memoryview:
        begin = self.position
        if size > self.end - begin:
            limit = " of what weights need" if self.end < len(self.data) else ""
            raise self.error(f"{size} bytes expected, {self.end - begin} left{limit}")
        self.position = begin + size
        return self.data[begin : self.position]

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> str:
        end = bytes(self.data[self.position : self.position + 256]).find(b"\n")
        if end < 0:
            raise self.error("a name has no end")
        text = bytes(self.take(end + 1))[:-1]
        return text.decode("utf-8", "replace")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise self.error("the stack is empty")
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        for i in range(len(self.stack) - 1, -1, -1):
            if self.stack[i] is _MARK:
                items = self.stack[i + 1 :]
                del self.stack[i:]
                return items
        raise self.error("there is no mark on the stack")

    def top(self, wanted: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], wanted):
            raise self.error(f"the stack's top is not a {wanted.__name__}")
        return self.stack[-1]

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1] if self.stack else None

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise self.error(f"nothing was remembered under {index}")
        self.push(self.memo[index])

    def text(self, size: int) -> None:
        raw = bytes(self.take(size))
        try:
            self.push(raw.decode())
        except UnicodeDecodeError:
            raise self.error(f"{raw[:40]!r} is not UTF-8") from None

    def find(self, module: str, name: str) -> None:
        if (module, name) not in ALLOWED:
            hint = "loading it elsewhere might run code: take a safetensors version of the model"
            raise self.error(f"it asks for {module[:80]}.{name[:80]}, which weights don't need", hint)
        self.push(Global(module, name))

    def find_on_stack(self) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise self.error("a global's name is not a text")
        self.find(module, name)

    def set_items(self, items: list[Any]) -> None:
        target = self.top(dict)
        if len(items) % 2:
            raise self.error("a key has no value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, int)) or (isinstance(key, str) and len(key) > MAX_KEY):
                raise self.error(f"a dictionary has the key {_brief(key)}; short texts and integers are allowed")
            target[key] = value

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise self.error("something is called that is not a function")
        if (function.module, function.name) not in FUNCTIONS:
            raise self.error(f"{function} is called; weights don't need that")
        if function.name == "OrderedDict":
            if arguments:
                raise self.error("an OrderedDict is made from something")
            self.push({})
        elif function.name == "Size":
            if len(arguments) != 1 or not _are_sizes(arguments[0]):
                raise self.error(f"a size is made from {_brief(arguments)}")
            self.push(tuple(arguments[0]))
        elif function.name.startswith("_rebuild_parameter"):
            if not arguments or not isinstance(arguments[0], Strided):
                raise self.error("a parameter has no tensor")
            self.push(arguments[0])
        else:
            self.push(self.rebuild_tensor(function.name, arguments))

    def rebuild_tensor(self, name: str, arguments: tuple[Any, ...]) -> Strided:
        if len(arguments) < (7 if name == "_rebuild_tensor_v3" else 4):
            raise self.error(f"{name} is called with {len(arguments)} arguments")
        storage, offset, shape, strides = arguments[:4]
        if not isinstance(storage, Storage):
            raise self.error("a tensor has no storage")
        if not _is_size(offset) or not _are_sizes(shape) or not _are_sizes(strides) or len(shape) != len(strides):
            sizes = f"offset {_brief(offset)}, shape {_brief(shape)} and strides {_brief(strides)}"
            raise self.error(f"a tensor has {sizes}; sizes were expected")
        form = storage.format
        if name == "_rebuild_tensor_v3":
            dtype = arguments[6]
            if not isinstance(dtype, Global) or dtype.name not in DTYPES:
                raise self.error(f"a tensor has dtype {_brief(dtype)}, which is unknown")
            form = checkpoint_formats()[DTYPES[dtype.name]]
        return Strided(storage, form, offset, tuple(shape), tuple(strides))

    def find_storage(self) -> None:
        """Read the persistent id of a storage: ("storage", type, key, device, count), and in old files a view of it."""
        saved = self.pop()
        if not isinstance(saved, tuple) or len(saved) not in (5, 6) or saved[0] != "storage":
            raise self.error("a persistent id is not that of a storage")
        storage_type, key, count = saved[1], saved[2], saved[4]
        if not isinstance(storage_type, Global) or storage_type.name not in STORAGES:
            raise self.error(f"a storage has type {_brief(storage_type)}, which is unknown")
        if not isinstance(key, (str, int)) or len(str(key)) > MAX_KEY or not _is_size(count):
            raise self.error(f"a storage has key {_brief(key)} and {_brief(count)} numbers")
        form = checkpoint_formats()[STORAGES[storage_type.name]]
        if self.storage_formats.setdefault(str(key), form) != form:
            raise self.error(f"storage {quote(key)} has two types")
        first, view = 0, saved[5] if len(saved) == 6 else None
        if view is not None:
            if not isinstance(view, tuple) or len(view) != 3 or not _are_sizes(view[1:]):
                raise self.error(f"a view of storage {quote(key)} is {_brief(view)}")
            first, count = view[1], view[2]
        self.push(Storage(str(key), form, count, first))

    def make_dict(self) -> None:
        items = self.pop_to_mark()
        self.push({})
        self.set_items(items)

    def make_tuple(self, size: int) -> None:
        self.push(tuple([self.pop() for _ in range(size)][::-1]))

    def append(self, items: list[Any]) -> None:
        self.top(list).extend(items)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_VALUES


def _are_sizes(values: Any) -> bool:
    return isinstance(values, (tuple, list)) and len(values) <= MAX_DIMENSIONS and all(map(_is_size, values))


def _brief(value: Any) -> str:
    """Return a value for a message. The full text of a pickle's value could fill any memory."""
    if isinstance(value, (str, bytes)):
        return repr(value[:80])
    if isinstance(value, (int, float, Global)):
        return str(value)[:80]
    if isinstance(value, (tuple, list)) and all(isinstance(item, int) for item in value[:9]):
        return f"{str(tuple(value[:8]))[:-1]}{', …' if len(value) > 8 else ''})"
    return f"a {type(value).__name__}"


STOP = ord(".")
# Instruction by its code, named as in Python's pickletools.
INSTRUCTIONS: dict[int, Callable[[PickleMachine], Any]] = {
    0x80: lambda m: m.take(1),
    0x95: lambda m: m.take(8),  # PROTO, FRAME
    ord("("): lambda m: m.push(_MARK),
    ord("0"): lambda m: m.pop(),  # MARK, POP
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),  # NONE, NEWTRUE, …
    ord("K"): lambda m: m.push(m.unsigned(1)),
    ord("M"): lambda m: m.push(m.unsigned(2)),  # BININT1, BININT2
    ord("J"): lambda m: m.push(struct.unpack("<i", m.take(4))[0]),  # BININT
    0x8A: lambda m: m.push(int.from_bytes(m.take(m.unsigned(1)), "little", signed=True)),  # LONG1
    ord("G"): lambda m: m.push(struct.unpack(">d", m.take(8))[0]),  # BINFLOAT
    ord("X"): lambda m: m.text(m.unsigned(4)),  # BINUNICODE
    0x8C: lambda m: m.text(m.unsigned(1)),
    0x8D: lambda m: m.text(m.unsigned(8)),  # SHORT_BINUNICODE, BINUNICODE8
    ord("U"): lambda m: m.text(m.unsigned(1)),
    ord("T"): lambda m: m.text(m.unsigned(4)),  # SHORT_BINSTRING, BINSTRING
    ord("C"): lambda m: m.push(bytes(m.take(m.unsigned(1)))),  # SHORT_BINBYTES
    ord("B"): lambda m: m.push(bytes(m.take(m.unsigned(4)))),  # BINBYTES
    ord("}"): lambda m: m.push({}),
    ord("]"): lambda m: m.push([]),
    ord(")"): lambda m: m.push(()),  # EMPTY_DICT, …
    ord("d"): lambda m: m.make_dict(),
    ord("l"): lambda m: m.push(m.pop_to_mark()),  # DICT, LIST
    ord("t"): lambda m: m.push(tuple(m.pop_to_mark())),
    0x85: lambda m: m.make_tuple(1),  # TUPLE, TUPLE1
    0x86: lambda m: m.make_tuple(2),
    0x87: lambda m: m.make_tuple(3),  # TUPLE2, TUPLE3
    ord("a"): lambda m: m.append([m.pop()]),
    ord("e"): lambda m: m.append(m.pop_to_mark()),  # APPEND, APPENDS
    ord("s"): lambda m: m.set_items([m.pop(), m.pop()][::-1]),  # SETITEM
    ord("u"): lambda m: m.set_items(m.pop_to_mark()),  # SETITEMS
    ord("q"): lambda m: m.remember(m.unsigned(1)),
    ord("r"): lambda m: m.remember(m.unsigned(4)),  # BINPUT, LONG_BINPUT
    0x94: lambda m: m.remember(len(m.memo)),  # MEMOIZE
    ord("h"): lambda m: m.recall(m.unsigned(1)),
    ord("j"): lambda m: m.recall(m.unsigned(4)),  # BINGET, LONG_BINGET
    ord("c"): lambda m: m.find(m.line(), m.line()),
    0x93: lambda m: m.find_on_stack(),  # GLOBAL, STACK_GLOBAL
    ord("Q"): lambda m: m.find_storage(),
    ord("R"): lambda m: m.reduce(),  # BINPERSID, REDUCE
    ord("b"): lambda m: m.pop(),  # BUILD: attributes of a dictionary, such as the versions of modules
}
