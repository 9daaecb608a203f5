"""Formats with interleaved rows, so that one vector load gets numbers of several rows.

ik_llama.cpp's `_R4`, `_R8` and `_R16`, and those that ggml itself had for ARM processors (Q4_0_4_4 and its like, in
2024). Nothing is rounded: the numbers are those of the plain formats, in other places.
"""

from collections.abc import Callable

import numpy as np

from .bits import Fields, Labels, Layout, block, joined, placed
from .iqk import IK, by_32, iq2_k, iq3_k, iq4_k, iq4_ks, iq5_k, iq5_ks, less_32, q8_kv, ternary
from .reading import Decode, Floats, Heads, Reading, Restate, dialect_format, head, scaled

ARM = "ggml in 2024"


def _d(labels: Labels, rows: int) -> Labels:
    return labels.reshape(rows, 1, 16)


def _nibbles(qs: Labels) -> Labels:
    """Return 64 bytes for 32 values of four rows: sixteen bytes hold 4 values of each row, above them those 8 on."""
    return placed(qs, (-1, 2, 2, 4, 4, 2, 4), (3, 0, 2, 5, 1, 4, 6), 4, 4)


def _pairs(qs: Labels) -> Labels:
    """Return 32 bytes for 32 values of four rows, 2 bits each: 4 values of each row, and those 4, 8 and 12 places
    on.
    """
    return placed(qs, (-1, 2, 4, 4, 4, 2), (2, 0, 1, 4, 3, 5), 2, 4)


def _scales(high: Labels, low: Labels, parts: int, rows: int) -> Labels:
    """Return 6-bit scales: 4 bits of each, the second half of them above the first, and 2 bits in four such layers."""
    low = np.transpose(low.reshape(-1, 2, 4), (1, 0, 2)).reshape(parts, rows, 4)
    high = np.transpose(high.reshape(-1, 4, 2), (1, 0, 2)).reshape(parts, rows, 2)
    return np.transpose(joined(low, high), (1, 0, 2))


def _q4_0_r8() -> Layout:
    d, qs = block(16, 128)
    return {"d": _d(d, 8), "q": placed(qs, (4, 8, 4, 2, 4), (1, 3, 0, 2, 4), 4, 8)}


def _q5_0_r4() -> Layout:
    d, high, qs = block(8, 16, 64)
    return {"d": _d(d, 4), "q": joined(_nibbles(qs), placed(high, (4, 4, 2, 2, 2), (0, 4, 2, 3, 1), 1, 4))}


def _q6_0_r4() -> Layout:
    d, high, qs = block(8, 32, 64)
    return {"d": _d(d, 4), "q": joined(_nibbles(qs), placed(high, (2, 4, 4, 2, 2, 2), (1, 0, 3, 4, 2, 5), 2, 4))}


def _q8_0_r8() -> Layout:
    d, qs = block(16, 256)
    return {"d": _d(d, 8), "q": placed(qs, (2, 4, 8, 4, 8), (2, 0, 1, 3, 4), 8, 8)}


def _q2_k_r4() -> Layout:
    d, scales, qs = block(16, 64, 256)
    return {
        "d": _d(d[:8], 4),
        "dmin": _d(d[8:], 4),
        "scale": placed(scales, (16, 4, 8), (1, 0, 2), 8, 4),
        "q": _pairs(qs),
    }


def _third_bits(high: Labels) -> Labels:
    """Return 16 bytes for 32 values of four rows, a bit each: places 4 on are the next bit."""
    return placed(high, (-1, 4, 4, 2, 4), (1, 0, 3, 4, 2), 1, 4)


def _q3_k_r4() -> Layout:
    d, scales_h, scales_l, high, qs = block(8, 16, 32, 128, 256)
    return {"d": _d(d, 4), "scale": _scales(scales_h, scales_l, 16, 4), "q": joined(_pairs(qs), _third_bits(high))}


def _superblock_r4(with_high: bool) -> Layout:
    d, scales_h, scales_l, *high, qs = block(16, 16, 32, *([128] if with_high else []), 512)
    low = scales_l.reshape(8, 4, 8)
    top = np.transpose(scales_h.reshape(16, 2, 4), (1, 0, 2)).reshape(8, 4, 4)
    q = _nibbles(qs)
    return {
        "d": _d(d[:8], 4),
        "dmin": _d(d[8:], 4),
        "scale": placed(joined(low[..., :4], top[..., :2]), (8, 4, 6), (1, 0, 2), 6, 4),
        "min": placed(joined(low[..., 4:], top[..., 2:]), (8, 4, 6), (1, 0, 2), 6, 4),
        "q": joined(q, placed(high[0], (8, 4, 4, 2, 2, 2), (1, 0, 3, 5, 4, 2), 1, 4)) if high else q,
    }


