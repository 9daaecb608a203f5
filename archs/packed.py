"""Weights that a checkpoint stores in parts, joined into one tensor before they are mapped.

MXFP4 as GPT-OSS publishes it: NAME_blocks (…, rows, blocks of a row, 16) and NAME_scales (…, rows, blocks of a row),
bytes. A block's byte i holds weights 2i and 2i + 1; GGUF's holds i and i + 16. The values go over without loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quants import Tensor, format_named
from quants.errors import ModelError

BLOCKS, SCALES = "_blocks", "_scales"


def joined(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` with every pair NAME_blocks, NAME_scales as one MXFP4 tensor NAME, rows of weights as ggml has them.

    Raises ModelError for blocks whose scales are missing or of another shape.
    """
    result = dict(tensors)
    for name, blocks in tensors.items():
        if not name.endswith(BLOCKS) or blocks.row_bytes != 16:
            continue
        whole = name.removesuffix(BLOCKS)
        scales = tensors.get(whole + SCALES)
        if scales is None or scales.shape != blocks.shape[:-1]:
            found = "there are none" if scales is None else f"they have shape {list(scales.shape)}"
            raise ModelError(f"{name!r} needs scales of shape {list(blocks.shape[:-1])}; {found}")
        result[whole] = replace(_mxfp4(blocks, scales), name=whole)
        del result[name], result[whole + SCALES]
    return result


def _mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    *outer, per_row, _ = blocks.shape

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        pairs = blocks.raw(start * per_row, stop * per_row).reshape(-1, 16)
        weights = np.stack((pairs & 15, pairs >> 4), -1).reshape(-1, 32)
        out = np.empty((len(pairs), 17), np.uint8)
        out[:, 0] = scales.raw(start, stop).reshape(-1)
        out[:, 1:] = weights[:, :16] | (weights[:, 16:] << 4)
        return out.reshape(stop - start, per_row * 17)

    return replace(blocks, shape=(*outer, per_row * 32), format=format_named("MXFP4"), read=read)
