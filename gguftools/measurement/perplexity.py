"""Measure the perplexity of a GGUF file on a text."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from quants import Tensor
from quants.arguments import PathLike
from quants.errors import OptionError

from ..models.devices import name_of_device, running_on
from ..models.model import Model, opened
from ..writing.report import Report
from .options import PerplexityOptions
from .sizes import bits_per_weight, size_bytes
from .texts import NamedText, Texts, TextWindows, texts_named, windows_of

if TYPE_CHECKING:
    from runtime.arrays import Ids
    from runtime.evaluation.noise import NoiseFloor
    from runtime.evaluation.perplexity import Perplexity, Windows
    from runtime.head import LazyLogits
    from runtime.model import RunningModel

log = logging.getLogger(__name__)
TOKENS_AT_ONCE = 2048  # of several windows together: weights are decoded once for all of them
VALUES_AT_ONCE = 1 << 23  # of the widest layer's: 32 MB, of which there are a few

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class TextPerplexity:
    """The perplexity of one text; fields as in `PerplexityReport`."""

    name: str
    file: str
    perplexity: float
    standard_error: float
    chunks: list[float]
    tokens: int


@dataclass(frozen=True)
class PerplexityReport(Report):
    """perplexity ± standard_error; chunks: the running value after each window. texts: the same for each text.

    tokens_per_second: of the windows' tokens; compile_seconds: time before that to compile kernels. skipped: the share
    of neurons that the file's predictor skipped, None without `sparse`; dense_perplexity: with all neurons, None if
    that was not measured. precision: as requested; products: what products of many rows were computed in. profile:
    seconds of each type of operation, None without `profile`. device: the device's name, "" for the processor.
    noise_floor, noise_floor_max: mean and maximum of the KL divergence, in nats, of the first windows' predictions from
    themselves, computed again one window at a time with exact products; None for the processor.
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
    texts: list[TextPerplexity] = field(default_factory=list)
    size_bytes: int = 0
    bits_per_weight: float = 0.0
    device: str = ""
    noise_floor: float | None = None
    noise_floor_max: float | None = None


def perplexity(
    source: PathLike | Model,
    text: Texts,
    *,
    n_ctx: int = 512,
    chunks: int | None = None,
    threads: int | None = None,
    options: PerplexityOptions | None = None,
    progress: Progress | None = None,
) -> PerplexityReport:
    """Measure the perplexity of a model on a text, by llama.cpp's protocol.

    text: a file, or several, or several by name, each with figures of its own besides those of all. n_ctx: tokens of a
    window. chunks: measure the first so many windows of each text. threads: None for all processors. options: precision
    and more. progress(windows done, of how many, perplexity so far): first with 0 and NaN. Raises FileError, also for a
    model that is changed while it is measured, OptionError (a text that is too short), ModelError, VocabularyError.
    """
    from runtime.evaluation.perplexity import windows
    from runtime.products.precision import precision_named, products
    from runtime.profile import Profile

    options = options or PerplexityOptions()
    model, texts = opened(source), _plain_texts(text)
    read = [windows_of(model, each, n_ctx, chunks=chunks, stride=options.stride) for each in texts]
    chosen = precision_named(options.precision)
    _check_for_device(options)
    net = running_on(options.device, model.metadata, model.tensors, threads=threads, precision=chosen)
    if options.sparse:
        net.check_predictor()  # before anything is compiled
    plans = [windows(len(each.tokens), n_ctx, chunks=chunks, stride=options.stride) for each in read]
    evaluate = _Evaluation(net, read, plans, windows_at_once(model, n_ctx, net), progress)
    evaluate.begin()
    compile_seconds = _compiled(net, read, n_ctx)
    dense = evaluate()[0].perplexity if options.sparse and options.compare else None
    sparsity = net.use_predictor() if options.sparse else None
    net.profile = Profile() if options.profile else None
    start = time.perf_counter()
    result, by_text = evaluate()
    seconds = time.perf_counter() - start
    model.origin.reads.check_unchanged()
    if net.profile:
        net.profile.seconds["all other work"] = seconds - sum(net.profile.seconds.values())
    return PerplexityReport(
        str(model.path),
        result.perplexity,
        result.standard_error,
        result.chunks,
        result.tokens,
        n_ctx,
        result.tokens / seconds,
        compile_seconds,
        None if sparsity is None else sparsity.skipped,
        dense,
        chosen,
        products(chosen) if net.device is None else net.device.products(chosen),
        net.profile.seconds if net.profile else None,
        list(map(_of_text, texts, by_text)),
        size_bytes(model),
        bits_per_weight(model),
        name_of_device(net),
        None if evaluate.noise is None else evaluate.noise.mean,
        None if evaluate.noise is None else evaluate.noise.max,
    )


