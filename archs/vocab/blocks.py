"""Read and build blocks of tokenizer.json."""

from collections.abc import Mapping
from typing import Any

LayerSpec = Mapping[str, Any]
INNER = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}


def parts(tokenizer: LayerSpec, key: str) -> list[LayerSpec]:
    """Return the blocks under a key of tokenizer.json, which may be sequences."""

    def of(block: LayerSpec) -> list[LayerSpec]:
        return [part for inner in block[INNER[key]] for part in of(inner)] if block["type"] == "Sequence" else [block]

    return of(tokenizer[key]) if tokenizer.get(key) else []


def byte_level(prefix: bool = False, use_regex: bool = True) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def around(first: str | None, text: str, last: str | None, type_id: int = 0) -> list[LayerSpec]:
    """Return a template's part for a text, with the special tokens around it."""
    tokens = [[{"SpecialToken": {"id": token, "type_id": type_id}}] if token else [] for token in (first, last)]
    return [*tokens[0], {"Sequence": {"id": text, "type_id": type_id}}, *tokens[1]]


def token_of(part: LayerSpec) -> str | None:
    """Return the special token of a template's part."""
    name = part.get("SpecialToken", {}).get("id")
    return None if name is None else str(name)
