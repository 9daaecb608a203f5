"""What quantizing did, or would do: files, their tensors, and what each lost."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from .work_plan import WorkPlan

TOLERANCE = 1e-3  # of the truth's standard deviation; a correct float32 implementation is at 1e-5
# Fields whose keys in JSON are those of all results; what a check came to is a word there, too.
RENAMED = {"path": "file", "bytes": "size_bytes", "ok": "verdict"}


def verdict_word(passed: bool) -> str:
    """The word that the JSON of every check has for what it came to."""
    return "ok" if passed else "wrong"


@dataclass(frozen=True)
class Report:
    """A result whose fields are what `--json` prints, and behind them the properties `also`; see RENAMED."""

    also: ClassVar[tuple[str, ...]] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        own = {RENAMED.get(name, name): value for name, value in asdict(self).items()}
        own |= {RENAMED.get(name, name): getattr(self, name) for name in self.also}
        if isinstance(own.get("verdict"), bool):
            own["verdict"] = verdict_word(own["verdict"])
        return {name: str(value) if isinstance(value, Path) else value for name, value in own.items()}


@dataclass(frozen=True)
class LogitReport(Report):
    """How far a file's logits are from the original's.

    difference: the largest over all prompts and positions, in units of the standard deviation of the original's logits
    on that prompt. exact: every weight is stored with the value that it had, so that nothing but the order of sums may
    make a difference. An encoder's hidden states stand in for logits.
    """

    also = ("ok",)

    prompts: int
    tokens: int
    difference: float
    exact: bool
    tolerance: float = TOLERANCE

    @property
    def ok(self) -> bool:
        """Whether the file is as good as it can be told to be: rounded weights make any difference possible."""
        return not self.exact or self.difference <= self.tolerance


class TensorReport(NamedTuple):
    """One tensor of an output.

    source, format: names of the formats before and after. fallback: why it is not the one that the recipe wants. rule:
    the user's regular expression that decided. rmse, max_error: relative to the source's. seconds: of all threads.
    feedback: how it was encoded by what its product's inputs were like, where that was asked for.
    """

    name: str
    shape: tuple[int, ...]
    source: str
    format: str
    nbytes: int
    fallback: str | None = None
    rule: str | None = None
    rmse: float | None = None
    max_error: float | None = None
    seconds: float | None = None
    feedback: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """As `quantize --json` shows it; the figures of a run only after one."""
        figures = {"rmse": self.rmse, "max_error": self.max_error, "seconds": self.seconds}
        return {
            "name": self.name,
            "shape": list(self.shape),
            "from": self.source,
            "to": self.format,
            "size_bytes": self.nbytes,
            "fallback": self.fallback,
            "rule": self.rule,
            **({} if self.feedback is None else {"feedback": dict(self.feedback)}),
            **({} if self.seconds is None else figures),
        }


class TranscodingReport(NamedTuple):
    """What exact transcoding made of a weight.

    source, format: names of the formats before (decoded, where the checkpoint packs integers) and after. reason: why
    no format of blocks holds it; None where one does. blocks: of the format, or of `nearest`, which holds most of them
    (where that is less than half, of the first rows alone). inexact: how many of these do not mean the values that
    they are made of, the first of them at row, column. rounded: how many values the format changes, after all.
    as_rounded: blocks whose values, rounded to the source's format, are the source's, which were rounded before.
    """

    name: str
    shape: tuple[int, ...]
    source: str
    format: str
    reason: str | None = None
    blocks: int = 0
    inexact: int = 0
    nearest: str | None = None
    row: int = 0
    column: int = 0
    rounded: int = 0
    as_rounded: int = 0

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def as_dict(self) -> dict[str, Any]:
        """As `convert --outtype exact --json` shows it."""
        first = {"nearest": self.nearest, "row": self.row, "column": self.column} if self.inexact else {}
        return {
            "name": self.name,
            "shape": list(self.shape),
            "from": self.source,
            "to": self.format,
            "reason": self.reason,
            "blocks": self.blocks,
            "inexact": self.inexact,
            **first,
            "rounded": self.rounded,
            "as_rounded": self.as_rounded,
        }


@dataclass(frozen=True)
class OutputReport:
    """One recipe's output: a file, or a split set whose first shard is `file`. nbytes: of all its files.

    manifest: what says how it was made, where that was asked for.
    """

    recipe: str
    file: Path
    files: tuple[Path, ...]
    nbytes: int
    tensors: tuple[TensorReport, ...]
    manifest: Path | None = None

    @property
    def bits_per_weight(self) -> float:
        """Of tensor data, all tensors counted."""
        values = sum(math.prod(tensor.shape) for tensor in self.tensors)
        return 8 * sum(tensor.nbytes for tensor in self.tensors) / values if values else 0.0

    @property
    def fallbacks(self) -> list[TensorReport]:
        return [tensor for tensor in self.tensors if tensor.fallback]

    def by_format(self) -> dict[str, tuple[int, int]]:
        """Format → number of tensors, bytes; the most bytes first."""
        found: dict[str, tuple[int, int]] = {}
        for tensor in self.tensors:
            count, size = found.get(tensor.format, (0, 0))
            found[tensor.format] = (count + 1, size + tensor.nbytes)
        return dict(sorted(found.items(), key=lambda entry: -entry[1][1]))

    def as_dict(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "file": str(self.file),
            "files": [str(path) for path in self.files],
            "size_bytes": self.nbytes,
            "bits_per_weight": self.bits_per_weight,
            **({"manifest": str(self.manifest)} if self.manifest else {}),
            "types": {name: {"tensors": n, "size_bytes": size} for name, (n, size) in self.by_format().items()},
            "tensors": [tensor.as_dict() for tensor in self.tensors],
        }


@dataclass(frozen=True)
class QuantizeReport:
    """What `quantize` did for all recipes.

    source_bytes: tensor data read. resumed_bytes: how many of them an earlier run had dealt with.
    without_importance: encoded tensors that the importance matrix lacks. free_bytes: on the disk of the first output,
    before the run. seconds: in all; compile_seconds: of them, making the kernels ready. check: the comparison with the
    original, where one was asked for. transcoding: what exact transcoding made of each weight. search: of the
    recipe for a target, its predicted and measured KL divergence and its text. work: what a planned run will take.
    """

    outputs: tuple[OutputReport, ...]
    dry_run: bool
    source_bytes: int
    free_bytes: int
    resumed_bytes: int = 0
    seconds: float = 0.0
    compile_seconds: float = 0.0
    without_importance: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)
    check: LogitReport | None = None
    transcoding: tuple[TranscodingReport, ...] = ()
    search: Mapping[str, Any] | None = None
    work: "WorkPlan | None" = None

    @property
    def fits(self) -> bool:
        """Whether the disk has room for all outputs."""
        return sum(output.nbytes for output in self.outputs) <= self.free_bytes

    def as_dict(self) -> dict[str, Any]:
        """The contract of `quantize --json`."""
        return {
            "outputs": [output.as_dict() for output in self.outputs],
            "dry_run": self.dry_run,
            "source_bytes": self.source_bytes,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "resumed_bytes": self.resumed_bytes,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "without_importance": list(self.without_importance),
            "warnings": self.warnings,
            **({"check": self.check.as_dict()} if self.check else {}),
            **({"work": self.work.as_dict()} if self.work else {}),
            **({"search": dict(self.search)} if self.search else {}),
            **({"transcoding": [each.as_dict() for each in self.transcoding]} if self.transcoding else {}),
        }
