"""Block formats: the facts that each format's module declares, and the registry that finds them.

`Q4_K` is declared in `quants/formats/q4_k.py`; other packages add formats by entry points (group `gguftools.formats`)
that name a module. A module holds FORMAT, a `Format`. It is cheap to import: the code that encodes and decodes is in
the module that FORMAT names as its codec, which is imported when first used (numba loads only then) and has two
functions:

    encode(form, rows, importance) -> uint8 (n, bytes of a row)    rows: float32 (n, width), C order, whole blocks
    decode(form, raw) -> float32 (n, width)                        raw: uint8 (n, bytes of a row), C order

`importance` is None or float32 (width,): how much an error in each column matters.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .codes import Codes, Points
from .errors import FormatError
from .spelling import did_you_mean

F32Rows = NDArray[np.float32]
RawRows = NDArray[np.uint8]

FOLDER, ENTRY_POINTS = "quants.formats", "gguftools.formats"
# Small tensors such as norms are decoded without kernels, which often take longer to load than the model to copy.
SMALL = 1 << 17  # bytes


@dataclass(frozen=True)
class Format:
    """How a tensor's bytes mean numbers: `block_size` values in every `block_bytes` bytes of a row.

    name: in upper case. ggml_type: its number in files. block_size: values of a block.
    block: numpy dtype of a block. Fields of several bytes are what llama.cpp reads as one number: they change with the
    byte order. Not structured where a value has bytes of its own; bfloat16 has no numpy type and is kept as its bits.
    codec: name of the module with `encode` and `decode`; None for a format that is only copied.
    importance: whether importance weights change the encoder's bytes; "needed": it refuses to work without.
    is_very_low_bits: llama.cpp stores no weights of layers in it without importance weights.
    fallback: the format to try next where the width of a tensor is no multiple of the block.
    activations: what llama.cpp rounds the other side of a product to.
    compile_cost: how long its encoder takes to compile, 1 … 4. Formats of one codec share most of what is compiled.
    infinity: bits of infinity where a value has bytes of its own; NaN has these too.
    bad_blocks: tells for each block of an array whether it means NaN or infinity. Without it, a block does whose
    float16 fields are so.
    decode_small: as `decode`, for few bytes, without kernels.
    codes, points: what a block holds for each value, or for several together (see `quants.codes`). like: a format with
    codes whose values this one's encoder keeps as they are.

    Of formats that only forks of llama.cpp have (see `quants.dialects`):
    dialect: whose it is. same_values: ggml's own format that holds the same values exactly. head_bytes: before a row's
    blocks. rows_together: how many rows are interleaved; ranges of rows begin and end at multiples of it. tail_bytes:
    after a tensor's last row.
    """

    name: str
    ggml_type: int
    block_size: int
    block: np.dtype[Any]
    codec: str | None = None
    importance: Literal["ignored", "used", "needed"] = "ignored"
    is_very_low_bits: bool = False
    fallback: str | None = None
    activations: str = "F32"
    compile_cost: int = 1
    infinity: int | None = None
    bad_blocks: Callable[[NDArray[Any]], NDArray[np.bool_]] | None = None
    decode_small: Callable[[RawRows], F32Rows] | None = None
    codes: Codes | None = None
    points: Points | None = None
    like: str | None = None
    dialect: str = ""
    same_values: str | None = None
    head_bytes: int = 0
    rows_together: int = 1
    tail_bytes: int = 0

    @property
    def block_bytes(self) -> int:
        return self.block.itemsize

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block_size

    @property
    def is_quantized(self) -> bool:
        return self.block.names is not None

    @property
    def elements(self) -> np.dtype[Any] | None:
        """Return the numpy dtype of one element where a value has bytes of its own; None for block formats."""
        return None if self.block.kind == "V" else self.block

    @property
    def has_codec(self) -> bool:
        """Return whether we can encode and decode the format, not only copy it."""
        return self.codec is not None

    @property
    def needs_importance(self) -> bool:
        """Return whether the encoder refuses to work without importance weights."""
        return self.importance == "needed"

    @property
    def uses_importance(self) -> bool:
        """Return whether importance weights change the encoder's bytes."""
        return self.importance != "ignored"

    def load_codec(self) -> ModuleType:
        """Return the module with `encode` and `decode`. Raises FormatError if we have none."""
        if self.codec is None:
            raise FormatError(f"{self.name} tensors can be copied, but neither encoded nor decoded")
        return importlib.import_module(self.codec)

    def row_bytes(self, width: int) -> int:
        """Return bytes of a row of `width` values. Raises FormatError where blocks don't fit the row."""
        if width % self.block_size:
            raise FormatError(f"rows of {width} values; {self.name} needs a multiple of {self.block_size}")
        return self.head_bytes + width // self.block_size * self.block.itemsize

    def encode(self, rows: F32Rows, importance: NDArray[np.float32] | None = None) -> RawRows:
        """Return float32 (n, width) → uint8 (n, bytes of a row). See `quants.encode` for the checked way in."""
        encoded: RawRows = self.load_codec().encode(self, rows, importance)
        return encoded

    def decode(self, raw: RawRows) -> F32Rows:
        """Return uint8 (n, bytes of a row) → float32 (n, width)."""
        if self.decode_small and raw.size <= SMALL:
            return self.decode_small(raw)
        decoded: F32Rows = self.load_codec().decode(self, raw)
        return decoded

    def swap_byte_order(self, raw: RawRows) -> RawRows:
        """Return a copy of rows (n, bytes of a row) in the other byte order. Raises FormatError for a dialect's
        format.
        """
        if self.dialect:
            raise FormatError(f"{self.name} is a format of {self.dialect}, which has no big-endian files")
        swapped: RawRows = np.ascontiguousarray(raw).reshape(-1).view(self.block).byteswap().view(np.uint8)
        return swapped.reshape(raw.shape)


