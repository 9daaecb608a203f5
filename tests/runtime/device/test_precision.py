"""Products are IEEE float32; those with a model's matrices TF32 where a fast device and the pass allow it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runtime.model import RunningModel
from tests import absent_keys

pytestmark = pytest.mark.device
NAMES = ("qwen2-moe", "qwen3-next", "deepseek-v3", "rwkv7")


def model_of(name: str) -> RunningModel:
    from runtime.device.torch_device import torch_device

    description = absent_keys.descriptions()[name]
    case = absent_keys.cases()[name][0]
    model = RunningModel(description.metadata(case), absent_keys.tensors(description), threads=2)
    model.device = torch_device("cpu")
    return model


def setting() -> str:
    import torch

    return str(torch.backends.cuda.matmul.fp32_precision)


def products_of(model: RunningModel) -> dict[str, set[str]]:
    """Run a text. Returns by the precision set at that moment: what was multiplied."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: dict[str, set[str]] = {}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = function.__name__.partition(".")[0]
            if name in ("matmul", "mm", "bmm", "linalg_solve_triangular"):
                kind = "of matrices" if args[0].ndim == args[1].ndim == 2 else "of batches"
                seen.setdefault(setting(), set()).add(kind)
            return function(*args, **(kwargs or {}))

    with Watch():
        model.forward(np.arange(20))
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_only_plain_products_are_tf32(name: str) -> None:
    model = model_of(name)
    assert products_of(model).keys() == {"ieee"}
    model.device.weights.uses_tf32 = True  # type: ignore[union-attr]
    seen = products_of(model)
    assert seen["tf32"] == {"of matrices"} | ({"of batches"} if name == "deepseek-v3" else set())  # by heads
    assert seen["ieee"] == {"of matrices", "of batches"}  # the head and routers; attention and recurrences
    assert setting() == "ieee"
    assert model.device.products("float32") == "TF32"  # type: ignore[union-attr]


def test_an_exact_pass_has_none() -> None:
    model = model_of("qwen2-moe")
    model.device.weights.uses_tf32, model.precision = True, "exact"  # type: ignore[union-attr]
    assert products_of(model).keys() == {"ieee"}
    assert model.device.products("exact") == "float32"  # type: ignore[union-attr]


def test_only_some_devices_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from runtime.device import precision
    from runtime.device.torch_device import torch_device

    device = torch_device("cpu", fast=True)
    assert device is not None
    assert device.products("float32") == "float32"
    assert not precision.has_tf32(torch.device("mps"))
    for version, capability, has in ((None, (8, 0), True), (None, (7, 5), False), ("7.0", (9, 4), False)):
        monkeypatch.setattr(torch.version, "hip", version)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, it=capability: it)
        assert precision.has_tf32(torch.device("cuda:0")) == has


def test_it_ends_with_the_block() -> None:
    from runtime.device import precision

    precision.use_ieee_float32()
    with pytest.raises(ZeroDivisionError), precision.tf32_products():
        print(1 / (setting() != "tf32"))
    assert setting() == "ieee"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"]


def test_settings_by_their_old_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.9."""
    import torch

    from runtime.device import precision

    matmul = SimpleNamespace(allow_tf32=True)
    monkeypatch.setattr(torch.backends, "cuda", SimpleNamespace(matmul=matmul))
    monkeypatch.setattr(torch.backends, "cudnn", SimpleNamespace(allow_tf32=True))
    monkeypatch.setattr(torch.backends, "mkldnn", SimpleNamespace())
    precision.use_ieee_float32()
    assert (matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (False, False)
    assert not hasattr(matmul, "fp32_precision")
    with precision.tf32_products():
        assert matmul.allow_tf32
    assert not matmul.allow_tf32
    assert not matmul.allow_bf16_reduced_precision_reduction
