"""Whether keys hold the sort of value that code which reads them relies on; files of strangers may hold anything."""

from __future__ import annotations

from collections.abc import Iterator

from archs.metadata import Metadata
from archs.schema import find
from archs.small_files import parse_json
from archs.vocab import ADDED_TOKENS
from archs.vocab.files import AddedToken
from quants.errors import GgufToolsError, ModelError, VocabularyError

from .checks import architecture_of


def type_mismatches(metadata: Metadata, start: str) -> Iterator[tuple[str, str]]:
    """Keys that begin with `start` and hold another sort of value than they should: key, what is wrong.

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
            if not isinstance(entry["id"], int) or not isinstance(AddedToken.of(entry).content, str):
                return f"{ADDED_TOKENS!r} has an entry without an id or a text"
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"{ADDED_TOKENS!r} is not a list of tokens in JSON"
    return None


def check_types(metadata: Metadata, start: str) -> None:
    """Raise VocabularyError (start = "tokenizer.") or ModelError for the first key of another sort."""
    error: type[GgufToolsError] = VocabularyError if start.startswith("tokenizer") else ModelError
    for _, message in type_mismatches(metadata, start):
        raise error(message)