def _q6_k_r4() -> Layout:
    d, scales, high, low = block(8, 64, 256, 512)
    return {
        "d": _d(d, 4),
        "scale": placed(scales, (8, 2, 4, 8), (2, 0, 1, 3), 8, 4),
        "q": joined(_nibbles(low), placed(high, (8, 2, 4, 4, 2, 2, 2), (2, 0, 1, 5, 4, 3, 6), 2, 4)),
    }


def _iq4_nl_r4() -> Layout:
    d, qs = block(8, 64)
    return {"d": _d(d, 4), "q": _nibbles(qs)}


def _iq4_xs_r8() -> Layout:
    d, scales_h, scales_l, qs = block(16, 16, 32, 1024)
    return {
        "d": _d(d, 8),
        "scale": _scales(scales_h, scales_l, 8, 8),
        "q": placed(qs, (8, 4, 8, 4, 2, 4), (2, 0, 1, 4, 3, 5), 4, 8),
    }


def _words(sas: Labels) -> tuple[Labels, Labels]:
    """Return signs and scales of IQ2_XXS and IQ3_XXS: four bytes a row, each a bit of the scale and seven of signs."""
    each = np.transpose(sas.reshape(8, 4, 4, 8), (1, 0, 2, 3))
    return each[..., 1:].reshape(4, 32, 7), each[..., :1].reshape(4, 8, 4)


def _iq2_xxs_r4() -> Layout:
    d, sas, qs = block(8, 128, 128)
    signs, scale = _words(sas)
    return {"d": _d(d, 4), "grid": placed(qs, (8, 4, 4, 8), (1, 0, 2, 3), 8, 4), "signs": signs, "scale": scale}


def _iq3_xxs_r4() -> Layout:
    d, sas, qs = block(8, 128, 256)
    signs, scale = _words(sas)
    return {"d": _d(d, 4), "grid": placed(qs, (8, 4, 8, 8), (1, 0, 2, 3), 8, 4), "signs": signs, "scale": scale}


def _iq2_xs_r4() -> Layout:
    d, qs, scales = block(8, 256, 32)
    each = placed(qs, (8, 4, 4, 16), (1, 0, 2, 3), 16, 4)
    scale = placed(scales, (8, 4, 8), (1, 0, 2), 8, 4)
    return {"d": _d(d, 4), "grid": each[..., :9], "signs": each[..., 9:], "scale": scale}


def _iq2_s_r4() -> Layout:
    d, qs, high, signs, scales = block(8, 128, 32, 128, 32)
    grid, signs = (placed(each, (8, 4, 4, 8), (1, 0, 2, 3), 8, 4) for each in (qs, signs))
    high, scale = (placed(each, (8, 4, 8), (1, 0, 2), 8, 4) for each in (high, scales))
    return {"d": _d(d, 4), "grid": grid, "signs": signs, "high": high, "scale": scale}


def _iq3_s_r4() -> Layout:
    d, qs, high, signs, scales = block(8, 256, 32, 128, 16)
    return {
        "d": _d(d, 4),
        "grid": placed(qs, (8, 4, 2, 4, 8), (3, 0, 2, 1, 4), 8, 4),
        "high": placed(high, (8, 4, 8), (1, 0, 2), 8, 4),
        "signs": placed(signs, (8, 4, 4, 4, 2), (1, 0, 3, 4, 2), 8, 4),
        "scale": np.transpose(np.transpose(scales.reshape(16, 2, 4), (1, 0, 2)).reshape(8, 4, 4), (1, 0, 2)),
    }


def _iq2_k_r4() -> Layout:
    d, extra, scales, qs = block(8, 8, 32, 256)
    low = np.transpose(scales.reshape(32, 2, 4), (1, 0, 2)).reshape(16, 4, 4)
    return {"d": _d(d, 4), "table": _extra(extra), "scale": np.transpose(low, (1, 0, 2)), "q": _pairs(qs)}


def _extra(extra: Labels) -> Labels:
    return placed(extra, (2, 4, 8), (1, 2, 0), 1, 4)


def _iq3_k_r4() -> Layout:
    d, extra, signs, scales, qs, high = block(8, 8, 8, 32, 256, 128)
    low = np.transpose(scales.reshape(32, 2, 4), (1, 0, 2)).reshape(16, 4, 4)
    return {
        "d": _d(d, 4),
        "table": _extra(extra),
        "negative": _extra(signs),
        "scale": np.transpose(low, (1, 0, 2)),
        "q": joined(_pairs(qs), _third_bits(high)),
    }


def _iq4_k_r4() -> Layout:
    d, extra, scales_h, scales_l, qs = block(8, 8, 16, 32, 512)
    return {"d": _d(d, 4), "table": _extra(extra), "scale": _scales(scales_h, scales_l, 16, 4), "q": _nibbles(qs)}


