"""Convert and quantize a small model, and show what it costs.

Converts a checkpoint, quantizes it with three recipes and prints size, perplexity and KL divergence of each.
"""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

EXAMPLES = ("gguftools demo", "gguftools demo checkpoint/ --file text.txt -o results")
GROUP = "Make"


def demo(
    model: Annotated[Path | None, Argument(help="Hugging Face folder (default: the example model).")] = None,
    file: Annotated[
        Path | None, Option("--file", "-f", help="Text to read (- for stdin): the example's if not given.")
    ] = None,
    output: Annotated[Path, "folder."] = Path("demo"),
    overwrite: bool = False,
    json: bool = False,
) -> None:
    from ...conversion.demo import demo as run
    from ..ui import named_progress, note_slow_products, print_result, print_table, size

    note_slow_products(None)
    with named_progress("demo") as progress:
        rows = run(model, file, output, overwrite=overwrite, progress=progress)
    if print_result(rows, json, [row.file for row in rows]):
        return
    cells = [
        (
            row.recipe,
            row.file.name,
            size(row.bytes),
            f"{row.bits_per_weight:.2f}",
            f"{row.perplexity:.3f} ± {row.standard_error:.3f}",
            f"{row.tokens_per_second:,.0f}",
        )
        for row in rows
    ]
    columns = ("type", "file", "size", "bits/weight", "perplexity", "tokens/s")
    print_table(f"{rows[0].file.parent}/", columns, cells, "llrrrr")
