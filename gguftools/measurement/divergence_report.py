"""The report of a divergence: figures of files and texts, and limits for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quants.errors import OptionError


@dataclass(frozen=True)
class Text:
    """A text that was measured on. file: None if only a stored base has it."""

    name: str
    file: str | None
    windows: int
    scored: int


@dataclass(frozen=True)
class FileDivergence:
    """One file compared with the base. figures: over all texts; texts: the same for each text.

    chunks: the mean KL divergence after each window. All is plain data with the keys of `as_dict`.
    """

    path: str
    size: int
    bits_per_weight: float
    type: str
    figures: Mapping[str, Any]
    lower_bound: bool
    texts: Mapping[str, Mapping[str, Any]]
    positions: Mapping[str, list[float]]
    histogram: Mapping[str, list[float]]
    chunks: list[float]
    worst: list[dict[str, Any]]

    @property
    def kl_divergence(self) -> Mapping[str, float]:
        """Return KL(base ‖ file) in nats: mean, standard_error, max, p99_9 … p0_1, median, min."""
        return self.figures["kl_divergence"]  # type: ignore[no-any-return]

    def as_dict(self) -> dict[str, Any]:
        own = {"file": self.path, "size_bytes": self.size, "bits_per_weight": self.bits_per_weight, "type": self.type}
        rest = ("lower_bound", "texts", "positions", "histogram", "chunks", "worst")
        return own | dict(self.figures) | {name: getattr(self, name) for name in rest}


@dataclass(frozen=True)
class DivergenceReport:
    """The divergence of files from a base. precision, products, device, noise_floor: as in `PerplexityReport`."""

    base: str
    n_ctx: int
    precision: str
    products: str
    texts: list[Text]
    base_perplexity: float
    base_perplexity_standard_error: float
    base_entropy: float
    files: list[FileDivergence]
    warnings: list[str] = field(default_factory=list)
    device: str = ""
    noise_floor: float | None = None
    noise_floor_max: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            **{name: value for name, value in vars(self).items() if name not in ("texts", "files")},
            "texts": [vars(text) for text in self.texts],
            "files": [file.as_dict() for file in self.files],
        }


def parse_limits(given: str) -> dict[str, float]:
    """Parse limits of KL figures such as "mean=0.02,p99_9=1" into a dict. Raises OptionError for invalid ones."""
    from runtime.evaluation.statistics import HIGH, LOW

    known = ("mean", "max", *HIGH, "median", *LOW, "min")
    limits: dict[str, float] = {}
    for part in given.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        name = name.replace(".", "_")  # p99.9, too
        try:
            limits[name] = float(value)
        except ValueError:
            name = ""
        if name not in known or not limits[name] >= 0:
            hint = f"name figures of the KL divergence, such as mean=0.02,p99_9=1; there are {', '.join(known)}"
            raise OptionError(f"{part!r} is no limit", hint)
    return limits


def exceeded(report: DivergenceReport, limits: Mapping[str, float]) -> list[str]:
    """Return a line for each figure of a file that is above its limit."""
    return [
        f"{file.path}: {name} KL divergence is {file.kl_divergence[name]:.6f}, above {limit:g}"
        for file in report.files
        for name, limit in limits.items()
        if not file.kl_divergence[name] <= limit
    ]
