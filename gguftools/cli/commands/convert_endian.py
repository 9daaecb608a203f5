"""Convert a GGUF file to the other byte order.

Big-endian files are read by machines such as IBM Z.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument

from ..options import complete

EXAMPLES = ("gguftools convert-endian model.gguf big -o model-big.gguf",)
GROUP = "Edit"


def convert_endian(
    file: Annotated[Path, Argument(help="GGUF file to convert (of a split set, any shard).")],
    order: Annotated[
        str | None, Argument(autocompletion=complete("BYTE_ORDER"), help="little or big (default: the other one).")
    ] = None,
    output: Annotated[str | None, "file (default NAME-ORDER.gguf)."] = None,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    from ...conversion.endianness import convert_endian as run
    from ..ui import bytes_progress, print_line, print_result, size

    with bytes_progress(f"convert {file.name}") as progress:
        report = run(file, order, output, overwrite, progress)
    if print_result(report, json, report.files):
        return
    for path in report.files:
        print_line(str(path))
    print_line(f"{report.order} endian, {size(report.nbytes)}")