def _fifth_bits(high: Labels) -> Labels:
    return placed(high, (8, 4, 4, 2, 2, 2), (1, 0, 4, 5, 3, 2), 1, 4)


def _iq5_k_r4() -> Layout:
    d, extra, scales_h, scales_l, qs, high = block(8, 8, 16, 32, 512, 128)
    return {
        "d": _d(d, 4),
        "table": _extra(extra),
        "scale": _scales(scales_h, scales_l, 16, 4),
        "q": joined(_nibbles(qs), _fifth_bits(high)),
    }


def _iq4_ks_r4() -> Layout:
    scales, qs = block(32, 512)
    return {"scale": placed(scales, (8, 4, 8), (1, 0, 2), 8, 4), "q": _nibbles(qs)}


def _iq5_ks_r4() -> Layout:
    scales, qs, high = block(32, 512, 128)
    return {"scale": placed(scales, (8, 4, 8), (1, 0, 2), 8, 4), "q": joined(_nibbles(qs), _fifth_bits(high))}


def _iq2_bn_r4() -> Layout:
    (qs,) = block(64)
    return {"q": placed(qs, (4, 4, 4, 4, 2), (1, 0, 3, 2, 4), 2, 4)}


def _iq1_s_r4() -> Layout:
    qs, high = block(16, 8)
    word = high.reshape(4, 16)
    return {
        "grid": joined(placed(qs, (4, 4, 8), (1, 0, 2), 8, 4), word[:, :12].reshape(4, 4, 3)),
        "scale": word[:, None, 12:15],
        "below": word[:, None, 15:],
    }


def _iq1_m_r4() -> Layout:
    qs, high, scales = block(16, 8, 4)
    each = np.transpose(high.reshape(2, 4, 2, 4), (1, 0, 2, 3)).reshape(4, 4, 4)
    return {
        "grid": joined(placed(qs, (4, 4, 8), (1, 0, 2), 8, 4), each[..., :3]),
        "scale": scales.reshape(4, 2, 4),
        "below": each[..., 3:],
    }


def _q8_k(rows: int) -> Layout:
    d, qs = block(2 * rows, 256 * rows)
    return {"d": _d(d, rows), "q": placed(qs, (64, rows, 4, 8), (1, 0, 2, 3), 8, rows)}


def _q8_kv_r8() -> Layout:
    (qs,) = block(256)
    return {"q": placed(qs, (8, 8, 4, 8), (1, 0, 2, 3), 8, 8)}


def _bf16_r16() -> Layout:
    (qs,) = block(64)
    return {"q": placed(qs, (16, 2, 16), (0, 1, 2), 16, 16)}


