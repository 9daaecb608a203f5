"""Say in plain words which file to choose, what it costs, and what to avoid.

Two divergences differ only where they are more than two standard errors apart, and further than rounding of the base.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from .numbers import byte_size, percent, significant, with_error
from .results import Measured, Results

LIMIT = 0.1  # nats: a file is proposed up to this mean divergence
ERRORS = 2  # standard errors
LISTED = 3  # files in one sentence


def error_of(file: Measured) -> float | None:
    """Return the standard error of the mean divergence; None if unknown, as for very few predictions."""
    error = file.figures.get("kl_divergence.standard_error")
    if error is None or not math.isfinite(error) or (error <= 0 and file.kl != 0):
        return None
    return error


def rounding(file: Measured) -> float:
    """Return how far rounding of the base shifts a single divergence: no exact one is negative."""
    return max(0.0, -file.figures.get("kl_divergence.min", 0.0))


def is_closer(one: Measured, other: Measured) -> bool:
    """Return whether a file is measurably closer to the base than another."""
    errors = error_of(one), error_of(other)
    if errors[0] is None or errors[1] is None:
        return False
    return other.kl - one.kl > max(ERRORS * math.hypot(errors[0], errors[1]), rounding(one), rounding(other))


def beaten_by(file: Measured, files: Sequence[Measured]) -> Measured | None:
    """Return the file closest to the base of those that are no larger and measurably closer; None if there is none."""
    size = file.figures.get("size_bytes", math.inf)
    better = [one for one in files if one.figures.get("size_bytes", math.inf) <= size and is_closer(one, file)]
    return min(better, key=lambda one: one.kl, default=None)


def verdict(results: Results) -> list[tuple[str, str]]:
    """Return sentences with their subjects; the reason, if the figures decide nothing."""
    files = results.files
    if results.lower_bound:
        why = "Divergences are lower bounds, because the base has only its most likely tokens."
        return [("No choice", why)]
    if any(error_of(file) is None and math.isfinite(file.kl) for file in files):
        return [("No choice", "Standard errors are missing, or too few predictions were scored to compare files.")]
    if len(files) == 1:
        return [("Cost", f"{files[0].label}: {_cost(files[0])}.")]
    if any(_size(file) is None for file in files):
        closest = min(files, key=lambda file: file.kl)
        return [("No choice", f"Sizes are missing. Closest to the base is {closest.label}: {_cost(closest)}.")]
    return [*_choice(files), *_worse(files), *_undecided(files)]


def _choice(files: Sequence[Measured]) -> list[tuple[str, str]]:
    """Return the proposed file, and what larger and smaller ones cost."""
    left = [file for file in files if beaten_by(file, files) is None]
    proposed = [file for file in left if file.kl + ERRORS * (error_of(file) or 0.0) < LIMIT]
    if not proposed:
        closest = min(left, key=lambda file: (file.kl, _bytes(file)))
        text = f"No file is below {LIMIT:g} nats. The closest to the base is {closest.label}: {_cost(closest)}."
        return [("No choice", text)]
    chosen = min(proposed, key=lambda file: (_bytes(file), file.kl))
    lines = [("Choose", f"{chosen.label}, the smallest file below {LIMIT:g} nats: {_cost(chosen)}.")]
    closer = sorted((file for file in left if is_closer(file, chosen)), key=_bytes)
    if closer:
        lines.append(("Closer, but larger", _listed(closer, chosen)))
    smaller = sorted((file for file in left if _bytes(file) < _bytes(chosen)), key=_bytes, reverse=True)
    if smaller:
        lines.append((f"Only where {chosen.label} does not fit", _listed(smaller, chosen)))
    return lines


def _listed(files: Sequence[Measured], chosen: Measured) -> str:
    """Return what files cost next to the chosen one; of many only the first few."""
    parts = []
    for file in files[:LISTED]:
        share = _bytes(file) / _bytes(chosen) - 1
        change = f"{percent(abs(share), 0)} {'larger' if share > 0 else 'smaller'}"
        parts.append(f"{file.label}: {_size(file)}, {change}, {significant(file.kl)} nats")
    more = len(files) - LISTED
    return "; ".join(parts) + (f"; and {more} more." if more > 0 else ".")


def _worse(files: Sequence[Measured]) -> list[tuple[str, str]]:
    """Return files to avoid: another one is no larger, and measurably closer."""
    parts = []
    for file in files:
        if better := beaten_by(file, files):
            smaller = "smaller" if _bytes(better) < _bytes(file) else "as small"
            figures = f"{significant(better.kl)} instead of {significant(file.kl)} nats"
            parts.append(f"{file.label}: {better.label} is {smaller} and closer to the base, {figures}")
    return [("Avoid", "; ".join(parts) + ".")] if parts else []


def _undecided(files: Sequence[Measured]) -> list[tuple[str, str]]:
    """Return pairs of files whose divergences are too close to tell apart."""
    order = sorted(files, key=lambda file: file.kl)
    pairs = [
        f"{one.label} and {other.label}"
        for one, other in pairwise(order)
        if math.isfinite(other.kl) and not is_closer(one, other)
    ]
    text = "; ".join(pairs) + f" differ by less than {ERRORS} standard errors or the base's rounding."
    return [("Too close to call", text)] if pairs else []


def _cost(file: Measured) -> str:
    """Return size, divergence and agreement of top tokens of a file."""
    error = error_of(file)
    parts = [_size(file) or "", f"mean KL divergence {with_error(file.kl, error)} nats"]
    if error is not None and file.kl <= max(ERRORS * error, rounding(file)):
        parts.append("which is not measurably above 0")
    if (same := file.figures.get("same_top")) is not None:
        parts.append(f"the base's most likely token in {percent(same, 1)} of the predictions")
    return ", ".join(filter(None, parts))


def _bytes(file: Measured) -> float:
    return file.figures.get("size_bytes", math.inf)


def _size(file: Measured) -> str | None:
    size = _bytes(file)
    return byte_size(size) if 0 < size < math.inf else None
