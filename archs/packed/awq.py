"""AWQ as AutoAWQ's "gemm" version stores it: 4-bit integers packed along the output, eight to a word, interleaved.

    qweight  int32 (in, out / 8)       half-byte k of a word, lowest first, is output ORDER[k] of its eight
    qzeros   int32 (groups, out / 8)   zero points, packed alike
    scales   float (groups, out)

    weight[o, i] = (qweight[i, o] - qzeros[g, o]) * scales[g, o],  g = i // group size
"""

from collections.abc import Mapping

import numpy as np

from quants import Tensor
from quants.errors import ModelError
from quants.kernels.packed_integers import dequantize_columns, unpack

from .parts import Floats, Settings, Unpacked, columns, decoded, groups_in_order, part, refused, replaced, words

BITS, PER_WORD = 4, 8
ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
VERSIONS = ("gemm", "exllama", "ipex")  # all of them load what "gemm" stores


def unpacked(settings: Settings, tensors: Mapping[str, Tensor]) -> Unpacked:
    """Every NAME.qweight and its companions as NAME.weight (out, in). Raises ModelError for other layouts."""
    version = str(settings.get("version") or settings.get("checkpoint_format") or "gemm").lower()
    if version not in VERSIONS:
        raise refused("awq", f"version {version!r}")
    if (settings.get("bits") or settings.get("w_bit") or BITS) != BITS:
        raise refused("awq", f"{settings.get('bits') or settings.get('w_bit')} bits")
    wholes = []
    for name, qweight in tensors.items():
        if name.endswith(".qweight"):
            stem = name.removesuffix("qweight")
            whole = weight(settings, tensors, stem, qweight)
            wholes.append((whole, [stem + each for each in ("qweight", "qzeros", "scales")]))
    return replaced(tensors, wholes)


def weight(settings: Settings, tensors: Mapping[str, Tensor], stem: str, qweight: Tensor) -> Tensor:
    """The weight of one layer."""
    qzeros, scales = part(tensors, stem + "qzeros", qweight), part(tensors, stem + "scales", qweight)
    integers, zero_points, factors = words(qweight), words(qzeros), columns(scales)
    width, packed = qweight.shape
    out, count = packed * PER_WORD, scales.shape[0]
    if scales.shape != (count, out) or qzeros.shape != (count, packed) or not count:
        raise ModelError(
            f"{qweight.origin or qweight.name}: qweight {list(qweight.shape)}, qzeros {list(qzeros.shape)} and scales "
            f"{list(scales.shape)} don't belong together",
            hint="only the layout of AutoAWQ's gemm version is read",
        )
    group = groups_in_order(width, count, settings.get("group_size", settings.get("q_group_size")))
    at = (np.arange(packed)[:, None] * 32 + BITS * np.argsort(ORDER)).reshape(-1)

    def read(start: int, stop: int) -> Floats:
        first, last = start // PER_WORD, -(-stop // PER_WORD)
        places = at[start:stop] - first * 32
        rows = np.ascontiguousarray(integers(first, last).T)
        zeros = np.empty((count, stop - start), np.float32)
        unpack(zero_points(first, last), places, BITS, zeros)
        result = np.empty((stop - start, width), np.float32)
        zeros = np.ascontiguousarray(zeros.T)
        dequantize_columns(rows, places, BITS, group, zeros, factors(start, stop), result)
        return result

    return decoded(stem + "weight", (out, width), read, qweight.origin)
