"""Formats of one and two bits that forks had before llama.cpp, under type numbers with another meaning there.

PrismML's Bonsai models have a scale for 32 (Q1_0), or for 128 values where llama.cpp's Q2_0 has one for 64. Microsoft's
BitNet has one scale a tensor, after its last row. llama.cpp's own Q2_0 is 48 in llama-dx. Of TurboQuant and of
EAddario's branches only the names are known: such tensors are copied.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bits import Fields, Layout, block, placed
from .reading import Floats, Heads, Reading, Restate, dialect_format, head, scaled

PRISM, BITNET = "PrismML", "BitNet"


def _in_order(values: int, bits: int) -> Layout:
    d, qs = block(2, values * bits // 8)
    return {"d": d.reshape(1, 1, 16), "q": qs.reshape(1, values, bits)}


def _by_64(heads: Heads, fields: Fields) -> Fields:
    """Return fields of Q2_0, whose blocks are half as large: the scale is repeated."""
    n = len(fields["q"])
    return {"d": np.repeat(fields["d"], 2, axis=1), "q": fields["q"].reshape(n, -1, 64)}


def _signs_as_q4_0(heads: Heads, fields: Fields) -> Fields:
    """Return -1 and 1, which Q4_0 stores as 7 and 9."""
    return {"d": fields["d"], "q": 2 * fields["q"] + np.uint8(7)}


def _ptq1_0() -> Layout:
    qs, high, d = block(24, 2, 2)
    return {"d": d.reshape(1, 1, 16), "q": qs[None], "high": high[None]}


def _trits_as_q2_0(heads: Heads, fields: Fields) -> Fields:
    """Return five trits a byte: those of 16 bytes in turn, those of 8, and four of each of the last two."""
    threes = np.array([1, 3, 9, 27, 81], np.uint8)

    def trits(stored: NDArray[Any], count: int) -> NDArray[np.uint8]:
        turned = stored.astype(np.uint8)[..., None, :] * threes[:count, None]  # modulo 256
        values = (turned.astype(np.uint16) * 3 >> 8).astype(np.uint8)
        return values.reshape(*stored.shape[:2], -1)

    q, high = fields["q"], fields["high"]
    every = np.concatenate((trits(q[..., :16], 5), trits(q[..., 16:], 5), trits(high, 4)), axis=-1)
    return _by_64(heads, {"d": fields["d"], "q": every})


def _i2_s() -> Layout:
    return {"q": placed(block(32)[0].reshape(32, 4, 2)[:, ::-1], (32, 4, 2), (1, 0, 2), 2)}


def _i2_s_values(heads: Heads, fields: Fields) -> Floats:
    """Return heads: the scale behind the tensor, as if each row began with it. 3 is never written; BitNet reads it as
    0.
    """
    values = np.array([-1, 0, 1, 0], np.float32)[fields["q"]]
    return scaled(np.broadcast_to(head(heads), (*values.shape[:2], 1)), values)


def _i2_s_as_q2_0(heads: Heads, fields: Fields) -> Fields:
    """Convert to Q2_0, for scales that are halves: the same two bits, except that Q2_0 has 2 where BitNet has a second
    0.
    """
    q = np.array([0, 1, 2, 1], np.uint8)[fields["q"]]
    d = np.ascontiguousarray(heads).view("<f4").astype(np.float16).view(np.uint16).reshape(-1, 1, 1)
    return _by_64(heads, {"d": np.broadcast_to(d, (*q.shape[:2], 1)), "q": q})


def _of(
    dialect: str,
    name: str,
    number: int,
    values: int,
    size: int,
    layout: Callable[[], Layout] | None = None,
    same: str | None = None,
    restated: Restate | None = None,
) -> Reading:
    form = dialect_format(dialect, name, number, values, size, same=same, codec=layout is not None)
    return Reading(form, layout, None, restated)


READINGS = (
    _of(PRISM, "Q1_0_G32", 40, 32, 6, lambda: _in_order(32, 1), "Q4_0", _signs_as_q4_0),
    _of(PRISM, "Q2_0_G128", 42, 128, 34, lambda: _in_order(128, 2), "Q2_0", _by_64),
    _of(PRISM, "PQ2_0", 142, 128, 34, lambda: _in_order(128, 2), "Q2_0", _by_64),
    _of(PRISM, "PTQ1_0", 143, 128, 28, _ptq1_0, "Q2_0", _trits_as_q2_0),
    _of("llama-dx", "Q2_0_64", 48, 64, 18, lambda: _in_order(64, 2), "Q2_0"),
    Reading(dialect_format(BITNET, "I2_S", 36, 128, 32, tail=32), _i2_s, _i2_s_values, _i2_s_as_q2_0),
    _of("TurboQuant", "TQ3_0", 41, 32, 14),
    _of("EAddario's branches", "IQ2_NL", 43, 32, 10),
    _of("EAddario's branches", "IQ3_NL", 44, 32, 14),
)
