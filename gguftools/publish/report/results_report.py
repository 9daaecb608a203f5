"""Make an HTML page or a Markdown table of what `divergence` measured."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quants.arguments import PathLike, wrong

from .card import markdown, rows
from .page import check_html_target, write_html
from .results import read_results, results_of

if TYPE_CHECKING:
    from ...measurement.divergence_report import DivergenceReport


@dataclass(frozen=True)
class ResultsReport:
    """Results of `divergence`. data: what its `--json` prints. source: what messages call it."""

    data: Mapping[str, Any]
    source: str

    def as_dict(self) -> dict[str, Any]:
        """Return the results as plain data."""
        return dict(self.data)

    def markdown(self) -> str:
        """Return a Markdown table for a model card, with a line on what was measured."""
        return markdown(self.data, self.source)

    def rows(self) -> list[Sequence[str]]:
        """Return the cells of the table, a row for each file, the base first where its perplexity is known."""
        return rows(results_of(self.data, self.source))


def report(
    results: "PathLike | Mapping[str, Any] | DivergenceReport", *, html: PathLike | None = None, overwrite: bool = False
) -> ResultsReport:
    """Make a Markdown table, and if asked for an HTML page, of what `divergence` measured.

    results: a file that `gguftools divergence --json` printed, the plain data in it, or a report of `divergence`. html:
    a page to write, UTF-8, self-contained (extra `report`); overwrite: replace it if it exists.
    Raises FileError for results that lack what a report needs, and for a page that cannot be written.
    """
    reads: list[PathLike] = []
    if isinstance(results, (str, os.PathLike)):
        reads = [results]
    elif not isinstance(results, Mapping) and not hasattr(results, "as_dict"):
        raise wrong("results", results, "a file, a mapping or a report of divergence")
    if html is not None:
        check_html_target(html, overwrite, reads)
    source, data = "the results", results if isinstance(results, Mapping) else {}
    if isinstance(results, (str, os.PathLike)):
        source, data = str(results), read_results(results)
    elif not isinstance(results, Mapping):
        data = results.as_dict()
    results_of(data, source)
    if html is not None:
        write_html(data, html, source=source, overwrite=overwrite, reads=reads)
    return ResultsReport(data, source)
