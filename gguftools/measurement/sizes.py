"""Sizes of model files."""

import math

from ..models.model import Model


def size_bytes(file: Model) -> int:
    """Return the bytes of all files of a model; of its tensors if it has no files."""
    try:
        return sum(path.stat().st_size for path in file.files) or file.nbytes
    except OSError:
        return file.nbytes


def bits_per_weight(file: Model) -> float:
    """Return the bits per weight of a model's tensors."""
    values = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
    return 8 * file.nbytes / values if values else 0.0
