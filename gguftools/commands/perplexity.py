"""Measure perplexity on a text, as llama-perplexity does.

Lower is better.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

EXAMPLES = (
    "gguftools perplexity model.gguf -f text.txt",
    "gguftools perplexity model.gguf -f text.txt -c 2048 --chunks 20",
    "gguftools perplexity model.gguf -f novel=a.txt -f code=b.py",
)
GROUP = "Measure"
PANELS = {"Expert options": ("stride", "round_activations", "sparse", "no_dense", "precision", "profile")}


def perplexity(
    model: Annotated[Path, Argument(help="GGUF file to measure (of a split set, any shard).")],
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
    json: bool = False,
) -> None:
    from ..console import terminal
    from ..console.terminal import put
    from ..console.ui import (
        StepProgress,
        note,
        note_differences,
        note_slow_products,
        prepared,
        print_table,
        said,
        window_progress,
    )
    from ..measurement.perplexity import context_warning
    from ..measurement.perplexity import perplexity as measure
    from ..measurement.texts import named_texts
    from ..model import opened_gguf

    named = named_texts(texts)
    source = opened_gguf(model)
    if warning := context_warning(source, ctx):
        note(f"warning: {warning}")
    note_slow_products(threads)
    note_differences(source.metadata)
    passes = 2 if sparse and not no_dense else 1

    def print_window(done: int, total: int, value: float) -> None:
        nonlocal passes
        passes -= done == 1
        if done and not passes:  # of the last one, whose result is the command's
            print(f"{done:5d}  {value:.4f}", flush=True)

    bar = window_progress(f"measure {model.name}", "PPL")
    told: AbstractContextManager[StepProgress] = nullcontext(print_window) if running else bar
    with told as progress:
        result = measure(
            source,
            named,
            n_ctx=ctx,
            chunks=chunks,
            stride=stride,
            threads=threads,
            round_activations=round_activations,
            precision=precision,
            profile=profile,
            sparse=sparse,
            compare=not no_dense,
            progress=progress,
        )
    if said(result, json):
        return
    if len(result.texts) > 1:
        rows = [
            (each.name, str(len(each.chunks)), f"{each.perplexity:.4f} ± {each.standard_error:.4f}")
            for each in result.texts
        ]
        print_table(None, ("text", "windows", "perplexity"), rows, "lrr")
        print()
    put(sys.stdout, "perplexity  ", (f"{result.perplexity:.4f}", "bold"), f" ± {result.standard_error:.4f}")
    if not terminal.quiet:
        print(
            f"{len(result.chunks)} windows of {result.n_ctx} tokens, {result.tokens_per_second:.0f} tokens/s"
            f" with products in {result.products}{prepared(result.compile_seconds)}"
        )
    if result.profile:
        for kind, seconds in sorted(result.profile.items(), key=lambda each: -each[1]):
            share = 100 * seconds / sum(result.profile.values())
            print(f"  {kind:28} {share:5.1f} %  {1e6 * seconds / result.tokens:9.1f} µs a token")
    if result.skipped is not None:
        print(f"{100 * result.skipped:.1f} % of the neurons skipped")
    if result.dense_perplexity is not None:
        lost = result.perplexity - result.dense_perplexity
        print(f"perplexity with all neurons {result.dense_perplexity:.4f}: skipping costs {lost:+.4f}")
