"""Models that tests/verify/absent_keys.py makes of others: with more layers, and as they were published first."""

from __future__ import annotations

from collections.abc import Callable

from tests.absent_keys import Description

SKIPPED = {
    "llama-kquant-256": "large, and a Llama like others",
    "llama-linear-sharded": "the same keys as llama-yarn's, with another type",
}

VARIANTS: dict[str, tuple[str, Callable[[Description, str], Description]]] = {}
