"""Editing the metadata of GGUF files: what is asked for is checked as a whole, then written in one step."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from archs.metadata import Metadata, Value, ValueType
from quants import Tensor
from quants.arguments import PathLike, as_count, as_mapping, wrong
from quants.errors import FileError, OptionError, VocabularyError
from quants.spelling import quote

from ..io.atomic import InputFiles, check_target, output_path
from ..io.gguf.edit import edit_metadata, open_locked, planned_edit
from ..io.gguf.journal import journal_path
from ..io.gguf.journal import recover as recover_file
from ..io.gguf.reader import open_gguf
from ..io.gguf.shards import SHARD_NAME, shard_name
from ..io.replacing import recover as recover_replacement
from ..io.stores.path import StorePath, located
from ..io.stores.pieces import Traffic
from .checks import check_new_keys, faults, is_chat_template, warning
from .difference import KeyDifference, compare_metadata
from .operations import ITEM, Conduct, Operation, Rename, Set
from .text import typed

Progress = Callable[[int, int], None]
FORCE = "`force` stores it anyway"
TEMPLATE_SUFFIXES = (".jinja", ".jinja2", ".j2", ".txt", ".json")
LONGEST_NAME = 255  # of files


@dataclass(frozen=True)
class EditReport:
    """What an edit changed, or (dry_run) would change. preview: a conversation through the new chat template.

    path: the file that has the new metadata; of a split set its first shard. recovered: what became of an interrupted
    edit, if that was asked for. traffic: what it cost, or would cost, in a store; bytes_written: those sent there.
    """

    path: Path
    changes: list[KeyDifference]
    in_place: bool = True
    bytes_written: int = 0
    warnings: list[str] = field(default_factory=list)
    preview: str | None = None
    recovered: str | None = None
    dry_run: bool = False
    traffic: Traffic | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": str(self.path),
            "changes": list(map(_as_dict, self.changes)),
            "in_place": self.in_place,
            "bytes_written": self.bytes_written,
            "warnings": self.warnings,
            "preview": self.preview,
            "recovered": self.recovered,
            "dry_run": self.dry_run,
            "store": self.traffic.as_dict() if self.traffic else None,
        }


def _as_dict(change: KeyDifference) -> dict[str, Any]:
    values = {"old": change.a, "new": change.b}
    shown = {"key": change.key, **{name: typed(value) for name, value in values.items() if value is not None}}
    return shown if change.old_key is None else shown | {"old_key": change.old_key}


class Editable(Protocol):
    """What has metadata and tensors: a Model."""

    metadata: Metadata
    tensors: Any
    path: Any


@dataclass(frozen=True)
class EditOptions:
    """How metadata is edited.

    force: also store what the model cannot have. new: also add keys that no program is known to read. reserve: bytes
    of slack to keep for later edits. reads: files that the values come from, which the output must not replace.
    recover: first complete an interrupted edit, or a replacement of several files of which this is one; roll_back: undo
    it; both also take a folder.
    """

    force: bool = False
    new: bool = False
    reserve: int = 0
    reads: Iterable[PathLike] = ()
    recover: bool = False
    roll_back: bool = False

    def __post_init__(self) -> None:
        """Raises OptionError for a value that an option cannot have."""
        as_count(self.reserve, "reserve", 0)


Changes = Mapping[str, Any] | Iterable[Operation]
AS_USUAL = EditOptions()


def set_metadata(
    source: PathLike | Editable,
    changes: Changes = (),
    *,
    output: PathLike | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    options: EditOptions = AS_USUAL,
    progress: Progress | None = None,
) -> EditReport:
    """Change the metadata of a GGUF file; its tensors stay as they are. Of a split set, any shard may be named.

        set_metadata("model.gguf", {"general.name": "Mine", "general.tags[0]": "chat"})
        set_metadata("model.gguf", [Remove("general.url"), SetChatTemplate(text)], output="copy.gguf")

    source: the file, its URL, or a Model, whose metadata is changed in memory.
    changes: values (plain data, or a Value) by key; or operations, `gguftools.Set`, `Remove`, `Rename`, …, applied one
    after the other. A key keeps its type; a new one gets that of the schema, else the one that follows from the data.
    output: write a copy there (overwrite: even if it exists); else the file is changed in place where the header fits,
    and otherwise replaced by a copy. In a store it is a new version of the object, in which the store copies what it
    can; it is refused where the object changed meanwhile. dry_run: change nothing. options: see `EditOptions`.
    progress(done, total): bytes copied.
    Returns what was changed. Raises OptionError for a change that is refused, VocabularyError for a bad chat template
    or token, FileError.
    """
    edit = _Edit(_operations(changes), options)
    if not isinstance(source, (str, os.PathLike)):
        if output is not None:
            raise OptionError("output goes with a file; a Model is written by its save")
        return _edit_model(source, edit, dry_run)
    path, recovered = located(source), None
    if isinstance(path, StorePath):
        _check_store(path, options, output)
    if options.recover or options.roll_back:
        recovered = recover_edit(path, options.roll_back)
    if recovered is not None and not path.is_file():  # a folder, or a file that there was not before
        return EditReport(path, [], recovered=recovered)
    target = None if output is None else output_path(output, path.name)
    report = _edit_file(path, target, edit, overwrite, dry_run, progress)
    return replace(report, recovered=recovered, dry_run=dry_run)


@dataclass(frozen=True)
class _Edit:
    operations: Sequence[Operation]
    options: EditOptions

    def apply(self, old: Metadata, tensors: Mapping[str, Tensor]) -> tuple[Metadata, EditReport]:
        """Return the new metadata, and what changed."""
        metadata = old.copy()
        conduct = Conduct(self.options.force)
        return metadata, _applied(self.operations, metadata, tensors, conduct, self.options.new)


def _edit_model(model: Editable, edit: _Edit, dry_run: bool) -> EditReport:
    """Change metadata in memory."""
    if not isinstance(getattr(model, "metadata", None), Metadata):
        raise OptionError(f"source is {quote(model)}; the path of a GGUF file or a Model was expected")
    if edit.options.reserve or edit.options.recover or edit.options.roll_back:
        raise OptionError("reserve, recover and roll_back go with a file; a Model is written by its save")
    metadata, report = edit.apply(model.metadata, model.tensors)
    if not dry_run:
        model.metadata.clear()
        model.metadata.update({key: metadata.value(key) for key in metadata})
    return replace(report, path=Path(model.path), dry_run=dry_run)


def _check_store(path: StorePath, options: EditOptions, output: PathLike | None) -> None:
    """Refuse what a store does not have."""
    if options.recover or options.roll_back:
        what = f"{path} is in a store, where an edit is whole or was not done: there is nothing to recover"
        raise OptionError(what)
    if output is None and not path.is_writable:
        raise FileError(f"nothing is written to {path.scheme}:// addresses", hint="write a copy: give `output`")


def _edit_file(
    path: Path, target: Path | None, edit: _Edit, overwrite: bool, dry_run: bool, progress: Progress | None
) -> EditReport:
    """Change a file, or write a copy of it with other metadata."""
    options = edit.options
    with nullcontext((open_gguf(path), None)) if dry_run or target else open_locked(path) as (opened, lock):
        read = InputFiles(tuple(map(located, options.reads)))
        if target is not None:
            check_target(target, read.also(opened.shards), overwrite)
        metadata, report = edit.apply(opened.metadata, opened.tensors)
        report = replace(report, path=opened.path)
        if not report.changes and not options.reserve and target is None:
            return report
        if dry_run:
            done = planned_edit(opened, metadata, target, options.reserve)
        else:
            done = edit_metadata(opened, metadata, target, options.reserve, overwrite, progress, read, lock)
        return replace(
            report,
            path=report.path if dry_run else done.path,
            in_place=done.in_place,
            bytes_written=done.bytes_written,
            traffic=done.traffic,
            warnings=[*report.warnings, *([done.warning] if done.warning else [])],
        )


def _applied(
    operations: Sequence[Operation], metadata: Metadata, tensors: Mapping[str, Tensor], conduct: Conduct, new: bool
) -> EditReport:
    """Change the metadata, and say how. Raises OptionError, VocabularyError; the metadata is not to be used then."""
    old = metadata.copy()
    old_keys: dict[str, str] = {}  # of those that were renamed, by the new ones
    for each in operations:
        if not callable(getattr(each, "apply", None)):
            raise OptionError(f"changes has {quote(each)}; gguftools.Set, Remove, Rename, … were expected")
        each.apply(metadata, conduct)
        if isinstance(each, Rename):
            old_keys[each.new] = old_keys.pop(each.old, each.old)
    renamed = {key: name for key, name in old_keys.items() if key in metadata}
    changes = [replace(each, a=_kept(each.a), b=_kept(each.b)) for each in compare_metadata(old, metadata, (), renamed)]
    check_new_keys((each.key for each in changes), old, metadata.get("general.architecture"), new)
    preview = _check(changes, metadata, tensors, conduct)
    return EditReport(Path(), changes, warnings=conduct.warnings, preview=preview)


def _operations(changes: Changes) -> list[Operation]:
    """Return operations in their order. Raises OptionError for what is none, and for contradictions."""
    if not isinstance(changes, Mapping):
        if isinstance(changes, (str, bytes)) or not isinstance(changes, Iterable):
            raise wrong("changes", changes, "values by key, or operations,")
        return list(changes)
    values = as_mapping(changes, "changes")
    for key in values:
        if (item := ITEM.fullmatch(key)) and item[1] in values:
            raise OptionError(f"{item[1]!r} is set as a whole and by items", "give all changes of an array in one way")
    return [Set(key, data) for key, data in values.items()]


def recover_edit(path: Path, roll_back: bool = False) -> str:
    """End the interrupted edit of a file, or of the first shard of its set, or the interrupted replacement of files,
    of which one, or their folder, is named. Returns what was done. Raises FileError.
    """
    if (done := recover_replacement(path, roll_back)) is not None:
        return done
    if path.is_dir():
        raise FileError(f"{path} has nothing to recover", hint="name a GGUF file to edit it")
    match = SHARD_NAME.fullmatch(path.name)
    first = path.with_name(shard_name(match["prefix"], 1, int(match["count"]))) if match else path
    own = journal_path(path).exists() or not journal_path(first).exists()
    return recover_file(path if own else first, roll_back)


def _kept(value: Value | None) -> Value | None:
    """Return the value without reference to the file, whose header may be overwritten."""
    if value is None or value.type is not ValueType.ARRAY:
        return value
    return replace(value, data=(np.array if isinstance(value.data, np.ndarray) else list)(value.data))


def _check(
    changes: list[KeyDifference], metadata: Metadata, tensors: Mapping[str, Tensor], conduct: Conduct
) -> str | None:
    """Refuse what the model cannot have, and warn; what a new chat template makes of a conversation."""
    preview = None
    for change in changes:
        if change.b is None:
            continue
        for fault, hint in faults(change.key, change.a, metadata, tensors):
            conduct.refuse(OptionError(fault, f"{hint} {FORCE}" if hint else FORCE))
        if text := warning(change.key, change.a, metadata):
            conduct.warnings.append(text)
        if is_chat_template(change.key) and isinstance(change.b.data, str):
            if names_file(change.b.data):
                raise OptionError(f"{change.b.data!r} names a file", f"@{change.b.data} takes its text")
            preview = _try_template(change.b.data, metadata, conduct)
    return preview


def names_file(template: str) -> bool:
    """Return whether a chat template is the name of a file: its @ was forgotten."""
    if "{" in template or "\n" in template or "\0" in template or len(template) > LONGEST_NAME:
        return False
    return template.endswith(TEMPLATE_SUFFIXES) or Path(template).is_file()


def _try_template(template: str, metadata: Metadata, conduct: Conduct) -> str | None:
    from .chat_templates import remarks, try_template

    try:
        renderings = try_template(template, metadata)
    except VocabularyError as error:
        conduct.refuse(VocabularyError(str(error), FORCE))
        return None
    conduct.warnings.extend(remarks(renderings, metadata))
    return next(each.text for each in (renderings[1], renderings[0]) if each.text is not None)
