"""Make an HTML page or Markdown table of saved KL results.

Reads what `gguftools divergence --json` printed.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument

EXAMPLES = ("gguftools report results.json --html report.html", "gguftools report results.json --markdown")
GROUP = "Measure"


def report(
    results: Annotated[Path, Argument(help="Output of `gguftools divergence … --json` (- for stdin).")],
    html: str | None = None,
    markdown: bool = False,
    overwrite: bool = False,
) -> None:
    from ...publish.report import card
    from ...publish.report.page import check_html_target, write_html
    from ...publish.report.results import read_results, results_of
    from ..ui import print_line, print_table

    if html is not None:
        check_html_target(html, overwrite, [results])
    data, source = read_results(results), str(results)
    if html is not None:
        write_html(data, html, source=source, overwrite=overwrite, reads=[results])
    if markdown:
        print_line(card.markdown(data, source).rstrip("\n"), keep="\n")
    elif html is None:
        print_table(None, card.COLUMNS, card.rows(results_of(data, source)), card.RIGHT)
