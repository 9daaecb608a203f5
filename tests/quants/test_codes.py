"""Codes of blocks: put where the format's decoder finds them, and nothing else is touched."""

import numpy as np
import pytest

from quants import Format, format_named
from quants.feedback import meanings
from quants.format import formats

WITH_CODES = [form for form in formats().values() if form.codes]


def _blocks(form: Format, count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    values = np.random.default_rng(1).standard_normal((count, form.block_size)).astype(np.float32)
    return values, form.encode(values)


def test_which_formats_have_a_code_for_every_value() -> None:
    names = "MXFP4 Q2_K Q3_K Q4_0 Q4_1 Q4_K Q5_0 Q5_1 Q5_K Q6_K Q8_0 IQ4_NL IQ4_XS"
    assert {form.name for form in WITH_CODES} == set(names.split())


@pytest.mark.parametrize("form", WITH_CODES, ids=lambda form: form.name)
def test_codes_that_mean_what_was_decoded_give_the_same_values(form: Format) -> None:
    assert form.codes
    _, blocks = _blocks(form)
    decoded, table = form.decode(blocks), meanings(form, form.codes, blocks)
    assert table.shape == (len(blocks), form.block_size // form.codes.group, form.codes.count)
    groups = np.repeat(np.arange(table.shape[1]), form.codes.group)
    away = np.abs(table[:, groups] - decoded[:, :, None])[:, :, form.codes.first :]
    codes = (away.argmin(2) + form.codes.first).astype(np.uint8)
    again = blocks.copy()
    form.codes.put(again, codes)
    assert np.array_equal(form.decode(again), decoded)


@pytest.mark.parametrize("form", WITH_CODES, ids=lambda form: form.name)
def test_every_bit_that_is_no_code_stays(form: Format) -> None:
    assert form.codes
    _, blocks = _blocks(form, 4)
    zeros, ones = blocks.copy(), blocks.copy()
    form.codes.put(zeros, np.zeros((4, form.block_size), np.uint8))
    form.codes.put(ones, np.full((4, form.block_size), form.codes.count - 1, np.uint8))
    changed = np.bitwise_xor(zeros, ones)
    bits = form.block_size * (form.codes.count.bit_length() - 1)
    assert np.unpackbits(changed).sum() == 4 * bits  # as many as codes have, no more
    assert np.array_equal(zeros & ~changed, blocks & ~changed)


def test_the_lowest_byte_is_not_used() -> None:
    form = format_named("Q8_0")
    assert form.codes
    assert form.codes.first == 1
    _, blocks = _blocks(form, 1)
    assert meanings(form, form.codes, blocks)[0, 0, 128] == 0
