"""The keys of a vocabulary from a list of tokens."""

from __future__ import annotations

from typing import Any


def metadata_of(kind: str, tokens: list[str], **keys: Any) -> dict[str, Any]:
    """`tokenizer.ggml.…` by the names behind that."""
    return {"tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": tokens} | {
        f"tokenizer.ggml.{name}": value for name, value in keys.items()
    }
