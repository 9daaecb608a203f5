"""Divergence of models from the model they were quantized from, over the same windows of texts.

One pass serves any number of models: for a few positions at a time the base's logits are computed (or read), then each
model's are, compared with them, and dropped. Only a few numbers a prediction are kept, from which `statistics` computes
all figures; the memory for logits does not grow with the window.

A base is a model that runs, or the stored output of an earlier run (`stored_logits`). Logits of models that run on a
device stay there if both models are there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from quants.errors import ModelError, OptionError

from ..arrays import Doubles, Floats, Ids
from ..head import LazyLogits, Output
from ..kernels import softmax
from ..kernels.threads import share_out, spans
from .windows import Window, batched

# Columns stored for a prediction: compared with the base, and of each model's logits alone.
KL, KL_REVERSE, VARIATION = range(3)
Z, ENTROPY, TOP, TOP_LOGIT, LOG_P = range(5)
APART, OWN = 3, 5  # the number of both
LOGITS_AT_ONCE = 1 << 25  # of one model: 134 MB
MIN_POSITIONS = 16  # at a time, for any vocabulary

LazyForward = Callable[[Ids, int], LazyLogits]  # as `Model.lazy_logits`
Progress = Callable[[int, int, float], None]  # windows done, of how many, mean KL of the first model so far
Save = Callable[[int, int, int, "Rows"], None]  # window, predictions start and stop of it, the base's rows


class LogitsOnDevice(Protocol):
    """Logits (n, vocabulary) in a device's memory (see `runtime.device.figures`)."""

    def float32(self) -> Floats:
        """Return them in the host's memory."""
        ...

    def divergences(self, other: Any) -> Doubles:
        """Return the columns KL … VARIATION: `compare` with other logits of this type."""
        ...


@runtime_checkable
class HeadOnDevice(Protocol):
    """Lazy logits that a device computes."""

    def rows(self, targets: Ids) -> tuple[LogitsOnDevice, Doubles]:
        """Return the logits, and of each row the columns Z … LOG_P."""
        ...


@dataclass(frozen=True)
class Rows:
    """Logits (n, vocabulary), float32 or on a device, and of each row the columns Z … LOG_P: float64 (n, 5)."""

    held: Floats | LogitsOnDevice
    values: Doubles

    @cached_property
    def logits(self) -> Floats:
        """Return the logits in the host's memory: float32."""
        return self.held if isinstance(self.held, np.ndarray) else self.held.float32()

    @property
    def z(self) -> Doubles:
        """Return the log of the sum of e^logits."""
        return np.ascontiguousarray(self.values[:, Z])


class Logits(Protocol):
    """A source of logits of the windows. rows: those of predictions start … stop - 1 of a window."""

    @property
    def vocabulary(self) -> int: ...
    def rows(self, window: int, start: int, stop: int, targets: Ids, threads: int) -> Rows: ...


class Base(Logits, Protocol):
    """The base that models are compared with.

    lower_bound: whether divergences from it are only lower bounds. rows, compare: `rows_of` and `compare`, or
    replacements if a base has less than all logits, or in another form.
    """

    @property
    def lower_bound(self) -> bool: ...
    def compare(self, base: Rows, other: Rows, threads: int) -> Doubles: ...


class StoredBase(Base, Protocol):
    """A base from an earlier run. tokens: of all windows, one after the other, n_ctx of each."""

    @property
    def tokens(self) -> Ids: ...
    @property
    def n_ctx(self) -> int: ...


