"""The formats that ik_llama.cpp added: uneven levels (`_K`, `_KS`, `_KSS`, `_KL`), trellises (`_KT`), trits (`_BN`).

The `_K` formats have a scale for 16 values of 256, the others a float32 or half before the blocks of a row, and a
number for 32 values. A bit for each scale says which of two tables the levels are from, the second a little higher.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bits import Fields, Layout, block, joined, placed
from .reading import Decode, Floats, Heads, Reading, Restate, dialect_format, half, head, scaled, signed

IK = "ik_llama.cpp"

IQ2 = np.array([-31, -13, 1, 17, -26, -8, 6, 22], np.int8)
IQ3 = np.array([-63, -40, -23, -10, 1, 13, 28, 47, -59, -36, -19, -6, 5, 17, 32, 51], np.int8)
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
IQ4 = np.array([*_IQ4, *(level + 4 for level in _IQ4)], np.int8)
_IQ5 = (
    -126,
    -114,
    -103,
    -92,
    -83,
    -74,
    -65,
    -57,
    -50,
    -43,
    -36,
    -30,
    -24,
    -18,
    -12,
    -6,
    -1,
    5,
    11,
    17,
    23,
    29,
    36,
    43,
    51,
    59,
    68,
    77,
    87,
    97,
    109,
    121,
)
IQ5 = np.array([*_IQ5, *(level + 2 for level in _IQ5)], np.int8)
# Of IQ6_K, a cubic polynomial, as the fork computes it to decode (its products round these to integers).
_Q6 = np.arange(64, dtype=np.float32)
_CUBIC = np.float32(-0.11218) + _Q6 * np.float32(0.0011972)
_IQ6 = np.float32(-127) + _Q6 * (np.float32(6.2568) + _Q6 * _CUBIC)
IQ6 = np.concatenate((_IQ6, _IQ6 + np.float32(1)))
IQ2_PAIRS = np.array(
    [
        (-63, -23),
        (-63, 13),
        (-40, -63),
        (-40, -10),
        (-40, 13),
        (-40, 47),
        (-23, -40),
        (-23, -23),
        (-23, 1),
        (-23, 13),
        (-23, 28),
        (-10, -63),
        (-10, 1),
        (-10, 13),
        (-10, 47),
        (1, -23),
        (1, -10),
        (1, 1),
        (1, 13),
        (1, 28),
        (13, -40),
        (13, -23),
        (13, -10),
        (13, 1),
        (13, 13),
        (28, -63),
        (28, -23),
        (28, 1),
        (28, 28),
        (28, 47),
        (47, -23),
        (47, 13),
    ],
    np.int8,
)
TRELLIS_STEP, TRELLIS_START = np.uint32(0xCBAC1FED), np.uint32(4096)


def _levels(table: NDArray[Any], fields: Fields) -> NDArray[Any]:
    """Return the level of each value, from the half of the table that its part of the block takes."""
    q, which = fields["q"], fields["table"]
    n, blocks, parts = which.shape
    index = q.reshape(n, blocks, parts, -1) + (which * np.uint8(len(table) // 2))[..., None]
    levels: NDArray[Any] = table[index].reshape(q.shape)
    return levels


def iq2_k(heads: Heads, fields: Fields) -> Floats:
    return scaled(half(fields["d"]) * signed(fields["scale"], 8), _levels(IQ2, fields))


def iq3_k(heads: Heads, fields: Fields) -> Floats:
    scale = (2 * fields["scale"] + 1).astype(np.float32)
    scale[fields["negative"] > 0] *= -1
    return scaled(half(fields["d"]) * scale, _levels(IQ3, fields))


def iq4_k(heads: Heads, fields: Fields) -> Floats:
    return scaled(half(fields["d"]) * signed(fields["scale"], 32), _levels(IQ4, fields))


def iq5_k(heads: Heads, fields: Fields) -> Floats:
    return scaled(half(fields["d"]) * signed(fields["scale"], 32), _levels(IQ5, fields))


def _iq6_k(heads: Heads, fields: Fields) -> Floats:
    return scaled(half(fields["d"]) * fields["scale"].view(np.int8).astype(np.float32), _levels(IQ6, fields))


def _row_scaled(table: NDArray[np.int8], heads: Heads, scale: NDArray[Any], q: NDArray[Any]) -> Floats:
    """Return levels under scales whose lowest bit says which half of the table they are from."""
    scales = head(heads) * signed(scale & 254, 127)
    return scaled(scales, _levels(table, {"q": q, "table": scale & np.uint8(1)}))


def iq4_ks(heads: Heads, fields: Fields) -> Floats:
    return _row_scaled(IQ4, heads, fields["scale"], fields["q"])


def iq5_ks(heads: Heads, fields: Fields) -> Floats:
    return _row_scaled(IQ5, heads, fields["scale"], fields["q"])


def _iq2_ks(heads: Heads, fields: Fields) -> Floats:
    return scaled(head(heads) * signed(fields["scale"], 16), _levels(IQ2, fields))


def _iq3_ks(heads: Heads, fields: Fields) -> Floats:
    return scaled(head(heads) * signed(fields["scale"], 16), _levels(IQ3, fields))


def _iq4_kss(heads: Heads, fields: Fields) -> Floats:
    """Decode IQ4_KSS: each 16 bits hold one of the scale, and fifteen that give those of four values, each added to the
    next.
    """
    words = fields["q"].astype(np.uint16)
    n, blocks, count = words.shape
    bits = (words & 1).reshape(n, blocks, count // 8, 8).astype(np.uint8)
    scale = np.packbits(bits, axis=-1, bitorder="little")[..., 0]
    words &= np.uint16(0xFFFE)
    words ^= words >> 1
    pairs = words.astype("<u2").view(np.uint8).reshape(n, blocks, count // 8, 16)
    q = np.concatenate((pairs & 15, pairs >> 4), axis=-1).reshape(n, blocks, -1)
    return _row_scaled(IQ4, heads, scale, q)


def _iq2_kl(heads: Heads, fields: Fields) -> Floats:
    pairs = IQ2_PAIRS[fields["q"]]
    n, blocks = pairs.shape[:2]
    return scaled(head(heads) * signed(fields["scale"], 32), pairs.reshape(n, blocks, -1))


def _trellis(numbers: NDArray[Any], length: int) -> NDArray[np.int16]:
    """Return the values of each trellis number: `length` values, sums of six bits of each byte of a running product."""
    state = numbers.astype(np.uint32) + TRELLIS_START
    values = np.empty((*state.shape, length), np.int16)
    for i in range(length):
        state *= TRELLIS_STEP
        parts = (state & np.uint32(0x3F3F3F3F)).view(np.uint8).reshape(*state.shape, 4)
        values[..., i] = parts.sum(axis=-1, dtype=np.int16) - 126
    return values.reshape(*state.shape[:2], -1)


def _iq1_kt(heads: Heads, fields: Fields) -> Floats:
    return scaled(head(heads) * IQ4[fields["scale"]].astype(np.float32), _trellis(fields["q"], 8))


def _iq3_kt(heads: Heads, fields: Fields) -> Floats:
    values = scaled(head(heads) * fields["scale"].astype(np.float32), np.abs(_trellis(fields["q"], 8)))
    values[fields["negative"] > 0] *= -1
    return values


def _iq4_kt(heads: Heads, fields: Fields) -> Floats:
    n, blocks, parts = fields["scale"].shape
    shift = (fields["scale"] & np.uint8(1)).astype(np.uint32) << 15
    numbers = fields["q"].reshape(n, blocks, parts, -1) + shift[..., None]
    scales = head(heads) * signed(fields["scale"] >> 1, 64)
    return scaled(scales, _trellis(numbers.reshape(n, blocks, -1), 4))


def ternary(heads: Heads, fields: Fields) -> Floats:
    n, blocks = fields["q"].shape[:2]
    return scaled(np.broadcast_to(head(heads), (n, blocks, 1)), signed(fields["q"], 1))


def _trits(fields: Fields) -> NDArray[np.uint8]:
    """Return IQ1_BN: bytes of five trits for 15 of each 16 values, and one more for the four that are left."""
    threes = np.array([81, 27, 9, 3, 1], np.uint8)
    stored = np.concatenate((fields["q"], fields["extra"]), axis=-1).astype(np.uint8)
    turned = (stored[..., None] * threes).astype(np.uint16)  # modulo 256: its thirds are the trit
    trits = (turned + (turned >> 1) >> 7).astype(np.uint8)
    n, blocks = stored.shape[:2]
    fifteens = trits[..., :12, :].reshape(n, blocks, 4, 15)
    return np.concatenate((fifteens, trits[..., 12, :4, None]), axis=-1).reshape(n, blocks, 64)


def _iq1_bn_as_q2_0(heads: Heads, fields: Fields) -> Fields:
    q = _trits(fields)
    d = np.ascontiguousarray(heads).view("<u2").reshape(-1, 1, 1)
    return {"d": np.broadcast_to(d, (*q.shape[:2], 1)), "q": q}


def q8_kv(heads: Heads, fields: Fields) -> Floats:
    n, blocks = fields["q"].shape[:2]
    return scaled(np.broadcast_to(head(heads), (n, blocks, 1)), fields["q"].view(np.int8))


def by_32(heads: Heads, fields: Fields) -> Fields:
    """Return fields of Q8_0, whose blocks are smaller: the scale is repeated."""
    n, _, count = fields["q"].shape
    return {"d": np.repeat(fields["d"], count // 32, axis=1), "q": fields["q"].reshape(n, -1, 32)}


def less_32(heads: Heads, fields: Fields) -> Fields:
    """Return Q6_0's numbers as Q8_0 has them."""
    return {"d": fields["d"], "q": fields["q"] - np.uint8(32)}


