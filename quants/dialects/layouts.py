"""Bit layouts of ggml's own formats, by name: where a block keeps each number. Dialects that hold the same fields
convert to these.

The formats' files in `quants/formats` draw the same blocks. Names of fields: `d` (and `dmin`) the block's scale as the
16 bits of a half, `scale` (and `min`) those of its parts, `q` the numbers of the values, in the order of the values;
`grid` and `signs` where values come in groups.
"""

from collections.abc import Callable

from .bits import Layout, block, joined, placed


def _halves(one: int) -> Layout:
    """Return a half, then nibbles: of every `one` bytes first the low ones."""
    d, qs = block(2, one)
    return {"d": d.reshape(1, 1, 16), "q": placed(qs, (one, 2, 4), (1, 0, 2), 4)}


def _q5_0() -> Layout:
    d, qh, qs = block(2, 4, 16)
    return {"d": d.reshape(1, 1, 16), "q": joined(placed(qs, (16, 2, 4), (1, 0, 2), 4), qh.reshape(1, 32, 1))}


def _in_order(values: int, bits: int) -> Layout:
    d, qs = block(2, values * bits // 8)
    return {"d": d.reshape(1, 1, 16), "q": qs.reshape(1, values, bits)}


def _q2_k() -> Layout:
    scales, qs, d, dmin = block(16, 64, 2, 2)
    return {
        "d": d.reshape(1, 1, 16),
        "dmin": dmin.reshape(1, 1, 16),
        "scale": scales[None],
        "q": placed(qs, (2, 32, 4, 2), (0, 2, 1, 3), 2),
    }


def _q3_k() -> Layout:
    high, qs, scales, d = block(32, 64, 12, 2)
    low_scales = placed(scales[:8], (8, 2, 4), (1, 0, 2), 4)
    return {
        "d": d.reshape(1, 1, 16),
        "scale": joined(low_scales, placed(scales[8:], (4, 4, 2), (1, 0, 2), 2)),
        "q": joined(placed(qs, (2, 32, 4, 2), (0, 2, 1, 3), 2), placed(high, (32, 8), (1, 0), 1)),
    }


def _superblock(with_high: bool) -> Layout:
    """Return the layout of Q4_K or of Q5_K, which stores the fifth bit of every value separately."""
    d, dmin, scales, *high, qs = block(2, 2, 12, *([32] if with_high else []), 128)
    first, second, third = scales[:4], scales[4:8], scales[8:]
    q = placed(qs, (4, 32, 2, 4), (0, 2, 1, 3), 4)
    return {
        "d": d.reshape(1, 1, 16),
        "dmin": dmin.reshape(1, 1, 16),
        "scale": placed(joined(first[:, :6], third[:, :4], first[:, 6:]), (4, 2, 6), (1, 0, 2), 6),
        "min": placed(joined(second[:, :6], third[:, 4:], second[:, 6:]), (4, 2, 6), (1, 0, 2), 6),
        "q": joined(q, placed(high[0], (32, 8), (1, 0), 1)) if high else q,
    }


def _q6_k() -> Layout:
    low, high, scales, d = block(128, 64, 16, 2)
    return {
        "d": d.reshape(1, 1, 16),
        "scale": scales[None],
        "q": joined(placed(low, (2, 2, 32, 2, 4), (0, 3, 1, 2, 4), 4), placed(high, (2, 32, 4, 2), (0, 2, 1, 3), 2)),
    }


def _iq4_xs() -> Layout:
    d, high, low, qs = block(2, 2, 4, 128)
    return {
        "d": d.reshape(1, 1, 16),
        "scale": joined(low.reshape(1, 8, 4), high.reshape(1, 8, 2)),
        "q": placed(qs, (8, 16, 2, 4), (0, 2, 1, 3), 4),
    }


def _iq2_xxs() -> Layout:
    d, qs = block(2, 64)
    each = qs.reshape(8, 8, 8)
    word = each[:, 4:].reshape(8, 32)
    return {
        "d": d.reshape(1, 1, 16),
        "grid": each[:, :4].reshape(1, 32, 8),
        "signs": word[:, :28].reshape(1, 32, 7),
        "scale": word[:, 28:].reshape(1, 8, 4),
    }


def _iq2_xs() -> Layout:
    d, qs, scales = block(2, 64, 8)
    each = qs.reshape(1, 32, 16)
    return {"d": d.reshape(1, 1, 16), "grid": each[..., :9], "signs": each[..., 9:], "scale": scales[None]}


def _iq2_s() -> Layout:
    d, qs, signs, high, scales = block(2, 32, 32, 8, 8)
    return {"d": d.reshape(1, 1, 16), "grid": qs[None], "signs": signs[None], "high": high[None], "scale": scales[None]}


def _iq3_xxs() -> Layout:
    d, qs, words = block(2, 64, 32)
    word = words.reshape(8, 32)
    return {
        "d": d.reshape(1, 1, 16),
        "grid": qs[None],
        "signs": word[:, :28].reshape(1, 32, 7),
        "scale": word[:, 28:].reshape(1, 8, 4),
    }


def _iq3_s() -> Layout:
    d, qs, high, signs, scales = block(2, 64, 8, 32, 4)
    return {
        "d": d.reshape(1, 1, 16),
        "grid": qs[None],
        "high": high[None],
        "signs": signs[None],
        "scale": scales.reshape(1, 8, 4),
    }


def _bf16() -> Layout:
    return {"q": block(2)[0].reshape(1, 1, 16)}


LAYOUTS: dict[str, Callable[[], Layout]] = {
    "Q4_0": lambda: _halves(16),
    "IQ4_NL": lambda: _halves(16),
    "Q5_0": _q5_0,
    "Q8_0": lambda: _in_order(32, 8),
    "Q1_0": lambda: _in_order(128, 1),
    "Q2_0": lambda: _in_order(64, 2),
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": lambda: _superblock(False),
    "Q5_K": lambda: _superblock(True),
    "Q6_K": _q6_k,
    "IQ4_XS": _iq4_xs,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "BF16": _bf16,
}
