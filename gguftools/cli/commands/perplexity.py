"""Measure perplexity on a text, as llama-perplexity does.

Lower is better.
"""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from ..device_options import PLANNED_PANEL, DeviceChoice, PlanChoice, print_noise_floor

if TYPE_CHECKING:
    from ...measurement.perplexities import FailedFile, PerplexityTable
    from ...measurement.perplexity import PerplexityReport
    from ...models.model import Model

EXAMPLES = (
    "gguftools perplexity model.gguf -f text.txt",
    "gguftools perplexity model.gguf -f text.txt -c 2048 --chunks 20",
    "gguftools perplexity model.gguf -f novel=a.txt -f code=b.py",
    "gguftools perplexity m-f16.gguf m-Q8_0.gguf m-Q4_K_M.gguf -f text.txt",
    "gguftools perplexity model.gguf -f text.txt --plan --card 'RTX 4090'",
)
GROUP = "Measure"
TEXTS = (".txt", ".md", ".text", ".raw", ".jsonl", ".html", ".py")  # suffixes of texts
PANELS = PLANNED_PANEL | {
    "Expert options": ("stride", "round_activations", "sparse", "no_dense", "precision", "profile")
}


def perplexity(
    models: Annotated[list[Path], Argument(help="GGUF files to measure (of split sets, any shard).")],
    texts: list[str],
    ctx: int = 512,
    chunks: int | None = None,
    stride: Annotated[int, Option(min=0, help="Overlapping chunks: tokens from one to the next (0 = off).")] = 0,
    threads: int | None = None,
    round_activations: bool = False,
    sparse: Annotated[bool, "PowerInfer files: compute only predicted neurons, and compare with all."] = False,
    no_dense: Annotated[bool, "With --sparse: skip the comparison."] = False,
    precision: str = "float32",
    profile: Annotated[bool, "Show the time of each kind of operation."] = False,
    running: Annotated[bool, "Print the value after every chunk."] = False,
    *,
    where: DeviceChoice,
    planned: PlanChoice,
    json: bool = False,
) -> None:
    from ...measurement.options import PerplexityOptions
    from ...measurement.perplexities import perplexities
    from ...measurement.perplexity import perplexity as measure
    from ...measurement.texts import named_texts
    from ...models.model import opened_gguf
    from ..device_plans import show_plan
    from ..ui import StepProgress, print_result, usage, window_progress

    if running and len(models) > 1:
        usage("--running prints the values of one model", "name one model, or leave it out")
    _check_texts(models)
    named = named_texts(texts)
    if planned.plan:
        sources = [opened_gguf(each) for each in models]
        show_plan("perplexity", sources, named, (ctx, chunks, stride), where, planned, threads, json)
        return
    sources, unopened = _opened(models, threads, ctx)
    chosen = "llama.cpp" if round_activations else precision
    options = PerplexityOptions(stride, chosen, sparse, not no_dense, profile, where.chosen())
    what = models[0].name if len(models) == 1 else f"{len(models)} files"
    shown: AbstractContextManager[StepProgress] = window_progress(f"measure {what}", "PPL")
    if running:
        shown = nullcontext(_WindowPrinter(2 if sparse and not no_dense else 1))
    with shown as progress:
        how: Any = {"n_ctx": ctx, "chunks": chunks, "threads": threads, "options": options, "progress": progress}
        if len(models) == 1:
            result = measure(sources[0], named, **how)
        else:
            table = perplexities(sources, named, **how)
    if len(models) == 1:
        if not print_result(result, json):
            _print(result)
        return
    table = replace(table, failed=[*unopened, *table.failed])
    if not print_result(table, json):
        _print_table(table)
    _print_failed(table.failed)


class _WindowPrinter:
    """A progress callback that prints the value after each window of the last pass, the one with the result."""

    def __init__(self, passes: int) -> None:
        self._passes = passes

    def __call__(self, done: int, total: int, value: float) -> None:
        self._passes -= done == 1
        if done and not self._passes:
            print(f"{done:5d}  {value:.4f}", flush=True)


