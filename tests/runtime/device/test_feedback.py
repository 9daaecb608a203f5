"""Error feedback with matrices on a device: triangles, corrections and codes beside the processor's."""

from __future__ import annotations

import numpy as np
import pytest

from gguftools.calibration.computed import Processor
from quants import format_named
from quants.feedback import upper_factor
from runtime.products.block_diagonal import BlockDiagonal

pytestmark = pytest.mark.device
WIDTH, ROWS = 768, 96


def matrix(width: int = WIDTH, inputs: int = 3000) -> np.ndarray:
    random = np.random.default_rng(0)
    x = random.standard_normal((inputs, width)) @ random.standard_normal((width, width))
    return x.T @ x / inputs


def test_triangles_are_the_processors() -> None:
    from runtime.device.feedback import DeviceFeedback
    from runtime.device.torch_device import torch_device

    h = matrix(300)
    h[:, 7] = h[7] = 0  # without any input
    on_device = DeviceFeedback(torch_device("cpu"), 2)
    ((factor,),) = on_device.triangles(on_device.moved(BlockDiagonal((h,))), [0.1])
    expected = upper_factor(h, 0.1)
    assert np.abs(factor.numpy() - expected).max() < 1e-6 * np.abs(expected).max()
    assert not np.tril(factor.numpy(), -1).any()


def test_a_triangle_that_the_device_does_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor finds it by the same rule: after an error, and for a matrix that rounding made indefinite."""
    import torch

    from runtime.device import matrices

    h = matrix(64)
    block, expected = torch.from_numpy(h), upper_factor(h, 0.03)
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda x: (x, torch.tensor(1)))
    assert np.array_equal(matrices.triangle(block, 0.03).numpy(), expected)

    def fail(x: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(torch.linalg, "cholesky_ex", fail)
    assert np.array_equal(matrices.triangle(block, 0.03).numpy(), expected)
    assert np.array_equal(matrices.triangle(block.float(), 0.03).numpy(), upper_factor(h.astype(np.float32), 0.03))


def test_matrices_are_used_as_the_processors() -> None:
    from runtime.device.feedback import DeviceFeedback
    from runtime.device.torch_device import torch_device

    random, h = np.random.default_rng(1), matrix()
    host = BlockDiagonal((h[:512, :512], h[512:, 512:]))
    drift = BlockDiagonal(tuple(random.standard_normal(block.shape).astype(np.float32) for block in host.blocks))
    on_device, processor = DeviceFeedback(torch_device("cpu"), 2), Processor(2)
    ours, ours_drift = on_device.moved(host), on_device.moved(drift)
    rows = random.standard_normal((ROWS, WIDTH)).astype(np.float32)
    assert np.allclose(ours.diagonal(), host.diagonal())
    assert ours.along(rows, rows) == pytest.approx(host.along(rows, rows), rel=1e-5)
    assert np.allclose(ours.times(rows), host.times(rows), rtol=1e-4, atol=1e-4 * np.abs(host.times(rows)).max())
    twice = (ours + ours * 0.5).single()
    assert np.allclose(twice.times(rows), 1.5 * host.times(rows), rtol=1e-3, atol=1e-4 * np.abs(host.times(rows)).max())
    (factors,), (expected,) = (each.triangles(m, [0.1]) for each, m in ((on_device, ours), (processor, host)))
    change, wanted = on_device.correction(ours_drift, factors, 0.25), processor.correction(drift, expected, 0.25)
    for one, two in zip(change.blocks, wanted.blocks, strict=True):
        assert np.abs(one.numpy() - two).max() < 1e-4 * np.abs(two).max()


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q5_1", "Q4_K", "Q6_K", "IQ4_XS", "IQ2_XS", "IQ3_S", "TQ1_0"])
def test_rows_are_encoded_as_well(name: str) -> None:
    """The same error of the outputs; nearly all blocks are the same."""
    from runtime.device.feedback import DeviceFeedback
    from runtime.device.torch_device import torch_device

    h, form = matrix(), format_named(name)
    rows = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)
    host, raws = BlockDiagonal((h[:512, :512], h[512:, 512:])), []
    weights = host.diagonal().astype(np.float32)
    for each in (DeviceFeedback(torch_device("cpu"), 2), Processor(2)):
        (factors,) = each.triangles(each.moved(host), [0.1])
        raws.append(each.encode_by_columns(form, factors, weights, rows))
    ours, expected = (host.along(form.decode(raw) - rows, form.decode(raw) - rows) for raw in raws)
    assert ours == pytest.approx(expected, rel=0.02)
    assert raws[0].shape == raws[1].shape
    assert np.mean(raws[0] == raws[1]) > 0.9
    plain = form.decode(form.encode(rows, weights)) - rows
    assert ours < 0.8 * host.along(plain, plain)
