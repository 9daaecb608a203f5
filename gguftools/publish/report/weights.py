"""Measure the errors of weights for the report, against the base's."""

import logging
from typing import Any

from quants.arguments import PathLike
from quants.errors import GgufToolsError

from ...writing.row_blocks import Progress

log = logging.getLogger(__name__)
FIGURES = ("rmse", "relative", "sqnr")


def tensor_errors(
    base: PathLike, other: PathLike, threads: int | None = None, progress: Progress | None = None
) -> dict[str, dict[str, float]]:
    """Return rmse, relative error and SQNR in dB of each changed tensor; nothing if the base has no weights.

    base, other: as `diff --errors` takes them. threads: None for all processors. progress(bytes
    read, of how many, tensor).
    """
    from ...inspection.weight_errors import weight_errors

    try:
        tensors = weight_errors(base, other, threads=threads, progress=progress).tensors
    except GgufToolsError as error:  # a saved base has no tensors, or those of a stranger have no partners
        log.info("no errors of weights of %s: %s", other, error)
        return {}
    figures: dict[str, dict[str, Any]] = {each.name: each.errors.as_dict() for each in tensors if each.errors.squares}
    return {name: {key: of[key] for key in FIGURES if of[key] is not None} for name, of in figures.items()}