class RunningLogits:
    """Logits of a model that runs its layers for a few windows at a time, and its output layer on demand."""

    lower_bound = False

    def __init__(
        self,
        forward: LazyForward,
        windows: Sequence[Window],
        at_once: int = 2048,
        output: Output | None = None,
        number: int = 0,
    ) -> None:
        """Set up a run. at_once: tokens of windows (of equal length) whose layers run together; one window is run in
        any case. output: the model's output layer. number: of the first of these windows among all.
        """
        self.forward, self.windows, self.at_once, self._output, self._number = forward, windows, at_once, output, number
        self._begin = self._first = 0  # window and position that the states begin with
        self._states: LazyLogits | None = None

    def states(self, window: int, start: int, stop: int) -> LazyLogits:
        """Return the final states of predictions start … stop - 1 of a window, and the output layer for them."""
        states = self._states
        if states is None or not 0 <= window - self._begin < len(states.x):
            self._states = states = None  # the previous ones are not kept next to the new ones
            self._states = states = self._run(window)
        at = self.windows[window - self._number].scored[start:stop] - self._first
        return replace(states, x=np.ascontiguousarray(states.x[window - self._begin, at]))

    def logits(self, window: int, start: int, stop: int) -> Floats:
        return self.states(window, start, stop).float32()

    @property
    def output(self) -> Output:
        if self._output is None:
            raise OptionError("what makes logits of states is not known")
        return self._output

    @cached_property
    def vocabulary(self) -> int:
        """Return the number of tokens that it gives logits of."""
        made = self._output or self._states or self.states(self._number, 0, 1)
        return made.weight.rows

    def rows(self, window: int, start: int, stop: int, targets: Ids, threads: int) -> Rows:
        return rows_of(self.states(window, start, stop), targets, threads)

    def compare(self, base: Rows, other: Rows, threads: int) -> Doubles:
        return compare(base, other, threads)

    def batches(self, windows: Iterable[int]) -> Iterator[tuple[Ids, int]]:
        """Yield the arguments of `forward`, in their order, if logits of these windows, ascending, are asked for."""
        stop = 0
        for window in windows:
            if window >= stop:
                group = self.group(window)
                stop = window + len(group)
                yield np.stack([each.inputs for each in group]), group[0].first

    def group(self, window: int) -> list[Window]:
        """Return the windows whose layers run together if this is the first one."""
        following = (self.windows[i] for i in range(window - self._number, len(self.windows)))
        return next(batched(following, self.at_once))

    def _run(self, window: int) -> LazyLogits:
        inputs, first = next(self.batches([window]))
        self._begin, self._first = window, first
        return self.forward(inputs, first)


class Kept(Protocol):
    """Storage for measured windows: float64 (predictions, `columns`)."""

    def earlier(self, window: int) -> Doubles | None: ...
    def note(self, window: int, values: Doubles) -> None: ...


@dataclass(frozen=True)
class Predictions:
    """Results of every scored prediction, in the order of windows.

    base: float64 (n, 5), columns Z … LOG_P of the base's logits; of each model by name: others the same, apart (n, 3)
    with columns KL … VARIATION. window, position: int64 (n,), where each is.
    """

    base: Doubles
    others: Mapping[str, Doubles]
    apart: Mapping[str, Doubles]
    window: Ids
    position: Ids


def divergence(
    windows: Sequence[Window],
    base: Base,
    others: Mapping[str, Logits],
    *,
    progress: Progress | None = None,
    save: Save | None = None,
    kept: Kept | None = None,
    measured: Iterator[Doubles] | None = None,
    threads: int = 1,
) -> Predictions:
    """Compare models, by name, with a base at every scored position.

    save: called with the base's rows as they come. kept: has earlier results, which are not measured again, and is
    given each window when it is done. measured: gives `window_figures` of all other windows in their order, made
    elsewhere. progress: called after each window. Raises OptionError if vocabularies differ, ModelError for logits that
    are not finite, each with the name.
    """
    count = sum(len(window.scored) for window in windows)
    every = np.empty((count, columns(len(others))))
    own = {name: every[:, columns(i) : columns(i) + OWN] for i, name in enumerate(others)}
    apart = {name: every[:, columns(i) + OWN : columns(i + 1)] for i, name in enumerate(others)}
    begin = 0
    for number, window in enumerate(windows):
        whole = slice(begin, begin + len(window.scored))
        earlier = None if kept is None else kept.earlier(number)
        if earlier is not None:
            every[whole] = earlier
        elif measured is not None:
            every[whole] = next(measured)
        else:
            every[whole] = window_figures(number, window, base, others, save=save, threads=threads)
        if kept is not None and earlier is None:
            kept.note(number, every[whole])
        begin += len(window.scored)
        if progress is not None:
            first = next(iter(apart.values()), None)
            progress(number + 1, len(windows), 0.0 if first is None else float(first[:begin, KL].mean()))
    where = [(np.full(len(each.scored), i), each.scored) for i, each in enumerate(windows)]
    of_base = every[:, :OWN]
    return Predictions(of_base, own, apart, *(np.concatenate(each) for each in zip(*where, strict=True)))


