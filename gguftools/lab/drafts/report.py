"""The report of a draft check: obstacles, acceptance and speed-up of each draft."""

from dataclasses import asdict, dataclass, field
from typing import Any

from ...measurement.divergence_report import Text


@dataclass(frozen=True)
class Simulation:
    """Speculative decoding as it ran on prompts cut from the texts.

    tokens_per_cycle ± standard_error; predicted: the same predicted from the chances along the generated text (None if
    that is too short, or unknown for this length). acceptance: the share of accepted tokens; expected_acceptance: the
    mean sum of min(p, q) at the same positions; acceptance_standard_error: of their difference. accepted_per_position:
    of cycles that drafted so many, the share whose first, second, … token was accepted.
    """

    draft_length: int
    prompts: int
    tokens: int
    cycles: int
    drafted: int
    accepted: int
    tokens_per_cycle: float
    standard_error: float
    predicted: float | None
    acceptance: float
    expected_acceptance: float
    acceptance_standard_error: float
    accepted_per_position: list[float]


@dataclass(frozen=True)
class TemperatureFigures:
    """A draft's figures at one temperature, on all texts.

    acceptance: mean and standard_error of the chance that a drafted token is accepted. tokens_per_cycle, speedup: for
    draft lengths 1, 2, …; independent: by the formula for the mean acceptance (None for lookup); standard_error: of
    tokens_per_cycle, from the differences between windows. accepted_per_position: the chance that the first, second, …
    drafted token is accepted if those before it are. draft_length: the best one, 0 if none is faster than the model
    alone. positions: acceptance by position in the window. texts: acceptance and agreement on each text, and tokens of
    a cycle at draft_length.
    """

    temperature: float
    acceptance: dict[str, float]
    tokens_per_cycle: list[float]
    standard_error: list[float | None]
    independent: list[float] | None
    accepted_per_position: list[float]
    speedup: list[float]
    draft_length: int
    positions: dict[str, list[float]]
    texts: dict[str, dict[str, Any]]
    simulation: Simulation | None = None

    @property
    def best_speedup(self) -> float:
        return self.speedup[self.draft_length - 1] if self.draft_length else 1.0


@dataclass(frozen=True)
class DraftFigures:
    """One draft. kind: "model", "lookup", "mtp" or "states" (a file that reads the model's states). obstacles: why it
    cannot draft, or was not measured.

    cost_ratio: cost of drafting a token relative to a token of the model; cost_source: "timed", "bytes" or "given";
    bytes_ratio: of weights read for a token. verify: as in the report, after passes of the draft; last_cost: cost of
    reading the last drafted token if all were accepted; draw_cost: cost of each written token but a cycle's first.
    offered: the share of positions where anything is drafted. agreement: how often the top tokens are the same; runs:
    lengths of runs of such positions, see `figures.runs`, None for lookup.
    """

    name: str
    kind: str
    obstacles: list[str]
    edits: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    size_bytes: int = 0
    cost_ratio: float | None = None
    cost_source: str | None = None
    bytes_ratio: float | None = None
    verify: list[float] = field(default_factory=list)
    last_cost: float | None = None
    draw_cost: float | None = None
    offered: float | None = None
    agreement: float | None = None
    runs: dict[str, Any] | None = None
    temperatures: list[TemperatureFigures] = field(default_factory=list)

    @property
    def possible(self) -> bool:
        return not self.obstacles

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "possible": self.possible}


@dataclass(frozen=True)
class DraftCheckReport:
    """Drafts compared for one model.

    verify: cost of a pass over one token and 0, 1, … drafted ones relative to a pass over one; verify_source: "timed"
    or "given". seed: of the simulation. best: at each temperature the draft with the largest predicted speed-up, its
    length and that speed-up; without a draft if none is faster than the model alone.
    """

    target: str
    n_ctx: int
    texts: list[Text]
    verify: list[float]
    verify_source: str
    seed: int
    drafts: list[DraftFigures]
    warnings: list[str] = field(default_factory=list)

    @property
    def possible(self) -> bool:
        """Return whether every draft can draft."""
        return all(draft.possible for draft in self.drafts)

    @property
    def best(self) -> list[dict[str, Any]]:
        measured = [draft for draft in self.drafts if draft.temperatures]
        if not measured:
            return []
        rows = []
        for i, at in enumerate(measured[0].temperatures):
            winner = max(measured, key=lambda each: each.temperatures[i].best_speedup)
            gain = winner.temperatures[i]
            faster = gain.draft_length > 0
            rows.append(
                {
                    "temperature": at.temperature,
                    "draft": winner.name if faster else None,
                    "draft_length": gain.draft_length,
                    "speedup": gain.best_speedup,
                }
            )
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "target": self.target,
            "n_ctx": self.n_ctx,
            "texts": [vars(text) for text in self.texts],
            "verify": self.verify,
            "verify_source": self.verify_source,
            "seed": self.seed,
            "possible": self.possible,
            "drafts": [draft.as_dict() for draft in self.drafts],
            "best": self.best,
            "warnings": self.warnings,
        }
