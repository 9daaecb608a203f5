"""Whether keys hold the kind of value that code which reads them relies on; files of strangers may hold anything."""

from __future__ import annotations

from collections.abc import Iterator

from archs.keys import Rule
from archs.metadata import Metadata, Value, ValueType
from archs.small_files import parse_json
from archs.vocab import ADDED_TOKENS
from archs.vocab.files import AddedToken
from quants.errors import GgufToolsError, ModelError, VocabularyError

from ..files.gguf.reader import INTEGERS
from .known_keys import architecture_of, rule_of
from .text import type_name

FLOATS = (ValueType.FLOAT32, ValueType.FLOAT64)
BYTES = {"tokenizer.ggml.precompiled_charsmap": Rule(ValueType.UINT8, array=True)}  # or INT8


def wrong_kinds(metadata: Metadata, start: str) -> Iterator[tuple[str, str]]:
    """Keys that begin with `start` and hold another kind of value than they should: key, what is wrong.

    Only kinds count (integers of any width are integers), for whoever wants to read a file as far as it goes.
    """
    name = architecture_of(metadata)
    for key in metadata:
        rule = BYTES.get(key) or rule_of(key, name)
        if key.startswith(start) and rule is not None and not _is_kind(rule, metadata.value(key)):
            wanted = f"an array of {rule.type.name}" if rule.array else rule.type.name
            yield key, f"{key!r} is {type_name(metadata.value(key))}; {wanted} is expected"
    if ADDED_TOKENS.startswith(start) and (problem := _added_tokens_problem(metadata)):
        yield ADDED_TOKENS, problem


def _is_kind(rule: Rule, value: Value) -> bool:
    if value.type is ValueType.ARRAY:
        kinds = [rule.type, *([ValueType.BOOL] if rule.flags else [])]
        element = value.element
        return (rule.array or rule.per_layer) and element is not None and any(_alike(kind, element) for kind in kinds)
    return not rule.array and _alike(rule.type, value.type)


def _alike(a: ValueType, b: ValueType) -> bool:
    return a is b or (a in INTEGERS and b in INTEGERS) or (a in FLOATS and b in FLOATS)


def _added_tokens_problem(metadata: Metadata) -> str | None:
    text = metadata.get(ADDED_TOKENS, "[]")
    try:
        for entry in parse_json(text) if isinstance(text, str) else ():
            if not isinstance(entry["id"], int) or not isinstance(AddedToken.of(entry).content, str):
                return f"{ADDED_TOKENS!r} has an entry without an id or a text"
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"{ADDED_TOKENS!r} is not a list of tokens in JSON"
    return None


def check_kinds(metadata: Metadata, start: str) -> None:
    """Raise VocabularyError (start = "tokenizer.") or ModelError for the first such key."""
    error: type[GgufToolsError] = VocabularyError if start.startswith("tokenizer") else ModelError
    for _, message in wrong_kinds(metadata, start):
        raise error(message)
