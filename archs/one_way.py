"""Families whose files don't tell all of their config: there is no way back to a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from quants import Tensor
from quants.errors import ModelError


def no_way_back(keys: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> NoReturn:
    """`restored` of such a family. Raises ModelError."""
    raise ModelError("its files do not tell all of its config")
