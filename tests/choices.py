"""What a model chooses while it runs: experts of each token, keys of each query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from runtime import experts

Choices = list[NDArray[np.integer]]


@contextmanager
def recorded() -> Iterator[Choices]:
    """Choices in the order in which they are made, each sorted by row."""
    found: Choices = []
    add, partition = experts.add_experts, np.argpartition

    def added(forward: Any, layer: Any, latent: Any, choice: Any, kind: str) -> Any:
        if kind == "exps":
            found.append(np.sort(choice[0], axis=1))
        return add(forward, layer, latent, choice, kind)

    def parted(scores: Any, at: int, axis: int = -1) -> Any:
        best = partition(scores, at, axis=axis)
        if best.ndim == 2:
            found.append(np.sort(best[:, : at + 1], axis=1))
        return best

    with mock.patch.object(experts, "add_experts", added), mock.patch.object(np, "argpartition", parted):
        yield found


def flipped(some: Choices, others: Choices) -> int:
    """How many tokens of two runs over the same text have other experts or keys."""
    return sum(int((one != other).any(axis=1).sum()) for one, other in zip(some, others, strict=True))
