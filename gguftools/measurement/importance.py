"""Measure an importance matrix: which columns of each weight meet large inputs while the model reads a text."""

from pathlib import Path

import numpy as np

from quants.arguments import PathLike, as_path
from quants.errors import ModelError

from ..files.atomic import NOTHING, check_target, output_path
from ..model import Model, opened
from ..quantization.imatrix import Entry, ImportanceMatrix, write_imatrix
from .perplexity import Progress, tokens_of

MOST = 3e38  # what float32 holds


def imatrix(
    source: PathLike | Model, text: PathLike, output: PathLike | None = None, *,
    n_ctx: int = 512, chunks: int | None = None, with_output: bool = False, threads: int | None = None,
    overwrite: bool = False, progress: Progress | None = None,
) -> ImportanceMatrix:  # fmt: skip
    """Let the model read the file `text` in windows: an importance matrix, the sums of squared inputs of its weights.

    Windows are those of perplexity, every position counts. output: where it is written, too: GGUF form, or the legacy
    one if it ends in .dat; overwrite: even if it exists. n_ctx: tokens of a window. chunks: read the first so many
    windows only. with_output: also for the weights of the head, which recipes don't ask importance for.
    threads: default all processors. progress(windows done, of how many, 0.0).
    Raises FileError, OptionError (too short a text), ModelError, VocabularyError.
    """
    from runtime.importance import Importance
    from runtime.model import Model as RunningModel
    from runtime.perplexity import windows

    model = opened(source)
    reads = [*model.files, as_path(text, "the text")]
    target = Path("imatrix.gguf") if output is None else output_path(output)
    if output is not None:
        check_target(target, NOTHING.also(reads), overwrite)
    tokens, bos = tokens_of(model, text)
    plan = windows(len(tokens), n_ctx, chunks=chunks)
    found = Importance()
    net = RunningModel(model.metadata, model.tensors, threads=threads, observe=found.observe)
    for done, (inputs, _) in enumerate(plan.batches(tokens, bos), 1):
        net.lazy_logits(inputs)
        if progress:
            progress(done, len(plan.starts), 0.0)
    entries = {}
    for name, sums in found.sums.items():
        if not np.all(sums.squares < MOST):
            raise ModelError(f"the inputs of {name!r} are too large to be squared", "keys or weights are wrong")
        if with_output or name not in ("output.weight", "token_embd.weight"):
            entries[name] = Entry(sums.squares.astype(np.float32), sums.counts.astype(np.float32))
    matrix = ImportanceMatrix(target, entries, (Path(text).name,), len(plan.starts), n_ctx)
    if output is not None:
        write_imatrix(matrix, target, overwrite, reads)
    return matrix
