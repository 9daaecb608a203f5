"""GPTQ: integers of 2 to 8 bits packed along the input, a scale and a zero point for each output and group.

    qweight  int32 (in * bits / 32, out)      bits of consecutive inputs, lowest first, across words where they must
    qzeros   int32 (groups, out * bits / 32)  zero points of consecutive outputs, packed alike
    scales   float (groups, out)
    g_idx    int32 (in,)                      the group of each input; absent where groups are in order

    weight[o, i] = (qweight[i, o] - zero[g, o]) * scales[g, o],  g = g_idx[i]

AutoGPTQ stores zero points minus one, modulo 2^bits; `checkpoint_format: gptq_v2` stores them as they are. Widths of
integers follow from the shapes, so that layers may differ.
"""

from collections.abc import Mapping

import numpy as np

from quants import Tensor
from quants.errors import ModelError
from quants.kernels.packed_integers import dequantize_rows, unpack

from . import parts
from .parts import Floats, Settings, Unpacked

BITS = range(2, 9)  # 5, 6 and 7 by AutoRound alone
FORMATS = {"gptq": 1, "gptq_v2": 0}  # `checkpoint_format`: what is added to stored zero points


def unpacked(settings: Settings, tensors: Mapping[str, Tensor]) -> Unpacked:
    """Every NAME.qweight and its companions as NAME.weight (out, in). Raises ModelError for other layouts."""
    kind = settings.get("checkpoint_format") or "gptq"
    if kind not in FORMATS or settings.get("is_marlin_format"):
        raise parts.refused("gptq", f"checkpoint_format {kind if kind not in FORMATS else 'marlin'!r}")
    wholes, ignored = [], []
    for name, qweight in tensors.items():
        if not name.endswith(".qweight"):
            continue
        stem = name.removesuffix("qweight")
        whole = weight(settings, tensors, stem, qweight, FORMATS[kind])
        wholes.append((whole, [stem + each for each in ("qweight", "qzeros", "scales", "g_idx")]))
        bias = tensors.get(stem + "bias")
        if bias is not None and not bias.float32().any():
            ignored.append(bias.name)  # AutoGPTQ gave every layer a bias
    return parts.replaced(tensors, wholes, ignored)


def weight(settings: Settings, tensors: Mapping[str, Tensor], stem: str, qweight: Tensor, add: int) -> Tensor:
    """The weight of one layer."""
    qzeros, scales = parts.part(tensors, stem + "qzeros", qweight), parts.part(tensors, stem + "scales", qweight)
    out, (count, packed) = qweight.shape[-1], qzeros.shape
    bits = packed * 32 // out if out else 0
    if bits not in BITS or bits * out != packed * 32 or qweight.shape[0] * 32 % bits or scales.shape != (count, out):
        raise ModelError(
            f"{qweight.origin or qweight.name}: qweight {list(qweight.shape)}, qzeros {list(qzeros.shape)} and scales "
            f"{list(scales.shape)} don't belong together"
        )
    width = qweight.shape[0] * 32 // bits
    order = tensors.get(stem + "g_idx")
    if order is not None and order.size != width:
        raise ModelError(f"{order.origin or order.name} has {order.size} entries; {width} were expected")
    size = settings.get("group_size", settings.get("q_group_size"))
    group = parts.groups_in_order(width, count, size) if order is None else None
    at = np.arange(max(width, out)) * bits
    integers, zero_points, factors = parts.words(qweight), parts.words(qzeros), parts.columns(scales)
    largest = np.float32((1 << bits) - 1)

    def read(start: int, stop: int) -> Floats:
        rows = np.ascontiguousarray(integers(start, stop).T)
        zeros = np.empty((count, stop - start), np.float32)
        first = start * bits // 32
        unpack(zero_points(first, -(-stop * bits // 32)), at[start:stop] - first * 32, bits, zeros)
        if add:
            zeros = np.where(zeros == largest, np.float32(0), zeros + np.float32(1))
        result = np.empty((stop - start, width), np.float32)
        groups = group if group is not None else parts.checked_groups(order, count)  # type: ignore[arg-type]
        zeros = np.ascontiguousarray(zeros.T)
        dequantize_rows(rows, at[:width], bits, groups, zeros, factors(start, stop), result)
        return result

    return parts.decoded(stem + "weight", (out, width), read, qweight.origin)
