"""Editing the metadata of GGUF files: what is asked for is checked as a whole, then written in one step."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import Keys, TokenType

from archs.metadata import Metadata, Value, ValueType
from quants import Tensor
from quants.errors import OptionError, VocabularyError
from quants.spelling import did_you_mean

from ..files.atomic import Reads, check_target, output_path
from ..files.gguf.edit import edit_metadata, open_locked, planned_in_place
from ..files.gguf.journal import journal_path
from ..files.gguf.journal import recover as recover_file
from ..files.gguf.reader import open_gguf
from ..files.gguf.shards import SHARD_NAME, shard_name
from ..files.gguf.strings import quote
from .known_keys import (
    SPECIAL_TOKENS,
    TOKENS,
    architecture_of,
    check_new_keys,
    is_chat_template,
    kind_of_rule,
    problems,
    removal_problem,
    rule_of,
    strange_choice,
    warning,
)
from .text import brief, type_name
from .values import Kind, Typed, kind_of, make_value, names_file, parse_kind, same

PathLike = str | os.PathLike[str]
Progress = Callable[[int, int], None]
SHOWN_ITEMS = 10
ITEM = re.compile(r"(.+)\[(\d{1,15})\]", re.DOTALL)
FORCE = "pass --force to store it anyway"


@dataclass(frozen=True)
class Change:
    """One key's old and new value; None where the key was, or is, not there. old_key: the name it had before."""

    key: str
    old: Value | None
    new: Value | None
    old_key: str | None = None

    def lines(self) -> Iterator[str]:
        """The change as a diff: "- " before what was, "+ " before what is, two spaces before what is common."""
        old, new = self.old, self.new
        if old is not None and new is not None and type_name(old) == type_name(new) and self.old_key is None:
            yield from _inner_lines(self.key, old, new)
            return
        for sign, key, value in (("-", self.old_key or self.key, old), ("+", self.key, new)):
            if value is not None:
                yield f"{sign} {key}  {type_name(value)}  {brief(value)}"

    def as_dict(self) -> dict[str, Any]:
        shown = {"key": self.key}
        for name, value in (("old", self.old), ("new", self.new)):
            if value is not None:
                shown[name] = f"{type_name(value)} {brief(value)}"
        return shown if self.old_key is None else shown | {"old_key": self.old_key}


def _inner_lines(key: str, old: Value, new: Value) -> Iterator[str]:
    """Two values of one type: long texts by lines, arrays by the items that differ."""
    head = f"{key}  {type_name(old)}"
    if isinstance(old.data, str) and isinstance(new.data, str) and "\n" in old.data + new.data:
        yield f"  {head}"
        for line in difflib.unified_diff(old.data.splitlines(), new.data.splitlines(), lineterm="", n=1):
            if not line.startswith(("---", "+++")):
                yield f"{line[:1]} {line[1:]}" if line[:1] in "-+ " else f"  {line}"
        return
    if old.type is ValueType.ARRAY and old.element is not ValueType.ARRAY and len(old.data) == len(new.data) > 8:
        differing = [i for i, (a, b) in enumerate(zip(old.data, new.data, strict=True)) if a != b]
        yield f"  {head}  {len(differing)} of {len(old.data)} items differ"
        for i in differing[:SHOWN_ITEMS]:
            yield f"- [{i}] {quote(_plain(old.data[i]))}"
            yield f"+ [{i}] {quote(_plain(new.data[i]))}"
        return
    yield f"- {head}  {brief(old)}"
    yield f"+ {head}  {brief(new)}"


def _plain(item: Any) -> Any:
    return item.item() if hasattr(item, "item") else item


