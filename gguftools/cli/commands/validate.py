"""Check that GGUF files are valid: structure, keys, every block.

Exit code 1 if a file is not valid.
"""

from pathlib import Path
from typing import Annotated

from typer import Exit

EXAMPLES = ("gguftools validate model.gguf", "gguftools validate *.gguf --header")
GROUP = "Inspect"


def validate(
    files: list[Path],
    header: Annotated[bool, "Check only the header, not the tensor data."] = False,
    threads: int | None = None,
    json: bool = False,
) -> None:
    from ...inspection.validation import validate as check
    from ..ui import bytes_progress, print_json, print_line, print_table, size

    reports = []
    for path in files:
        with bytes_progress(f"validate {path.name}") as progress:
            reports.append(check(path, data=not header, threads=threads, progress=progress))
    if json:
        print_json(reports[0] if len(reports) == 1 else reports)
    else:
        for each in reports:
            rows = [(problem.severity, problem.where, problem.message) for problem in each.problems]
            if rows:
                print_table(None, ("", "where", "what"), rows)
            looked = f": {each.keys} keys, {each.tensors} tensors, {size(each.bytes)} of data" if each.keys else ""
            print_line(f"{each.path} is {'sound' if each.ok else 'NOT sound'}{looked}")
    raise Exit(0 if all(each.ok for each in reports) else 1)
