"""Audit a file for harm: templates that escape their sandbox, deceptive text, outliers among tensors."""

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from archs.metadata import Metadata, ValueType
from archs.vocab.chat import write_templates
from archs.vocab.files import TokenizerFiles
from quants.arguments import PathLike

from ..metadata.checks import is_chat_template
from ..models.contents import readable_tensors
from ..models.model import Model, opened
from ..writing.row_blocks import Progress
from .audits.finding import Finding, Severity, rank
from .audits.templates import audit_templates
from .audits.tensors import audit_errors, audit_statistics
from .audits.texts import audit_metadata, audit_names, audit_tokens
from .compare import diff

SHOWN_LINES = 12


@dataclass(frozen=True)
class AuditReport:
    """Findings of an audit, the most severe first. templates: keys of the templates that were analyzed."""

    path: Path
    findings: tuple[Finding, ...]
    templates: tuple[str, ...]

    @property
    def worst(self) -> Severity | None:
        return max((finding.severity for finding in self.findings), key=rank, default=None)

    def reaches(self, severity: Severity) -> bool:
        """Return whether a finding is at least this severe."""
        return self.worst is not None and rank(self.worst) >= rank(severity)

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": str(self.path),
            "worst": self.worst,
            "templates": list(self.templates),
            "findings": [asdict(finding) for finding in self.findings],
        }


def audit(
    source: PathLike | Model,
    against: PathLike | Model | None = None,
    *,
    tensors: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Audit a GGUF file, a checkpoint or a Model; none of its code is run.

    against: the Hugging Face folder, GGUF file or Model that it was made from, to compare templates and (tensors=True)
    weights with. tensors: also read all tensors and report outliers. threads: default all processors. progress(bytes
    read, of how many, tensor). Raises FileError for a file that cannot be opened; `validate` gives the details.
    """
    model = opened(source)
    templates = dict(chat_templates(model.metadata))
    findings = [*audit_names(model.metadata, "key"), *audit_names(model.tensors, "name")]
    findings += [*audit_metadata(model.metadata), *audit_tokens(model.metadata)]
    findings += audit_templates(templates) if templates else ()
    if against is not None:
        findings += compare_templates(templates, dict(chat_templates(_source_metadata(against))))
    if tensors:
        findings += _audit_tensors(model, against, threads, progress)
    ordered = sorted(dict.fromkeys(findings), key=lambda finding: -rank(finding.severity))
    return AuditReport(model.path, tuple(ordered), tuple(templates))


def chat_templates(metadata: Metadata) -> Iterator[tuple[str, str]]:
    """Yield every chat template by its key."""
    for key in filter(is_chat_template, metadata):
        if metadata.value(key).type is ValueType.STRING:
            text = metadata[key]
            yield key, text if isinstance(text, str) else text.decode("utf-8", "replace")


def _source_metadata(source: PathLike | Model) -> Metadata:
    """Return the metadata of the source; of a folder only its templates, as other files of it may be missing."""
    if not isinstance(source, (str, os.PathLike)) or not Path(source).is_dir():
        return opened(source).metadata
    metadata = Metadata()
    write_templates(metadata, TokenizerFiles.read(Path(source)))
    return metadata


def compare_templates(templates: Mapping[str, str], source: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each template that differs from the source's."""
    for key in dict.fromkeys((*templates, *source)):
        if key not in source:
            yield Finding("medium", "other template", key, "the source has no such template")
        elif key not in templates:
            yield Finding("low", "other template", key, "the source has this template, the file does not")
        elif templates[key] != source[key]:
            line, changes = _difference(source[key], templates[key])
            yield Finding("medium", "other template", key, f"differs from the source's: {changes}", line)


def _difference(source: str, template: str) -> tuple[int, str]:
    """Return the first line that differs, and the lines removed (-) and added (+)."""
    before, after = source.splitlines(), template.splitlines()
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
    changes = [line for line in difflib.ndiff(before, after) if line[:1] in "+-"]
    shown = " / ".join(line[:120] for line in changes[:SHOWN_LINES])
    more = len(changes) - SHOWN_LINES
    return same + 1, (shown or "ends of lines") + (f" / … {more} more lines" if more > 0 else "")


def _audit_tensors(
    model: Model, against: PathLike | Model | None, threads: int | None, progress: Progress | None
) -> Iterator[Finding]:
    yield from audit_statistics(readable_tensors(model), threads, progress)
    compared = () if against is None else diff(against, model, threads=threads, progress=progress).tensors
    relative = {}
    for tensor in compared:
        if tensor.kind in ("added", "removed", "shape"):
            yield Finding("medium", "changed", tensor.name, f"{tensor.kind} compared with the source")
        elif tensor.kind == "bytes":
            yield Finding("medium", "changed", tensor.name, "has the source's type but not its values")
        elif tensor.kind == "type" and tensor.figures is not None:
            relative[tensor.name] = (tensor.b or "", tensor.figures.relative)
    yield from audit_errors(relative)