def _check_for_device(options: PerplexityOptions) -> None:
    for given, what in ((options.sparse, "sparse"), (options.profile, "profile")):
        if given and options.device is not None:
            raise OptionError(f"{what} is for models that the processor computes", "leave the device out")


def _plain_texts(given: Texts) -> list[NamedText]:
    texts = texts_named(given)
    if not texts:
        raise OptionError("there is no text to read")
    if chat := next((each for each in texts if each.chat), None):
        raise OptionError(f"{chat.path} is conversations", "measure them with divergence, or give plain text")
    return texts


def _of_text(text: NamedText, result: "Perplexity") -> TextPerplexity:
    return TextPerplexity(
        text.name, str(text.path), result.perplexity, result.standard_error, result.chunks, result.tokens
    )


def _compiled(net: "RunningModel", read: Sequence[TextWindows], n_ctx: int) -> float:
    """Run a few tokens, so that every kernel is compiled or loaded; return the seconds that took.

    A device was tested with some tokens already.
    """
    if net.device is not None:
        return 0.0
    start, few = time.perf_counter(), read[0].tokens[: min(n_ctx, 128)]
    half = len(few) // 2
    net.lazy_logits(few, half).losses(np.asarray(few[: len(few) - half], np.int64))
    seconds = time.perf_counter() - start
    log.info("%d tokens; kernels are there after %.3f s", sum(len(each.tokens) for each in read), seconds)
    return seconds


@dataclass
class _Evaluation:
    """A run over all windows of all texts.

    plans: the windows of each. batch: windows that run together. noise: after a run on a device, its noise floor.
    """

    net: "RunningModel"
    texts: Sequence[TextWindows]
    plans: "Sequence[Windows]"
    batch: int
    progress: Progress | None
    noise: "NoiseFloor | None" = None

    def begin(self) -> None:
        """Report the number of windows."""
        if self.progress:
            self.progress(0, sum(len(plan.starts) for plan in self.plans), math.nan)

    def __call__(self) -> "tuple[Perplexity, list[Perplexity]]":
        from runtime.evaluation.perplexity import perplexities

        forward = self.net.lazy_logits if self.net.device is None else self._begun_on_device()
        return perplexities(
            [each.tokens for each in self.texts],
            forward,
            self.plans,
            bos=self.texts[0].bos,
            batch=self.batch,
            progress=self.progress,
        )

    def _begun_on_device(self) -> "Callable[[Ids, int], LazyLogits]":
        """Compute the first batch, and its noise floor; return what computes all batches for `perplexities`."""
        from runtime.evaluation.noise import batches_of_noise, noise_floor, windows_of_noise

        net, passes = self.net, self._passes()
        first = next(passes)
        twice = windows_of_noise(self.texts[0].windows[: self.batch])
        net.prepare([first, *batches_of_noise(net, twice), *passes])
        ready = [net.lazy_logits(*first)]
        states = ready[0].x.reshape(-1, *ready[0].x.shape[-2:])  # (windows, positions, width)

        def measured(place: int) -> "LazyLogits":
            return replace(ready[0], x=states[place, twice[place].scored - twice[place].first])

        self.noise = noise_floor(net, twice, measured)
        return lambda ids, position: ready.pop() if ready else net.lazy_logits(ids, position)

    def _passes(self) -> "Iterator[tuple[Ids, int]]":
        """Yield what `perplexities` asks the model for."""
        for text, plan in zip(self.texts, self.plans, strict=True):
            for inputs, _ in plan.batches(text.tokens, self.texts[0].bos, self.batch):
                yield inputs if self.batch > 1 else inputs[0], plan.first


def tokens_at_once(model: Model) -> int:
    """Return how many tokens of windows run together, so that the values of the widest layer stay bounded."""
    widest = max((tensor.shape[-2] for tensor in model.tensors.values() if _is_of_layer(tensor)), default=1)
    return min(TOKENS_AT_ONCE, VALUES_AT_ONCE // widest)


def windows_at_once(model: Model, n_ctx: int, net: "RunningModel | None" = None) -> int:
    """Return how many windows of n_ctx tokens run together, at least one. net: the model where it runs, as its device
    decides.
    """
    if net is not None and net.device is not None:
        return max(1, net.tokens_at_once(n_ctx) // n_ctx)
    return max(1, tokens_at_once(model) // n_ctx)


def _is_of_layer(tensor: Tensor) -> bool:
    return len(tensor.shape) > 1 and "blk." in tensor.name


def context_warning(model: PathLike | Model, n_ctx: int) -> str | None:
    """Return a warning if windows are longer than the context that the model was trained with."""
    metadata = opened(model).metadata
    longest = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    if not isinstance(longest, int) or not 0 < longest < n_ctx:
        return None
    return f"windows of {n_ctx} tokens are longer than the context of {longest} that the model was made for"
