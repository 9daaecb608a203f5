"""Perplexity of a text: the protocol of llama.cpp's `llama-perplexity`.

The text's tokens are cut into windows of n_ctx tokens, a shorter tail dropped. Each window is evaluated from an empty
cache with its first token replaced by BOS, if the vocabulary adds one. Scored are the predictions of the second half,
positions n_ctx/2 … n_ctx-2, so that each has a context. With a stride, windows overlap and the last `stride`
predictions of each are scored.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quants.arguments import as_count
from quants.errors import ModelError, OptionError

from ..arrays import Doubles, Floats, Ids
from ..head import LazyLogits
from ..kernels.softmax import negative_log_likelihoods
from ..kernels.threads import share_out

# (token ids (n_ctx,), first position needed) → logits from that position on, float32 (positions, vocabulary). If
# `batch` > 1: (ids (windows, n_ctx), first) → such an array for each window, computed eagerly or lazily. `LazyLogits`
# instead of arrays allow computing only what the losses need.
Forward = Callable[[Ids, int], Iterable[Floats] | LazyLogits]
Progress = Callable[[int, int, float], None]
MAX_LOSS = 700.0  # e^709 is the largest float; a NaN is not below it


@dataclass(frozen=True)
class Windows:
    """Starts of windows and their scored predictions: positions first … last, both included."""

    starts: list[int]
    n_ctx: int
    first: int
    last: int

    @property
    def scored(self) -> int:
        """Return the number of predictions scored in each window."""
        return self.last - self.first + 1

    def batches(self, tokens: Sequence[int] | Ids, bos: int | None, size: int = 1) -> Iterator[tuple[Ids, Ids]]:
        """Yield `size` windows at a time: the model's input, (windows, n_ctx), bos instead of each first token; and the
        targets, (windows, scored).
        """
        text = np.asarray(tokens, np.int64)
        for begin in range(0, len(self.starts), size):
            starts = np.array(self.starts[begin : begin + size])[:, None]
            inputs = text[starts + np.arange(self.n_ctx)]
            if bos is not None:
                inputs[:, 0] = bos
            yield inputs, text[starts + np.arange(self.first + 1, self.last + 2)]


@dataclass(frozen=True)
class Perplexity:
    """perplexity ± standard_error; chunks: the running value after each window; tokens: how many were evaluated."""

    perplexity: float
    standard_error: float
    chunks: list[float]
    tokens: int
    scored: int


def windows(tokens: int, n_ctx: int, *, chunks: int | None = None, stride: int = 0) -> Windows:
    """Return the windows of a text of `tokens` tokens, at most `chunks` of them.

    Raises OptionError if there are fewer than two, or for invalid n_ctx or stride.
    """
    for given, what in ((n_ctx, "n_ctx"), (stride, "stride"), (0 if chunks is None else chunks, "chunks")):
        as_count(given, what)
    if n_ctx < 4:
        raise OptionError(f"a window of {n_ctx} tokens; perplexity needs at least 4")
    if not 0 <= stride < n_ctx:
        raise OptionError(f"a stride of {stride} tokens does not fit windows of {n_ctx}")
    if chunks is not None and chunks < 1:
        raise OptionError(f"{chunks} chunks were asked for; at least 1 is needed")
    count = max(0, -(-(tokens - n_ctx) // stride)) if stride else tokens // n_ctx
    if count < 2:
        raise OptionError(
            f"the text has {tokens} tokens, enough for {count} of the at least 2 windows of {n_ctx} that are needed",
            hint="take a longer text or a smaller context",
        )
    first = n_ctx - stride - 1 if stride else n_ctx // 2
    return Windows([i * (stride or n_ctx) for i in range(count)][:chunks], n_ctx, first, n_ctx - 2)


def perplexities(
    texts: Sequence[Sequence[int]],
    forward: Forward,
    plans: Sequence[Windows],
    *,
    bos: int | None,
    batch: int = 1,
    progress: Progress | None = None,
    threads: int = 1,
) -> tuple[Perplexity, list[Perplexity]]:
    """Return perplexity of texts together, and of each alone, under `forward`.

    texts: with the special tokens in front, as the vocabulary asks. plans: the windows of each. bos: the token that
    begins every window, None if the vocabulary adds none. batch: windows passed to `forward` together; more than one
    changes its arguments and result (see Forward). progress: called after each window with (windows done, windows in
    all, perplexity so far). threads: for losses of logits that come as arrays. Raises ModelError if the losses are no
    numbers.
    """
    counts = [len(plan.starts) for plan in plans]
    losses = np.empty((sum(counts), plans[0].scored))
    running: list[float] = []
    for tokens, plan in zip(texts, plans, strict=True):
        for inputs, targets in plan.batches(tokens, bos, batch):
            for window in _window_losses(forward(inputs if batch > 1 else inputs[0], plan.first), targets, threads):
                losses[len(running)] = window
                running.append(perplexity_of(losses[: len(running) + 1].mean()))
                if progress is not None:
                    progress(len(running), len(losses), running[-1])
    parts = np.split(losses, np.cumsum(counts)[:-1])
    alone = [[perplexity_of(part[:i].mean()) for i in range(1, len(part) + 1)] for part in parts]
    each = [_figures(part, values, plans[0].n_ctx) for part, values in zip(parts, alone, strict=True)]
    return _figures(losses, running, plans[0].n_ctx), each


def perplexity_of(loss: float) -> float:
    """Return e^loss of a mean loss. Raises ModelError for a loss that is no number."""
    if not loss < MAX_LOSS:
        raise ModelError(f"the mean loss is {loss:.3g}; the logits are no predictions", "keys or weights are wrong")
    return math.exp(loss)


def _figures(losses: Doubles, running: list[float], n_ctx: int) -> Perplexity:
    error = running[-1] * standard_error(losses)  # the mean loss's error, propagated to its exponential
    return Perplexity(running[-1], error, running, n_ctx * len(running), losses.size)


def _window_losses(result: Iterable[Floats] | LazyLogits, targets: Ids, threads: int) -> Iterator[Doubles]:
    """Return the losses of each window; targets: (windows, scored)."""
    if isinstance(result, LazyLogits):
        losses = result.losses(targets.reshape(*result.x.shape[:-2], -1)).reshape(targets.shape)
        if not np.isfinite(losses).all():
            raise ModelError(f"logits are not finite, though all layers are: {result.weight.name!r} is damaged")
        yield from losses
        return
    windows = [result] if isinstance(result, np.ndarray) and result.ndim == 2 else result
    for logits, wanted in zip(windows, targets, strict=True):
        yield token_losses(np.asarray(logits)[: len(wanted)], wanted, threads)


def token_losses(logits: Floats, targets: Ids, threads: int = 1) -> Doubles:
    """Return -log(probability) of each target under its row of logits (n, vocabulary): float64 (n,)."""
    rows = np.ascontiguousarray(logits, np.float32)
    losses = np.empty(len(rows))
    share_out(lambda start, stop: negative_log_likelihoods(rows, targets, losses, start, stop), len(rows), 16, threads)
    return losses


def standard_error(values: Doubles) -> float:
    """Return the standard error of their mean."""
    spread = (values**2).mean() - values.mean() ** 2
    return math.sqrt(max(0.0, spread) / max(1, values.size - 1))
