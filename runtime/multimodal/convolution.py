"""Convolutions over images, as float32 (channels, rows, columns)."""

import numpy as np

from archs.transforms import reshape

from ..arrays import Floats
from ..products.matmul import matmul
from .layers import Weights


def convolved(weights: Weights, name: str, x: Floats, step: int = 1, border: int = 0) -> Floats:
    """Return the convolution by the kernel and bias of this name. border: zeros around the image.

    Kernels are stored as (out, in, rows, columns); those with one input channel are depthwise.
    """
    tensor, bias = weights.need(f"{name}.weight"), weights.vector(f"{name}.bias")
    x = np.pad(x, ((0, 0), (border, border), (border, border))) if border else x
    if tensor.shape[2:] == (1, 1):  # a matrix over channels, which may be too large to be kept
        flat = np.ascontiguousarray(x[:, ::step, ::step].transpose(1, 2, 0))
        out = matmul(flat.reshape(-1, len(x)), reshape(tensor, tensor.shape[:2]), threads=weights.threads)
        out = out.T.reshape(-1, *flat.shape[:2])
    else:
        around = np.lib.stride_tricks.sliding_window_view(x, tensor.shape[2:], axis=(1, 2))[:, ::step, ::step]
        out = _by_kernel(weights.values(f"{name}.weight"), around)
    out = out if bias is None else out + bias[:, None, None]
    return np.ascontiguousarray(out, np.float32)


def _by_kernel(kernel: Floats, around: Floats) -> Floats:
    """Return the convolution. around: the kernel's view of each place, (channels, rows, columns, *sides of the
    kernel).
    """
    if kernel.shape[1] == 1 and len(around) > 1:
        out: Floats = np.einsum("crskl,ckl->crs", around, kernel[:, 0], optimize=True)
        return out
    rows, columns = around.shape[1:3]
    flat = around.transpose(1, 2, 0, 3, 4).reshape(rows * columns, -1)
    product: Floats = (flat @ kernel.reshape(len(kernel), -1).T).T.reshape(-1, rows, columns)
    return product
