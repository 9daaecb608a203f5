"""Files as PyTorch writes them, made without PyTorch: a zip archive of a pickle and of the numbers."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STORAGES = {"float32": "FloatStorage", "float16": "HalfStorage", "int64": "LongStorage", "int32": "IntStorage"}


def write_torch(path: Path, content: Mapping[str, NDArray[Any]] | NDArray[Any]) -> Path:
    """A state dictionary, or a single tensor."""
    arrays = list(content.values()) if isinstance(content, Mapping) else [content]
    tensors = [_tensor(str(key), array) for key, array in enumerate(arrays)]
    if isinstance(content, Mapping):
        items = b"".join(_text(name) + tensor + b"s" for name, tensor in zip(content, tensors, strict=True))
        program = b"\x80\x02}" + items + b"."
    else:
        program = b"\x80\x02" + tensors[0] + b"."
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("m/data.pkl", program)
        for key, array in enumerate(arrays):
            archive.writestr(f"m/data/{key}", np.ascontiguousarray(array).tobytes())
    return path


def _tensor(key: str, array: NDArray[Any]) -> bytes:
    """Instructions that build a tensor over storage `key`."""
    strides = [step // array.itemsize for step in np.ascontiguousarray(array).strides]
    kind = f"ctorch\n{STORAGES[array.dtype.name]}\n".encode()
    storage = b"(" + _text("storage") + kind + _text(key) + _text("cpu") + _number(array.size) + b"tQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    sizes = b"".join(b"(" + b"".join(map(_number, numbers)) + b"t" for numbers in (array.shape, strides))
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + _number(0) + sizes + b"\x89" + hooks + b"tR"


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)