@cache
def _own() -> dict[str, Format]:
    """Return the formats of this package, by name."""
    names = pkgutil.iter_modules(importlib.import_module(FOLDER).__path__)
    modules = (importlib.import_module(f"{FOLDER}.{each.name}") for each in names)
    return {module.FORMAT.name: module.FORMAT for module in modules}


@cache
def _own_by_type() -> dict[int, Format]:
    return {form.ggml_type: form for form in _own().values()}


@cache
def formats() -> dict[str, Format]:
    """Return every format by its upper-case name, ordered by ggml number. Raises FormatError for a duplicate name or
    number.
    """
    from importlib.metadata import entry_points  # slow to import; needed only for third-party formats

    known = [*_own().values(), *(entry.load().FORMAT for entry in entry_points(group=ENTRY_POINTS))]
    owners: dict[str | int, Format] = {}
    for form in known:
        for claim in (form.name, form.ggml_type):
            other = owners.setdefault(claim, form)
            if other is not form:
                raise FormatError(f"format {form.name}, ggml type {form.ggml_type}: {claim} is taken by {other.name}")
    return {form.name: form for form in sorted(known, key=lambda form: form.ggml_type)}


def format_named(name: str) -> Format:
    """Return the format called `name`, in any case. Raises FormatError naming the nearest known ones."""
    form = _own().get(name.upper()) or formats().get(name.upper())
    if form is None:
        raise FormatError(f"there is no format {name!r}", did_you_mean(name, formats()))
    return form


def format_of_type(ggml_type: int) -> Format:
    """Return the format with ggml's number `ggml_type`. Raises FormatError for a removed or unknown one."""
    form = _own_by_type().get(ggml_type)
    form = form or next((other for other in formats().values() if other.ggml_type == ggml_type), None)
    if form is None:
        raise FormatError(f"ggml type {ggml_type} is unknown or was removed from ggml")
    return form
