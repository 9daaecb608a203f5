"""Compare a GGUF with its original: tokens, template, outputs.

Checks tokenizer, chat template, weights and generated text. Exit code 1 if something is wrong.
"""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

EXAMPLES = (
    "gguftools check model-Q4_K_M.gguf",
    "gguftools check model-Q4_K_M.gguf --against checkpoint",
    "gguftools check model-Q4_K_M.gguf --against model-f16.gguf --json",
)
GROUP = "Inspect"


def check(
    model: Annotated[Path, Argument(help="GGUF file to check (of a split set, any shard).")],
    against: Annotated[Path | None, "Hugging Face folder or GGUF file to compare with: the original."] = None,
    n: Annotated[int, Option("--predict", "-n", min=1, help="Maximum number of tokens to generate: per text.")] = 64,
    threads: int | None = None,
    json: bool = False,
) -> None:
    from ...inspection.original.check import check as run
    from ..ui import named_progress, note_slow_products, print_json, print_line

    note_slow_products(threads)
    with named_progress(f"check {model.name}") as progress:
        report = run(model, against, n=n, threads=threads, progress=progress)
    if json:
        print_json(report)
    else:
        wide = max(len(each.name) for each in report.checks)
        for each in report.checks:
            print_line(f"{WORDS[each.verdict]}  {each.name:{wide}}  {each.seen}")
            for line in each.lines:
                print_line(f"{'':{len(WORDS['ok'])}}  {line}", keep="\t")
        wrong = sum(each.verdict == "wrong" for each in report.checks)
        print_line(f"{model}: {'nothing' if report.ok else f'{wrong} of {len(report.checks)} checks'} wrong")
    sys.stdout.flush()
    if not report.ok:
        raise Exit(1)


WORDS = {"ok": "ok   ", "wrong": "WRONG", "not applicable": "-    "}
