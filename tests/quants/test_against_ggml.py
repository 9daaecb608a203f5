"""Bytes equal to those of ggml's own library, on input that the golden blocks do not have.

Needs the package llama-cpp-python (the extra `verify`); the formats whose encoder in that library neither aborts nor
takes minutes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import quants

FORMATS = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


pytestmark = pytest.mark.verify


@pytest.fixture(scope="module")
def ggml() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "formats.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_formats", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs(rng: np.random.Generator, shape: tuple[int, int]) -> Iterator[tuple[str, np.ndarray]]:
    yield "heavy tails", np.clip(rng.standard_cauchy(shape), -1e4, 1e4) * 0.01
    yield "integers", rng.integers(-5, 6, shape)
    yield "sparse", rng.standard_normal(shape) * (rng.random(shape) < 0.05)
    yield "positive", rng.random(shape)
    yield "far from zero", rng.standard_normal(shape) * 0.01 - 3
    yield "of all sizes", rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 3, shape)
    yield "two values", np.sign(rng.standard_normal(shape)) * 0.1
    yield "nearly nothing", rng.standard_normal(shape) * 1e-14


def importances(rng: np.random.Generator, width: int) -> Iterator[tuple[str, np.ndarray | None]]:
    yield "none", None
    yield "usual", rng.chisquare(1, width) + 1e-3
    yield "many zeros", rng.chisquare(1, width) * (rng.random(width) < 0.6)
    yield "of all sizes", 10.0 ** rng.uniform(-8, 4, width)


@pytest.mark.parametrize("name", FORMATS)
def test_same_bytes_as_the_library(ggml: ModuleType, name: str):
    library, form, rng = ggml.reference(), quants.format_named(name), np.random.default_rng(8)
    for kind, values in inputs(rng, (29, 512)):
        rows = values.astype(np.float32)
        for weights_kind, weights in importances(rng, 512):
            importance = None if weights is None else weights.astype(np.float32)
            expected = ggml.reference_encode(library, form, rows, importance)
            assert np.array_equal(quants.encode(name, rows, importance), expected), (kind, weights_kind)
            ours, theirs = quants.decode(name, expected), ggml.reference_decode(library, form, expected, 512)
            assert ours.tobytes() == theirs.tobytes(), (kind, weights_kind)
