"""Find what is suspicious in GGUF files before you load them.

Looks at chat templates, hidden text, links and tensors out of line. Exit code 1 from the severity of --fail-on.
"""

from pathlib import Path
from typing import Annotated, Any

from typer import Exit

EXAMPLES = (
    "gguftools audit model.gguf",
    "gguftools audit model.gguf --against checkpoint/",
    "gguftools audit *.gguf --fail-on high --json",
)
GROUP = "Publish"


def audit(
    files: list[Path],
    against: Annotated[Path | None, "Hugging Face folder or GGUF file to compare with: the original."] = None,
    tensor_values: Annotated[bool, "Also look for outliers in the tensors; reads all data."] = False,
    fail_on: Annotated[Any, "Lowest severity that gives exit code 1: info, low, medium or high."] = "medium",
    threads: int | None = None,
    json: bool = False,
) -> None:
    from ...inspection.audit import audit as look
    from ..ui import bytes_progress, print_json, print_line, print_table

    reports = []
    for path in files:
        with bytes_progress(f"audit {path.name}") as progress:
            reports.append(look(path, against, tensors=tensor_values, threads=threads, progress=progress))
    if json:
        print_json(reports[0] if len(reports) == 1 else reports)
    else:
        for each in reports:
            rows = [
                (f.severity, f.rule, f.key + (f":{f.line}" if f.line else ""), repr(f.message)[1:-1])
                for f in each.findings
            ]
            if rows:
                print_table(str(each.path), ("", "rule", "where", "what"), rows)
            templates = f"{len(each.templates)} chat template{'s' * (len(each.templates) != 1)} read"
            print_line(f"{each.path}: {len(rows)} finding{'s' * (len(rows) != 1)}, {templates}")
    raise Exit(1 if any(each.reaches(fail_on) for each in reports) else 0)