@dataclass(frozen=True)
class EditReport:
    """What an edit changed, or (dry_run) would change. preview: a conversation through the new chat template.

    path: the file that has the new metadata; of a split set its first shard. recovered: what became of an interrupted
    edit, if that was asked for.
    """

    path: Path
    changes: list[Change]
    in_place: bool = True
    bytes_written: int = 0
    warnings: list[str] = field(default_factory=list)
    preview: str | None = None
    recovered: str | None = None
    dry_run: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": str(self.path), "changes": [change.as_dict() for change in self.changes],
            "in_place": self.in_place, "bytes_written": self.bytes_written, "warnings": self.warnings,
            "preview": self.preview, "recovered": self.recovered, "dry_run": self.dry_run,
        }  # fmt: skip


def set_metadata(
    path: PathLike,
    values: Mapping[str, Any] | None = None,
    *,
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
    """Change metadata of a GGUF file; its tensors stay as they are. Of a split set, any shard may be named.

    values: plain data (or a Value) by key; KEY[INDEX] is one item. A key keeps its type; a new one gets that of
    `types` ("UINT32", "ARRAY/INT8"), else the one it is known to have, else the one that follows from the data.
    special_tokens: text or id by role ("eos"). output: write a copy there (overwrite: even if it exists); else the file
    is changed in place where the header fits, and otherwise replaced by a copy. reserve: bytes of slack to have for
    later edits.
    reads: files that the values come from, which must not be the output.
    force: store what the model cannot have, too. new: add keys that no program is known to read, too.
    recover: first complete an interrupted edit (roll_back: undo it).
    Raises OptionError for a change that is refused, VocabularyError for a bad chat template or token, FileError.
    """
    path = Path(path)
    recovered = recover_edit(path, roll_back) if recover or roll_back else None
    target = None if output is None else output_path(output, path.name)
    with nullcontext((open_gguf(path), None)) if dry_run or target else open_locked(path) as (opened, lock):
        read = Reads(tuple(map(Path, reads)))
        if target is not None:
            check_target(target, read.also(opened.shards), overwrite)
        old = opened.metadata
        given = dict(values or {})
        if chat_template is not None:
            _add(given, Keys.Tokenizer.CHAT_TEMPLATE, chat_template)
        warnings: list[str] = []
        for role, token in (special_tokens or {}).items():
            _add(given, special_key(role), token_id(old, token, warnings))
        given = _with_items(old, given)
        _check_names(old, given, types or {}, list(remove), dict(rename or {}))
        check_new_keys((*given, *(rename or {}).values()), old, given.get(Keys.General.ARCHITECTURE), new)
        metadata, changes = _apply(old, given, types or {}, list(remove), dict(rename or {}), force)
        preview = _check(changes, old, metadata, opened.tensors, force, warnings)
        report = EditReport(opened.path, changes, True, 0, warnings, preview, recovered, dry_run)
        idle = not changes and not reserve and target is None
        if dry_run or idle:
            in_place = target is None and (idle or planned_in_place(opened, metadata, reserve))
            return replace(report, in_place=in_place)
        edit = edit_metadata(opened, metadata, target, reserve, overwrite, progress, read, lock)
        return replace(report, path=edit.path, in_place=edit.in_place, bytes_written=edit.bytes_written)


def _with_items(old: Metadata, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with those of single items (KEY[INDEX]) put into their arrays. Raises OptionError."""
    found: dict[str, Any] = {}
    items: dict[str, dict[int, Any]] = {}
    for name, data in given.items():
        match = None if name in old else ITEM.fullmatch(name)
        if match is None:
            found[name] = data
        else:
            items.setdefault(match[1], {})[int(match[2])] = data
    for key, changed in items.items():
        if key in found:
            raise OptionError(f"{key!r} is set as a whole and by items", "give all changes of an array in one way")
        if key not in old:
            raise OptionError(f"there is no key {key!r} to set an item of", did_you_mean(key, old))
        found[key] = _with_changed_items(key, old.value(key), changed)
    return found


def _with_changed_items(key: str, value: Value, changed: Mapping[int, Any]) -> Value:
    kind = kind_of(value)
    if kind.items is None or kind.items.items is not None:
        raise OptionError(f"{key!r} is {kind}; items are set of arrays of single values", f"set {key} as a whole")
    data = np.array(value.data) if isinstance(value.data, np.ndarray) else list(value.data)
    for number, item in changed.items():
        if number >= len(data):
            raise OptionError(f"{key!r} has no item {number}: it has {len(data)}, from 0 on")
        data[number] = make_value(f"{key}[{number}]", item, kind.items).data
    return replace(value, data=data)


def _add(given: dict[str, Any], key: str, data: Any) -> None:
    if key in given:
        raise OptionError(f"{key!r} is given twice")
    given[key] = data


def recover_edit(path: Path, roll_back: bool = False) -> str:
    """End the interrupted edit of a file, or of the first shard of its set. Returns what was done. Raises FileError."""
    match = SHARD_NAME.fullmatch(path.name)
    candidates = [path]
    if match is not None:
        candidates.append(path.with_name(shard_name(match["prefix"], 1, int(match["count"]))))
    for candidate in candidates:
        if journal_path(candidate).exists():
            return recover_file(candidate, roll_back)
    return recover_file(path, roll_back)


def _apply(
    old: Metadata, values: Mapping[str, Any], types: Mapping[str, str], remove: list[str], rename: dict[str, str],
    force: bool,
) -> tuple[Metadata, list[Change]]:  # fmt: skip
    """The new metadata, keys in their old order, and what differs. Raises OptionError."""
    new, changes = Metadata(), []
    architecture = architecture_of(old)
    for key in old:
        value = old.value(key)
        if key in remove:
            _refuse_removal(key, old, force)
            changes.append(Change(key, _kept(value), None))
            continue
        if key in rename:
            _refuse_removal(key, old, force)
        name = rename.get(key, key)
        after = value
        if name in values or name in types:
            data = values[name] if name in values else _data(value)
            after = _new_value(name, data, value, types, architecture)
        new[name] = after
        if name != key or not same(value, after):
            changes.append(Change(name, _kept(value), _kept(after), key if name != key else None))
    for key, data in values.items():
        if key not in new:
            new[key] = _new_value(key, data, None, types, architecture)
            changes.append(Change(key, None, new.value(key)))
    return new, changes


def _kept(value: Value) -> Value:
    """The value without reference to the file, whose header may be overwritten."""
    if value.element is ValueType.STRING:
        return replace(value, data=list(value.data))
    return replace(value, data=np.array(value.data)) if isinstance(value.data, np.ndarray) else value


def _data(value: Value) -> Any:
    """A value to be given another type."""
    return Typed(value.data) if isinstance(value.data, str) else value.data


def _check_names(
    old: Metadata, values: Mapping[str, Any], types: Mapping[str, str], remove: list[str], rename: dict[str, str]
) -> None:
    for key in (*remove, *rename):
        if key not in old:
            raise OptionError(f"there is no key {key!r}", did_you_mean(key, old))
    for key in remove:
        if key in values or key in rename:
            raise OptionError(f"{key!r} cannot be both removed and {'set' if key in values else 'renamed'}")
    for key, name in rename.items():
        if name in old and name not in remove:
            raise OptionError(f"{key!r} cannot be renamed: there is a {name!r} already", hint=f"add --remove {name}")
        if not name or list(rename.values()).count(name) > 1:
            raise OptionError(f"{key!r} cannot be renamed to {name!r}")
        if key in values:
            raise OptionError(f"{key!r} cannot be both renamed and set", hint=f"set {name!r}")
    for key in types:
        if key not in values and key not in old and key not in rename.values():
            raise OptionError(f"there is no key {key!r} to give a type, and no value for it")


def _refuse_removal(key: str, old: Metadata, force: bool) -> None:
    problem = removal_problem(key, old)
    if problem is not None and not force:
        raise OptionError(problem, hint="pass --force to do it anyway")


def _new_value(key: str, data: Any, old: Value | None, types: Mapping[str, str], architecture: str) -> Value:
    if not key:
        raise OptionError("a key needs a name")
    return make_value(key, data, _kind(key, old, types, architecture, data))


def _kind(key: str, old: Value | None, types: Mapping[str, str], architecture: str, data: Any) -> Kind | None:
    """As asked for, as it was, as the key is read by others, or (None) as the data is."""
    if key in types:
        return parse_kind(types[key])
    rule = rule_of(key, architecture)
    is_list = data.startswith("[") if isinstance(data, str) else hasattr(data, "__len__")
    becomes_list = is_list and (old is None or old.type is not ValueType.ARRAY)
    if rule is not None and rule.per_layer and not rule.flags and becomes_list:
        return Kind(ValueType.ARRAY, Kind(rule.type))
    if old is not None:
        return kind_of(old)
    return None if rule is None else kind_of_rule(rule)


def _check(
    changes: list[Change], old: Metadata, new: Metadata, tensors: Mapping[str, Tensor], force: bool, warnings: list[str]
) -> str | None:
    """Add to the warnings; what a new chat template makes of a conversation. Raises OptionError, VocabularyError."""
    preview = None
    for change in changes:
        if change.new is None:
            continue
        strange = strange_choice(change.key, change.new, architecture_of(new))
        found = [strange] if strange else ((each, None) for each in problems(change.key, change.old, new, tensors))
        for problem, hint in found:
            if not force:
                raise OptionError(problem, f"{hint} {FORCE}" if hint else FORCE)
            warnings.append(problem)
        text = warning(change.key, change.old, new)
        if text is not None:
            warnings.append(text)
        if is_chat_template(change.key) and isinstance(change.new.data, str):
            if names_file(change.new.data):
                raise OptionError(f"{change.new.data!r} names a file", f"@{change.new.data} takes its text")
            preview = _try_template(change.new.data, new, force, warnings)
    return preview


def _try_template(template: str, metadata: Metadata, force: bool, warnings: list[str]) -> str | None:
    from .chat_templates import remarks, try_template

    try:
        renderings = try_template(template, metadata)
    except VocabularyError as error:
        if not force:
            raise VocabularyError(str(error), FORCE) from error
        warnings.append(str(error))
        return None
    warnings.extend(remarks(renderings, metadata))
    return next(each.text for each in (renderings[1], renderings[0]) if each.text is not None)


def special_key(role: str) -> str:
    """The key with the id of a special token. Raises OptionError."""
    if role not in SPECIAL_TOKENS:
        known = f"they are {', '.join(SPECIAL_TOKENS)}"
        raise OptionError(f"there is no special token {role!r}", did_you_mean(role, SPECIAL_TOKENS, known))
    return str(SPECIAL_TOKENS[role])


def token_id(metadata: Metadata, token: str | int, warnings: list[str] | None = None) -> int:
    """The id of a token given by its text or id, which must be in the vocabulary. Raises VocabularyError."""
    tokens = metadata.get(TOKENS)
    if tokens is None:
        raise VocabularyError("the file has no vocabulary to find the token in")
    if isinstance(token, int) or token.isdecimal():
        number = int(token)
        if not 0 <= number < len(tokens):
            raise VocabularyError(f"there is no token {number}: the vocabulary has the tokens 0 to {len(tokens) - 1}")
    else:
        texts = list(tokens)
        if token not in texts:
            hint = did_you_mean(token, _special_texts(metadata, texts))
            raise VocabularyError(f"no token of the vocabulary is {quote(token)}", hint)
        number = texts.index(token)
    kinds = metadata.get(Keys.Tokenizer.TOKEN_TYPE)
    if warnings is not None and kinds is not None and number < len(kinds) and kinds[number] == TokenType.NORMAL:
        warnings.append(f"token {number}, {quote(tokens[number])}, is an ordinary one, not a control token")
    return number


def _special_texts(metadata: Metadata, texts: list[Any]) -> list[str]:
    kinds = metadata.get(Keys.Tokenizer.TOKEN_TYPE, ())
    ordinary = (TokenType.NORMAL, TokenType.BYTE, TokenType.UNUSED)
    return [text for text, kind in zip(texts, kinds, strict=False) if kind not in ordinary and isinstance(text, str)]
