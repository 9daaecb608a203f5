from __future__ import annotations

import threading

import numpy as np
import pytest

from quants import Tensor, encode, format_named, from_array
from quants.arguments import thread_count
from runtime.kernels import blas
from runtime.kernels.threads import parallel, spans
from runtime.products import matmul as matmul_module
from runtime.products.matmul import gather, matmul, matmul_experts


@pytest.fixture(params=[1, 2, None])
def threads(request):
    return thread_count(request.param)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("n", "width", "rows"), [(1, 576, 1536), (5, 576, 7), (33, 100, 9000), (2, 64, 0)])
def test_product(n, width, rows, threads):
    x, w = normal(n, width), normal(rows, width)
    got = matmul(x, from_array("w", w), threads=threads)
    assert got.shape == (n, rows)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, x.astype(np.float64) @ w.T.astype(np.float64), atol=1e-4)


@pytest.mark.parametrize("name", ["F32", "F16"])
def test_many_rows_share_tiles(monkeypatch, name, threads):
    monkeypatch.setattr(matmul_module, "TILE", 64 * 100)
    monkeypatch.setattr(matmul_module, "PIECE", 64 * 30)
    x, w = normal(701, 64), normal(333, 64).astype(np.float16).astype(np.float32)
    raw = encode(name, w)
    weight = Tensor("w", w.shape, format_named(name), lambda start, stop: raw[start:stop])
    want = x.astype(np.float64) @ w.T.astype(np.float64)
    np.testing.assert_allclose(matmul(x, weight, threads=threads), want, atol=1e-4)
    np.testing.assert_allclose(matmul(x, weight, slice(50, 300), threads=threads), want[:, 50:300], atol=1e-4)


def test_some_rows_and_given_result():
    x, w = normal(4, 64), normal(500, 64)
    out = np.empty((4, 300), np.float32)
    assert matmul(x, from_array("w", w), slice(100, 400), out) is out
    np.testing.assert_allclose(out, x @ w[100:400].T, atol=1e-5)


def test_input_that_is_a_view():
    x, w = normal(8, 128), normal(30, 64)
    np.testing.assert_allclose(matmul(x[:, 64:], from_array("w", w)), x[:, 64:] @ w.T, atol=1e-5)


def test_experts():
    x, w = normal(4, 64), normal(3, 20, 64)
    for expert in range(3):
        np.testing.assert_allclose(matmul_experts(x, from_array("w", w), expert), x @ w[expert].T, atol=1e-5)


def test_gather_reads_only_the_rows_it_needs():
    w, seen = normal(50, 8), []
    tensor = from_array("w", w)

    def read(start: int, stop: int) -> np.ndarray:
        seen.append((start, stop))
        return tensor.raw(start, stop)

    spy = Tensor("w", tensor.shape, tensor.format, read)
    np.testing.assert_array_equal(gather(spy, np.array([7, 3, 7, 49])), w[[7, 3, 7, 49]])
    assert sorted(seen) == [(3, 4), (7, 8), (49, 50)]


def test_never_more_than_a_tile_a_thread_is_decoded():
    tensor, largest = from_array("w", normal(4000, 512)), []

    def read(start: int, stop: int) -> np.ndarray:
        largest.append(stop - start)
        return tensor.raw(start, stop)

    matmul(normal(2, 512), Tensor("w", tensor.shape, tensor.format, read))
    assert max(largest) * 512 <= 1.1 * (1 << 18)
    assert sum(largest) == 4000


def test_parallel_raises_what_a_piece_raises():
    def body(start: int, stop: int) -> None:
        if start == 7:
            raise ValueError("seven")

    with pytest.raises(ValueError, match="seven"):
        parallel(body, spans(20, 1), 2)


def test_parallel_within_parallel_ends():
    done, lock = [], threading.Lock()

    def inner(start: int, stop: int) -> None:
        with lock:
            done.append(start)

    parallel(lambda start, stop: parallel(inner, spans(5, 1), 2), spans(8, 1), 2)
    assert sorted(done) == sorted(list(range(5)) * 8)


def test_blas_threads_are_given_back():
    def counts():
        return [library.num_threads for library in blas.libraries()]

    if not blas.controllable():
        pytest.skip("this numpy's BLAS cannot be told")
    before = counts()
    blas.limit([2] * len(before))
    with blas.one_thread(), blas.one_thread():
        assert counts() == [1] * len(before)
    assert counts() == [2] * len(before)
    blas.limit(before)


@pytest.mark.parametrize("rows", [3, 64])
def test_a_place_for_the_result_that_is_not_contiguous(rows):
    """Whichever way the product is computed, it is what the caller looks at."""
    x, w, room = normal(rows, 256), normal(512, 256), np.zeros((rows, 1024), np.float32)
    matmul(x, from_array("w", w), out=room[:, ::2], precision="float32")
    np.testing.assert_allclose(room[:, ::2], x @ w.T, atol=1e-3)
    assert not room[:, 1::2].any()


@pytest.mark.parametrize("inputs", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("form", ["Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "F16"])
def test_a_few_inputs_that_may_not_be_rounded(form, inputs, threads):
    """Integers of 16 bits lose 1e-5 of a product's size, two for each input nothing that float32 shows."""
    raw, x = encode(form, normal(200, 512)), normal(inputs, 512)
    weight = Tensor("w", (200, 512), format_named(form), lambda start, stop: raw[start:stop])
    exact = x.astype(np.float64) @ weight.float32().T.astype(np.float64)
    size = np.abs(x).astype(np.float64) @ np.abs(weight.float32()).T
    found = matmul(x, weight, threads=threads, precision="float32")
    assert (np.abs(found - exact) / size).max() < 3e-7
    rounded = matmul(x, weight, threads=threads, precision="float32", may_round=True)
    assert form == "F16" or np.abs(rounded - exact).max() > 2 * np.abs(found - exact).max()
    np.testing.assert_array_equal(matmul(x, weight, slice(50, 180), precision="float32"), found[:, 50:180])
