"""A recipe for a size, found by measurement: which format each weight gets so that the model's predictions move least.

What weights cost in each format is predicted (`sensitivity`), the best choice within the size is taken (`knapsack`),
and what it costs in truth is measured on windows that were held back. Where groups of weights cost more or less than
was predicted, their gains are corrected, until no better choice comes of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import Format, Tensor, format_named
from quants.errors import OptionError

from ..measurement.perplexity import tokens_at_once
from ..model import Model
from ..quantization.imatrix import ImportanceMatrix
from .knapsack import Candidate, best_within, limits
from .sensitivity import Judge, Sensitivities, encoded, measure
from .texts import Calibration, Windows, calibration_windows

FITTED = 32  # windows that weights' inputs are taken from
HELD = 8  # windows by which recipes are judged
PROBED = 4  # of them, on which gains are measured
ROUNDS = 3
STRONGEST = 4.0  # factor by which a round corrects a gain at most
Tell = Callable[[str], None]
Size = Callable[[int], int]  # bytes of a tensor → bytes that they take


@dataclass(frozen=True)
class Choice:
    """A recipe's formats by weight. predicted, measured: KL divergence from the source, nats a token."""

    formats: Mapping[str, str]
    nbytes: int
    predicted: float
    measured: float

    def as_dict(self) -> dict[str, Any]:
        return {"bytes": self.nbytes, "predicted": self.predicted, "measured": self.measured,
                "formats": dict(self.formats)}  # fmt: skip


@dataclass
class Search:
    """A model whose weights were measured, ready to be asked for recipes of several sizes."""

    net: Any
    candidates: Mapping[str, Sequence[Format]]
    windows: Windows
    judge: Judge
    probe: Judge
    sensitivities: Sensitivities
    matrix: ImportanceMatrix
    tell: Tell
    corrections: dict[str, float] = field(default_factory=dict)
    _made: dict[str, Tensor] = field(default_factory=dict)

    def limits(self, size: Size) -> tuple[int, int]:
        """The fewest and the most bytes of all weights."""
        return limits(self._tables(size))

    def weights_measured(self) -> set[str]:
        """The weights that the search has figures for: those that a product saw."""
        return {part.weight for part in self.sensitivities.parts}

    def _tables(self, size: Size) -> dict[str, list[Candidate]]:
        costs, tensors = self.sensitivities.costs(self.corrections), self.net.tensors
        return {
            name: [Candidate(form.name, size(tensors[name].rows * form.row_bytes(tensors[name].width)),
                             costs[name][form.name]) for form in self.candidates[name]]
            for name in costs
        }  # fmt: skip

    def choose(self, budget: int, size: Size, rounds: int = ROUNDS) -> Choice:
        """The best recipe whose weights have `budget` bytes together. Raises OptionError where none has so few."""
        self.corrections = {}
        fewest, _ = self.limits(size)
        if budget < fewest:
            raise OptionError(f"the weights have at least {fewest:,} bytes; {budget:,} are left for them")
        tried: list[Choice] = []
        for number in range(rounds):
            chosen = best_within(self._tables(size), budget)
            formats = {name: each.format for name, each in chosen.items()}
            if any(formats == each.formats for each in tried):
                break
            self.tell(f"recipe {number + 1} of {rounds} at most")
            made = self._encoded(formats)
            predicted = sum(each.cost for each in chosen.values())
            tried.append(Choice(formats, sum(each.nbytes for each in chosen.values()), predicted,
                                self.judge.of_model(self._with(made))))  # fmt: skip
            if number + 1 < rounds and (number == 0 or tried[-1].measured <= tried[-2].measured):
                self._correct(formats, made)
            elif number:
                break
        return min(tried, key=lambda each: each.measured)

    def _correct(self, formats: Mapping[str, str], made: Mapping[str, Tensor]) -> None:
        """Measure what each group costs where all others are rounded, too."""
        thought = self.sensitivities.by_group(formats)
        whole = self.probe.of_model(self._with(made))
        groups = {part.weight: part.group for part in self.sensitivities.parts}
        for group, predicted in thought.items():
            rest = {name: tensor for name, tensor in made.items() if groups[name] != group}
            if predicted <= 0:
                continue
            self.tell(f"without {group}")
            own = whole - self.probe.of_model(self._with(rest))
            factor = float(np.clip(own / predicted, 1 / STRONGEST, STRONGEST))
            self.corrections[group] = factor

    def _with(self, made: Mapping[str, Tensor]) -> Any:
        from runtime.model import Model as RunningModel

        return RunningModel(self.net.metadata, {**self.net.tensors, **made}, threads=self.net.threads)

    def _encoded(self, formats: Mapping[str, str]) -> dict[str, Tensor]:
        for name, form in formats.items():
            before = self._made.get(name)
            if before is None or before.format.name != form:
                weights = self.matrix.entries[name].mean()
                self._made[name] = encoded(self.net.tensors[name], format_named(form), weights, self.net.threads)
        return dict(self._made)


def searched(
    model: Model, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor],
    candidates: Mapping[str, Sequence[Format]], calibration: Calibration, threads: int, tell: Tell | None = None,
) -> Search:  # fmt: skip
    """Measure what weights cost in each format.

    metadata, tensors: of the model as it is written. candidates: formats of each weight. tell(where): what is done.
    Raises what reading the texts does, ModelError for a model that cannot be run layer by layer.
    """
    from runtime.layerwise import check_layerwise
    from runtime.model import Model as RunningModel

    tell = tell or (lambda where: None)
    windows = calibration_windows(model, calibration)
    windows = Windows(some_of(windows.fitted, FITTED), some_of(windows.held, HELD))
    net = RunningModel(metadata, tensors, threads=threads)
    check_layerwise(net)
    at_once = max(1, tokens_at_once(model) // windows.fitted.shape[1])
    tell("the model itself")
    judge = Judge(net, windows.held, at_once)
    probe = Judge(net, some_of(windows.held, PROBED), at_once)
    sensitivities = measure(net, candidates, windows, probe, tell)
    names = [text.name for text in calibration.all_texts]
    matrix = sensitivities.matrix(names, len(windows.fitted), windows.fitted.shape[1])
    return Search(net, candidates, windows, judge, probe, sensitivities, matrix, tell)


def some_of(ids: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Up to so many windows, from all over the texts."""
    places = np.unique(np.linspace(0, len(ids) - 1, min(count, len(ids))).round().astype(np.intp))
    some: NDArray[np.int64] = ids[places]
    return some
