"""Block formats: their names, ggml numbers and sizes, and the codec behind each.

Sizes come from the `gguf` package's table, plus the types that are newer than it. The codec of `Q4_K` is the module
`quants/formats/q4_k.py` with two functions, imported when first used (numba loads only then):

    encode(rows, importance) -> uint8 (n, bytes of a row)   rows: float32 (n, width), C order, width % block_size == 0
    decode(raw) -> float32 (n, width)                       raw: uint8 (n, bytes of a row), C order

`importance` is None or float32 (width,): how much an error in each column matters. Modules of formats whose bytes
depend on it say `USES_IMPORTANCE = True`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from .errors import FormatError
from .spelling import did_you_mean

F32Rows = NDArray[np.float32]
RawRows = NDArray[np.uint8]

NEWER_THAN_GGUF_PACKAGE = {"Q1_0": (41, 128, 18), "Q2_0": (42, 64, 18)}  # name: ggml type, values, bytes of a block
# What an array of the type's elements is to numpy; bfloat16 has no numpy type and is kept as its bits.
ELEMENTS = {
    "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
}  # fmt: skip
# Norms are decoded without kernels, which take longer to load than many a model takes to copy.
SMALL = 1 << 17  # bytes
DECODERS_OF_SMALL: dict[str, Callable[[RawRows], F32Rows]] = {
    "F16": lambda raw: raw.view("<f2").astype(np.float32),
    "BF16": lambda raw: np.left_shift(raw.view("<u2"), 16, dtype=np.uint32).view(np.float32),
}
NEED_IMPORTANCE = frozenset({"IQ1_S", "IQ2_XXS", "IQ2_XS"})


@dataclass(frozen=True)
class Format:
    """How a tensor's bytes mean numbers: `block_size` values in every `block_bytes` bytes of a row."""

    name: str
    ggml_type: int
    block_size: int
    block_bytes: int

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block_size

    @property
    def is_quantized(self) -> bool:
        return self.name not in ELEMENTS

    @property
    def elements(self) -> np.dtype[Any] | None:
        """numpy dtype of one element where a value has bytes of its own; None for block formats."""
        return np.dtype(ELEMENTS[self.name]) if self.name in ELEMENTS else None

    @property
    def needs_importance(self) -> bool:
        """The encoder refuses to work without importance weights."""
        return self.name in NEED_IMPORTANCE

    @property
    def uses_importance(self) -> bool:
        """Importance weights change the encoder's bytes."""
        return bool(getattr(self.codec, "USES_IMPORTANCE", False))

    @property
    def codec(self) -> ModuleType:
        """The module with `encode` and `decode`. Raises FormatError if we have none."""
        return _codec(self.name)

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` values. Raises FormatError where blocks don't fit the row."""
        if width % self.block_size:
            raise FormatError(f"rows of {width} values; {self.name} needs a multiple of {self.block_size}")
        return width // self.block_size * self.block_bytes

    def encode(self, rows: F32Rows, importance: NDArray[np.float32] | None = None) -> RawRows:
        """float32 (n, width) → uint8 (n, bytes of a row). See `quants.encode` for the checked way in."""
        encoded: RawRows = self.codec.encode(rows, importance)
        return encoded

    def decode(self, raw: RawRows) -> F32Rows:
        """uint8 (n, bytes of a row) → float32 (n, width)."""
        if raw.size <= SMALL and self.name in DECODERS_OF_SMALL:
            return DECODERS_OF_SMALL[self.name](raw)
        decoded: F32Rows = self.codec.decode(raw)
        return decoded


@cache
def has_codec(name: str) -> bool:
    """Whether we can encode and decode the format, not only copy it."""
    return importlib.util.find_spec(f"quants.formats.{name.lower()}") is not None


@cache
def _codec(name: str) -> ModuleType:
    module = f"quants.formats.{name.lower()}"
    if not has_codec(name):
        raise FormatError(f"{name} tensors can be copied, but neither encoded nor decoded")
    return importlib.import_module(module)


@cache
def formats() -> dict[str, Format]:
    """Every format by its upper-case name, ordered by ggml number."""
    known = {t.name: (int(t), *GGML_QUANT_SIZES[t]) for t in GGMLQuantizationType} | NEWER_THAN_GGUF_PACKAGE
    return {name: Format(name, *sizes) for name, sizes in sorted(known.items(), key=lambda item: item[1][0])}


@cache
def _by_type() -> dict[int, Format]:
    return {f.ggml_type: f for f in formats().values()}


def format_named(name: str) -> Format:
    """The format called `name`, in any case. Raises FormatError naming the nearest known ones."""
    found = formats().get(name.upper())
    if found is None:
        raise FormatError(f"there is no format {name!r}", did_you_mean(name, formats()))
    return found


def format_of_type(ggml_type: int) -> Format:
    """The format with ggml's number `ggml_type`. Raises FormatError for a removed or unknown one."""
    found = _by_type().get(ggml_type)
    if found is None:
        raise FormatError(f"ggml type {ggml_type} is unknown or was removed from ggml")
    return found
