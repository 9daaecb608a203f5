"""Products in 8-bit integers beside those in float32 of inputs rounded alike."""

import numpy as np
import pytest

from quants import Tensor, format_named
from runtime.kernels import int16
from runtime.products import eight_bit_product, gemv
from runtime.products.block_scales import OF_FORMAT
from runtime.products.matmul import matmul
from runtime.products.precision import rounded

CLOSE = 1e-6  # of a row's largest value
needs_instruction = pytest.mark.skipif(not int16.available(), reason="needs AVX512-VNNI")


def weight_of(name: str, rows: int, width: int, seed: int = 0) -> Tensor:
    """Blocks of random bits under scales that are numbers."""
    rng, form = np.random.default_rng(seed), format_named(name)
    blocks = np.frombuffer(rng.bytes(form.row_bytes(width) * rows), form.block).reshape(rows, -1).copy()
    for field in ("d", "dmin", "m"):
        if field in form.block.names and form.block[field] == np.dtype("<f2"):
            blocks[field] = rng.standard_normal(blocks.shape) / 64
    if name == "MXFP4":
        blocks["e"] = rng.integers(115, 125, blocks.shape)
    if name == "NVFP4":
        blocks["d"] = rng.integers(1, 0x40, blocks["d"].shape)
    if name == "IQ1_M":
        d = (rng.standard_normal(blocks.shape) / 64).astype("<f2").view("<u2")[..., None]
        blocks["scales"] = blocks["scales"] & 0xFFF | (d >> np.arange(0, 16, 4, dtype="<u2") & 15) << 12
    raw = blocks.view(np.uint8).reshape(rows, -1)
    return Tensor("w", (rows, width), form, lambda start, stop: raw[start:stop])


def inputs(rows: int, width: int) -> np.ndarray:
    """With outliers, rows and blocks of zeros, and the largest size reached from both sides."""
    x = np.random.default_rng(1).standard_normal((rows, width)).astype(np.float32)
    x[0] *= 50
    x[-1] = 0
    x[rows // 2, :32] = 0
    x[1, 7], x[1, 40] = 9, -9
    x[2, 7], x[2, 40] = -9, 9
    return x


def differences(got: np.ndarray, x: np.ndarray, weight: Tensor) -> tuple[float, float]:
    """Of the product with x as llama.cpp rounds it, and of the same in float32, from float64's, by rows' sizes."""
    values, decoded = rounded(x, weight.format.name), weight.float32()
    want = values.astype(np.float64) @ decoded.astype(np.float64).T
    size = np.linalg.norm(values.astype(np.float64), axis=1)[:, None] * np.linalg.norm(decoded, axis=1)
    size += size == 0
    return tuple(float((np.abs(each - want) / size).max()) for each in (got, values @ decoded.T))


@pytest.mark.parametrize("name", OF_FORMAT)
def test_inputs_are_rounded_alike(name):
    x, partner = inputs(9, 512), format_named(name).activations
    got = eight_bit_product.rounded(x, partner)
    values = got.numbers.reshape(9, -1, 32) * got.scales[:, :, None]
    np.testing.assert_array_equal(values.reshape(x.shape), rounded(x, name))


@needs_instruction
@pytest.mark.parametrize("name", OF_FORMAT)
@pytest.mark.parametrize(("tokens", "rows", "width"), [(23, 130, 256), (48, 64, 2304)])
def test_many_inputs(name, tokens, rows, width):
    weight, x = weight_of(name, rows, width), inputs(tokens, width)
    assert eight_bit_product.is_faster(tokens, rows, weight)
    results = [matmul(x, weight, precision="llama.cpp", threads=threads) for threads in (1, 2, 3)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    ours, of_floats = differences(results[0], x, weight)
    assert ours < max(CLOSE / 2, 4 * of_floats)
    some = matmul(x, weight, slice(5, rows - 3), precision="llama.cpp")
    np.testing.assert_array_equal(some, results[0][:, 5 : rows - 3])


@needs_instruction
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "Q6_K"])
def test_columns_and_widths_that_are_no_whole_tiles(name):
    weight, x = weight_of(name, 300, 768), inputs(31, 768)
    packed = eight_bit_product.packed(eight_bit_product.rounded(x, weight.format.activations))
    whole, end = matmul(x, weight, slice(10, 290), precision="llama.cpp"), 10
    for first, part in eight_bit_product.columns(packed, weight, 10, 290):
        assert first == end
        end += part.shape[1]
        np.testing.assert_array_equal(part, whole[:, first - 10 : end - 10])
    assert end == 290


@pytest.mark.parametrize("name", [name for name in OF_FORMAT if name in gemv.dots.OF_FORMAT])
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_few_inputs(name, tokens):
    weight, x = weight_of(name, 300, 768), inputs(9, 768)[:tokens]
    assert eight_bit_product.is_faster_for_few(tokens, 300, weight)
    got = matmul(x, weight, precision="llama.cpp", threads=2)
    ours, of_floats = differences(got, x, weight)
    assert ours < max(CLOSE / 2, 4 * of_floats)


@needs_instruction
@pytest.mark.parametrize("partner", ["Q8_0", "Q8_K"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen(partner, bad):
    weight, x = weight_of("Q4_0" if partner == "Q8_0" else "Q4_K", 64, 512), inputs(48, 512)
    x[17, 300] = bad
    with np.errstate(invalid="ignore"):
        got = matmul(x, weight, precision="llama.cpp")
    assert not np.isfinite(got[17]).any()
    assert np.isfinite(np.delete(got, 17, axis=0)).all()
