"""Measure KL divergence of quantized files from the original.

Prints a table with KL divergence, perplexity and top-token agreement of each file; --html writes a report.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from ..device_options import DEVICE_PANEL, DeviceChoice, print_noise_floor

if TYPE_CHECKING:
    from ...measurement.divergence_report import DivergenceReport, FileDivergence

EXAMPLES = (
    "gguftools divergence m-f16.gguf m-Q4_K_M.gguf m-Q8_0.gguf -f text.txt",
    "gguftools divergence m-f16.gguf m-Q4_K_M.gguf -f a=novel.txt -f b=code.py",
    "gguftools divergence m-f16.gguf m-Q4_K_M.gguf --fail-above mean=0.02",
    "gguftools divergence m-f16.gguf m-Q4_K_M.gguf m-Q8_0.gguf --html report.html",
    "gguftools divergence m-f16.gguf --save-base base.gguf -f text.txt",
)
GROUP = "Measure"
PANELS = {
    "Report": ("worst", "fail_above", "html", "markdown", "json"),
    "Saved base": ("save_base", "top_k", "with_output", "base_model"),
    **DEVICE_PANEL,
    "Expert options": ("round_activations", "precision", "record"),
}


@dataclass(frozen=True)
class BaseOptions:
    """Options for saving and reading the base's logits."""

    save_base: Annotated[
        str | None, Option(metavar="PATH", help="Save the base's logits: compact as .gguf, else in llama.cpp's form.")
    ] = None
    top_k: Annotated[
        int | None, Option(min=1, metavar="K", help="Top-k: store only the K most likely tokens in a .gguf base.")
    ] = None
    with_output: Annotated[bool, "Store the output matrix in a .gguf base."] = False
    base_model: Annotated[
        Path | None, Option(metavar="FILE", help="Model with the output matrix that a .gguf base refers to.")
    ] = None


@dataclass(frozen=True)
class ReportOptions:
    """Options for printing and writing the result."""

    worst: Annotated[int, Option(min=0, max=20, help="Show the N predictions that diverge most.")] = 0
    html: str | None = None
    markdown: bool = False
    json: bool = False


def divergence(
    base: Annotated[Path, Argument(help="The original: a GGUF file, a checkpoint's folder or a saved base.")],
    others: Annotated[
        list[Path] | None, Argument(metavar="MODELS", help="GGUF files to measure (of split sets, any shard).")
    ] = None,
    texts: list[str] | None = None,
    chat: Annotated[bool, "Apply the file's chat template: score the answers of conversations (JSONL)."] = False,
    ctx: int | None = None,
    chunks: int | None = None,
    threads: int | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    round_activations: bool = False,
    precision: str = "float32",
    *,
    where: DeviceChoice,
    saved: BaseOptions,
    record: str | None = None,
    overwrite: bool = False,
    fail_above: Annotated[
        str | None, Option(metavar="LIMITS", help="Exit code 1 if a KL figure is above, e.g. mean=0.02,p99_9=1.")
    ] = None,
    shown: ReportOptions,
) -> None:
    from ...measurement.divergence import divergence as measure
    from ...measurement.divergence_report import parse_limits
    from ...measurement.options import DivergenceOptions
    from ...measurement.progress_record import check_apart, remove_record
    from ...measurement.texts import named_texts
    from ..ui import note_slow_products, shared_work, warn_of_context, window_progress

    models, limits = others or [], {} if fail_above is None else parse_limits(fail_above)
    named = None if texts is None else named_texts(texts, chat)
    reads = [base, *models, *(each.path for each in named or ()), *([saved.base_model] if saved.base_model else [])]
    _check_report(shown, models, overwrite, saved.save_base, reads)
    check_apart(record, saved.save_base, shown.html)
    for model in models:
        if warn_of_context(model, ctx):
            break
    device = where.chosen()
    if device is None:
        note_slow_products(threads)
    bar = window_progress(f"measure {len(models)} beside {base.name}", "mean KL")
    with shared_work(workers, scheduler) as executor, bar as progress:
        options = DivergenceOptions(
            chat=chat,
            precision="llama.cpp" if round_activations else precision,
            **vars(saved),
            record=record,
            keep_record=True,
            overwrite=overwrite,
            executor=executor,
            device=device,
        )
        how: Any = {"n_ctx": ctx, "chunks": chunks, "threads": threads, "options": options, "progress": progress}
        report = measure(base, *models, text=named, **how)
    if shown.html is not None:
        _write_html(report, shown.html, overwrite, reads, threads)
    _print(report, shown)
    remove_record(record)
    _check_limits(report, limits)


