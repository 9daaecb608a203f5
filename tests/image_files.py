"""Small checkpoints of image and video models with the names and shape patterns of published ones."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Shapes = Mapping[str, tuple[int, ...]]


def flux(width: int = 256, double: int = 2, single: int = 2) -> dict[str, tuple[int, ...]]:
    """Return names → shapes of a small Flux.1 with heads of 64."""
    shapes = {"img_in": (width, 64), "txt_in": (width, 64)}
    for name, inner in (("time_in", 256), ("guidance_in", 256), ("vector_in", 32)):
        shapes |= {f"{name}.in_layer": (width, inner), f"{name}.out_layer": (width, width)}
    norms = {}
    for block in (f"double_blocks.{number}." for number in range(double)):
        for side in ("img", "txt"):
            shapes |= {f"{block}{side}_mod.lin": (6 * width, width), f"{block}{side}_attn.qkv": (3 * width, width)}
            shapes |= {f"{block}{side}_attn.proj": (width, width), f"{block}{side}_mlp.0": (4 * width, width)}
            shapes[f"{block}{side}_mlp.2"] = (width, 4 * width)
            norms |= {f"{block}{side}_attn.norm.{each}_norm.scale": (64,) for each in ("query", "key")}
    for block in (f"single_blocks.{number}." for number in range(single)):
        shapes |= {f"{block}linear1": (7 * width, width), f"{block}linear2": (width, 5 * width)}
        shapes[f"{block}modulation.lin"] = (3 * width, width)
        norms |= {f"{block}norm.{each}_norm.scale": (64,) for each in ("query", "key")}
    shapes |= {"final_layer.linear": (64, width), "final_layer.adaLN_modulation.1": (2 * width, width)}
    return linear(shapes) | norms


def wan(width: int = 256, blocks: int = 2, channels: int = 16) -> dict[str, tuple[int, ...]]:
    """Return names → shapes of a small Wan for text to video."""
    shapes = {"text_embedding.0": (width, 64), "text_embedding.2": (width, width), "head.head": (64, width)}
    shapes |= {"time_embedding.0": (width, 256), "time_embedding.2": (width, width)}
    shapes |= {"time_projection.1": (6 * width, width)}
    others = {"patch_embedding.weight": (width, channels, 1, 2, 2), "patch_embedding.bias": (width,)}
    others["head.modulation"] = (1, 2, width)
    for block in (f"blocks.{number}." for number in range(blocks)):
        others[f"{block}modulation"] = (1, 6, width)
        for attention in ("self_attn", "cross_attn"):
            shapes |= {f"{block}{attention}.{each}": (width, width) for each in "qkvo"}
            others |= {f"{block}{attention}.norm_{each}.weight": (width,) for each in "qk"}
        others |= {f"{block}norm3.{each}": (width,) for each in ("weight", "bias")}
        shapes |= {f"{block}ffn.0": (4 * width, width), f"{block}ffn.2": (width, 4 * width)}
    return linear(shapes) | others


def linear(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Return the weights and biases of linear layers."""
    weights = {f"{name}.weight": shape for name, shape in shapes.items()}
    return weights | {f"{name}.bias": shape[:1] for name, shape in shapes.items()}


def values(shapes: Shapes, dtype: str = "F16") -> dict[str, NDArray[np.float32 | np.float16]]:
    """Return random values of a checkpoint. dtype: F32 or F16."""
    random = np.random.default_rng(7)
    number = np.float16 if dtype == "F16" else np.float32
    return {name: (0.05 * random.standard_normal(shape)).astype(number) for name, shape in shapes.items()}


def save(path: Path, shapes: Shapes, dtype: str = "F16", metadata: dict[str, str] | None = None) -> Path:
    """Write a .safetensors file of random values."""
    save_file(values(shapes, dtype), path, metadata)
    return path
