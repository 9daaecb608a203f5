"""Families whose files don't tell all of their config: they cannot be exported as checkpoints."""

from __future__ import annotations

from typing import NoReturn

from quants.errors import ModelError

from .spec import GgufKeys, Tensors


def not_exportable(keys: GgufKeys, tensors: Tensors) -> NoReturn:
    """`config_from_gguf` of such a family. Raises ModelError."""
    raise ModelError("its files do not tell all of its config")
