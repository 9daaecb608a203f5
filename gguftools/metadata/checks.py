"""What keys may be called, and what they may hold: for edits, for overrides, and for readers of strangers' files."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from gguf.constants import Keys

from archs.gguf_names import table as recorded_names
from archs.metadata import Metadata, Value, ValueType
from archs.schema import ADDED_TOKENS, KEYS, OF_MODELS, TOKEN_TYPES, TOKENS, Key, find
from archs.small_files import parse_json
from quants import Tensor
from quants.errors import GgufToolsError, ModelError, OptionError, VocabularyError
from quants.spelling import did_you_mean, quote

from ..io.gguf.writer import RESERVE_KEY

PER_TOKEN = (TOKEN_TYPES, Keys.Tokenizer.SCORES)
NEWER_FILE_TYPES = (41,)  # than the `gguf` package: Q2_0
NEEDED = ("block_count", "context_length", "embedding_length", "attention.head_count")


def is_known(key: str, architectures: Iterable[str]) -> bool:
    """Return whether any program reads the key in a model of one of these architectures."""
    return key in _constants() or any(find(key, name) is not None for name in ("", *architectures))


@cache
def _constants() -> tuple[str, ...]:
    """Return the keys that the `gguf` package names without a place for something else."""
    classes, keys = [Keys], []
    for each in classes:
        members = [value for name, value in vars(each).items() if not name.startswith("_")]
        classes += [member for member in members if isinstance(member, type)]
        keys += [member for member in members if isinstance(member, str) and "{" not in member]
    return tuple(keys)


def check_new_keys(keys: Iterable[str], metadata: Metadata, architecture: Any, new: bool) -> None:
    """Raise OptionError for a key that the file does not have and nobody reads. new: such are wanted.

    architecture: the one that the file will have, where that changes.
    """
    architectures = [name for name in (architecture_of(metadata), architecture) if isinstance(name, str) and name]
    for key in keys:
        if not key or key in metadata:
            continue
        if not re.fullmatch(r"[!-~]+", key):
            problem = f"{key!r} cannot be a key: it has spaces or is not printable ASCII"
            raise OptionError(problem, "keys look like general.name")
        if not new and not is_known(key, architectures):
            models = (f"{name}.{each}" for name in architectures for each in OF_MODELS)
            others = (name for name in KEYS if "*" not in name and not name.startswith("NAME."))
            near = did_you_mean(key, dict.fromkeys((*metadata, *models, *others, *_constants())))
            hint = f"{near} " if near else ""
            raise OptionError(f"no program is known to read {key!r}", f"{hint}`new` adds it all the same")


def strange_choice(key: str, value: Value, architecture: str) -> tuple[str, str | None] | None:
    """Return what is wrong with a value without a meaning, and what may be meant."""
    known_key = find(key, architecture)
    if known_key is None or not known_key.allows(value):
        return None
    known = _choices(key, known_key)
    items = np.unique(value.data).tolist() if value.type is ValueType.ARRAY and known else [value.data]
    for item in items if known else ():
        if item not in known:
            shown = ", ".join(map(repr, known)) if len(known) < 20 else f"those that programs load ({len(known)})"
            near = did_you_mean(item, map(str, known)) if isinstance(item, str) else None
            return f"{key!r} {'has' if value.type is ValueType.ARRAY else 'is'} {item!r}; known are {shown}", near
    return None


def _choices(key: str, known_key: Key) -> Collection[str | int]:
    """Return all values of a key that mean something; none where they are numbers or free text."""
    if key == Keys.General.ARCHITECTURE:
        from archs.diffusion.detection import tags
        from archs.registry import architectures

        return dict.fromkeys((*(each.name for each in architectures()), *recorded_names()["tensors"], *sorted(tags())))
    if key == Keys.General.FILE_TYPE:
        types, guessed = {*recorded_names()["file_types"], *NEWER_FILE_TYPES}, recorded_names()["guessed"]
        return sorted(types | {number + guessed for number in types})
    if key == Keys.Tokenizer.PRE:
        from archs.vocab.pretokenizer import table

        return table()
    return known_key.known or known_key.choices


def is_token_id(key: str) -> bool:
    return key.startswith("tokenizer.ggml.") and key.endswith("_token_id")


def is_chat_template(key: str) -> bool:
    return key == Keys.Tokenizer.CHAT_TEMPLATE or key.startswith(f"{Keys.Tokenizer.CHAT_TEMPLATE}.")


def faults(
    key: str, old: Value | None, metadata: Metadata, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, str | None]]:
    """Yield why the model cannot have the new value of a key, and what may be meant."""
    if strange := strange_choice(key, metadata.value(key), architecture_of(metadata)):
        yield strange
    else:
        yield from ((problem, None) for problem in problems(key, old, metadata, tensors))


def problems(key: str, old: Value | None, metadata: Metadata, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield why the model cannot have the new value of a key; `old`: the value before."""
    value, architecture = metadata.value(key), architecture_of(metadata)
    if key == RESERVE_KEY:
        yield f"{key!r} is the space for later edits, not a value; its size is given by `reserve`"
    if key.startswith("split.") and key != "split.vram_capacity":  # that one is of PowerInfer's placement files
        yield f"{key!r} belongs to the shards of a split set; split and merge write it"
    known = find(key, architecture)
    if known is not None:
        if not known.allows(value):
            if old is None or old.gguf_type != value.gguf_type:
                yield f"{key!r} is read as {known.gguf_type}, not {value.gguf_type}"
            return
        if wrong := known.wrong(value.data):
            yield f"{key!r} {wrong}"
    if key == "general.alignment" and value.data & (value.data - 1):
        yield f"{key!r} is {value.data}; a power of two is expected"
    yield from _vocabulary_problems(key, value, metadata, tensors)
    if architecture and key.startswith(f"{architecture}."):
        yield from _model_problems(key.removeprefix(f"{architecture}."), key, value, metadata)


