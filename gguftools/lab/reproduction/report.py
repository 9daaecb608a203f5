"""The report of a reproduction: a file compared with its manifest and with what its source becomes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...metadata.difference import KeyDifference
from ...provenance.manifest import FileRecord, SourceRecord
from ...writing.report import verdict_word

WEIGHTS = (".safetensors", ".bin", ".gguf")
# Results for a tensor.
EQUAL, DIFFERS, BY_DIGEST = "equal", "differs", "as its digest says"
OTHER, ABSENT, EXTRA, UNCHECKED = "otherwise stored", "absent", "not of the source", "not checked"
GOOD = (EQUAL, BY_DIGEST, UNCHECKED)
ALTERED = "altered since it was written"
MADE_OTHERWISE = "as it was written, but not what the source becomes here"


@dataclass(frozen=True)
class Place:
    """The first differing byte of a tensor. column: the first of its block; offset: in its file."""

    row: int
    block: int
    column: int
    file: str
    offset: int

    def __str__(self) -> str:
        return f"row {self.row}, block {self.block} (from column {self.column} on), byte {self.offset} of {self.file}"


@dataclass(frozen=True)
class TensorCheck:
    """The result for one tensor. rows: compared, of_rows: in all; blocks: differing ones; first: where.

    why: ALTERED, MADE_OTHERWISE, or another remark.
    """

    name: str
    format: str
    found: str
    rows: int = 0
    of_rows: int = 0
    blocks: int = 0
    first: Place | None = None
    why: str | None = None

    @property
    def is_good(self) -> bool:
        return self.found in GOOD

    def __str__(self) -> str:
        if self.first is None:
            return f"{self.name}: {self.found}{f': {self.why}' if self.why else ''}"
        count = f"; {self.blocks:,} blocks differ" if self.blocks > 1 else ""
        return f"{self.name} differs at {self.first}{f': {self.why}' if self.why else ''}{count}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Sample:
    """Ranges of rows that were drawn: `count` of `of` in all, by a generator with this seed."""

    count: int
    of: int
    seed: int

    def missed(self, ranges: int = 1) -> float:
        """Return the probability that the sample misses an alteration in `ranges` of the ranges."""
        chance = 1.0
        for i in range(min(ranges, self.of)):
            chance *= max(0, self.of - self.count - i) / (self.of - i)
        return chance

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "missed": self.missed()}


@dataclass(frozen=True)
class Reproduction:
    """A file compared with what its source becomes.

    made: recipe or type in words; keys: that differ; layout: differences other than tensors and keys; causes: why
    tensors may differ, and differences of source, matrix, texts and encoders from the manifest's. sample: None if
    everything was compared.
    """

    file: Path
    source: str
    manifest: Path | None
    made: str
    tensors: tuple[TensorCheck, ...]
    keys: tuple[KeyDifference, ...] = ()
    layout: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    sample: Sample | None = None
    warnings: tuple[str, ...] = ()

    @property
    def wrong(self) -> list[TensorCheck]:
        return [tensor for tensor in self.tensors if not tensor.is_good]

    @property
    def equal(self) -> bool:
        """Return whether all that was compared is what the source becomes."""
        return not (self.wrong or self.keys or self.layout or self.causes)

    @property
    def verdict(self) -> str:
        """Return a summary in one sentence."""
        counts = Counter(tensor.found for tensor in self.tensors)
        compared = counts[EQUAL] + counts[DIFFERS]
        text = f"{counts[EQUAL]} of {compared} tensors are to the byte what {self.made} makes of {self.source}"
        if self.sample is not None:
            text = f"{self.sample.count:,} of {self.sample.of:,} ranges of rows compared; in these, {text}"
        if counts[BY_DIGEST]:
            text += f"; {counts[BY_DIGEST]} are as their digests say, but were not made again"
        if counts[UNCHECKED]:
            text += f"; {counts[UNCHECKED]} were not looked at"
        others = len(self.wrong) - counts[DIFFERS]
        return text + (f"; {others} are not stored as they would be" if others else "")

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": str(self.file),
            "source": self.source,
            "manifest": str(self.manifest) if self.manifest else None,
            "made": self.made,
            "verdict": verdict_word(self.equal),
            "summary": self.verdict,
            "causes": list(self.causes),
            "keys": [key.as_dict() for key in self.keys],
            "layout": list(self.layout),
            "sample": self.sample.as_dict() if self.sample else None,
            "warnings": list(self.warnings),
            "tensors": [tensor.as_dict() for tensor in self.tensors],
        }


def source_differences(source: SourceRecord, expected: SourceRecord) -> list[str]:
    """Return a line for each file of a source that differs from a manifest's."""
    if source.commit is not None and expected.commit is not None and source.commit != expected.commit:
        return [f"{source.name} is at commit {source.commit}; the source was {expected.name} at {expected.commit}"]
    if len(source.files) == len(expected.files) == 1:  # a file may have another name now
        return record_differences(source.files[0], expected.files[0], "the source")
    here, there = ({file.name: file for file in record.files} for record in (source, expected))
    if not here.keys() & there.keys():
        return [f"{source.name} is not the source: that was {expected.name}, a {expected.kind}"]
    same = source.kind == expected.kind  # of a folder that was fetched, not all files may be there
    lines = [
        f"the source's {name} is not in {source.name}"
        for name in there
        if name not in here and (same or name.endswith(WEIGHTS))
    ]
    lines += [
        f"{name} in {source.name} is not the source's"
        for name in here
        if name not in there and (same or name.endswith(WEIGHTS))
    ]
    return lines + [
        line for name in here if name in there for line in record_differences(here[name], there[name], "the source's")
    ]


def record_differences(file: FileRecord, expected: FileRecord, what: str) -> list[str]:
    """Return how a file differs from one of a manifest."""
    if file.bytes != expected.bytes:
        return [f"{file.name} is not {what}: it has {file.bytes:,} bytes, {expected.name} had {expected.bytes:,}"]
    if file.sha256 is not None and expected.sha256 is not None and file.sha256 != expected.sha256:
        return [f"{file.name} is not {what}: its SHA-256 is {file.sha256}, {expected.name} had {expected.sha256}"]
    return []


def few_lines(lines: Sequence[str], count: int) -> list[str]:
    """Return the first lines, and how many more there are."""
    return [*lines[:count], *([f"… and {len(lines) - count} more"] if len(lines) > count else [])]
