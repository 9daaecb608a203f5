"""Every format that has a codec: its bytes and its values are those of the reference, on every golden block."""

from __future__ import annotations

import gzip
import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quants
from quants.format import formats

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
BLOCKS = np.load(GOLDEN / "blocks.npz")
PLAIN = ("F32", "F64", "I8", "I16", "I32", "I64")  # numbers as numpy knows them
FACTS = json.loads(gzip.decompress((GOLDEN / "blocks.json.gz").read_bytes()))
NAMES = [name for name, form in formats().items() if form.has_codec and form.name not in PLAIN]


def sha256(values: np.ndarray) -> str:
    return hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()


def keys(kind: str, name: str) -> list[str]:
    return [key for key in BLOCKS.files if key.startswith(f"{kind}/{name}/") or key == f"{kind}/{name}"]


def encoded(key: str) -> np.ndarray:
    """Our bytes for q/<TYPE>/<case> or qw/<TYPE>/<case>/<weights>."""
    _, name, case, *weights = key.split("/")
    rows = BLOCKS[f"in/{case}"]
    return quants.encode(name, rows, BLOCKS[f"w/{weights[0]}/{rows.shape[1]}"] if weights else None)


def is_ordinary(key: str) -> bool:
    return "/info_" not in key


@pytest.mark.parametrize("name", NAMES)
def test_golden_data_knows_every_format_with_a_codec(name: str):
    form = quants.format_named(name)
    assert name in FACTS["types"]
    assert keys("rnd", name)
    assert keys("q", name) or form.needs_importance
    assert keys("qw", name) or not form.uses_importance


def test_formats_agree_with_the_reference_on_sizes():
    for name, facts in FACTS["types"].items():
        form = quants.format_named(name)
        ours = {"ggml_type": form.ggml_type, "block": form.block_size, "bytes": form.block_bytes}
        assert ours.items() <= facts.items(), name
        assert form.needs_importance == facts["library_requires_weights"]


@pytest.mark.parametrize("name", NAMES)
def test_format_says_whether_it_uses_importance(name: str):
    assert quants.format_named(name).uses_importance == FACTS["types"][name]["uses_weights"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["q", "qw"])
def test_encode_gives_the_reference_bytes(name: str, kind: str):
    found = filter(is_ordinary, keys(kind, name))
    wrong = [key for key in found if not np.array_equal(encoded(key), BLOCKS[key])]
    assert wrong == []


@pytest.mark.parametrize("name", [name for name, facts in FACTS["types"].items() if not facts["uses_weights"]])
def test_encode_ignores_importance_where_the_reference_does(name: str):
    rows = BLOCKS["in/real"]
    weighted = quants.encode(name, rows, BLOCKS[f"w/chi2/{rows.shape[1]}"])
    assert np.array_equal(weighted, BLOCKS[f"q/{name}/real"])


@pytest.mark.parametrize("name", NAMES)
def test_decode_gives_the_reference_values(name: str):
    found = filter(is_ordinary, keys("q", name) + keys("qw", name) + keys("rnd", name))
    wrong = []
    for key in found:
        facts = FACTS["decoded"][key if key.startswith("rnd") else "d" + key]
        if sha256(quants.decode(name, BLOCKS[key])) != facts["sha256_raw"]:
            wrong.append(key)
    assert wrong == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 3, 17])
def test_any_number_of_blocks_encodes_as_part_of_a_whole(name: str, count: int):
    """One block a row, so that lanes are left over in every way."""
    form = quants.format_named(name)
    weights = BLOCKS["w/chi2/512"][: form.block_size] if form.uses_importance else None
    rows = BLOCKS["in/student3"].reshape(-1, form.block_size)[:32]
    whole = quants.encode(name, rows, weights)
    part = quants.encode(name, rows[5 : 5 + count], weights)
    assert np.array_equal(part, whole[5 : 5 + count])
    assert np.array_equal(quants.decode(name, part), quants.decode(name, whole)[5 : 5 + count])


def awkward_arrays(rows: np.ndarray) -> dict[str, Any]:
    frozen = rows.copy()
    frozen.flags.writeable = False
    return {
        "read only": frozen,
        "Fortran order": np.asfortranarray(rows),
        "every other row": np.repeat(rows, 2, axis=0)[::2],
        "float64": rows.astype(np.float64),
        "lists": rows.tolist(),
    }


@pytest.mark.parametrize("name", NAMES)
def test_memory_layout_of_the_input_does_not_matter(name: str):
    form = quants.format_named(name)
    rows = BLOCKS["in/gauss"][:3]
    weights = BLOCKS["w/chi2/512"] if form.needs_importance else None
    whole = quants.encode(name, rows, weights)
    for what, array in awkward_arrays(rows).items():
        assert np.array_equal(quants.encode(name, array, weights), whole), what
    for what, array in awkward_arrays(whole).items():
        if what != "float64":
            assert np.array_equal(quants.decode(name, array), quants.decode(name, whole)), what


@pytest.mark.parametrize("name", NAMES)
def test_non_finite_and_extreme_values_do_not_crash(name: str):
    """Nothing is promised about the bytes: the pipeline refuses such tensors first."""
    form = quants.format_named(name)
    rows = BLOCKS["in/gauss"][:6].copy()
    for row, value in zip(rows, (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45), strict=True):
        row[7::50] = value
    for weights in (BLOCKS["w/chi2/512"], None):
        if weights is None and form.needs_importance:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert quants.encode(name, rows, weights).shape == (6, form.row_bytes(512))


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_is_no_bytes(name: str):
    form = quants.format_named(name)
    weights = np.ones(512, np.float32)
    assert quants.encode(name, np.empty((0, 512), np.float32), weights).shape == (0, form.row_bytes(512))
    assert quants.decode(name, np.empty((0, form.row_bytes(512)), np.uint8)).shape == (0, 512)
