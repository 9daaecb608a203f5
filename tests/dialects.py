"""Tensors as forks store them, made of ggml's own: the way back of what `quants.dialects` reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from gguftools.io.gguf.reader import open_gguf
from gguftools.writing.items import Item
from gguftools.writing.pipeline import FilePlan, write_files
from quants import Tensor
from quants.dialects import readings
from quants.dialects.bits import put_together, take_apart
from quants.dialects.codec import _layout, _stock_layout
from quants.format import Format, format_named

# What is stored in the place of ggml's numbers, by the dialect's format.
STORED: dict[str, Callable[[dict], dict]] = {
    **dict.fromkeys(("IQ2_XXS_R4", "IQ2_XS_R4", "IQ3_XXS_R4"), lambda f: {**f, "signs": running_parity(f["signs"])}),
    **dict.fromkeys(("Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8"), lambda f: {**f, "q": f["q"] ^ 8}),
}


def running_parity(signs: np.ndarray) -> np.ndarray:
    """For each bit, whether it and those below it are odd in number."""
    bits = np.unpackbits(signs[..., None].astype(np.uint8), axis=-1, bitorder="little")[..., :7]
    return np.packbits(np.add.accumulate(bits, axis=-1) & 1, axis=-1, bitorder="little")[..., 0]


def interleaved(form: Format, raw: np.ndarray) -> np.ndarray:
    """Rows in the format that a dialect's format holds in other places, as the dialect stores them."""
    stock, rows = format_named(form.same_values), form.rows_together
    pieces = form.block_size // stock.block_size  # BF16_R16 has blocks of two values
    blocks = raw.reshape(-1, stock.block_bytes)
    fields = {name: take_apart(blocks, labels) for name, labels in _stock_layout(stock.name).items()}
    fields = STORED.get(form.name, lambda each: each)({name: each[:, 0] for name, each in fields.items()})
    flat = {}
    for name, each in fields.items():
        by_row = each.reshape(len(raw) // rows, rows, -1, pieces * each.shape[-1])
        flat[name] = by_row.transpose(0, 2, 1, 3).reshape(-1, rows * by_row.shape[-1])
    layout = {name: labels.reshape(1, -1, labels.shape[-1]) for name, labels in _layout(form).items()}
    return put_together(flat, layout, rows * form.block_bytes).reshape(len(raw), -1)


def repacked(tensor: Tensor, name: str) -> Tensor:
    """A tensor as a dialect stores it."""
    form = readings()[name].format
    stored = interleaved(form, np.ascontiguousarray(tensor.raw()))
    return Tensor(tensor.name, tensor.shape, form, lambda start, stop: stored[start:stop], tensor.origin)


def in_dialect(path: Path, source: Path, names: dict[str, str]) -> Path:
    """A file whose tensors of the named formats are stored as a dialect does: ggml's name → the dialect's."""
    file = open_gguf(source)
    wanted = {name: names.get(tensor.format.name) for name, tensor in file.tensors.items()}
    tensors = [
        repacked(tensor, wanted[name]) if wanted[name] and len(tensor.shape) == 2 else tensor
        for name, tensor in file.tensors.items()
    ]
    write_files([FilePlan(path, file.metadata, tuple(Item(each, each.format) for each in tensors), file.alignment)])
    return path
