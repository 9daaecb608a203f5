"""MXFP4 as checkpoints store it: E2M1 in pairs, every 32 under a power of two. GGUF has the same: nothing is lost.

GPT-OSS: NAME_blocks uint8 (…, rows, blocks of a row, 16) and NAME_scales (…, rows, blocks of a row).
compressed-tensors: uint8 (rows, width / 2) and (rows, width / 32), the same bytes. A byte i of a block holds weights 2i
and 2i + 1; GGUF's holds i and i + 16.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quants import Tensor, format_named
from quants.errors import ModelError

from .parts import Settings, Unpacked

BLOCKS, SCALES = "_blocks", "_scales"
GROUP = 32


def unpacked(settings: Settings, tensors: Mapping[str, Tensor]) -> Unpacked:
    """The experts of GPT-OSS."""
    return Unpacked(joined(tensors))


def joined(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` with every pair NAME_blocks, NAME_scales as one MXFP4 tensor NAME, rows of weights as ggml has them.

    Raises ModelError for blocks whose scales are missing or of another shape.
    """
    result = dict(tensors)
    for name, blocks in tensors.items():
        if not name.endswith(BLOCKS) or blocks.row_bytes != GROUP // 2:
            continue
        whole = name.removesuffix(BLOCKS)
        scales = tensors.get(whole + SCALES)
        if scales is None or scales.shape != blocks.shape[:-1]:
            found = "there are none" if scales is None else f"they have shape {list(scales.shape)}"
            raise ModelError(f"{name!r} needs scales of shape {list(blocks.shape[:-1])}; {found}")
        result[whole] = mxfp4(whole, blocks, scales)
        del result[name], result[whole + SCALES]
    return result


def mxfp4(name: str, packed: Tensor, scales: Tensor) -> Tensor:
    """Bytes and exponents of a weight as one MXFP4 tensor. Raises ModelError for shapes that don't fit."""
    *outer, per_row = scales.shape
    if packed.nbytes != scales.size * GROUP // 2 or packed.rows % max(1, scales.rows):
        raise ModelError(
            f"{packed.origin or packed.name} has shape {list(packed.shape)} and scales {list(scales.shape)}; "
            f"a scale for each {GROUP} values was expected"
        )
    each = packed.rows // max(1, scales.rows)  # rows of `packed` that make a row of weights

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        pairs = packed.raw(start * each, stop * each).reshape(-1, GROUP // 2)
        weights = np.stack((pairs & 15, pairs >> 4), -1).reshape(-1, GROUP)
        out = np.empty((len(pairs), 1 + GROUP // 2), np.uint8)
        out[:, 0] = scales.raw(start, stop).reshape(-1)
        out[:, 1:] = weights[:, : GROUP // 2] | (weights[:, GROUP // 2 :] << 4)
        return out.reshape(stop - start, per_row * (1 + GROUP // 2))

    form = format_named("MXFP4")
    return replace(packed, name=name, shape=(*outer, per_row * GROUP), format=form, read=read)
