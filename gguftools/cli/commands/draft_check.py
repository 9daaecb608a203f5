"""Measure which draft model speeds up speculative decoding.

Measures acceptance on texts, tokens per cycle, the best draft length and the speed-up at each temperature.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

if TYPE_CHECKING:
    from ...lab.drafts import DraftCheckReport, DraftFigures, TemperatureFigures

EXAMPLES = (
    "gguftools draft-check model-Q8_0.gguf model-Q2_K.gguf",
    "gguftools draft-check big.gguf small.gguf --draft-lookup -f novel.txt",
    "gguftools draft-check big.gguf small.gguf --temps 0,1 --cost-ratio 0.1",
)
GROUP = "Measure"
PANELS = {"Expert options": ("cost_ratio", "verify_cost", "simulate", "seed", "markdown")}
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)  # draft lengths that have a column


def draft_check(
    target: Annotated[Path, Argument(help="Target model: the GGUF file to speed up (of a split set, any shard).")],
    drafts: Annotated[list[Path] | None, Argument(help="Draft models (GGUF files).")] = None,
    draft_lookup: Annotated[bool, "Draft by prompt lookup (n-grams of the text so far): measured, too."] = False,
    draft_mtp: Annotated[bool, "Draft with the model's own MTP layer: measured, too."] = False,
    texts: list[str] | None = None,
    ctx: int | None = None,
    chunks: int | None = None,
    temps: Annotated[Any, "Temperatures, 0 for greedy: 0,0.5,0.8,1 if not given."] = None,
    draft_max: Annotated[int, Option(min=1, max=64, help="Maximum number of drafted tokens.")] = 16,
    cost_ratio: Annotated[
        Any, "Cost of a drafted token in tokens of the target: a number, timed (measured here) or bytes (estimated)."
    ] = "timed",
    verify_cost: Annotated[
        float | None, Option(help="Cost that each drafted token adds to verification: measured if not given.")
    ] = None,
    simulate: Annotated[int, Option(min=0, help="Tokens to generate per draft and temperature (0 = none).")] = 256,
    seed: Annotated[int, Option(min=0, max=2**32 - 1, help="Random seed: of --simulate.")] = 1,
    threads: int | None = None,
    markdown: bool = False,
    json: bool = False,
) -> None:
    from ...lab.drafts import TEMPERATURES, DraftCheckOptions
    from ...lab.drafts import draft_check as check
    from ...measurement.texts import named_texts
    from ...models.model import opened_gguf
    from ..ui import note_slow_products, print_result, usage, window_progress

    if not (drafts or draft_lookup or draft_mtp):
        usage("there is no draft to check", "name a file behind the model, or add --draft-lookup or --draft-mtp")
    named = None if texts is None else named_texts(texts)
    note_slow_products(threads)
    with window_progress(f"check drafts for {target.name}", "acceptance") as progress:
        report = check(
            opened_gguf(target),
            *map(opened_gguf, drafts or ()),
            text=named,
            n_ctx=ctx,
            chunks=chunks,
            threads=threads,
            options=DraftCheckOptions(
                lookup=draft_lookup,
                mtp=draft_mtp,
                temperatures=temps or TEMPERATURES,
                draft_max=draft_max,
                cost_ratio=cost_ratio,
                verify_cost=verify_cost,
                simulated=simulate,
                seed=seed,
            ),
            progress=progress,
        )
    if not print_result(report, json):
        _print(report, markdown)
    if not report.possible:
        raise Exit(1)


def _print(report: "DraftCheckReport", markdown: bool) -> None:
    from ..ui import print_line, print_markdown, print_table

    table = print_markdown if markdown else print_table

    def shown(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: str) -> None:
        table(title, columns, rows, right)
        if not markdown:
            print_line()

    measured = [draft for draft in report.drafts if draft.temperatures]
    if measured:
        figures = [(draft, at) for draft in measured for at in draft.temperatures]
        columns = ["draft", "temp", "acceptance", "±", "length", "tokens a cycle", "±", "speed-up"]
        shown(f"drafts for {report.target}", columns, [_row(*each) for each in figures], "lrrrrrrr")
        if any(at.simulation for _, at in figures):
            columns = ["draft", "temp", "length", "tokens", "accepted", "Σ min(p, q)", "±"]
            columns += ["tokens a cycle", "±", "predicted"]
            rows = [_simulated(*each) for each in figures]
            shown(f"decoding as it ran, seed {report.seed}", columns, rows, "lrrrrrrrrr")
        longest = max(len(at.speedup) for _, at in figures)
        lengths = [length for length in LENGTHS if length <= longest]
        rows = [row for draft in measured for row in _by_length(draft, lengths)]
        heads = ("draft", "temp", *map(str, lengths))
        shown("tokens a cycle, and the speed-up, by draft length", heads, rows, f"lr{'r' * len(lengths)}")
        if len(report.texts) > 1:
            rows = [row for draft in measured for row in _by_text(draft)]
            shown(
                "texts",
                ("draft", "temp", "text", "acceptance", "same top", "length", "tokens a cycle"),
                rows,
                "lrlrrrr",
            )
    for line in _lines(report):
        print_line(line)


def _row(draft: "DraftFigures", at: "TemperatureFigures") -> tuple[str, ...]:
    length = at.draft_length or 1
    shown = at.tokens_per_cycle[length - 1 : length]
    return (
        _short(draft),
        f"{at.temperature:g}",
        f"{at.acceptance['mean']:.4f}",
        f"{at.acceptance['standard_error']:.4f}",
        str(length) if at.draft_length else f"none ({length})",
        "".join(f"{each:.3f}" for each in shown),
        "".join(_number(each, 3) for each in at.standard_error[length - 1 : length]),
        "".join(f"{each:.2f}" for each in at.speedup[length - 1 : length]),
    )


def _simulated(draft: "DraftFigures", at: "TemperatureFigures") -> tuple[str, ...]:
    run = at.simulation
    if run is None:
        return (_short(draft), f"{at.temperature:g}", *[""] * 8)
    return (
        _short(draft),
        f"{at.temperature:g}",
        str(run.draft_length),
        str(run.tokens),
        f"{run.acceptance:.4f}",
        f"{run.expected_acceptance:.4f}",
        f"{run.acceptance_standard_error:.4f}",
        f"{run.tokens_per_cycle:.3f}",
        f"{run.standard_error:.3f}",
        _number(run.predicted, 3),
    )


def _by_length(draft: "DraftFigures", lengths: Sequence[int]) -> Iterator[tuple[str, ...]]:
    for at in draft.temperatures:
        for name, values, digits in (("", at.tokens_per_cycle, 3), ("×", at.speedup, 2)):
            cells = (f"{name}{values[length - 1]:.{digits}f}" if length <= len(values) else "" for length in lengths)
            yield (_short(draft), f"{at.temperature:g}", *cells)


def _by_text(draft: "DraftFigures") -> Iterator[tuple[str, ...]]:
    for at in draft.temperatures:
        for name, of in at.texts.items():
            mean = of["acceptance"]
            cells = "" if mean is None else f"{mean['mean']:.4f} ± {mean['standard_error']:.4f}"
            same = "" if of["agreement"] is None else f"{100 * of['agreement']:.2f} %"
            length, tokens = str(of["draft_length"]), _number(of["tokens_per_cycle"], 3)
            yield (_short(draft), f"{at.temperature:g}", name, cells, same, length, tokens)


def _lines(report: "DraftCheckReport") -> Iterator[str]:
    """Yield the lines below the tables."""
    for draft in report.drafts:
        for obstacle in draft.obstacles:
            yield f"{draft.name} can NOT draft: {obstacle}"
        if draft.obstacles and draft.edits:
            yield f"to edit: gguftools set-metadata {draft.name} {' '.join(draft.edits)}"
        for remark in draft.notes if draft.possible else ():
            yield f"{draft.name}: {remark}"
        if draft.temperatures:
            yield from _about(draft)
    if any(draft.temperatures for draft in report.drafts):
        scored = sum(text.scored for text in report.texts)
        last = len(report.verify) - 1
        how = "as timed here" if report.verify_source == "timed" else "as given"
        yield f"a pass that checks {last} drafted tokens costs {report.verify[last]:.2f} of one token's, {how}"
        yield f"{scored} places in windows of {report.n_ctx} tokens; no sampler but the temperature"
    for at in report.best:
        name = at["draft"]
        faster = f"the best is {name}, {at['draft_length']} tokens drafted: {at['speedup']:.2f} times as fast"
        yield f"temperature {at['temperature']:g}: {faster if name else 'no draft is faster than the model alone'}"


def _about(draft: "DraftFigures") -> Iterator[str]:
    how = {"timed": "as timed here", "bytes": "by bytes read", "given": "as given"}.get(draft.cost_source or "", "")
    if draft.kind == "lookup":
        yield f"{draft.name}: something is found at {100 * (draft.offered or 0):.1f} % of the places, at no cost"
    else:
        yield f"{draft.name}: drafting a token costs {draft.cost_ratio or 0:.3f} of one of the model, {how}"
    if draft.runs is not None and draft.runs["mean"] is not None:
        runs = draft.runs
        middle = f"mean {runs['mean']:.2f}, median {runs['median']:g}, longest {runs['longest']}"
        yield f"{draft.name}: the same top token at {100 * (draft.agreement or 0):.2f} %; in a row {middle}"


def _short(draft: "DraftFigures") -> str:
    return Path(draft.name).name


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
