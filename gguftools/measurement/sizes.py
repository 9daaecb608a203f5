"""Sizes of model files, as measurements compare them with what they found."""

import math

from ..models.model import Model


def size_bytes(file: Model) -> int:
    """Return all files of a model together; its tensors' bytes where there are none."""
    try:
        return sum(path.stat().st_size for path in file.files) or file.nbytes
    except OSError:
        return file.nbytes


def bits_per_weight(file: Model) -> float:
    values = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
    return 8 * file.nbytes / values if values else 0.0
