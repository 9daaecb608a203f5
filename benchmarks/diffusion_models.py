"""Write a BF16 checkpoint with the names and shapes of Flux.1 dev: sparse, in a second, or with random weights.

    python -m benchmarks.diffusion_models OUT.safetensors                               # 12 B weights, 24 GB, sparse
    python -m benchmarks.diffusion_models OUT.safetensors --double 2 --single 2 --random  # 0.97 B weights, 1.9 GB

A sparse file takes no place on the disk: all its weights are zero. Random weights are drawn from N(0, 0.02) by a
generator seeded with the tensor's name, so two runs agree.
"""

from __future__ import annotations

import argparse
import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .synthetic_checkpoint import bfloat16

HIDDEN, TEXT, POOLED, PATCH, HEAD, TIMES = 3072, 4096, 768, 64, 128, 256
AT_ONCE = 1 << 22  # values drawn together
Shapes = dict[str, tuple[int, ...]]


def flux_shapes(double: int = 19, single: int = 38, h: int = HIDDEN) -> Shapes:
    """Return the names and shapes of Flux.1 dev's 780 tensors, or of fewer blocks."""
    linear: Shapes = {
        "img_in": (h, PATCH),
        "txt_in": (h, TEXT),
        "final_layer.linear": (PATCH, h),
        "final_layer.adaLN_modulation.1": (2 * h, h),
    }
    for name, width in (("time_in", TIMES), ("guidance_in", TIMES), ("vector_in", POOLED)):
        linear |= {f"{name}.in_layer": (h, width), f"{name}.out_layer": (h, h)}
    norms = []
    for i in range(double):
        for side in ("img", "txt"):
            stem = f"double_blocks.{i}.{side}"
            linear |= {
                f"{stem}_mod.lin": (6 * h, h),
                f"{stem}_attn.qkv": (3 * h, h),
                f"{stem}_attn.proj": (h, h),
                f"{stem}_mlp.0": (4 * h, h),
                f"{stem}_mlp.2": (h, 4 * h),
            }
            norms += [f"{stem}_attn.norm.{part}_norm.scale" for part in ("query", "key")]
    for i in range(single):
        stem = f"single_blocks.{i}"
        linear |= {f"{stem}.linear1": (7 * h, h), f"{stem}.linear2": (h, 5 * h), f"{stem}.modulation.lin": (3 * h, h)}
        norms += [f"{stem}.norm.{part}_norm.scale" for part in ("query", "key")]
    shapes: Shapes = {}
    for name, shape in linear.items():
        shapes |= {f"{name}.bias": shape[:1], f"{name}.weight": shape}
    shapes |= dict.fromkeys(norms, (HEAD,))
    return dict(sorted(shapes.items()))


def write(path: Path, shapes: Mapping[str, tuple[int, ...]], random: bool = False) -> None:
    """Write a safetensors file of BF16 tensors. random: draw weights; else the file is sparse."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if not random:
            file.truncate(8 + len(text) + end)
            return
        for name, shape in shapes.items():
            generator = np.random.Generator(np.random.SFC64(zlib.crc32(name.encode())))
            for first in range(0, left := int(np.prod(shape)), AT_ONCE):
                values = generator.standard_normal(min(AT_ONCE, left - first), np.float32) * np.float32(0.02)
                file.write(bfloat16(values).tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--double", type=int, default=19)
    parser.add_argument("--single", type=int, default=38)
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--random", action="store_true")
    given = parser.parse_args()
    shapes = flux_shapes(given.double, given.single, given.hidden)
    write(given.output, shapes, given.random)
    values = sum(int(np.prod(shape)) for shape in shapes.values())
    print(f"{len(shapes)} tensors, {values:,} values, {given.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