def window_figures(
    number: int, window: Window, base: Base, others: Mapping[str, Logits], *, save: Save | None = None, threads: int = 1
) -> Doubles:
    """Return figures of a window's predictions, float64 (n, `columns`): the base's, and of each model its own and its
    divergences. number: of the window among all. Raises as `divergence` does.
    """
    figures = np.empty((len(window.scored), columns(len(others))))
    for start, stop in spans(len(window.scored), _step(base)):
        targets, here = window.targets[start:stop], figures[start:stop]
        expected = base.rows(number, start, stop, targets, threads)
        here[:, :OWN] = expected.values
        _check("the base", number, expected.values)
        if save is not None:
            save(number, start, stop, expected)
        for i, (name, model) in enumerate(others.items()):
            if model.vocabulary != base.vocabulary:
                sizes = f"{base.vocabulary} tokens, {name} one of {model.vocabulary}"
                raise OptionError(f"the base has a vocabulary of {sizes}; they have to be equal")
            got = model.rows(number, start, stop, targets, threads)
            _check(name, number, got.values)
            apart = base.compare(expected, got, threads)
            _check(name, number, apart[:, : 1 if base.lower_bound else None])
            here[:, columns(i) : columns(i + 1)] = np.concatenate((got.values, apart), axis=1)
    return figures


def columns(models: int) -> int:
    """Return how many numbers are stored for a prediction and this many models."""
    return OWN + models * (OWN + APART)


def _step(base: Base) -> int:
    return max(MIN_POSITIONS, LOGITS_AT_ONCE // base.vocabulary)


def _check(name: str, window: int, values: Doubles) -> None:
    if not np.isfinite(values).all():
        what = f"{name}: logits of window {window + 1} are not finite: there is nothing to compare"
        raise ModelError(what, "its weights are damaged")


def rows_of(logits: LazyLogits, targets: Ids, threads: int = 1) -> Rows:
    """Return lazy logits of predictions as rows; a device's stay there. targets: (n,)."""
    if isinstance(logits, HeadOnDevice):
        return Rows(*logits.rows(targets))
    return row_figures(logits.float32(), targets, threads)


def row_figures(logits: Floats, targets: Ids, threads: int = 1) -> Rows:
    """Return the columns Z … LOG_P of logits float32 (n, vocabulary). targets: (n,)."""
    rows, out = np.ascontiguousarray(logits, np.float32), np.empty((len(logits), 5))
    wanted = np.ascontiguousarray(targets, np.int64)
    share_out(lambda start, stop: softmax.row_figures(rows, wanted, out, start, stop), len(out), 16, threads)
    return Rows(rows, out)


def compare(base: Rows, other: Rows, threads: int = 1) -> Doubles:
    """Return the columns KL … VARIATION of two models' rows: float64 (n, 3)."""
    if not isinstance(base.held, np.ndarray) and not isinstance(other.held, np.ndarray):
        return base.held.divergences(other.held)
    out, zs = np.empty((len(base.values), 3)), (base.z, other.z)

    def share(start: int, stop: int) -> None:
        softmax.divergences(base.logits, other.logits, *zs, out, start, stop)

    share_out(share, len(out), 16, threads)
    return out