def _q6_0() -> Layout:
    d, high, qs = block(2, 8, 16)
    low = placed(qs, (16, 2, 4), (1, 0, 2), 4)
    return {"d": d.reshape(1, 1, 16), "q": joined(low, placed(high, (8, 2, 2, 2), (2, 1, 0, 3), 2))}


def _iq1_bn() -> Layout:
    q, extra = block(12, 1)
    return {"q": q[None], "extra": extra[None]}


def _iq2_bn() -> Layout:
    return {"q": placed(block(16)[0], (16, 4, 2), (1, 0, 2), 2)}


def _layout_iq2_k() -> Layout:
    d, extra, scales, qs = block(2, 2, 8, 64)
    return {
        "d": d.reshape(1, 1, 16),
        "table": extra.reshape(1, 16, 1),
        "scale": scales.reshape(1, 16, 4),
        "q": placed(qs, (2, 32, 4, 2), (0, 2, 1, 3), 2),
    }


def _layout_iq3_k() -> Layout:
    d, extra, negative, scales, qs, high = block(2, 2, 2, 8, 64, 32)
    return {
        "d": d.reshape(1, 1, 16),
        "table": extra.reshape(1, 16, 1),
        "negative": negative.reshape(1, 16, 1),
        "scale": scales.reshape(1, 16, 4),
        "q": joined(placed(qs, (2, 32, 4, 2), (0, 2, 1, 3), 2), placed(high, (32, 8), (1, 0), 1)),
    }


