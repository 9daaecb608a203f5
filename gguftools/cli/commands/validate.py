"""Check that GGUF files are valid: structure, keys, every block.

Exit code 1 if a file is not valid.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit

if TYPE_CHECKING:
    from ...inspection.validation import ReaderReport

EXAMPLES = (
    "gguftools validate model.gguf",
    "gguftools validate *.gguf --header",
    "gguftools validate flux1-dev-Q4_K_S.gguf --for comfyui",
)
GROUP = "Inspect"


def validate(
    files: list[Path],
    reader: Any = None,
    header: Annotated[bool, "Check only the header, not the tensor data."] = False,
    threads: int | None = None,
    json: bool = False,
) -> None:
    from ...inspection.validation import validate as check
    from ..ui import bytes_progress, print_json, print_line, print_table, size

    reports = []
    for path in files:
        with bytes_progress(f"validate {path.name}") as progress:
            reports.append(check(path, reader=reader, data=not header, threads=threads, progress=progress))
    if json:
        print_json(reports[0] if len(reports) == 1 else reports)
    else:
        for each in reports:
            rows = [(problem.severity, problem.where, problem.message, problem.remedy) for problem in each.problems]
            if any(row[3] for row in rows):
                print_table(None, ("", "where", "what", "what to do"), rows)
            elif rows:
                print_table(None, ("", "where", "what"), [row[:3] for row in rows])
            for loader in each.readers:
                print_line(_verdict(loader))
            looked = f": {each.keys} keys, {each.tensors} tensors, {size(each.bytes)} of data" if each.keys else ""
            print_line(f"{each.path} is {'sound' if each.ok else 'NOT sound'}{looked}")
    raise Exit(0 if all(each.ok for each in reports) else 1)


def _verdict(loader: "ReaderReport") -> str:
    """Return in one line whether a program loads a file, and why not."""
    errors = [problem for problem in loader.problems if problem.severity == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return f"{loader.title} does not load it: {errors[0].where} {errors[0].message}{more}"
    warnings = [problem for problem in loader.problems if problem.severity == "warning"]
    but = f", but {warnings[0].where} {warnings[0].message}" if warnings else ""
    return f"{loader.title} loads it{but}"
