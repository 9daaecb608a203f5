"""Search for the recipe of a size by measurement: the formats by which the model's predictions change least.

The cost of each format of each weight is predicted (`sensitivity`), the best choice within the size is taken
(`knapsack`), and its real cost is measured on held-back windows. Where groups of weights cost more or less than
predicted, their gains are corrected, until no better choice results.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import Format, Tensor, format_named
from quants.errors import OptionError

from ..models.model import Model
from ..quantization.imatrix import ImportanceMatrix
from .encoded import Encoded
from .knapsack import Candidate, best_within, limits
from .sensitivity import Judge, Sensitivities, encoded_bytes, measure
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
    """Hold a recipe's formats by weight. predicted, measured: KL divergence from the source, nats per token."""

    formats: Mapping[str, str]
    nbytes: int
    predicted: float
    measured: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "size_bytes": self.nbytes,
            "predicted": self.predicted,
            "measured": self.measured,
            "formats": dict(self.formats),
        }


@dataclass
class Search:
    """Hold a model whose weights were measured, to search recipes of several sizes."""

    net: Any
    candidates: Mapping[str, Sequence[Format]]
    windows: Windows
    judge: Judge
    probe: Judge
    sensitivities: Sensitivities
    matrix: ImportanceMatrix
    kept: Encoded
    tell: Tell
    corrections: dict[str, float] = field(default_factory=dict)

    def limits(self, size: Size) -> tuple[int, int]:
        """Return the smallest and the largest number of bytes of all weights."""
        return limits(self._tables(size))

    def weights_measured(self) -> set[str]:
        """Return the weights with figures: those that a product used."""
        return {part.weight for part in self.sensitivities.parts}

    def _tables(self, size: Size) -> dict[str, list[Candidate]]:
        costs, tensors = self.sensitivities.costs(self.corrections), self.net.tensors
        return {
            name: [
                Candidate(
                    form.name, size(tensors[name].rows * form.row_bytes(tensors[name].width)), costs[name][form.name]
                )
                for form in self.candidates[name]
            ]
            for name in costs
        }

    def choose(self, budget: int, size: Size, rounds: int = ROUNDS) -> Choice:
        """Return the best recipe whose weights have `budget` bytes together. Raises OptionError if none has so few."""
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
            predicted = sum(each.cost for each in chosen.values())
            tried.append(
                Choice(
                    formats, sum(each.nbytes for each in chosen.values()), predicted, self._divergence("held", formats)
                )
            )
            if number + 1 < rounds and (number == 0 or tried[-1].measured <= tried[-2].measured):
                self._correct(formats)
            elif number:
                break
        return min(tried, key=lambda each: each.measured)

    def _correct(self, formats: Mapping[str, str]) -> None:
        """Measure what each group costs while all others are rounded, too."""
        thought = self.sensitivities.by_group(formats)
        whole = self._divergence("probe", formats)
        groups = {part.weight: part.group for part in self.sensitivities.parts}
        for group, predicted in thought.items():
            if predicted <= 0:
                continue
            self.tell(f"without {group}")
            rest = {name: form for name, form in formats.items() if groups[name] != group}
            own = whole - self._divergence("probe", rest)
            factor = float(np.clip(own / predicted, 1 / STRONGEST, STRONGEST))
            self.corrections[group] = factor

    def _divergence(self, windows: str, formats: Mapping[str, str]) -> float:
        """Return the divergence of the model with rounded weights, on the held-back windows or on the probe windows."""
        figure = f"{windows} {digest_of(formats)}"
        if figure not in self.kept.figures:
            judge = self.judge if windows == "held" else self.probe
            self.kept.note(figure, judge.of_model(self._rounded(formats)))
        return float(self.kept.figures[figure])

    def _rounded(self, formats: Mapping[str, str]) -> Any:
        from runtime import layerwise

        made = {name: self._encoded(name, form) for name, form in formats.items()}
        return layerwise.changed_model(self.net, {**self.net.tensors, **made})

    def _encoded(self, name: str, form: str) -> Tensor:
        tensor, known = self.net.tensors[name], self.kept.tensors.get(name)
        if known is not None and known.format.name == form:
            return known
        wanted, weights = format_named(form), self.matrix.entries[name].mean()
        return self.kept.keep(tensor, wanted, encoded_bytes(tensor, wanted, weights, self.net.threads), {})


def searched(
    net: Any,
    candidates: Mapping[str, Sequence[Format]],
    windows: Windows,
    at_once: int,
    texts: Sequence[str],
    kept: Encoded,
    tell: Tell,
) -> Search:
    """Measure what weights cost in each format.

    net: the model as it is written, ready to run. candidates: formats of each weight. windows: see `windows_for`;
    at_once: of them that run together; texts: their names. kept: has figures of an earlier run of this search, and gets
    new ones. tell(step): called before each step. Raises ModelError for a model that cannot be run layer by layer,
    FileError.
    """
    from runtime.layerwise import check_layerwise

    check_layerwise(net)
    kept.restore({name: (net.tensors[name], forms) for name, forms in candidates.items()})
    judge = Judge(net, windows.held, at_once)
    probe = Judge(net, sample_windows(windows.held, PROBED), at_once)
    sensitivities = measure(net, candidates, windows, probe, kept, tell)
    matrix = sensitivities.matrix(texts, len(windows.fitted), windows.fitted.shape[1])
    return Search(net, candidates, windows, judge, probe, sensitivities, matrix, kept, tell)


def windows_for(model: Model, calibration: Calibration) -> Windows:
    """Return the windows of a search. Raises what reading the texts raises."""
    windows = calibration_windows(model, calibration)
    return Windows(sample_windows(windows.fitted, FITTED), sample_windows(windows.held, HELD))


def digest_of(formats: Mapping[str, Any]) -> str:
    """Return a digest of a choice of formats."""
    return sha256(json.dumps(sorted(formats.items())).encode()).hexdigest()


def sample_windows(ids: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return up to `count` windows, spread over the texts."""
    places = np.unique(np.linspace(0, len(ids) - 1, min(count, len(ids))).round().astype(np.intp))
    some: NDArray[np.int64] = ids[places]
    return some
