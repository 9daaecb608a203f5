"""How torch multiplies matrices of float32: by IEEE's rules, or in TF32 where a pass allows it.

Settings are those of the process. torch 2.9 named them anew and refuses programs that mix both names.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

WORKSPACE = ":4096:8"  # of cuBLAS: the same kernels' sums in each run
AMPERE = 8, 0  # the first GPUs with TF32
TF32, IEEE = "tf32", "ieee"


def use_ieee_float32() -> None:
    """Let all products be IEEE float32, and results the same in each run; to be called before CUDA starts."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACE)
    matmul: Any = torch.backends.cuda.matmul
    _set(matmul, IEEE)
    convolutions: Any = getattr(torch.backends.cudnn, "conv", None)
    if hasattr(convolutions, "fp32_precision"):
        convolutions.fp32_precision = IEEE
    else:
        torch.backends.cudnn.allow_tf32 = False
    on_processor: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if hasattr(on_processor, "fp32_precision"):
        on_processor.fp32_precision = IEEE
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False


def has_tf32(device: torch.device) -> bool:
    """Return whether products are faster in TF32 and as exact as its name says: on NVIDIA's GPUs since Ampere.

    AMD's XF32 rounds down, which adds up.
    """
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= AMPERE


@contextmanager
def tf32_products() -> Iterator[None]:
    """Let products within the block be TF32; those after it are IEEE float32 again."""
    matmul: Any = torch.backends.cuda.matmul
    _set(matmul, TF32)
    try:
        yield
    finally:
        _set(matmul, IEEE)


def _set(matmul: Any, precision: str) -> None:
    if hasattr(matmul, "fp32_precision"):
        matmul.fp32_precision = precision
    else:
        matmul.allow_tf32 = precision == TF32
