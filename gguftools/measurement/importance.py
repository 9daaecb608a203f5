"""Measure an importance matrix: which columns of each weight meet large inputs while the model reads a text."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from quants.errors import ModelError

from ..files.atomic import NOTHING, check_target, output_path
from ..opened import open
from ..quantization.imatrix import Entry, ImportanceMatrix, write_imatrix
from .perplexity import read_text

MOST = 3e38  # what float32 holds

Progress = Callable[[int, int, float], None]


def measure_importance(
    model: str | os.PathLike[str],
    text: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    n_ctx: int = 512,
    chunks: int | None = None,
    with_output: bool = False,
    threads: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ImportanceMatrix:
    """Let the model read `text` in windows and write the sums of squared inputs of its weights to `output`.

    Windows are those of perplexity, every position counts. with_output: also for the weights of the head, which recipes
    don't ask importance for. output: GGUF form, or the legacy one if it ends in .dat; overwrite: even if it exists.
    Raises FileError, OptionError (too short a text), ModelError, VocabularyError.
    """
    from runtime.importance import Importance
    from runtime.model import Model
    from runtime.perplexity import windows

    opened, target = open(model), output_path(output)
    reads = [*opened.file.shards, Path(text)]
    check_target(target, NOTHING.also(reads), overwrite)
    tokenizer = opened.tokenizer
    tokens = tokenizer.encode(read_text(Path(text)), add_special=True)
    plan = windows(len(tokens), n_ctx, chunks=chunks)
    found = Importance()
    net = Model(opened.metadata, opened.tensors, threads=threads, observe=found.observe)
    bos = tokenizer.bos if tokenizer.add_bos else None
    for done, (inputs, _) in enumerate(plan.batches(tokens, bos), 1):
        net.lazy_logits(inputs)
        if progress:
            progress(done, len(plan.starts), 0.0)
    kept = (name for name in found.sums if with_output or name not in ("output.weight", "token_embd.weight"))
    for name, sums in found.sums.items():
        if not np.all(sums.squares < MOST):
            raise ModelError(f"the inputs of {name!r} are too large to be squared", "keys or weights are wrong")
    entries = {
        name: Entry(found.sums[name].squares.astype(np.float32), found.sums[name].counts.astype(np.float32))
        for name in kept
    }
    matrix = ImportanceMatrix(target, entries, (Path(text).name,), len(plan.starts), n_ctx)
    write_imatrix(matrix, target, overwrite, reads)
    return matrix
