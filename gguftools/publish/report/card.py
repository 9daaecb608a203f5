"""Make the Markdown table of a model card, one row per file."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...metadata.visible import visible
from .numbers import byte_size, fixed, percent, significant, with_error
from .results import Measured, Results, results_of

COLUMNS = ("file", "size", "bits/weight", "perplexity", "ratio", "mean KL", "99.9 % KL", "same top", "RMS Δp")
RIGHT = "lrrrrrrrr"


def markdown(data: Mapping[str, Any], source: str = "the results") -> str:
    """Return a Markdown table of the plain data that `divergence --json` prints, with a line on what was measured.

    source: what messages call the data. Raises FileError where the data lack what the table is about.
    """
    results = results_of(data, source)
    cells = [[_escaped(cell) for cell in row] for row in rows(results)]
    align = ["---:" if right == "r" else "---" for right in RIGHT]
    lines = [f"| {' | '.join(row)} |" for row in (COLUMNS, align, *cells)]
    return "\n".join([*lines, "", _escaped(described(results)), ""])


def rows(results: Results) -> list[Sequence[str]]:
    """Return the cells of the table, the base first where its perplexity is known."""
    base = results.figures.get("base_perplexity")
    error = results.figures.get("base_perplexity_standard_error")
    first = [(f"{file_name(results.base)} (base)", "", "", with_error(base, error), *[""] * 5)]
    return [*(first if base is not None else []), *(_row(file) for file in results.files)]


def _row(file: Measured) -> Sequence[str]:
    get = file.figures.get
    bound = "≥ " if file.lower_bound else ""
    return (
        visible(file.name),
        byte_size(get("size_bytes")),
        fixed(get("bits_per_weight"), 2),
        with_error(file.figures["perplexity"], get("perplexity_standard_error")),
        significant(get("perplexity_ratio"), 5),
        bound + with_error(file.kl, get("kl_divergence.standard_error")),
        bound + significant(get("kl_divergence.p99_9")),
        percent(get("same_top")),
        percent(get("p_change.rms")),
    )


def described(results: Results) -> str:
    """Return one sentence about what was measured, and on which texts."""
    count = f"{results.scored:,} predictions" if results.scored else "predictions"
    names = ", ".join(map(visible, results.texts)) or "a text"
    window = results.figures.get("n_ctx")
    windows = f" in windows of {window:.0f} tokens" if window else ""
    bound = " Of the base only the most likely tokens are known, so divergences are lower bounds." * results.lower_bound
    return (
        f"KL divergence (nats) from {file_name(results.base)}, over {count} on {names}{windows};"
        f" measured with gguftools.{bound}"
    )


def file_name(path: str) -> str:
    return visible(path.rstrip("/").rpartition("/")[2] or path)


def _escaped(text: str) -> str:
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", text)
