"""Report what quantizing did, or would do: files, their tensors, and the error of each."""

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
    """Return the verdict in the JSON of every check: "ok" or "wrong"."""
    return "ok" if passed else "wrong"


@dataclass(frozen=True)
class Report:
    """Base of results whose fields are printed by `--json`, followed by the properties in `also`; see RENAMED."""

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
    """Report how far a file's logits are from the original's.

    difference: the largest over all prompts and positions, in units of the standard deviation of the original's logits
    on that prompt. exact: every weight is stored with its original value, so only the order of sums may make a
    difference. An encoder's hidden states take the place of logits.
    """

    also = ("ok",)

    prompts: int
    tokens: int
    difference: float
    exact: bool
    tolerance: float = TOLERANCE

    @property
    def ok(self) -> bool:
        """Return True unless an exact file differs by more than the tolerance; rounded weights allow any difference."""
        return not self.exact or self.difference <= self.tolerance


class TensorReport(NamedTuple):
    """Report one tensor of an output.

    source, format: names of the formats before and after. fallback: why it is not the recipe's format. rule: the user's
    regular expression that decided. rmse, max_error: relative to the source's values. seconds: of all threads.
    feedback: how GPTQ encoded it.
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
        """Return it as `quantize --json` prints it; figures only after a run."""
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
    """Report the result of exact transcoding for a weight.

    source, format: names of the formats before (after unpacking a prequantized weight) and after. reason: why no block
    format holds it exactly; None if one does. blocks: of the format, or of `nearest`, which holds most of them (if that
    is less than half, of the first rows only). inexact: how many of these differ from the source, the first at row,
    column. rounded: how many values the format changes. as_rounded: blocks that equal the source only after rounding to
    the source's format.
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
        """Return the number of values."""
        return math.prod(self.shape)

    def as_dict(self) -> dict[str, Any]:
        """Return it as `convert --outtype exact --json` prints it."""
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
    """Report one recipe's output: a file, or a split set whose first shard is `file`.

    nbytes: of all its files. manifest: its path, if one was written.
    """

    recipe: str
    file: Path
    files: tuple[Path, ...]
    nbytes: int
    tensors: tuple[TensorReport, ...]
    manifest: Path | None = None

    @property
    def bits_per_weight(self) -> float:
        """Return the bits per value of tensor data, over all tensors."""
        values = sum(math.prod(tensor.shape) for tensor in self.tensors)
        return 8 * sum(tensor.nbytes for tensor in self.tensors) / values if values else 0.0

    @property
    def fallbacks(self) -> list[TensorReport]:
        return [tensor for tensor in self.tensors if tensor.fallback]

    def by_format(self) -> dict[str, tuple[int, int]]:
        """Return format → (tensors, bytes), the largest first."""
        totals: dict[str, tuple[int, int]] = {}
        for tensor in self.tensors:
            count, size = totals.get(tensor.format, (0, 0))
            totals[tensor.format] = (count + 1, size + tensor.nbytes)
        return dict(sorted(totals.items(), key=lambda entry: -entry[1][1]))

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
    """Report what `quantize` did for all recipes.

    source_bytes: tensor data read. resumed_bytes: of these, done by an earlier run. without_importance: encoded tensors
    that the importance matrix lacks. free_bytes: on the disk of the first output, before the run. seconds: in all;
    compile_seconds: of these, compiling kernels. check: the comparison with the original, on request. transcoding: the
    results of exact transcoding. search: of a recipe for a target size, its predicted and measured KL divergence and
    its text. work: the plan of a run with a cost model.
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
        """Return True if the disk has room for all outputs."""
        return sum(output.nbytes for output in self.outputs) <= self.free_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON of `quantize --json`."""
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
