"""Shapes of an image or video model's tensors in a file, so that its readers find them.

ggml has four dimensions. Convolutions over time have five: `fold` stores them with the first two as one, as
stable-diffusion.cpp does, and `comfy.gguf.orig_shape.NAME` keeps the shape for readers that know the key (ComfyUI-GGUF,
InvokeAI). `rearrange` stores weights whose rows are no multiple of 256 in rows of 256, which only ComfyUI-GGUF undoes.
"""

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import replace

from quants import Tensor

from ..metadata import Metadata, Value, ValueType
from ..transforms import reshape
from ..values import INTEGERS

ORIGINAL_SHAPE = "comfy.gguf.orig_shape."
MAX_DIMENSIONS = 4
ROW = 256  # values in a row that every K format can take
# Parameters whose first dimension is 1 → how many dimensions they have. stable-diffusion.cpp leaves it out.
FIRST_ONES = {
    "*.modulation": 3,
    "*.modulate_table": 3,
    "*emb_pos": 3,
    "pos_embed": 3,
    "positional_encoding": 3,
    "register_tokens": 3,
    "casual_audio_encoder.weights": 4,
    "cap_pad_token": 2,
    "x_pad_token": 2,
    "txtfusion.projector.weight": 2,
}
REARRANGED_FROM = 512  # values of the smallest tensor that is rearranged


def shape_key(name: str) -> str:
    """Return the key of a tensor's published shape."""
    return f"{ORIGINAL_SHAPE}{name}"


def shape_value(shape: tuple[int, ...]) -> Value:
    """Return a shape as ComfyUI-GGUF reads it: an array of INT32, rows first."""
    return Value(list(shape), ValueType.ARRAY, ValueType.INT32)


def published_shape(metadata: Metadata, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that a tensor of a file was published with: of its key, or its own."""
    key = shape_key(name)
    if key not in metadata:
        return shape
    value = metadata.value(key)
    listed = tuple(map(int, value.data)) if value.element in INTEGERS else ()
    return listed if listed and min(listed) > 0 and math.prod(listed) == math.prod(shape) else shape


def with_first_one(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that a parameter was published with, where a first dimension of 1 may have been left out."""
    bare = name.removeprefix("model.diffusion_model.")
    wanted = next((count for pattern, count in FIRST_ONES.items() if fnmatch.fnmatchcase(bare, pattern)), 0)
    return (1, *shape) if len(shape) == wanted - 1 else shape


def fold(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Value]]:
    """Return tensors of at most four dimensions, and the keys that keep the shapes of those that had more."""
    folded, keys = dict(tensors), {}
    for name, tensor in tensors.items():
        if len(tensor.shape) > MAX_DIMENSIONS:
            outer = len(tensor.shape) - MAX_DIMENSIONS + 1
            shape = (math.prod(tensor.shape[:outer]), *tensor.shape[outer:])
            folded[name] = replace(tensor, shape=shape)
            keys[shape_key(name)] = shape_value(tensor.shape)
    return folded, keys


def unfolded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of a file without keys, convolutions over time in five dimensions again.

    stable-diffusion.cpp folds the first two of them; how many outputs there are is told by the bias.
    """
    shaped = dict(tensors)
    for name, tensor in tensors.items():
        bias = tensors.get(f"{name.removesuffix('weight')}bias")
        if len(tensor.shape) != MAX_DIMENSIONS or bias is None or len(bias.shape) != 1 or not bias.shape[0]:
            continue
        outputs, rows = bias.shape[0], tensor.shape[0]
        if rows > outputs and rows % outputs == 0:
            shaped[name] = replace(tensor, shape=(outputs, rows // outputs, *tensor.shape[1:]))
    return shaped


def rearrange(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Value]]:
    """Return tensors in rows of 256 values where their own rows are no multiple, and the keys that keep the shapes."""
    rearranged, keys = dict(tensors), {}
    for name, tensor in tensors.items():
        whole = len(tensor.shape) > 1 and tensor.size >= REARRANGED_FROM and tensor.size % ROW == 0
        if whole and tensor.width % ROW:
            rearranged[name] = reshape(tensor, (tensor.size // ROW, ROW))
            keys[shape_key(name)] = shape_value(tensor.shape)
    return rearranged, keys
