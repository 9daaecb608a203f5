"""GPTQ, AWQ and AutoRound: integers of 2 to 8 bits, with a scale and a zero point for each output and group.

    qweight  int32 (in * bits / 32, out)      bits of consecutive inputs, lowest first, across words where they must
    qzeros   int32 (groups, out * bits / 32)  zero points of consecutive outputs, packed alike
    scales   float (groups, out)
    g_idx    int32 (in,)                      the group of each input; absent where groups are in order

    weight[o, i] = (qweight[i, o] - zero[g, o]) * scales[g, o],  g = g_idx[i]

AutoGPTQ stores zero points minus one, modulo 2^bits; `checkpoint_format: gptq_v2` stores them as they are. Widths of
integers follow from the shapes, so that layers may differ. AutoAWQ's "gemm" version packs 4 bits of qweight along the
output, int32 (in, out / 8), as those of qzeros: half-byte k of a word, lowest first, is output ORDER[k] of its eight.
"""

import numpy as np

from quants import Tensor
from quants.errors import ModelError
from quants.kernels.packed_integers import dequantize_columns, dequantize_rows, unpack

from ..spec import Floats, Tensors
from . import tensor_groups
from .tensor_groups import Settings, Unpacked

BITS = range(2, 9)  # 5, 6 and 7 only by AutoRound
FORMATS = {"gptq": 1, "gptq_v2": 0}  # `checkpoint_format` → offset of stored zero points
AWQ_BITS = 4
ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
AWQ_VERSIONS = ("gemm", "exllama", "ipex")  # all of them store what "gemm" does
PACKINGS = {  # AutoRound's packing format → GPTQ's name of its zero-point storage
    "auto_round:auto_gptq": "gptq",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round": "gptq_v2",
}


def gptq(settings: Settings, tensors: Tensors) -> Unpacked:
    """Return every NAME.qweight and its companions as NAME.weight (out, in). Raises ModelError for other layouts."""
    layout = settings.get("checkpoint_format") or "gptq"
    if layout not in FORMATS or settings.get("is_marlin_format"):
        raise tensor_groups.refused("gptq", f"checkpoint_format {layout if layout not in FORMATS else 'marlin'!r}")
    return _weights(settings, tensors, False, FORMATS[layout])


def awq(settings: Settings, tensors: Tensors) -> Unpacked:
    """Return AWQ's weights as `gptq`."""
    version = str(settings.get("version") or settings.get("checkpoint_format") or "gemm").lower()
    bits = settings.get("bits") or settings.get("w_bit") or AWQ_BITS
    if version not in AWQ_VERSIONS or bits != AWQ_BITS:
        raise tensor_groups.refused("awq", f"version {version!r}" if version not in AWQ_VERSIONS else f"{bits} bits")
    return _weights(settings, tensors, True)


def auto_round(settings: Settings, tensors: Tensors) -> Unpacked:
    """Return AutoRound's weights as `gptq`; its `packing_format` selects one of the two layouts."""
    packing = str(settings.get("packing_format") or "auto_round:auto_gptq")
    if packing == "auto_round:auto_awq":
        return awq({**settings, "version": "gemm"}, tensors)
    if packing not in PACKINGS:
        raise tensor_groups.refused("auto-round", f"packing format {packing!r}")
    return gptq({**settings, "checkpoint_format": PACKINGS[packing]}, tensors)


def _weights(settings: Settings, tensors: Tensors, interleaved: bool, add: int = 0) -> Unpacked:
    """Return the weights. interleaved: packed as in AWQ. add: offset of stored zero points."""
    wholes, ignored, names = [], [], ["qweight", "qzeros", "scales", *([] if interleaved else ["g_idx"])]
    for stem in (name.removesuffix("qweight") for name in tensors if name.endswith(".qweight")):
        wholes.append((_weight(settings, tensors, stem, interleaved, add), [stem + each for each in names]))
        bias = None if interleaved else tensors.get(stem + "bias")
        if bias is not None and not bias.float32().any():
            ignored.append(bias.name)  # AutoGPTQ gave every layer a bias
    return tensor_groups.replaced(tensors, wholes, ignored)


def _weight(settings: Settings, tensors: Tensors, stem: str, interleaved: bool, add: int) -> Tensor:
    qweight = tensors[stem + "qweight"]
    qzeros, scales = (tensor_groups.part(tensors, stem + each, qweight) for each in ("qzeros", "scales"))
    integers, zero_points, factors = (
        tensor_groups.words(qweight),
        tensor_groups.words(qzeros),
        tensor_groups.columns(scales),
    )
    (high, across), (count, packed) = qweight.shape, qzeros.shape
    out = across * 32 // AWQ_BITS if interleaved else across
    bits = packed * 32 // out if out else 0
    allowed = bits == AWQ_BITS if interleaved else bits in BITS and high * 32 % bits == 0
    if not allowed or bits * out != packed * 32 or scales.shape != (count, out) or not count:
        shapes = f"qweight {list(qweight.shape)}, qzeros {list(qzeros.shape)} and scales {list(scales.shape)}"
        hint = "only the layout of AutoAWQ's gemm version is read" if interleaved else None
        raise ModelError(f"{qweight.where}: {shapes} don't belong together", hint)
    width = high if interleaved else high * 32 // bits
    order = None if interleaved else tensors.get(stem + "g_idx")
    if order is not None and order.size != width:
        raise ModelError(f"{order.where} has {order.size} entries; {width} were expected")
    size = settings.get("group_size", settings.get("q_group_size"))
    in_order = tensor_groups.groups_in_order(width, count, size) if order is None else None
    at = np.arange(max(width, out)) * bits
    if interleaved:
        at = (np.arange(packed)[:, None] * 32 + bits * np.argsort(ORDER)).reshape(-1)
    largest = np.float32((1 << bits) - 1)

    def read(start: int, stop: int) -> Floats:
        first, last = start * bits // 32, -(-stop * bits // 32)
        places = at[start:stop] - first * 32
        zeros = np.empty((count, stop - start), np.float32)
        unpack(zero_points(first, last), places, bits, zeros)
        if add:
            zeros = np.where(zeros == largest, np.float32(0), zeros + np.float32(1))
        zeros = np.ascontiguousarray(zeros.T)
        group = tensor_groups.checked_groups(order, count) if order is not None else in_order
        result = np.empty((stop - start, width), np.float32)
        if interleaved:
            rows = np.ascontiguousarray(integers(first, last).T)
            dequantize_columns(rows, places, bits, group, zeros, factors(start, stop), result)
        else:
            rows = np.ascontiguousarray(integers(start, stop).T)
            dequantize_rows(rows, at[:width], bits, group, zeros, factors(start, stop), result)
        return result

    return tensor_groups.decoded(stem + "weight", (out, width), read, qweight.origin)
