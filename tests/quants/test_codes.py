"""Codes of blocks: put where the format's decoder finds them, and nothing else is touched."""

import numpy as np
import pytest

from quants import Format, format_named
from quants.bit_fields import put, put_parts, take
from quants.codes import Scale
from quants.feedback import meanings, put_codes
from quants.format import formats
from quants.grid_feedback import meanings as meanings_of_points
from quants.kernels.grids import grid_levels
from quants.near_scales import scale_numbers

WITH_CODES = [form for form in formats().values() if form.codes]
GRIDS = ["IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ3_S", "IQ2_S", "IQ1_M"]
WITH_POINTS = [form for form in formats().values() if form.points]


def _blocks(form: Format, count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    values = np.random.default_rng(1).standard_normal((count, form.block_size)).astype(np.float32)
    return values, form.encode(values, np.ones(form.block_size, np.float32))


def test_which_formats_have_a_code_for_every_value() -> None:
    names = "MXFP4 NVFP4 Q1_0 Q2_0 Q2_K Q3_K Q4_0 Q4_1 Q4_K Q5_0 Q5_1 Q5_K Q6_K Q8_0 IQ4_NL IQ4_XS TQ2_0"
    assert {form.name for form in WITH_CODES} == set(names.split())
    assert [form.name for form in WITH_POINTS] == GRIDS


@pytest.mark.parametrize("form", WITH_CODES, ids=lambda form: form.name)
def test_codes_that_mean_what_was_decoded_give_the_same_values(form: Format) -> None:
    assert form.codes
    _, blocks = _blocks(form)
    known = np.arange(form.codes.first, form.codes.last + 1, dtype=np.uint8)
    decoded, table = form.decode(blocks), meanings(form, form.codes, blocks, known)
    assert table.shape == (len(blocks), form.block_size // form.codes.group, len(known))
    groups = np.repeat(np.arange(table.shape[1]), form.codes.group)
    away = np.abs(table[:, groups] - decoded[:, :, None])
    codes = (away.argmin(2) + form.codes.first).astype(np.uint8)
    again = blocks.copy()
    put_codes(form.codes, again, codes)
    assert np.array_equal(form.decode(again), decoded)


@pytest.mark.parametrize("form", WITH_CODES, ids=lambda form: form.name)
def test_every_bit_that_is_no_code_stays(form: Format) -> None:
    assert form.codes
    _, blocks = _blocks(form, 4)
    zeros, ones = blocks.copy(), blocks.copy()
    put_codes(form.codes, zeros, np.zeros((4, form.block_size), np.uint8))
    put_codes(form.codes, ones, np.full((4, form.block_size), form.codes.count - 1, np.uint8))
    changed = np.bitwise_xor(zeros, ones)
    bits = form.block_size * (form.codes.count.bit_length() - 1)
    assert np.unpackbits(changed).sum() == 4 * bits  # as many as codes have, no more
    assert np.array_equal(zeros & ~changed, blocks & ~changed)


def test_the_lowest_byte_is_not_used() -> None:
    form = format_named("Q8_0")
    assert form.codes
    assert form.codes.first == 1
    _, blocks = _blocks(form, 1)
    assert meanings(form, form.codes, blocks, np.array([128], np.uint8))[0, 0, 0] == 0


@pytest.mark.parametrize("form", WITH_POINTS, ids=lambda form: form.name)
def test_points_are_where_the_decoder_finds_them(form: Format) -> None:
    """Scales, indexes and signs of what the format's encoder wrote, put together by what levels mean."""
    points = form.points
    assert points
    _, blocks = _blocks(form)
    levels = grid_levels(points.grid)
    count, dims = form.block_size // levels.shape[1], levels.shape[1]
    numbers, first = np.zeros((len(blocks), count), np.intp), 0
    for part in points.indexes:
        numbers |= take(part, blocks, count).astype(np.intp) << first
        first += part.bits
    assert len(levels) == 1 << first
    lanes = levels[numbers].reshape(len(blocks), -1).astype(np.intp)
    if points.signs:
        every = dims if points.signs.bits == 1 else 8
        bits = take(points.signs, blocks, form.block_size // every)
        if points.signs.bits == 1:
            bits = bits * 255
        elif points.signs.bits == 7:
            odd = np.bitwise_xor.reduce(bits[..., None] >> np.arange(7, dtype=np.uint16) & 1, axis=2)
            bits |= odd << 7
        lanes += 8 * np.unpackbits(bits.astype(np.uint8), axis=1, bitorder="little")
    table = meanings_of_points(form, points, blocks)
    groups = np.arange(form.block_size) // points.group
    found = np.take_along_axis(table[:, groups], lanes[..., None], axis=2)[..., 0]
    assert np.array_equal(found, form.decode(blocks))


@pytest.mark.parametrize("form", WITH_POINTS, ids=lambda form: form.name)
def test_parts_of_points_share_no_bits(form: Format) -> None:
    points = form.points
    assert points
    _, blocks = _blocks(form, 1)
    dims, used = grid_levels(points.grid).shape[1], np.zeros_like(blocks)
    counts = [form.block_size // points.group] * len(points.scale.parts)
    counts += [form.block_size // dims] * len(points.indexes)
    parts = [*points.scale.parts, *points.indexes]
    if points.signs:
        parts, counts = [*parts, points.signs], [*counts, form.block_size // (dims if points.signs.bits == 1 else 8)]
    for part, count in zip(parts, counts, strict=True):
        zeros, ones = blocks.copy(), blocks.copy()
        put(part, zeros, np.zeros((1, count), np.uint16))
        put(part, ones, np.full((1, count), 0xFFFF, np.uint16))
        assert np.unpackbits(zeros ^ ones).sum() == count * part.bits
        assert not (used & (zeros ^ ones)).any()
        used |= zeros ^ ones


def _scales(form: Format) -> list[tuple[Scale, int]]:
    """The format's scale and minimum, and how many a block has."""
    if form.points:
        return [(form.points.scale, form.block_size // form.points.group)]
    assert form.codes
    return [(each, form.block_size // form.codes.group) for each in (form.codes.scale, form.codes.minimum) if each]


@pytest.mark.parametrize("form", WITH_CODES + WITH_POINTS, ids=lambda form: form.name)
def test_a_scale_s_number_is_that_of_its_group_alone(form: Format) -> None:
    """The next larger number makes the group's values larger, or moves all of them as far; other groups stay."""
    _, blocks = _blocks(form)
    decoded = form.decode(blocks).reshape(len(blocks), -1)
    for scale, groups in _scales(form):
        numbers = scale_numbers(scale, blocks, groups)
        same = blocks.copy()
        put_parts(scale.parts, same, numbers)
        assert np.array_equal(same, blocks)
        for group in range(groups):
            moved, other = blocks.copy(), numbers.copy()
            other[:, group] = np.minimum(numbers[:, group] + scale.apart, (1 << scale.bits) - 1)
            put_parts(scale.parts, moved, other)
            changed = form.decode(moved).reshape(len(blocks), groups, -1)
            before = decoded.reshape(len(blocks), groups, -1)
            assert np.array_equal(np.delete(changed, group, axis=1), np.delete(before, group, axis=1))
            assert (changed[:, group] != before[:, group]).any()
            some = (other != numbers)[:, group] & (np.abs(before[:, group]).max(1) > 0)
            grown = changed[some, group] - before[some, group]
            if form.codes and scale is form.codes.minimum:
                assert np.allclose(grown, grown[:, :1], rtol=0.01, atol=1e-6)
            elif not (form.codes and form.codes.minimum):
                old, place = before[some, group], np.abs(before[some, group]).argmax(1)[:, None]
                factor = np.take_along_axis(grown, place, 1) / np.take_along_axis(old, place, 1)
                assert (factor != 0).all()
                assert np.allclose(grown, factor * old, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("form", WITH_CODES, ids=lambda form: form.name)
def test_scales_and_codes_share_no_bits(form: Format) -> None:
    assert form.codes
    _, blocks = _blocks(form, 1)
    used = np.zeros_like(blocks)
    parts = [(part, groups) for scale, groups in _scales(form) for part in scale.parts]
    for part, count in [*parts, *((plane, form.block_size) for plane in form.codes.planes)]:
        zeros, ones = blocks.copy(), blocks.copy()
        put(part, zeros, np.zeros((1, count), np.uint16))
        put(part, ones, np.full((1, count), 0xFFFF, np.uint16))
        assert np.unpackbits(zeros ^ ones).sum() == count * part.bits
        assert not (used & (zeros ^ ones)).any()
        used |= zeros ^ ones


def test_every_format_with_codes_has_a_scale() -> None:
    assert all(form.codes and form.codes.scale for form in WITH_CODES)
    assert [form.name for form in WITH_CODES if form.codes and form.codes.minimum] == [
        "Q4_1",
        "Q5_1",
        "Q2_K",
        "Q4_K",
        "Q5_K",
    ]
