"""What the head of each format module says is so, for every module found."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

import quants
from quants.format import formats

FOLDER = Path(quants.__file__).parent / "formats"
NAMES = [path.stem.upper() for path in sorted(FOLDER.glob("*.py")) if path.stem != "__init__"]


def head_of(name: str) -> str:
    return importlib.import_module(f"quants.formats.{name.lower()}").__doc__ or ""


@pytest.mark.parametrize("name", NAMES)
def test_module_is_of_a_known_format_and_starts_with_its_name(name: str):
    assert head_of(name).startswith(f"{name}: ")


@pytest.mark.parametrize("ggml_type", GGMLQuantizationType)
def test_block_is_as_long_as_ggml_says(ggml_type: GGMLQuantizationType):
    """A type that a newer gguf package knows needs a file, too: its facts, without a codec."""
    form = quants.format_of_type(ggml_type)
    assert (form.name, form.block_size, form.block_bytes) == (ggml_type.name, *GGML_QUANT_SIZES[ggml_type])


@pytest.mark.parametrize("name", NAMES)
def test_bits_per_weight_in_the_docstring(name: str):
    form = quants.format_named(name)
    stated = re.search(r"([\d.]+)\s+bits\s+per\s+weight", head_of(name))
    assert stated or not form.is_quantized
    assert stated is None or float(stated[1]) == form.bits_per_weight


@pytest.mark.parametrize("name", [name for name in NAMES if formats()[name].is_quantized])
def test_offsets_in_the_diagram_are_those_of_the_fields(name: str):
    form = quants.format_named(name)
    diagram = re.search(r"byte +([\d ]+)\n", head_of(name))
    assert diagram is not None
    offsets = {offset for _, offset, *_ in form.block.fields.values()} | {form.block_bytes}
    assert offsets <= {int(at) for at in diagram[1].split()}


def test_every_file_of_the_folder_is_a_format():
    assert set(NAMES) <= set(formats())


@pytest.mark.parametrize("name", NAMES)
def test_facts_name_formats(name: str):
    form = formats()[name]
    assert {form.activations, form.fallback or "F16"} <= set(formats())
    assert form.fallback is None or formats()[form.fallback].block_size <= form.block_size


# One block by hand, its fields by name, and what the definition makes of it: (value, how often), …
SIX_BITS = [1, 2, 3, 4, 5, 6, 7, 8, *[0x21] * 4]
HAND_MADE: dict[str, tuple[dict[str, Any], list[tuple[float, int]]]] = {
    "Q4_0": ({"d": 0.5, "qs": 0x9F}, [(3.5, 16), (0.5, 16)]),
    "Q4_1": ({"d": 0.5, "m": -1, "qs": 0x9F}, [(6.5, 16), (3.5, 16)]),
    "Q5_0": ({"d": 2, "qh": 255 << 16, "qs": 0x21}, [(-30, 16), (4, 8), (-28, 8)]),
    "Q5_1": ({"d": 2, "m": 1, "qh": 255, "qs": 0x21}, [(35, 8), (3, 8), (5, 16)]),
    "Q8_0": ({"d": 0.25, "qs": -128}, [(-32, 32)]),
    "Q2_K": ({"scales": 0x23, "qs": 0b11100100, "d": 0.5, "dmin": 0.25}, 2 * [(-0.5, 32), (1, 32), (2.5, 32), (4, 32)]),
    "Q3_K": (
        {"hmask": 0b10101010, "qs": 0b00011011, "scales": [0x10] * 8 + [0b10] * 4, "d": 0.5},
        [(0, 64), (48, 32), (0, 32), (15.5, 32), (-31, 32), (46.5, 32), (0, 32)],
    ),
    "Q4_K": (
        {"d": 0.5, "dmin": 0.25, "scales": SIX_BITS, "qs": 0x93},
        [(0.25, 32), (7.5, 32), (2.75, 32), (16, 32), (1, 32), (4, 32), (1, 32), (4, 32)],
    ),
    "Q5_K": (
        {"d": 0.5, "dmin": 0.25, "scales": SIX_BITS, "qh": 0b10, "qs": 0x93},
        [(0.25, 32), (23.5, 32), (2.75, 32), (16, 32), (1, 32), (4, 32), (1, 32), (4, 32)],
    ),
    "Q6_K": ({"ql": 0x21, "qh": 0b11100100, "scales": -3, "d": 0.5}, 2 * [(46.5, 32), (22.5, 32), (-3, 32), (-27, 32)]),
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_decode_of_a_block_by_hand(name: str):
    fields, runs = HAND_MADE[name]
    block = np.zeros(1, quants.format_named(name).block)
    for field, content in fields.items():
        block[field] = content
    expected = [value for value, count in runs for _ in range(count)]
    assert quants.decode(name, block.view(np.uint8).reshape(1, -1))[0].tolist() == expected


@pytest.mark.parametrize("name", ["F64", "I8", "I16", "I32", "I64"])
def test_numbers_that_are_never_encoded(name: str):
    values = np.array([[0, 1, -1, 100]], quants.format_named(name).elements)
    assert quants.decode(name, values.view(np.uint8)).tolist() == [[0, 1, -1, 100]]
    with pytest.raises(quants.FormatError, match=f"encoded as {name}"):
        quants.encode(name, np.ones((1, 4), np.float32))


def test_a_double_past_float32_decodes_to_infinity():
    assert quants.decode("F64", np.array([[1e300, -1e300]]).view(np.uint8)).tolist() == [[np.inf, -np.inf]]