def _check_report(
    shown: ReportOptions, models: Sequence[Path], overwrite: bool, save_base: str | None, reads: list[Path]
) -> None:
    """End the program, before anything is measured, where no report could be written in the end."""
    from ..ui import usage

    if (shown.html is not None or shown.markdown) and not models:
        usage("a report needs files that are compared with the base", "name one or more files after the base")
    if overwrite and shown.html is None and save_base is None:
        usage("--overwrite needs --save-base or --html", "add one of them, or leave it out")
    if shown.html is not None:
        from ...publish.report.page import check_html_target

        check_html_target(shown.html, overwrite, reads)


def _check_limits(report: "DivergenceReport", limits: "Mapping[str, float]") -> None:
    """Print an error for each figure above its limit, and exit with code 1 if there are any."""
    from quants.errors import GgufToolsError

    from ...measurement.divergence_report import exceeded
    from ..ui import print_error

    above = exceeded(report, limits)
    for line in above:
        print_error(GgufToolsError(line))
    if above:
        raise Exit(1)


def _write_html(report: "DivergenceReport", html: str, overwrite: bool, reads: list[Path], threads: int | None) -> None:
    """Write the report as an HTML page, with the errors of the weights if the base has weights."""
    from ...publish.report.page import write_html
    from ...publish.report.weights import tensor_errors
    from ..ui import bytes_progress

    data = report.as_dict()
    for file in data["files"]:
        with bytes_progress(f"compare weights of {Path(file['file']).name}") as progress:
            file["tensors"] = tensor_errors(report.base, file["file"], threads, progress)
    write_html(data, html, overwrite=overwrite, reads=reads)


def _print(report: "DivergenceReport", shown: ReportOptions) -> None:
    from ..ui import print_line, print_result

    if shown.markdown:
        from ...publish.report.card import markdown

        print_result(report, False)
        print_line(markdown(report.as_dict()).rstrip("\n"), keep="\n")
    elif not print_result(report, shown.json):
        _print_files(report, shown.worst)
    sys.stdout.flush()


def _print_files(report: "DivergenceReport", worst: int) -> None:
    """Print each file's figures, in llama-perplexity's order; of several a table of all at the end."""
    from ..ui import print_line, print_table

    windows, scored = (sum(getattr(text, name) for text in report.texts) for name in ("windows", "scored"))
    for file in report.files:
        _print_file(report, file, worst)
    if len(report.files) > 1:
        columns = ("file", "size", "PPL", "ratio", "mean KL", "median", "99.9 %", "max", "same top", "acceptance")
        print_table("all files", columns, [_row(file) for file in report.files], "lrrrrrrrrr")
        print()
    perplexity = f"perplexity {report.base_perplexity:.4f} ± {report.base_perplexity_standard_error:.4f}"
    print_line(f"base {report.base}: {perplexity}, entropy {report.base_entropy:.4f} nats")
    where = f" on {report.device}" if report.device else ""
    print_line(
        f"{windows} windows of {report.n_ctx} tokens, {scored} predictions, products in {report.products}{where}"
    )
    print_noise_floor(report)


def _row(file: "FileDivergence") -> tuple[str, ...]:
    from ..ui import size

    kl, rest = file.kl_divergence, file.figures
    return (
        Path(file.path).name,
        size(file.size),
        f"{rest['perplexity']:.4f}",
        f"{rest['perplexity_ratio']:.5f}",
        f"{_bound(file)}{kl['mean']:.6f} ± {kl['standard_error']:.6f}",
        f"{kl['median']:.6f}",
        f"{kl['p99_9']:.4f}",
        f"{kl['max']:.4f}",
        f"{100 * rest['same_top']:.2f} %",
        _percent(rest["acceptance"]["mean"], 2),
    )


def _nats(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6f}"


