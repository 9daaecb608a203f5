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
    from ...publish.report.card import COLUMNS, RIGHT
    from ...publish.report.results_report import report as run
    from ..ui import print_line, print_table

    results_report = run(results, html=html, overwrite=overwrite)
    if markdown:
        print_line(results_report.markdown().rstrip("\n"), keep="\n")
    elif html is None:
        print_table(None, COLUMNS, results_report.rows(), RIGHT)