def architecture_of(metadata: Metadata) -> str:
    name = metadata.get("general.architecture", "")
    return name if isinstance(name, str) else ""


def _vocabulary_problems(key: str, value: Value, metadata: Metadata, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    count = _length(metadata, TOKENS)
    if count is None:
        return
    if is_token_id(key) and not 0 <= value.data < count:
        yield f"{key!r} is {value.data}; the vocabulary has the tokens 0 to {count - 1}"
    if key in PER_TOKEN and len(value.data) != count:
        yield f"{key!r} has {len(value.data)} items; the vocabulary has {count} tokens"
    if key == TOKENS:
        for other in PER_TOKEN:
            if _length(metadata, other) not in (None, count):
                yield f"{key!r} has {count} items, but {other!r} has {len(metadata[other])}"
        embedding = tensors.get("token_embd.weight")
        if embedding is not None and embedding.rows != count:
            yield f"{key!r} has {count} items, but token_embd.weight has {embedding.rows} rows"
        for other in filter(is_token_id, metadata):
            if _are_counts(metadata[other]) and metadata[other] >= count:
                yield f"{key!r} has {count} items, but {other!r} is {metadata[other]}"


def _length(metadata: Metadata, key: str) -> int | None:
    return len(metadata[key]) if key in metadata and metadata.value(key).type is ValueType.ARRAY else None


def _model_problems(name: str, key: str, value: Value, metadata: Metadata) -> Iterator[str]:
    prefix = key.removesuffix(name)
    known = OF_MODELS.get(name)
    layers = metadata.get(f"{prefix}block_count")
    mtp_layers = metadata.get(f"{prefix}nextn_predict_layers", 0)  # layers at the end, which lists may leave out
    listed = known if known is not None and known.per_layer and value.type is ValueType.ARRAY else None
    if listed and _are_counts(layers, mtp_layers) and not listed.counts(len(value.data), layers or 0, mtp_layers):
        yield f"{key!r} has {len(value.data)} items; the model has {layers} layers"
    if name in ("attention.head_count", "attention.head_count_kv"):
        heads, groups = (metadata.get(f"{prefix}attention.{each}", 0) for each in ("head_count", "head_count_kv"))
        if _are_counts(heads, groups) and groups and heads % groups:
            yield f"{key!r} is {value.data}: {heads} heads cannot share {groups} key and value heads"
    if name in ("expert_count", "expert_used_count"):
        experts, used = (metadata.get(f"{prefix}{each}", 0) for each in ("expert_count", "expert_used_count"))
        if _are_counts(experts, used) and used > experts:
            yield f"{key!r} is {value.data}: {used} experts cannot be used of {experts}"


def _are_counts(*values: Any) -> bool:
    return all(isinstance(value, int) for value in values)


def removal_problem(key: str, old: Metadata) -> str | None:
    """Return why a key should not be removed or renamed."""
    needed = {"general.architecture", *(f"{architecture_of(old)}.{name}" for name in NEEDED)}
    needed |= {Keys.Tokenizer.MODEL, TOKENS} if TOKENS in old and Keys.Tokenizer.MODEL in old else set()
    return f"no program loads a model without {key!r}" if key in needed else None


def warning(key: str, old: Value | None, metadata: Metadata) -> str | None:
    """Return a warning of a change that is allowed."""
    if key == "general.architecture":
        from archs.diffusion.detection import is_tag

        before = "" if old is None else old.data
        left = sum(other.startswith(f"{before}.") for other in metadata)
        if not left and is_tag(metadata[key]):
            return "the tensors are not compared with the tag: `gguftools validate` does"
        more = f", and {left} keys that begin with {f'{before}.'!r} will not be read" if before and left else ""
        return f"another architecture expects other tensors{more}"
    known = find(key, architecture_of(metadata))
    if known is not None and known.shaping and old is not None:
        return f"{key} shapes tensors; those of this file were made for {quote(old.data)}"
    return None


def type_mismatches(metadata: Metadata, start: str) -> Iterator[tuple[str, str]]:
    """Yield keys that begin with `start` and hold a value of a wrong type: key, what is wrong.

    Integers of any width are integers, for whoever wants to read a file as far as it goes.
    """
    name = architecture_of(metadata)
    for key in metadata:
        known = find(key, name) if key.startswith(start) else None
        if known is not None and not known.is_like(metadata.value(key)):
            wanted = f"an array of {known.type.name}" if known.array else known.type.name
            yield key, f"{key!r} is {metadata.value(key).gguf_type}; {wanted} is expected"
    if ADDED_TOKENS.startswith(start) and (problem := _added_tokens_problem(metadata)):
        yield ADDED_TOKENS, problem


def _added_tokens_problem(metadata: Metadata) -> str | None:
    text = metadata.get(ADDED_TOKENS, "[]")
    try:
        for entry in parse_json(text) if isinstance(text, str) else ():
            if not isinstance(entry["id"], int) or not isinstance(entry["content"], str):
                return f"{ADDED_TOKENS!r} has an entry without an id or a text"
    except (ValueError, TypeError, KeyError):
        return f"{ADDED_TOKENS!r} is not a list of tokens in JSON"
    return None


def check_types(metadata: Metadata, start: str) -> None:
    """Raise VocabularyError (start = "tokenizer.") or ModelError for the first key of another sort."""
    error: type[GgufToolsError] = VocabularyError if start.startswith("tokenizer") else ModelError
    for _, message in type_mismatches(metadata, start):
        raise error(message)