def _percent(value: float | None, digits: int = 3) -> str:
    return "unknown" if value is None else f"{100 * value:.{digits}f} %"


def _bound(file: "FileDivergence") -> str:
    return "≥ " if file.lower_bound else ""


def _print_file(report: "DivergenceReport", file: "FileDivergence", worst: int) -> None:
    from ..ui import print_line, print_table, size

    rest = file.figures
    print_line(f"{file.path}: {size(file.size)}, {file.bits_per_weight:.2f} bits per weight {file.type}".rstrip())
    print()
    print_table(None, ("", "", "±"), _lines(report, rest, _bound(file)), "lrr")
    print()
    kl, change = rest["kl_divergence"], rest["p_change"]
    names = [name for name in change if name not in ("mean", "standard_error", "rms", "rms_standard_error")]
    spread = [
        (
            name[1:].replace("_", ".") + " %" if name[1:2].isdigit() else name,
            f"{kl[name]:.6f}" if name in kl else "",
            f"{100 * change[name]:.3f} %",
        )
        for name in names
    ]
    print_table(None, ("", f"{_bound(file)}KL", "Δp"), spread, "lrr")
    print()
    if len(file.texts) > 1:
        rows = [(name, *_row_of_text(figures)) for name, figures in file.texts.items()]
        print_table(None, ("text", "PPL", "ratio", "mean KL", "99.9 %", "same top"), rows, "lrrrrr")
        print()
    for each in file.worst[:worst]:
        where = f"{each['text']}, window {each['window'] + 1}, token {each['position']}"
        print_line(f"KL {each['kl']:.4f} in {where}: …{each['before']!r} then {each['token']!r}")
        print_line(f"  p {each['p_base']:.4f} → {each['p']:.4f}, first {each['base_top']!r} → {each['top']!r}")
    if worst:
        print()


def _lines(report: "DivergenceReport", of: Any, bound: str) -> list[tuple[str, str, str]]:
    """Return the rows of the table of means with their standard errors."""
    change = of["p_change"]
    return [
        ("PPL(file)", f"{of['perplexity']:.6f}", f"{of['perplexity_standard_error']:.6f}"),
        ("PPL(base)", f"{report.base_perplexity:.6f}", f"{report.base_perplexity_standard_error:.6f}"),
        ("correlation of ln PPL", f"{100 * of['correlation']:.2f} %", ""),
        ("ln PPL(file) / PPL(base)", f"{of['log_ratio']:.6f}", f"{of['log_ratio_standard_error']:.6f}"),
        ("PPL(file) / PPL(base)", f"{of['perplexity_ratio']:.6f}", f"{of['perplexity_ratio_standard_error']:.6f}"),
        (
            "PPL(file) - PPL(base)",
            f"{of['perplexity_difference']:.6f}",
            f"{of['perplexity_difference_standard_error']:.6f}",
        ),
        *(
            (what, _nats(of[name]["mean"]), _nats(of[name]["standard_error"]))
            for what, name in (
                (f"{bound}KL(base ‖ file)", "kl_divergence"),
                ("KL(file ‖ base)", "kl_reverse"),
                ("total variation", "total_variation"),
                ("entropy change", "entropy_change"),
            )
        ),
        *(
            (what, _percent(of[name]["mean"]), _percent(of[name]["standard_error"]))
            for what, name in (("acceptance", "acceptance"), ("Δp of the right token", "p_change"))
        ),
        ("RMS Δp", f"{100 * change['rms']:.3f} %", f"{100 * change['rms_standard_error']:.3f} %"),
        ("same top token", f"{100 * of['same_top']:.3f} %", f"{100 * of['same_top_standard_error']:.3f} %"),
        ("right token first in one alone", f"{100 * of['flips']:.3f} %", ""),
    ]


def _row_of_text(of: Any) -> tuple[str, ...]:
    kl = of["kl_divergence"]
    return (
        f"{of['perplexity']:.4f}",
        f"{of['perplexity_ratio']:.5f}",
        f"{kl['mean']:.6f} ± {kl['standard_error']:.6f}",
        f"{kl['p99_9']:.4f}",
        f"{100 * of['same_top']:.2f} %",
    )
