"""Print progress bars, tables, reports and errors. Results go to stdout, the rest to stderr."""

import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from math import isnan
from typing import TYPE_CHECKING, Any, NoReturn

from quants.errors import GgufToolsError

from ..metadata.visible import UNSEEN, visible
from . import terminal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from rich.console import RenderableType

    from quants.arguments import PathLike

    from ..conversion.shards import ShardsReport
    from ..io.stores.pieces import Traffic
    from ..models.model import Model
    from ..quantization.imatrix import ImportanceMatrix
    from ..quantization.imatrix_doctor import Finding
    from ..writing.report import QuantizeReport, TensorReport
    from ..writing.work_plan import WorkPlan

BytesProgress = Callable[[int, int, str], None]
StepProgress = Callable[[int, int, float], None]

FORMAT_VERSION = 1  # of --json: increases when a key is removed or changes its meaning, not when one is added
BETWEEN = 0.1  # seconds between two drawings of a bar
GAP = "  "
WIDEST = 100  # maximum width of a padded column; a longer cell shifts its own row only
HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{6,}")
SINGLE = re.compile("[\x00-\u02ff\u2010-\u2027\u2190-\u21ff]*")  # letters that all take one place


def bytes_progress(title: str) -> AbstractContextManager[BytesProgress]:
    """Return a bar for work counted in bytes, called with (bytes done, total, current item)."""
    return _bar(title, "bytes_details", str)


def window_progress(title: str, value: str = "") -> AbstractContextManager[StepProgress]:
    """Return a bar for work counted in chunks, called with (chunks done, total, figure); `value` names the figure.

    The figure is NaN while there is none.
    """
    return _bar(title, "window_details", lambda figure: "" if not value or isnan(figure) else f"{value} {figure:.4f}")


def named_progress(title: str) -> AbstractContextManager[BytesProgress]:
    """Return a bar for a few things with names, called with (done, total, next name)."""
    return _bar(title, "window_details", str)


@contextmanager
def part_progress() -> "Iterator[Callable[[str, int, int], None]]":
    """Yield a function that shows a bar for one part of the work after another, called with (part, done, total)."""
    with ExitStack() as stack:
        current, bar = "", None

        def update(part: str, done: int, total: int) -> None:
            nonlocal current, bar
            if part != current or bar is None:
                stack.close()
                current, bar = part, stack.enter_context(_bar(part, "window_details", str))
            bar(done, total, "")

        yield update


@contextmanager
def shared_work(workers: int | None, scheduler: str | None) -> Iterator["Executor | None"]:
    """Yield the executor that the options name, if any; print where to watch it as a note."""
    if workers is None and scheduler is None:
        yield None
        return
    from ..writing.clusters import executor_for

    with executor_for(workers, scheduler, note) as executor:
        yield executor


@contextmanager
def _bar(title: str, details: str, noted: Callable[[Any], str]) -> Iterator[Callable[[int, int, Any], None]]:
    """Yield a bar with details from `bars`. noted: formats the third argument of the last call."""
    if terminal.quiet or not sys.stderr.isatty():
        yield lambda done, total, note: None
        return
    from . import bars

    drawn = 0.0

    def update(done: int, total: int, note: Any) -> None:
        nonlocal drawn
        now = time.monotonic()
        if now - drawn >= BETWEEN:
            drawn = now
            bar.update(task, completed=done, total=total or None, note=visible(noted(note)), refresh=True)

    with bars.Bar(getattr(bars, details)(), terminal.console(stderr=True)) as bar:
        task = bar.add_task(visible(title), total=None, note="")
        yield update


def print_line(text: str = "", keep: str = "") -> None:
    """Print a line of a result. keep: invisible characters that are not escaped."""
    print(visible(text, keep))


def print_text(text: str = "") -> None:
    """Print a text of the program itself, without escaping."""
    print(text)


def read_line(prompt: str) -> str:
    """Read a line that the user types. Raises EOFError at the end of input."""
    return input(prompt)