def _layout_iq4_k() -> Layout:
    d, extra, high, low, qs = block(2, 2, 4, 8, 128)
    return {
        "d": d.reshape(1, 1, 16),
        "table": extra.reshape(1, 16, 1),
        "scale": joined(low.reshape(1, 16, 4), high.reshape(1, 16, 2)),
        "q": placed(qs, (8, 16, 2, 4), (0, 2, 1, 3), 4),
    }


def _layout_iq5_k() -> Layout:
    d, extra, high, low, qs, fifth = block(2, 2, 4, 8, 128, 32)
    return {
        "d": d.reshape(1, 1, 16),
        "table": extra.reshape(1, 16, 1),
        "scale": joined(low.reshape(1, 16, 4), high.reshape(1, 16, 2)),
        "q": joined(placed(qs, (4, 32, 2, 4), (0, 2, 1, 3), 4), placed(fifth, (32, 8), (1, 0), 1)),
    }


def _layout_iq6_k() -> Layout:
    d, extra, scales, qs, high = block(2, 2, 16, 128, 64)
    return {
        "d": d.reshape(1, 1, 16),
        "table": extra.reshape(1, 16, 1),
        "scale": scales[None],
        "q": joined(placed(qs, (4, 32, 2, 4), (0, 2, 1, 3), 4), placed(high, (2, 32, 2, 2, 2), (0, 2, 3, 1, 4), 2)),
    }


def _layout_iq4_ks() -> Layout:
    scales, qs = block(8, 128)
    return {"scale": scales[None], "q": placed(qs, (8, 16, 2, 4), (0, 2, 1, 3), 4)}


def _layout_iq5_ks() -> Layout:
    scales, qs, high = block(8, 128, 32)
    low = placed(qs, (4, 32, 2, 4), (0, 2, 1, 3), 4)
    return {"scale": scales[None], "q": joined(low, placed(high, (32, 8), (1, 0), 1))}


def _layout_iq2_ks() -> Layout:
    extra, scales, qs = block(2, 4, 64)
    return {
        "table": extra[0].reshape(1, 8, 1),
        "scale": joined(scales.reshape(1, 8, 4), extra[1].reshape(1, 8, 1)),
        "q": placed(qs, (2, 32, 4, 2), (0, 2, 1, 3), 2),
    }


