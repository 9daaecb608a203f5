"""How far a model's predictions are from those of the model it was quantized from, over the same windows.

Both models' full float32 logits are compared. llama.cpp keeps its base run in a file of 16-bit log-probabilities,
which alone costs 5e-4 nats, more than Q8_0 does; such files can be read here (`StoredLogits`) but are not needed.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quants.errors import FileError, ModelError, OptionError

from .arrays import Doubles, Floats, Ids
from .head import LazyLogits
from .kernels.softmax import divergences
from .kernels.threads import share_out
from .perplexity import Forward, Progress, standard_error, windows

MAGIC = b"_logits_"


@dataclass(frozen=True)
class Divergence:
    """Figures over all scored predictions; kl in nats; same_top and p (of the right token) as fractions.

    kl_mean, perplexity_ratio (to the base's) and same_top each with their standard error; kl_99, kl_999: percentiles.
    correlation: of both models' log-probabilities of the right tokens. chunks: running mean of kl after each window.
    predictions: what the figures are made of, float64 (scored, 4), as `compare` gives it.
    """

    kl_mean: float
    kl_error: float
    kl_median: float
    kl_99: float
    kl_999: float
    kl_max: float
    same_top: float
    same_top_error: float
    p_change_mean: float
    p_change_rms: float
    base_perplexity: float
    perplexity: float
    perplexity_ratio: float
    perplexity_ratio_error: float
    correlation: float
    chunks: list[float]
    scored: int
    predictions: "Doubles"


def divergence(
    tokens: Sequence[int], base: Forward, other: Forward, n_ctx: int = 512, *, bos: int | None,
    chunks: int | None = None, stride: int = 0, progress: Progress | None = None, threads: int = 1,
) -> Divergence:  # fmt: skip
    """KL(base ‖ other) over the windows of `perplexity.perplexity`, each run by both models in turn.

    base, other: `Model.lazy_logits` of two models, or what else gives logits. bos: the token that begins every window,
    None if the vocabulary adds none. progress: called after each window with (windows done, windows in all, mean so
    far). threads: for comparing. Raises OptionError as `perplexity.windows` does and where vocabularies differ,
    ModelError for logits that are NaN.
    """
    plan = windows(len(tokens), n_ctx, chunks=chunks, stride=stride)
    predictions = np.empty((len(plan.starts), plan.scored, 4))
    running: list[float] = []
    for inputs, targets in plan.batches(tokens, bos):
        expected, got = (_array(model(inputs[0], plan.first))[: plan.scored] for model in (base, other))
        predictions[len(running)] = compare(expected, got, targets[0], threads)
        running.append(float(predictions[: len(running) + 1, :, 0].mean()))
        if progress is not None:
            progress(len(running), len(plan.starts), running[-1])
    return summarize(predictions.reshape(-1, 4), running)


def _array(logits: Iterable[Floats] | LazyLogits) -> Floats:
    return logits.float32() if isinstance(logits, LazyLogits) else np.asarray(logits)


def compare(base: Floats, other: Floats, targets: Ids, threads: int = 1) -> Doubles:
    """For each row of two logits (n, vocabulary): KL, log p(target) of base and of other, 1 where the top token agrees.

    float64 (n, 4). Raises OptionError where the vocabularies differ, ModelError for logits that are NaN.
    """
    if base.shape != other.shape:
        raise OptionError(f"logits of shape {base.shape} and {other.shape}; the models must share a vocabulary")
    rows = [np.ascontiguousarray(logits, np.float32) for logits in (base, other)]
    if any(np.isnan(logits).any() for logits in rows):
        raise ModelError("logits are not numbers: there is nothing to compare")
    out = np.empty((len(base), 4))
    share_out(lambda start, stop: divergences(*rows, targets, out, start, stop), len(out), 16, threads)
    return out


def summarize(predictions: Doubles, running: list[float]) -> Divergence:
    """The figures of rows as `compare` returns them, at least two."""
    kl, base, other, same = predictions.T
    change, ratio = np.exp(other) - np.exp(base), math.exp((base - other).mean())
    median, high, higher = np.quantile(kl, [0.5, 0.99, 0.999])
    varied = base.std() * other.std()
    return Divergence(
        kl_mean=float(kl.mean()), kl_error=standard_error(kl), kl_median=float(median), kl_99=float(high),
        kl_999=float(higher), kl_max=float(kl.max()), same_top=float(same.mean()), same_top_error=standard_error(same),
        p_change_mean=float(change.mean()), p_change_rms=float(np.sqrt((change**2).mean())),
        base_perplexity=math.exp(-base.mean()), perplexity=math.exp(-other.mean()), perplexity_ratio=ratio,
        perplexity_ratio_error=ratio * standard_error(base - other),
        correlation=float(((base - base.mean()) * (other - other.mean())).mean() / varied) if varied else 1.0,
        chunks=running, scored=len(kl), predictions=predictions,
    )  # fmt: skip


@dataclass(frozen=True)
class StoredLogits:
    """A base run that llama.cpp wrote: the text's tokens, and 16-bit log-probabilities of each scored prediction.

    In the file: magic, int32 n_ctx, vocabulary, windows, tokens[windows * n_ctx]; then for each prediction a float32
    scale, a float32 minimum and one uint16 a token (an even number of them): log p = minimum + scale * value.
    """

    tokens: Ids
    n_ctx: int
    vocabulary: int
    words: NDArray[np.uint16]

    def __iter__(self) -> Iterator[Floats]:
        """Log-probabilities of each window, float32 (predictions, vocabulary)."""
        for window in self.words:
            scale, minimum = np.ascontiguousarray(window[:, :4]).view("<f4").T
            values = window[:, 4 : 4 + self.vocabulary].astype(np.float32)
            yield values * scale[:, None] + minimum[:, None]


def stored_logits(raw: NDArray[np.uint8]) -> StoredLogits:
    """Read the bytes (or file map) of such a file. Raises FileError where it is not one or its size is wrong."""
    if bytes(raw[:8]) != MAGIC or len(raw) < 20:
        raise FileError(f"not a file of stored logits: it starts with {bytes(raw[:8])!r}, not {MAGIC!r}")
    n_ctx, vocabulary, count = (int(value) for value in raw[8:20].view("<i4"))
    predictions = n_ctx - 1 - n_ctx // 2
    words = 4 + 2 * ((vocabulary + 1) // 2)
    begin = 20 + 4 * n_ctx * count
    expected = begin + 2 * words * predictions * count
    if min(n_ctx, vocabulary, count) < 1 or len(raw) != expected:
        size = f"{count} windows of {n_ctx} tokens over a vocabulary of {vocabulary}"
        raise FileError(f"stored logits of {size} take {expected} bytes; found {len(raw)}")
    tokens = raw[20:begin].view("<i4").astype(np.int64)
    return StoredLogits(tokens, n_ctx, vocabulary, raw[begin:].view("<u2").reshape(count, predictions, words))