def print_error(error: GgufToolsError) -> None:
    text = HUB_TOKEN.sub("…", str(error))  # typed where none belongs
    terminal.put(sys.stderr, ("error:", "bold red"), f" {visible(text)}")
    if error.hint:
        terminal.put(sys.stderr, ("hint:", "cyan"), f" {visible(error.hint)}")


def usage(message: str, hint: str) -> NoReturn:
    """End the program as a wrong call: exit code 2."""
    print_error(GgufToolsError(message, hint))
    sys.exit(2)


@contextmanager
def resumable_note() -> Iterator[None]:
    """Print a note about --resume when the work is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        note("finished work was kept next to the output; add --resume to continue from there")
        raise


def note(text: str) -> None:
    """Print a remark that is neither result nor error."""
    if not terminal.quiet or text.startswith("warning"):
        shown = visible(terminal.worded(text))
        terminal.put(sys.stderr, (shown, "yellow" if text.startswith("warning") else ""))


@cache
def note_slow_products(threads: int | None) -> None:
    """Print once what in the environment slows down matrix products with so many threads."""
    from quants.arguments import thread_count
    from runtime.kernels.blas import hindrance

    if problem := hindrance(thread_count(threads)):
        note(f"note: {problem}")


def warn_of_context(model: "PathLike | Model", ctx: int | None) -> bool:
    """Warn of a context longer than the model was trained with; return True if it is."""
    from ..measurement.perplexity import context_warning

    warning = None if ctx is None else context_warning(model, ctx)
    if warning:
        note(f"warning: {warning}")
    return bool(warning)


def note_before_running(model: "Model", threads: int | None, ctx: int | None = None) -> None:
    """Print what a user should know before a model runs: slow products, differences from llama.cpp, a long context."""
    note_slow_products(threads)
    note_differences(model.metadata)
    warn_of_context(model, ctx)


def note_differences(metadata: "Mapping[str, Any]") -> None:
    """Print where a file is read differently than by llama.cpp."""
    from ..metadata.assumptions import notes

    for text in notes(metadata):
        note(f"note: {text}")


def print_json(result: Any) -> None:
    """Print a result, or several, as JSON by its `as_dict`, each with the version of the format."""
    print(_json(_versioned(result), indent=2))


def _versioned(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        return [_versioned(each) for each in result]
    plain = _plain(result) if hasattr(result, "as_dict") else result
    return {"format_version": FORMAT_VERSION} | plain if isinstance(plain, dict) else plain


def print_result(result: Any, as_json: bool, written: Sequence[object] = ()) -> bool:
    """Print the warnings of a result, and the result as JSON on request; return True if nothing else should be
    printed. written: files that were written, whose names are all that --quiet leaves of the result.
    """
    for warning in getattr(result, "warnings", ()):
        note(f"warning: {warning}")
    if as_json:
        print_json(result)
        return True
    if terminal.quiet:
        for path in written:
            print_line(str(path))
    return terminal.quiet and bool(written)


def _json(value: Any, indent: int | None = None) -> str:
    """Return JSON whose strings have invisible characters as escapes, and all others as they are."""
    text = json.dumps(value, indent=indent, ensure_ascii=not terminal.is_unicode(sys.stdout), default=_plain)
    return UNSEEN.sub(lambda match: match[0] if match[0] == "\n" else json.dumps(match[0])[1:-1], text)


def _plain(result: Any) -> Any:
    return result.as_dict() if hasattr(result, "as_dict") else str(result)


def print_table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> None:
    """Print a table; `right` has an "r" for each column that is aligned right ("lrr"). Folded on a terminal alone."""
    if title:
        terminal.put(sys.stdout, (visible(title), "bold"))
    shown = [list(map(visible, row)) for row in (columns, *rows)]
    if sys.stdout.isatty() and len(rows) <= MAX_FOLDED:
        console = terminal.console(stderr=False)
        console.print(*folded(shown, right, console.width), sep="", end="")
        return
    head, *lines = table(shown, right)
    if head:
        terminal.put(sys.stdout, (head, "bold"))
    if lines:
        print("\n".join(lines))


def print_markdown(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> None:
    """Print the same table as Markdown, to paste into a model card."""
    if title:
        print_line(f"### {title}")
        print()
    align = ["---:" if right[i : i + 1] == "r" else "---" for i in range(len(columns))]
    for row in (columns, align, *rows):
        print_line("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |")
    print()


def print_report(report: "QuantizeReport", as_json: bool, resume: bool = False) -> None:  # noqa: C901  # one line for each thing a run can report
    """Print what conversion or quantization did. resume: whether --resume was given."""
    if report.resumed_bytes:
        done, total = size(report.resumed_bytes), size(report.source_bytes)
        note(f"resumed: {done} of {total} of tensor data come from an earlier run")
    elif resume and not report.dry_run:
        note("nothing to resume: starting from the beginning")
    unknown = [name for name in report.without_importance if name not in USUALLY_UNKNOWN]
    if unknown:
        note(f"warning: the importance matrix has no data for {', '.join(unknown)}")
    if print_result(report, as_json, [] if report.dry_run else [output.file for output in report.outputs]):
        return
    for output in report.outputs:
        reasons: dict[tuple[str, str], list[str]] = {}  # a line for all tensors that fall back for the same reason
        for tensor in output.fallbacks:
            reasons.setdefault((tensor.format, tensor.fallback or ""), []).append(tensor.name)
        for (form, reason), names in reasons.items():
            who = f"{names[0]} becomes" if len(names) == 1 else f"{len(names)} tensors ({names[0]}, …) become"
            note(f"{output.recipe}: {who} {form}: {reason}")
        types = [(name, str(count), size(nbytes)) for name, (count, nbytes) in output.by_format().items()]
        print_table(None, ("type", "tensors", "bytes"), types, "lrr")
        worst = sorted(output.tensors, key=lambda each: -(each.rmse or 0))
        rows = [(t.name, t.format, f"{t.rmse:.3g}", f"{t.max_error or 0:.3g}") for t in worst if t.rmse]
        if rows:
            print_table(None, ("tensor", "type", "rmse", "largest error"), rows, "llrr")
        if report.transcoding:
            exact = [each for each in report.transcoding if not each.reason]
            kept, all_values = (sum(each.size for each in some) for some in (exact, report.transcoding))
            share = f"{len(exact)} of {len(report.transcoding)} weights, {kept / max(1, all_values):.1%} of the values"
            print_line(f"{share}, became equal GGUF blocks")
            if before := sum(each.as_rounded > 0 for each in exact):
                print_line(f"{before} of them after rounding to 16 bits")
        if any(tensor.feedback for tensor in output.tensors):
            print_line(_feedback_line(output.tensors))
        verb = "would be" if report.dry_run else "is"
        print_line(f"{output.file} {verb} {size(output.nbytes)}, {output.bits_per_weight:.2f} bits per weight")
        if output.manifest is not None:
            print_line(f"{output.manifest} describes how it was made")
    if report.work is not None:
        _print_work(report.work)
    if report.dry_run:
        enough = "enough" if report.fits else "NOT enough"
        if report.free_bytes < sys.maxsize:  # not in a store
            print_line(f"{size(report.free_bytes)} free on the disk: {enough}")
        return
    rate = report.source_bytes / max(report.seconds - report.compile_seconds, 1e-9)
    print_line(f"{report.seconds:.1f} s, {size(rate)}/s{prepared(report.compile_seconds)}")
    if (check := report.check) is not None:
        expected = "as expected" if check.ok else f"expected at most {check.tolerance:g}"
        verdict = expected if check.exact else "not an error, because weights were rounded"
        prompts = f"{check.prompts} random prompt{'s' if check.prompts > 1 else ''}"
        print_line(f"logits are within {check.difference:.2g} std of transformers' on {prompts}: {verdict}")


def prepared(seconds: float) -> str:
    """Return a text with the time for compiling kernels, or for loading those that an earlier run compiled."""
    return f", after {seconds:.1f} s to load or compile kernels" if seconds >= MIN_NAMED else ""


def _print_work(work: "WorkPlan") -> None:
    rows = [
        ("read", size(work.bytes_read)),
        ("written", size(work.bytes_written)),
        ("tasks", f"{work.tasks:,}"),
        ("requests", f"{work.requests:,}"),
        ("memory of a worker", size(work.memory)),
        ("encoding", f"{work.encode_seconds:,.1f} s of all workers, as measured here"),
        ("reading and writing", f"{work.transfer_seconds:,.1f} s of all workers"),
        (f"{work.workers} worker{'s' if work.workers > 1 else ''}", f"{work.hours:.3f} h, {work.busy:.0%} busy"),
        ("cost", f"{work.cost:,.2f}"),
    ]
    print_table(None, ("what it takes", ""), rows, "ll")


def _feedback_line(tensors: "Sequence[TensorReport]") -> str:
    """Return a line on the effect of error feedback, and the weights without it."""
    seen = [tensor.feedback for tensor in tensors if tensor.feedback]
    fed = sum(each["method"] == "feedback" for each in seen)
    ratios = sorted(each["error"] / each["error_before"] for each in seen if each["error_before"])
    line = f"error feedback for {fed} of {len(seen)} weights"
    if ratios:
        line += f"; on texts held back, outputs are {ratios[len(ratios) // 2]:.2f} of the squared error off (median)"
    others = [tensor for tensor in tensors if tensor.feedback is None and tensor.source != tensor.format]
    unseen = [tensor.name for tensor in others if tensor.format not in ("F32", "F16", "BF16")]
    return line + (f"; no product was seen to read {', '.join(unseen[:3])}{' …' * (len(unseen) > 3)}" if unseen else "")


def print_traffic(traffic: "Traffic | None") -> None:
    """Print the traffic of work on a store."""
    if traffic is not None:
        read, sent, copied = map(size, (traffic.read, traffic.sent, traffic.copied))
        print_line(f"stores: {read} read, {sent} sent, {copied} copied by the store itself")


def print_shards(report: "ShardsReport", as_json: bool, written: Sequence[object]) -> None:
    """Print the shards of a set, and the file that has it all. written: which of them this run has written."""
    if print_result(report, as_json, [] if report.dry_run else written):
        return
    rows = [(str(shard.path), str(shard.tensors), size(shard.nbytes)) for shard in report.shards]
    print_table(None, ("shard", "tensors", "bytes"), rows, "lrr")
    print_line(f"{report.whole}: {size(report.whole_bytes)}{'; nothing was written' if report.dry_run else ''}")
    print_traffic(report.traffic)


USUALLY_UNKNOWN = ("output.weight", "token_embd.weight")  # importance matrices leave them out on purpose
MIN_NAMED = 0.05  # seconds; less is not printed
MAX_FOLDED = 2000  # rows; folding them takes a second
MAX_ROWS = 12  # entries and problems in a table; --json has all


def print_matrix(matrix: "ImportanceMatrix", findings: "Sequence[Finding] | None" = None) -> None:
    """Print an importance matrix: its origin, the most and least important tensors, its defects."""
    from ..quantization.imatrix import layer_importance, summary
    from ..quantization.imatrix_doctor import examine

    entries, problems = summary(matrix), examine(matrix) if findings is None else findings
    print_line(
        f"{matrix.path}: {len(entries)} entries from {matrix.chunks} chunks of {matrix.chunk_size} tokens"
        f" ({', '.join(matrix.datasets) or 'dataset not named'})"
    )
    rows = [
        (
            e.name,
            str(e.width),
            f"{e.experts_seen}/{e.experts}" if e.experts > 1 else "-",
            str(e.zero_columns),
            f"{e.importance:.4g}",
        )
        for e in (*entries[: MAX_ROWS // 2], *entries[MAX_ROWS // 2 :][-MAX_ROWS // 2 :])
    ]
    columns = ("most and least important", "columns", "experts seen", "zero columns", "mean square")
    print_table(None, columns, rows, "lrrrr")
    layers = [layer for layer in layer_importance(entries) if layer >= 0]
    print_line(f"layers by importance: {', '.join(map(str, layers))}")
    for finding in problems[:MAX_ROWS]:
        note(str(finding))
    if len(problems) > MAX_ROWS:
        note(f"warning: {len(problems) - MAX_ROWS} more problems; --json lists all")


def print_value(value: Any, as_json: bool) -> None:
    """Print one metadata value in full: strings as they are, everything else (or all, if asked) as JSON."""
    if not isinstance(value, str) or as_json:
        print(_json(value))
    elif sys.stdout.isatty():
        print_line(value, keep="\n\t")  # without escape sequences, which the terminal would execute
    else:
        lossless = value if terminal.is_unicode(sys.stdout) else value.encode("ascii", "backslashreplace").decode()
        print(lossless)  # byte for byte, to extract templates


def size(count: float) -> str:
    """Format a number of bytes: 1.50 GB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def places(text: str) -> int:
    """Return how many places of a terminal a text takes: two for a wide letter, none for a mark on another."""
    if text.isascii() or SINGLE.fullmatch(text):
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def table(rows: Sequence[Sequence[str]], right: str = "") -> Iterator[str]:
    """Return the text of each row, columns aligned. right: an "r" for each column that is aligned right ("lrr")."""
    padded = []  # without rich, which is slow for long tables
    for i, column in enumerate(zip(*rows, strict=True)):
        taken = list(map(places, column))
        width = min(max(taken), WIDEST)
        cells = zip(column, (" " * (width - size) for size in taken), strict=True)
        padded.append([gap + cell if right[i : i + 1] == "r" else cell + gap for cell, gap in cells])
    return (GAP.join(cells).rstrip(" ") for cells in zip(*padded, strict=True))


