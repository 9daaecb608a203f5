"""Editing the metadata of GGUF files: what is asked for is checked as a whole, then written in one step."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from archs.metadata import Metadata, Value, ValueType
from quants import Tensor
from quants.arguments import PathLike, as_mapping, as_texts
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
from .operations import Conduct, Operation, Remove, Rename, Set, SetChatTemplate, SetItem, SetSpecialToken, SetType
from .text import typed

Progress = Callable[[int, int], None]
ITEM = re.compile(r"(.+)\[(\d{1,15})\]", re.DOTALL)
FORCE = "pass --force to store it anyway"
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


def set_metadata(  # noqa: PLR0913  # each kind of change by its name
    source: PathLike | Editable,
    values: Mapping[str, Any] | None = None,
    *,
    operations: Iterable[Operation] = (),
    types: Mapping[str, str] | None = None,
    remove: Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
    chat_template: str | None = None,
    special_tokens: Mapping[str, str | int] | None = None,
    output: PathLike | None = None,
    reserve: int = 0,
    force: bool = False,
    new: bool = False,
    overwrite: bool = False,
    reads: Iterable[PathLike] = (),
    recover: bool = False,
    roll_back: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> EditReport:
    """Change the metadata of a GGUF file; its tensors stay as they are. Of a split set, any shard may be named.

    source: the file, or a Model, whose metadata is changed in memory.
    values: plain data (or a Value) by key; KEY[INDEX] is one item. A key keeps its type; a new one gets that of
    `types` ("UINT32", "ARRAY/INT8"), else the one that the schema says, else the one that follows from the data.
    remove: keys. rename: new names by old ones. chat_template: Jinja text. special_tokens: text or id by role ("eos").
    operations: `gguftools.Set`, `Remove`, `Rename`, … instead of these, or after them, one after the other.
    output: write a copy there (overwrite: even if it exists); else the file is changed in place where the header fits,
    and otherwise replaced by a copy. In a store it is a new version of the object, in which the store copies what it
    can; it is refused where the object changed meanwhile. reserve: bytes of slack to have for later edits.
    reads: files that the values come from, which must not be the output.
    force: store what the model cannot have, too. new: add keys that no program is known to read, too.
    recover: first complete an interrupted edit, or a replacement of several files of which this is one (roll_back: undo
    it); also of a folder's files. dry_run: change nothing.
    progress(done, total): bytes copied.
    Returns what was changed. Raises OptionError for a change that is refused, VocabularyError for a bad chat template
    or token, FileError.
    """
    conduct = Conduct(force)

    def edited(old: Metadata, tensors: Mapping[str, Tensor]) -> tuple[Metadata, EditReport]:
        wanted = _operations(old, values, types, remove, rename, chat_template, special_tokens)
        metadata = old.copy()
        return metadata, _applied([*wanted, *operations], metadata, tensors, conduct, new)

    if not isinstance(source, (str, os.PathLike)):
        if not isinstance(getattr(source, "metadata", None), Metadata):
            raise OptionError(f"source is {quote(source)}; the path of a GGUF file or a Model was expected")
        if output is not None or reserve or recover or roll_back:
            raise OptionError("output, reserve, recover and roll_back go with a file; a Model is written by its save")
        metadata, report = edited(source.metadata, source.tensors)
        if not dry_run:
            source.metadata.clear()
            source.metadata.update({key: metadata.value(key) for key in metadata})
        return replace(report, path=Path(source.path), dry_run=dry_run)
    path = located(source)
    if isinstance(path, StorePath) and (recover or roll_back):
        what = f"{path} is in a store, where an edit is whole or was not done: there is nothing to recover"
        raise OptionError(what)
    if isinstance(path, StorePath) and output is None and not path.is_writable:
        raise FileError(f"nothing is written to {path.scheme}:// addresses", hint="write a copy with -o")
    recovered = recover_edit(path, roll_back) if recover or roll_back else None
    if recovered is not None and not path.is_file():  # a folder, or a file that there was not before
        return EditReport(path, [], recovered=recovered)
    target = None if output is None else output_path(output, path.name)
    with nullcontext((open_gguf(path), None)) if dry_run or target else open_locked(path) as (opened, lock):
        read = InputFiles(tuple(map(located, reads)))
        if target is not None:
            check_target(target, read.also(opened.shards), overwrite)
        metadata, report = edited(opened.metadata, opened.tensors)
        report = replace(report, path=opened.path, recovered=recovered, dry_run=dry_run)
        idle = not report.changes and not reserve and target is None
        if idle:
            return report
        if dry_run:
            edit = planned_edit(opened, metadata, target, reserve)
        else:
            edit = edit_metadata(opened, metadata, target, reserve, overwrite, progress, read, lock)
        path = report.path if dry_run else edit.path
        warnings = [*report.warnings, *([edit.warning] if edit.warning else [])]
        return replace(
            report,
            path=path,
            in_place=edit.in_place,
            bytes_written=edit.bytes_written,
            traffic=edit.traffic,
            warnings=warnings,
        )


def _applied(
    operations: list[Operation], metadata: Metadata, tensors: Mapping[str, Tensor], conduct: Conduct, new: bool
) -> EditReport:
    """Change the metadata, and say how. Raises OptionError, VocabularyError; the metadata is not to be used then."""
    old = metadata.copy()
    old_keys: dict[str, str] = {}  # of those that were renamed, by the new ones
    for each in operations:
        if not callable(getattr(each, "apply", None)):
            raise OptionError(f"operations has {quote(each)}; gguftools.Set, Remove, Rename, … were expected")
        each.apply(metadata, conduct)
        if isinstance(each, Rename):
            old_keys[each.new] = old_keys.pop(each.old, each.old)
    renamed = {key: name for key, name in old_keys.items() if key in metadata}
    changes = [replace(each, a=_kept(each.a), b=_kept(each.b)) for each in compare_metadata(old, metadata, (), renamed)]
    check_new_keys((each.key for each in changes), old, metadata.get("general.architecture"), new)
    preview = _check(changes, metadata, tensors, conduct)
    return EditReport(Path(), changes, warnings=conduct.warnings, preview=preview)


def _operations(
    old: Metadata,
    values: Mapping[str, Any] | None,
    types: Mapping[str, str] | None,
    remove: Iterable[str],
    rename: Mapping[str, str] | None,
    chat_template: str | None,
    special_tokens: Mapping[str, str | int] | None,
) -> Iterator[Operation]:
    """What the keywords stand for. Raises OptionError where they contradict each other."""
    values, types = as_mapping(values, "values"), as_mapping(types, "types")
    rename, special_tokens = as_mapping(rename, "rename"), as_mapping(special_tokens, "special_tokens")
    if isinstance(remove, str):
        raise OptionError(f"remove is {quote(remove)}; a list of keys was expected")
    remove = as_texts(remove, "remove")
    special: list[SetChatTemplate | SetSpecialToken] = [
        *([] if chat_template is None else [SetChatTemplate(chat_template)]),
        *(SetSpecialToken(role, token) for role, token in special_tokens.items()),
    ]
    for operation in special:
        if operation.key in values:
            raise OptionError(f"{operation.key!r} is given twice")
    for key in remove:
        if key in values or key in rename:
            raise OptionError(f"{key!r} cannot be both removed and {'set' if key in values else 'renamed'}")
        yield Remove(key)
    for key, name in rename.items():
        if list(rename.values()).count(name) > 1:
            raise OptionError(f"{key!r} cannot be renamed to {name!r}")
        if key in values:
            raise OptionError(f"{key!r} cannot be both renamed and set", hint=f"set {name!r}")
        yield Rename(key, name)
    for key, data in values.items():
        item = None if key in old else ITEM.fullmatch(key)
        if item and item[1] in values:
            raise OptionError(f"{item[1]!r} is set as a whole and by items", "give all changes of an array in one way")
        yield SetItem(item[1], int(item[2]), data) if item else Set(key, data, types.get(key))
    yield from special
    yield from (SetType(key, name) for key, name in types.items() if key not in values)


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
    """The value without reference to the file, whose header may be overwritten."""
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
    """Whether what should be a chat template is the name of one: its @ was forgotten."""
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
