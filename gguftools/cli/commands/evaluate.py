"""Run HellaSwag, Winogrande or multiple-choice benchmarks.

Same tasks and scores as llama-perplexity. Several models are compared in one table.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from ..device_options import DEVICE_PANEL, DeviceChoice

if TYPE_CHECKING:
    from ...measurement.evaluation_report import EvaluationReport, TestReport

EXAMPLES = (
    "gguftools evaluate m-f16.gguf m-Q4_K_M.gguf --hellaswag hellaswag.txt",
    "gguftools evaluate m-f16.gguf m-Q4_K_M.gguf --hellaswag h.txt --record record",
    "gguftools evaluate m.gguf --winogrande w.csv --multiple-choice mmlu.bin",
)
GROUP = "Measure"
PANELS = DEVICE_PANEL


def evaluate(
    models: Annotated[list[Path], Argument(help="GGUF files to measure (of split sets, any shard).")],
    hellaswag: Annotated[Path | None, Option(metavar="FILE", help="HellaSwag tasks: text, 6 lines each.")] = None,
    winogrande: Annotated[Path | None, Option(metavar="FILE", help="Winogrande tasks: CSV, one per line.")] = None,
    multiple_choice: Annotated[
        Path | None, Option(metavar="FILE", help="MMLU, ARC or TruthfulQA tasks: llama-perplexity's binary file.")
    ] = None,
    tasks: Annotated[
        int | None, Option(min=1, help="Number of random tasks per benchmark (default: 400 of HellaSwag, else all).")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Random seed: 1 chooses the same tasks as llama-perplexity.")] = 1,
    ctx: int = 512,
    threads: int | None = None,
    precision: str = "float32",
    record: str | None = None,
    markdown: bool = False,
    *,
    where: DeviceChoice,
    json: bool = False,
) -> None:
    from ...measurement.evaluation import evaluate as measure
    from ...measurement.options import EvaluationOptions
    from ...measurement.progress_record import remove_record
    from ...models.model import opened_gguf
    from ..ui import note_before_running, print_result, usage, window_progress

    if hellaswag is None and winogrande is None and multiple_choice is None:
        usage("no benchmark is given", "add --hellaswag FILE, --winogrande FILE or --multiple-choice FILE")
    opened = [opened_gguf(each) for each in models]
    for each in opened:
        note_before_running(each, threads)
    what = models[0].name if len(models) == 1 else f"{len(models)} files"
    with window_progress(f"evaluate {what}", "score") as progress:
        result = measure(
            opened,
            hellaswag=hellaswag,
            winogrande=winogrande,
            multiple_choice=multiple_choice,
            n_ctx=ctx,
            threads=threads,
            options=EvaluationOptions(tasks, seed, precision, record, keep_record=True, device=where.chosen()),
            progress=progress,
        )
    if not print_result(result, json):
        for test in result.tests:
            _print_test(result, test, markdown)
    sys.stdout.flush()
    remove_record(record)


def _print_test(result: "EvaluationReport", test: "TestReport", markdown: bool) -> None:
    """Print a table of one test, with a row for each file."""
    from ..ui import print_line, print_markdown, print_table

    scores = [file.tests[test.name] for file in result.files]
    several = len(scores) > 1
    columns = ("file", "score %", "±", "95 % interval", *(("to the first", "±") if several else ()))
    rows = []
    for file, score in zip(result.files, scores, strict=True):
        row = [file.file, _percent(score.score), _percent(score.standard_error)]
        row.append(f"{_percent(score.low)} … {_percent(score.high)}")
        if several and score.difference is not None:
            row += [f"{100 * score.difference:+.2f}", _percent(score.difference_standard_error or 0.0)]
        rows.append(row + [""] * (len(columns) - len(row)))
    (print_markdown if markdown else print_table)(test.title, columns, rows, "lrrrrr")
    print_line(f"{test.tasks} of {test.available} tasks; chance {_percent(scores[0].chance)} %")
    if test is not result.tests[-1]:
        print_line()
    sys.stdout.flush()


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