def _opened(models: Sequence[Path], threads: int | None, ctx: int) -> "tuple[list[Model], list[FailedFile]]":
    """Open the models and print notes about each; of several, leave out those that cannot be opened."""
    from quants.errors import GgufToolsError

    from ...measurement.perplexities import FailedFile
    from ...models.model import opened_gguf
    from ..ui import note_before_running

    sources, failed = [], []
    for model in models:
        try:
            source = opened_gguf(model)
        except GgufToolsError as error:
            if len(models) == 1:
                raise
            failed.append(FailedFile(str(model), str(error)))
            continue
        note_before_running(source, threads, ctx)
        sources.append(source)
    return sources, failed


def _check_texts(models: Sequence[Path]) -> None:
    """Refuse a text file among several models."""
    from quants.spelling import quote

    from ..ui import usage

    for model in models if len(models) > 1 else ():
        if model.suffix.lower() in TEXTS:
            usage(f"{quote(str(model))} is a text, not a GGUF file", f"give texts with --file: --file {model}")


def _print_table(table: "PerplexityTable") -> None:
    from ..ui import print_table, size

    compared = any(each.difference for each in table.files)
    columns = ["file", "size", "bits per weight", "perplexity", "±", *(["difference", "±"] if compared else [])]
    rows = []
    for each in table.files:
        row = [Path(each.file).name, size(each.size_bytes), f"{each.bits_per_weight:.2f}"]
        row += [f"{each.perplexity:.4f}", f"{each.standard_error:.4f}"]
        if compared:
            error = each.difference and each.difference.standard_error
            row.append(f"{each.difference.perplexity:+.4f}" if each.difference else "")
            row.append("" if error is None else f"{error:.4f}")
        rows.append(row)
    if rows:
        print_table(None, columns, rows, "l" + "r" * (len(columns) - 1))
        print_noise_floor(max(table.files, key=lambda each: each.noise_floor or 0.0))


def _print_failed(failed: "Sequence[FailedFile]") -> None:
    """Print an error for each file that could not be measured; exit with code 1 if there are any."""
    from quants.errors import GgufToolsError

    from ..ui import print_error

    for each in failed:
        print_error(GgufToolsError(each.error if each.file in each.error else f"{each.file}: {each.error}"))
    if failed:
        raise Exit(1)


def _print(result: "PerplexityReport") -> None:
    from .. import terminal
    from ..terminal import put
    from ..ui import prepared, print_table

    if len(result.texts) > 1:
        rows = [
            (each.name, str(len(each.chunks)), f"{each.perplexity:.4f} ± {each.standard_error:.4f}")
            for each in result.texts
        ]
        print_table(None, ("text", "windows", "perplexity"), rows, "lrr")
        print()
    put(sys.stdout, "perplexity  ", (f"{result.perplexity:.4f}", "bold"), f" ± {result.standard_error:.4f}")
    if not terminal.quiet:
        where = f" on {result.device}" if result.device else ""
        print(
            f"{len(result.chunks)} windows of {result.n_ctx} tokens, {result.tokens_per_second:.0f} tokens/s"
            f" with products in {result.products}{where}{prepared(result.compile_seconds)}"
        )
        print_noise_floor(result)
    if result.profile:
        for operation, seconds in sorted(result.profile.items(), key=lambda each: -each[1]):
            share = 100 * seconds / sum(result.profile.values())
            print(f"  {operation:28} {share:5.1f} %  {1e6 * seconds / result.tokens:9.1f} µs a token")
    if result.skipped is not None:
        print(f"{100 * result.skipped:.1f} % of the neurons skipped")
    if result.dense_perplexity is not None:
        lost = result.perplexity - result.dense_perplexity
        print(f"perplexity with all neurons {result.dense_perplexity:.4f}: skipping costs {lost:+.4f}")