def _in_chunks(rows: int, chunk: int) -> Layout:
    """Return half bytes of 32 values: `chunk` bytes of each row in turn."""
    d, qs = block(2 * rows, 16 * rows)
    return {"d": _d(d, rows), "q": placed(qs, (16 // chunk, rows, chunk, 2, 4), (1, 3, 0, 2, 4), 4, rows)}


def _plain_signs(heads: Heads, fields: Fields) -> Fields:
    """Return ggml's numbers of sign patterns, where a stored bit is the sum of a sign and those before it."""
    stored = fields["signs"]
    return {**fields, "signs": (stored ^ (stored << 1)) & 127}


def _eighth_flipped(heads: Heads, fields: Fields) -> Fields:
    return {**fields, "q": fields["q"] ^ 8}


def _less_128(heads: Heads, fields: Fields) -> Fields:
    return by_32(heads, {**fields, "q": fields["q"] ^ 128})


def _one_by_one(heads: Heads, fields: Fields) -> Fields:
    return {"q": fields["q"].reshape(len(fields["q"]), -1, 1)}


def _grid_values(heads: Heads, fields: Fields, scales: Floats) -> Floats:
    """Return points of IQ1_S's grid of -1, 0 and 1, each moved by an eighth one way or the other, scaled."""
    from ..kernels.grids import grid_values

    points = grid_values("IQ1_S")[fields["grid"]].astype(np.float32)
    groups = np.where(fields["below"], np.float32(-0.125), np.float32(0.125))
    n, blocks, count = fields["grid"].shape
    points += np.repeat(groups, count // groups.shape[-1], axis=-1)[..., None]
    return scaled(head(heads) * scales, points.reshape(n, blocks, 8 * count))


def _iq1_s(heads: Heads, fields: Fields) -> Floats:
    return _grid_values(heads, fields, (2 * fields["scale"] + 1).astype(np.float32))


def _iq1_m(heads: Heads, fields: Fields) -> Floats:
    return _grid_values(heads, fields, fields["scale"].astype(np.float32))


def _of_ik(
    name: str,
    number: int,
    values: int,
    size: int,
    together: int,
    layout: Callable[[], Layout],
    same: str = "",
    decode: Decode | None = None,
    restated: Restate | None = None,
    head: int = 0,
) -> Reading:
    form = dialect_format(IK, name, number, values, size, same=same or None, head=head, together=together)
    return Reading(form, layout, decode, restated)


def _of_arm(name: str, number: int, together: int, chunk: int, same: str = "Q4_0") -> Reading:
    form = dialect_format(ARM, name, number, 32, 18, same=same, together=together)
    return Reading(form, lambda: _in_chunks(together, chunk), None, _eighth_flipped if same == "Q4_0" else None)


READINGS = (
    _of_arm("Q4_0_4_4", 31, 4, 4),
    _of_arm("Q4_0_4_8", 32, 4, 8),
    _of_arm("Q4_0_8_8", 33, 8, 8),
    _of_arm("IQ4_NL_4_4", 36, 4, 4, "IQ4_NL"),
    _of_ik("Q4_0_R8", 202, 32, 18, 8, _q4_0_r8, "Q4_0"),
    _of_ik("Q5_0_R4", 206, 32, 22, 4, _q5_0_r4, "Q5_0"),
    _of_ik("Q8_0_R8", 208, 32, 34, 8, _q8_0_r8, "Q8_0"),
    _of_ik("Q2_K_R4", 210, 256, 84, 4, _q2_k_r4, "Q2_K"),
    _of_ik("Q3_K_R4", 211, 256, 110, 4, _q3_k_r4, "Q3_K"),
    _of_ik("Q4_K_R4", 212, 256, 144, 4, lambda: _superblock_r4(False), "Q4_K"),
    _of_ik("Q5_K_R4", 213, 256, 176, 4, lambda: _superblock_r4(True), "Q5_K"),
    _of_ik("Q6_K_R4", 214, 256, 210, 4, _q6_k_r4, "Q6_K"),
    _of_ik("IQ2_XXS_R4", 216, 256, 66, 4, _iq2_xxs_r4, "IQ2_XXS", None, _plain_signs),
    _of_ik("IQ2_XS_R4", 217, 256, 74, 4, _iq2_xs_r4, "IQ2_XS", None, _plain_signs),
    _of_ik("IQ3_XXS_R4", 218, 256, 98, 4, _iq3_xxs_r4, "IQ3_XXS", None, _plain_signs),
    _of_ik("IQ1_S_R4", 219, 32, 6, 4, _iq1_s_r4, "", _iq1_s, None, 2),
    _of_ik("IQ4_NL_R4", 220, 32, 18, 4, _iq4_nl_r4, "IQ4_NL"),
    _of_ik("IQ3_S_R4", 221, 256, 110, 4, _iq3_s_r4, "IQ3_S"),
    _of_ik("IQ2_S_R4", 222, 256, 82, 4, _iq2_s_r4, "IQ2_S"),
    _of_ik("IQ4_XS_R8", 223, 256, 136, 8, _iq4_xs_r8, "IQ4_XS"),
    _of_ik("IQ1_M_R4", 229, 32, 7, 4, _iq1_m_r4, "", _iq1_m, None, 2),
    _of_ik("BF16_R16", 230, 2, 4, 16, _bf16_r16, "BF16", None, _one_by_one),
    _of_ik("Q6_0_R4", 233, 32, 26, 4, _q6_0_r4, "Q8_0", None, less_32),
    _of_ik("IQ2_BN_R4", 335, 64, 16, 4, _iq2_bn_r4, "", ternary, None, 4),
    _of_ik("IQ2_K_R4", 337, 256, 76, 4, _iq2_k_r4, "", iq2_k),
    _of_ik("IQ3_K_R4", 338, 256, 110, 4, _iq3_k_r4, "", iq3_k),
    _of_ik("IQ4_K_R4", 339, 256, 144, 4, _iq4_k_r4, "", iq4_k),
    _of_ik("IQ5_K_R4", 340, 256, 176, 4, _iq5_k_r4, "", iq5_k),
    _of_ik("IQ4_KS_R4", 344, 256, 136, 4, _iq4_ks_r4, "", iq4_ks, None, 4),
    _of_ik("IQ5_KS_R4", 352, 256, 168, 4, _iq5_ks_r4, "", iq5_ks, None, 4),
    _of_ik("Q8_K_R16", 397, 256, 258, 16, lambda: _q8_k(16), "Q8_0", None, _less_128),
    _of_ik("Q8_KV_R8", 398, 32, 32, 8, _q8_kv_r8, "", q8_kv, None, 4),
    _of_ik("Q8_K_R8", 399, 256, 258, 8, lambda: _q8_k(8), "Q8_0", None, by_32),
)