def folded(rows: Sequence[Sequence[str]], right: str, width: int) -> "Iterator[RenderableType]":
    """Yield the same table for rich, in lines of at most `width`, the first row bold.

    Where a word is wider than its column, its cell has lines of its own, and the columns after it go below.
    """
    from rich.padding import Padding
    from rich.table import Column, Table
    from rich.text import Text

    numbers = [right[i : i + 1] == "r" for i in range(len(rows[0]))]  # are not folded
    words = [
        [max(map(places, (cell,) if whole else cell.split(" "))) for cell, whole in zip(row, numbers, strict=True)]
        for row in rows
    ]
    widths = _widths(rows, words, width - len(GAP) * (len(rows[0]) - 1))

    def grid() -> Table:
        columns = (
            Column(width=column_width, justify="right" if whole else "left", overflow="fold")
            for column_width, whole in zip(widths, numbers, strict=True)
        )
        return Table.grid(*columns, padding=(0, len(GAP), 0, 0))

    body, style = grid(), "bold"
    for row, wide in zip(rows, words, strict=True):
        line = [Text("") for _ in row]
        for i, cell in enumerate(row):
            if wide[i] <= widths[i]:
                line[i] = Text(cell)
                continue
            if any(line):
                body.add_row(*line, style=style)
            yield body
            indent = min(sum(widths[:i]) + len(GAP) * i, max(0, width - wide[i]))
            yield Padding(Text(cell, style, overflow="fold"), (0, 0, 0, indent))
            body, line = grid(), [Text("") for _ in row]
        if any(line):
            body.add_row(*line, style=style)
        style = ""
    yield body


def _widths(rows: Sequence[Sequence[str]], words: Sequence[Sequence[int]], room: int) -> list[int]:
    """Return the columns' widths: fit words, shortest first, while there is room; then whole cells from the left."""
    widths = [0] * len(rows[0])
    for needed, i in sorted({(needed, i) for row in words for i, needed in enumerate(row)}):
        if sum(widths) - widths[i] + needed <= room:
            widths[i] = needed
    for i, width in enumerate(widths):
        needed = max((places(row[i]) for row, wide in zip(rows, words, strict=True) if wide[i] <= width), default=0)
        widths[i] += max(0, min(needed - width, room - sum(widths)))
    return widths
