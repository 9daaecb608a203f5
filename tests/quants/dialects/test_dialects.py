"""Formats of forks: decoded as the forks' own functions do it, and said in ggml's formats bit by bit.

`blocks.npz` holds rows of random blocks with what the functions `dequantize_row_*` of the forks make of them, compiled
from their sources (ik_llama.cpp 440498, PrismML, BitNet; for IQ6_K and the trellises the CPU's).
"""

import subprocess
import sys

import numpy as np
import pytest

from quants import FormatError, Tensor, format_named
from quants.dialects import meanings, readings
from quants.dialects.codec import _layout, decode, restate
from quants.dialects.layouts import LAYOUTS
from quants.format import formats

from ...conftest import DATA
from ...dialects import interleaved

READABLE = {name: each for name, each in readings().items() if each.layout is not None}
IN_OTHER_PLACES = [name for name, each in READABLE.items() if each.format.rows_together > 1 and each.format.same_values]
MADE_ANEW = ("Q6_0_R4", "Q8_K_R8", "Q8_K_R16")  # their blocks are no other's: the values alone are the same


@pytest.fixture(scope="module")
def golden():
    return np.load(DATA / "dialects" / "blocks.npz")


@pytest.mark.parametrize("name", READABLE)
def test_values_are_those_of_the_fork(name, golden):
    form, raw, wanted = READABLE[name].format, golden[f"{name}.raw"], golden[f"{name}.values"]
    rows = Tensor(name, wanted.shape, form, lambda start, stop: raw[start:stop], tail=golden.get(f"{name}.tail"))
    assert np.array_equal(rows.float32(), wanted)
    assert np.array_equal(rows.float32(1, 3), wanted[1:3])


@pytest.mark.parametrize("name", READABLE)
def test_every_bit_of_a_block_is_a_bit_of_one_number(name):
    form = READABLE[name].format
    bits = np.concatenate([labels.reshape(-1) for labels in _layout(form).values()])
    assert sorted(bits.tolist()) == list(range(8 * form.block_bytes * form.rows_together))


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layouts_of_ggml_use_every_bit(name):
    bits = np.concatenate([labels.reshape(-1) for labels in LAYOUTS[name]().values()])
    assert sorted(bits.tolist()) == list(range(8 * format_named(name).block_bytes))


@pytest.mark.parametrize("name", [name for name in IN_OTHER_PLACES if name not in MADE_ANEW])
def test_interleaved_rows_come_back_bit_by_bit(name):
    form = READABLE[name].format
    stock = format_named(form.same_values)
    raw = np.random.default_rng(3).integers(0, 256, (2 * form.rows_together, stock.row_bytes(512)), dtype=np.uint8)
    stored = interleaved(form, raw)
    assert stored.shape == (len(raw), form.row_bytes(512))
    assert not np.array_equal(stored, raw)
    assert np.array_equal(restate(form, stored), raw)


def test_rows_that_are_stored_together_are_not_parted():
    form = readings()["Q4_0_R8"].format
    with pytest.raises(FormatError, match="8 rows together; 4 rows"):
        decode(form, np.zeros((4, 18), np.uint8))


def test_no_dialect_is_offered_as_a_format():
    assert not {*readings()} & {*formats()}
    for each in readings().values():
        assert each.format.dialect
        if each.format.has_codec:
            with pytest.raises(FormatError, match="reads it, and does not write it"):
                each.format.encode(np.zeros((1, each.format.block_size), np.float32))


def test_numbers_and_names_are_unique_but_where_sizes_tell():
    several = {each.format.ggml_type for each in readings().values() if len(meanings(each.format.ggml_type)) > 1}
    assert several == {36}
    for number in several:
        sizes = {each.bits_per_weight for each in meanings(number)}
        assert len(sizes) == len(meanings(number))


def test_nothing_of_this_is_loaded_to_open_a_file():
    code = "import gguftools, sys, quants.format as f; gguftools.open; f.formats(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "quants.formats" in loaded
    assert not [module for module in loaded if module.startswith("quants.dialects")]
