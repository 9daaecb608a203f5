"""How exactly products are computed: a named choice of a pass.

"float32": at float32's accuracy, as far as figures of a model show: large products of many rows are computed in 16-bit
integers where the processor is faster at them (`kernels.int16`) and what becomes of them is not sensitive
(`runtime.products.rounding`), all others in float32. "exact": all in float32.
"llama.cpp": of inputs that are first rounded as llama.cpp does, for figures that are to be compared with its own: what
is multiplied with a quantized weight to 8 bits, with an F16 weight to float16 and with a BF16 weight to bfloat16, which
alone can move a small model's perplexity by half a percent. Nothing else is rounded: products of 8-bit integers are
exact (`eight_bit_product`), all others are in float32. Its old name is "reference".
"""

from typing import Literal, get_args

import numpy as np

from quants import format_named
from quants.arguments import wrong

from ..arrays import Floats
from ..kernels import int16
from ..kernels.eight_bits import through_q8_0, through_q8_k

Precision = Literal["float32", "exact", "llama.cpp"]
OLD_NAMES: dict[str, Precision] = {"reference": "llama.cpp"}


def precision_named(name: str) -> Precision:
    """Return a precision. Raises OptionError for an unknown name."""
    if name in OLD_NAMES:
        return OLD_NAMES[name]
    if name not in get_args(Precision):
        raise wrong("precision", name, f"one of {', '.join(get_args(Precision))}")
    return name  # type: ignore[return-value]


def products(precision: Precision) -> str:
    """Return in words how most products of a text are computed."""
    if precision == "llama.cpp" and int16.available():
        return "8-bit integers"
    return "16-bit integers" if precision == "float32" and int16.available() else "float32"


def as_multiplied(x: Floats, weight_format: str, precision: Precision) -> Floats:
    """Return x (n, width) as rounded for a product with a weight of that format; x itself if nothing is rounded."""
    return rounded(x, weight_format) if precision == "llama.cpp" else x


def rounded(x: Floats, weight_format: str) -> Floats:
    """Return x (n, width), rounded as llama.cpp does before it multiplies; a new float32 array but for F32 weights."""
    partner = format_named(weight_format).activations
    if partner == "F32":
        return x
    if partner == "F16":
        with np.errstate(over="ignore"):
            x16 = x.astype(np.float16)
        half: Floats = x16.astype(np.float32)
        return half
    if partner == "BF16":
        bits = x.view(np.uint32)
        nearest = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        upper: Floats = nearest.view(np.float32)
        return upper
    shared = format_named(partner).block_size
    blocks = x.reshape(-1, shared).copy()
    scales = np.empty(len(blocks), np.float32)
    if shared == 32:
        through_q8_0(blocks, scales)
        scales[:] = scales.astype(np.float16)  # which is how this scale is stored
    else:
        through_q8_k(blocks, scales)
    scaled: Floats = blocks * scales[:, None]
    return scaled.reshape(x.shape)