def _layout_iq3_ks() -> Layout:
    extra, scales, qs, high = block(2, 4, 64, 32)
    low = placed(scales, (4, 2, 4), (1, 0, 2), 4)
    return {
        "table": extra[1].reshape(1, 8, 1),
        "scale": joined(low, extra[0].reshape(1, 8, 1)),
        "q": joined(placed(qs, (2, 32, 4, 2), (0, 2, 1, 3), 2), placed(high, (32, 8), (1, 0), 1)),
    }


def _layout_iq2_kl() -> Layout:
    scales_h, scales_l, qs, high = block(2, 4, 64, 16)
    low = placed(scales_l, (4, 2, 4), (1, 0, 2), 4)
    return {
        "scale": joined(low, scales_h.reshape(1, 8, 2)),
        "q": joined(placed(qs, (4, 16, 2, 4), (0, 2, 1, 3), 4), placed(high, (16, 8), (1, 0), 1)),
    }


def _layout_iq1_kt() -> Layout:
    sh, low, high = block(8, 32, 16)
    return {
        "scale": sh[None, :, :4],
        "q": joined(low[None], placed(high, (16, 2, 4), (1, 0, 2), 4), sh[:, 4:].reshape(1, 32, 1)),
    }


def _layout_iq2_kt() -> Layout:
    scales, qs = block(4, 64)
    return {"scale": placed(scales, (4, 2, 4), (1, 0, 2), 4), "q": qs.reshape(1, 32, 16)}


def _layout_iq3_kt() -> Layout:
    scales, qs, negative = block(4, 64, 32)
    return {
        "scale": placed(scales, (4, 2, 4), (1, 0, 2), 4),
        "q": qs.reshape(1, 32, 16),
        "negative": placed(negative, (32, 8), (1, 0), 1),
    }


def _layout_iq4_kt() -> Layout:
    words, low, high = block(32, 64, 32)
    each = words.reshape(8, 32)
    return {
        "scale": each[None, :, :8],
        "q": joined(low[None], placed(high, (32, 2, 4), (1, 0, 2), 4), each[:, 8:].reshape(1, 64, 3)),
    }


def _of(
    name: str,
    number: int,
    size: int,
    head_bytes: int,
    layout: Any,
    values: Decode | None = None,
    of: int = 256,
    same: str | None = None,
    restated: Restate | None = None,
) -> Reading:
    return Reading(dialect_format(IK, name, number, of, size, same=same, head=head_bytes), layout, values, restated)


READINGS = (
    _of("Q6_0", 133, 26, 0, _q6_0, of=32, same="Q8_0", restated=less_32),
    _of("IQ1_BN", 134, 13, 2, _iq1_bn, of=64, same="Q2_0", restated=_iq1_bn_as_q2_0),
    _of("IQ2_BN", 135, 16, 4, _iq2_bn, ternary, of=64),
    _of("IQ2_K", 137, 76, 0, _layout_iq2_k, iq2_k),
    _of("IQ3_K", 138, 110, 0, _layout_iq3_k, iq3_k),
    _of("IQ4_K", 139, 144, 0, _layout_iq4_k, iq4_k),
    _of("IQ5_K", 140, 176, 0, _layout_iq5_k, iq5_k),
    _of("IQ6_K", 141, 212, 0, _layout_iq6_k, _iq6_k),
    _of("IQ4_KS", 144, 136, 4, _layout_iq4_ks, iq4_ks),
    _of("IQ2_KS", 145, 70, 2, _layout_iq2_ks, _iq2_ks),
    _of("IQ4_KSS", 146, 128, 4, lambda: {"q": block(128)[0].reshape(1, 64, 16)}, _iq4_kss),
    _of("Q8_KV", 151, 32, 8, lambda: {"q": block(32)[0][None]}, q8_kv, of=32),
    _of("IQ5_KS", 152, 168, 4, _layout_iq5_ks, iq5_ks),
    _of("IQ2_KT", 153, 68, 4, _layout_iq2_kt, _iq1_kt),
    _of("IQ3_KT", 154, 100, 4, _layout_iq3_kt, _iq3_kt),
    _of("IQ4_KT", 155, 128, 4, _layout_iq4_kt, _iq4_kt),
    _of("IQ3_KS", 156, 102, 2, _layout_iq3_ks, _iq3_ks),
    _of("IQ2_KL", 157, 86, 2, _layout_iq2_kl, _iq2_kl),
    _of("IQ1_KT", 158, 56, 4, _layout_iq1_kt, _iq1_kt),
)
