"""Perplexity of a GGUF file on a text, with what it cost to measure."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quants import Tensor
from quants.arguments import PathLike, as_path
from quants.errors import FileError

from ..files.naming import hint_for_absent
from ..model import Model, opened
from ..writing.report import Report

log = logging.getLogger(__name__)
TOKENS_AT_ONCE = 2048  # of several windows together: weights are decoded once for all of them
VALUES_AT_ONCE = 1 << 23  # of the widest layer's: 32 MB, of which there are a few

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class PerplexityReport(Report):
    """perplexity ± standard_error; chunks: the running value after each window.

    tokens_per_second counts the windows' tokens; compile_seconds went before that into compiling kernels.
    skipped: the share of neurons that the file's predictor left out, None where it was not asked; dense_perplexity:
    with all neurons, None where that was not measured. precision: as asked for; products: what those of many rows were
    computed in. profile: seconds of each kind of work, None where it was not asked.
    """

    file: str
    perplexity: float
    standard_error: float
    chunks: list[float]
    tokens: int
    n_ctx: int
    tokens_per_second: float
    compile_seconds: float
    skipped: float | None = None
    dense_perplexity: float | None = None
    precision: str = "float32"
    products: str = "float32"
    profile: dict[str, float] | None = None


def perplexity(
    source: PathLike | Model, text: PathLike, *,
    n_ctx: int = 512, chunks: int | None = None, stride: int = 0, threads: int | None = None,
    round_activations: bool = False, precision: str = "float32", sparse: bool = False, compare: bool = True,
    profile: bool = False, progress: Progress | None = None,
) -> PerplexityReport:  # fmt: skip
    """Perplexity of the model on the text in the file `text`, by llama.cpp's protocol.

    n_ctx: tokens of a window. chunks: measure the first so many windows only. stride: > 0 lets windows overlap.
    threads: None for all processors. precision: "float32", "exact" (no product in integers) or "reference": the inputs
    of products rounded as llama.cpp does (to 8 bits for quantized weights), for figures to set beside its own, which
    round_activations asks for, too. sparse: compute only the neurons that a PowerInfer file's predictor marks; compare:
    before that all of them, too. profile: time each kind of work.
    progress(windows done, of how many, perplexity so far).
    Raises FileError, OptionError (too short a text), ModelError, VocabularyError.
    """
    from runtime.model import Model as RunningModel
    from runtime.perplexity import Perplexity, windows
    from runtime.perplexity import perplexity as measure
    from runtime.precision import Precision, precision_named, products
    from runtime.profile import Profile

    model = opened(source)
    tokens, bos = tokens_of(model, text)
    windows(len(tokens), n_ctx, chunks=chunks, stride=stride)  # a text too short is found before anything is compiled
    chosen: Precision = "reference" if round_activations else precision_named(precision)
    net = RunningModel(model.metadata, model.tensors, threads=threads, precision=chosen)
    if sparse:
        net.use_predictor()  # a file without one is found before anything is compiled
        net.sparsity = None
    start, few = time.perf_counter(), tokens[: min(n_ctx, 128)]
    half = len(few) // 2
    net.lazy_logits(few, half).losses(np.asarray(few[: len(few) - half], np.int64))  # compiles or loads every kernel
    compile_seconds = time.perf_counter() - start
    log.info("%d tokens of %s; kernels are there after %.3f s", len(tokens), text, compile_seconds)

    def evaluate() -> Perplexity:
        batch = max(1, tokens_at_once(model) // n_ctx)
        return measure(
            tokens, net.lazy_logits, n_ctx, bos=bos, chunks=chunks, stride=stride, batch=batch, progress=progress
        )

    dense = evaluate().perplexity if sparse and compare else None
    sparsity = net.use_predictor() if sparse else None
    net.profile = Profile() if profile else None
    start = time.perf_counter()
    result = evaluate()
    seconds = time.perf_counter() - start
    if net.profile:
        net.profile.seconds["all other work"] = seconds - sum(net.profile.seconds.values())
    return PerplexityReport(
        str(model.path), result.perplexity, result.standard_error, result.chunks, result.tokens, n_ctx,
        result.tokens / seconds, compile_seconds, None if sparsity is None else sparsity.skipped, dense,
        chosen, products(chosen), net.profile.seconds if net.profile else None,
    )  # fmt: skip


def tokens_at_once(model: Model) -> int:
    """How many tokens of windows run together: what the widest layer gives for them stays of bounded size."""
    widest = max((tensor.shape[-2] for tensor in model.tensors.values() if _is_of_layer(tensor)), default=1)
    return min(TOKENS_AT_ONCE, VALUES_AT_ONCE // widest)


def _is_of_layer(tensor: Tensor) -> bool:
    return len(tensor.shape) > 1 and "blk." in tensor.name


def context_warning(model: PathLike | Model, n_ctx: int) -> str | None:
    """What to say of windows that are longer than what the model was made for."""
    metadata = opened(model).metadata
    longest = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    if not isinstance(longest, int) or not 0 < longest < n_ctx:
        return None
    return f"windows of {n_ctx} tokens are longer than the context of {longest} that the model was made for"


def tokens_of(model: Model, text: PathLike) -> tuple[list[int], int | None]:
    """A file's text as the model's tokens; the one that begins every window, None if the vocabulary adds none.

    Raises as `read_text` does, and VocabularyError.
    """
    tokenizer = model.tokenizer
    return tokenizer.encode(read_text(text)), tokenizer.bos if tokenizer.add_bos else None


def read_text(text: PathLike) -> str:
    """What is in a UTF-8 file. Raises FileError, OptionError for what is no path."""
    path = as_path(text, "the text")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}", hint_for_absent(path)) from error
