"""Draw the charts of the report as SVG for an HTML page, with matplotlib and the colours of the page's style.

Colours are drawn as numbers that stand for variables of the page, which has others for light and dark. Text stays
text. The same results give the same bytes.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from quants.errors import GgufToolsError

from .numbers import byte_size, significant
from .results import Curve, Measured
from .verdict import beaten_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 440  # pixels; so that a telephone, which shows it smaller, still has letters of nine
FONT = 12.0
ROW = 30  # pixels of height for a file, where each has a row
INK, MUTED, GRID, SURFACE = "#000101", "#000102", "#000103", "#000104"
SERIES = tuple(f"#0002{number:02x}" for number in range(6))  # colours of files; line styles tell further ones apart
STYLES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    SURFACE: "--surface",
    **{colour: f"--series-{number}" for number, colour in enumerate(SERIES)},
}
EXTRA = 'install the extra: pip install "gguftools[report]"'
MIN_KL = 1e-9  # what stands for none where the axis has powers of ten
CHANGES = ("p1", "p5", "p25", "median", "p75", "p95", "p99")


@contextmanager
def drawing() -> Iterator[None]:
    """Set matplotlib up for these charts, whatever the user's settings. Raises GgufToolsError if it is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise GgufToolsError("drawing a report needs matplotlib, which is not installed", EXTRA) from error
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that its font lacks: the page's fonts draw them
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.fonttype": "none",
                "svg.hashsalt": "gguftools",
                "text.parse_math": False,
                "font.size": FONT,
                "axes.edgecolor": GRID,
                "axes.labelcolor": MUTED,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.grid": True,
                "axes.axisbelow": True,
                "grid.color": GRID,
                "grid.linewidth": 0.8,
                "text.color": INK,
                "xtick.color": GRID,
                "ytick.color": GRID,
                "xtick.labelcolor": MUTED,
                "ytick.labelcolor": MUTED,
                "xtick.labelsize": FONT - 1,
                "ytick.labelsize": FONT - 1,
                "axes.facecolor": "none",
                "lines.linewidth": 1.8,
                "axes.unicode_minus": True,
            }
        )
        yield


def new(height: float) -> tuple["Figure", "Axes"]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained", facecolor="none")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def svg(figure: "Figure", name: str, title: str, description: str) -> str:
    """Return the chart as an element of a page. name: prefix of its ids; title, description: for screen readers."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = written.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(?:xlink:)?href="#', f'href="#{name}-', text)
    text = text.replace("url(#", f"url(#{name}-")
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # a page's style it would be, too
    text = re.sub(r"(?<=: )#000[12]0[0-9a-f]", lambda match: f"var({VARIABLES.get(match[0], '--ink')})", text)
    text = re.sub(r" font-family: [^;\"]*;", "", text)
    text = re.sub(r"[ \t]*\n[ \t]*", "\n", text)
    box = re.search(r'viewBox="([^"]*)"', text)
    head = (
        f'<svg viewBox="{box[1] if box else ""}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    )
    return head + text[text.index(">") + 1 :]


def colours(count: int) -> list[dict[str, Any]]:
    """Return a colour and line style for each of so many files."""
    styles = [(style, colour) for style in STYLES for colour in SERIES]
    return [{"linestyle": style, "color": colour} for style, colour in (styles * (count // len(styles) + 1))[:count]]


def plain_logarithm(axis: Any, values: Sequence[float]) -> None:
    """Give a logarithmic axis plain numbers as marks; if it spans less than two powers of ten, also between them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    narrow = max(values) / min(values) < 100
    axis.set_major_locator(LogLocator(10, (1, 2, 5) if narrow else (1,), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: significant(value, 1)))
    axis.set_minor_formatter(NullFormatter())


def frontier(files: Sequence[Measured]) -> str:
    """Draw size against mean divergence, files that another one beats in grey. Returns "" if no size is known."""
    known = list(filter(has_size, files))
    if not known:
        return ""
    figure, axes = new(340)
    best = [beaten_by(file, known) is None for file in known]
    scale = next((10**power for power in (9, 6, 3) if max(f.figures["size_bytes"] for f in known) >= 10**power), 1)
    unit = {10**9: "GB", 10**6: "MB", 10**3: "kB"}.get(scale, "bytes")
    floor = _floor([file.kl for file in known])
    points = [(file.figures["size_bytes"] / scale, max(file.kl, floor)) for file in known]
    axes.set_yscale("log")
    steps = sorted(point for point, good in zip(points, best, strict=True) if good)
    axes.plot(*zip(*steps, strict=True), color=SERIES[0], linewidth=1.2, alpha=0.6, zorder=2)
    for file, (x, y), good in zip(known, points, best, strict=True):
        error = file.figures.get("kl_divergence.standard_error", 0.0)
        if 0 < error < math.inf:
            low = min(2 * error, y * 0.9)
            axes.errorbar(x, y, [[low], [2 * error]], color=SERIES[0] if good else MUTED, linewidth=1.2, zorder=2)
        axes.plot(
            x,
            y,
            "o",
            markersize=8,
            color=SERIES[0] if good else SURFACE,
            zorder=3,
            markeredgecolor=SERIES[0] if good else MUTED,
            markeredgewidth=1.5,
        )
    axes.margins(x=0.14, y=0.12)
    if len({x for x, _ in points}) == 1:
        axes.set_xlim(0.8 * points[0][0], 1.2 * points[0][0])
    plain_logarithm(axes.yaxis, [y for _, y in points])
    axes.set_xlabel(f"size of the file in {unit}")
    axes.set_ylabel("mean KL divergence in nats")
    _place_labels(figure, axes, points, [file.label for file in known], best)
    text = "; ".join(
        f"{file.label}: {byte_size(file.figures['size_bytes'])}, {significant(file.kl)}{'' if good else ', grey'}"
        for file, good in zip(known, best, strict=True)
    )
    return svg(figure, "frontier", "Size against divergence", f"Lower and further left is better. {text}.")


def has_size(file: Measured) -> bool:
    return 0 < file.figures.get("size_bytes", 0) < math.inf and math.isfinite(file.kl)


def _floor(values: Sequence[float]) -> float:
    """Return where zero is drawn on a logarithmic axis: a tenth of the smallest positive value."""
    return max(min((value for value in values if value > 0), default=1e-4) / 10, MIN_KL)


def _place_labels(
    figure: "Figure", axes: "Axes", points: Sequence[tuple[float, float]], names: Sequence[str], strong: Sequence[bool]
) -> None:
    """Place each name next to its point, where it covers neither another name nor a point."""
    figure.canvas.draw()
    places = axes.transData.transform(points)
    frame = axes.get_window_extent()
    taken: list[tuple[float, ...]] = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    choices = [
        (10, 0, "left"),
        (-10, 0, "right"),
        (0, 15, "center"),
        (0, -15, "center"),
        (8, 13, "left"),
        (8, -13, "left"),
        (-8, 13, "right"),
        (-8, -13, "right"),
    ]
    for (x, y), name, good in zip(places, names, strong, strict=True):
        wide = 0.62 * FONT * len(name)

        def box(dx: float, dy: float, side: str, x: float = x, y: float = y, wide: float = wide) -> tuple[float, ...]:
            left = x + dx - {"left": 0, "right": wide, "center": wide / 2}[side]
            return left, y + dy - 7, left + wide, y + dy + 7

        def covered(choice: tuple[float, float, str], box: Callable[..., tuple[float, ...]] = box) -> float:
            a = box(*choice)
            sides = [(min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])) for b in taken]
            over = sum(max(0, width) * max(0, height) for width, height in sides)
            outside = max(0, frame.x0 - a[0]) + max(0, a[2] - frame.x1 - 4) + max(0, frame.y0 - a[1])
            return float(over + 20 * outside)

        dx, dy, side = min(choices, key=covered)
        taken.append(box(dx, dy, side))
        axes.annotate(
            name,
            (x + dx, y + dy),
            xycoords="figure pixels",
            ha=side,
            va="center",
            annotation_clip=False,
            color=INK if good else MUTED,
            in_layout=False,
        )


def distributions(files: Sequence[Measured]) -> str:
    """Draw a row per file: the histogram of its divergences on a logarithmic axis, and the mean."""
    known = list(filter(has_histogram, files))
    if not known:
        return ""
    figure, axes = new(70 + (ROW + 8) * len(known))
    for row, file in enumerate(known):
        edges, counts = _steps(file.histogram)
        base, top = -row, max(counts)
        heights = [base + 0.86 * count / top for count in counts]
        axes.stairs(heights, edges, baseline=base, fill=True, color=SERIES[0], alpha=0.35, zorder=3)
        axes.stairs(heights, edges, baseline=base, color=SERIES[0], linewidth=1.2, zorder=3)
        for key, colour in (("kl_divergence.mean", INK), ("kl_divergence.p99", SERIES[1])):
            value = file.figures.get(key, 0)
            if 0 < value < math.inf:
                axes.plot([math.log10(value)] * 2, [base, base + 0.86], color=colour, linewidth=1.6, zorder=4)
    used = [
        edge
        for file in known
        for edge, count in zip(file.histogram.edges, file.histogram.values, strict=False)
        if count > 0.0005 * sum(file.histogram.values)
    ]
    low, high = min(used), max(max(used) + 0.3, max(_steps(file.histogram)[0][0] for file in known) + 0.5)
    axes.set_xlim(low, max(high, low + 1))
    axes.set_ylim(-len(known) + 0.9, 1)
    axes.set_yticks([-row for row in range(len(known))], [file.label for file in known], color=INK)
    axes.tick_params(axis="y", length=0)
    _powers(axes, low, max(high, low + 1))
    axes.set_xlabel("KL divergence of a single prediction in nats")
    axes.spines["left"].set_visible(False)
    summary = "; ".join(
        f"{file.label}: median {significant(file.figures.get('kl_divergence.median'))}, mean {significant(file.kl)},"
        f" 99 % under {significant(file.figures.get('kl_divergence.p99'))}"
        for file in known
    )
    return svg(figure, "distribution", "Distribution of the divergence", f"{summary}.")


def has_histogram(file: Measured) -> bool:
    return bool(file.histogram) and sum(file.histogram.values) > 0


def _steps(curve: Curve) -> tuple[list[float], list[float]]:
    """Return edges and values, with one more edge than values."""
    edges, values = curve.edges, curve.values
    if len(edges) == len(values):
        edges = [*edges, 2 * edges[-1] - edges[-2] if len(edges) > 1 else edges[-1] + 1]
    return edges, values


def _powers(axes: "Axes", low: float, high: float) -> None:
    marks = range(math.ceil(low), math.floor(high) + 1)
    step = max(1, -(-len(marks) // 8))
    axes.set_xticks(list(marks)[::step], [significant(10.0**mark, 1) for mark in list(marks)[::step]])


def changes(files: Sequence[Measured]) -> str:
    """Draw a row per file: percentiles of the change of the right token's probability."""
    known = list(filter(has_changes, files))
    if not known:
        return ""
    figure, axes = new(60 + ROW * len(known))
    for row, file in enumerate(known):
        p1, p5, p25, median, p75, p95, p99 = (100 * file.figures[f"p_change.{key}"] for key in CHANGES)
        axes.plot([p1, p99], [-row, -row], color=SERIES[0], linewidth=1.2, zorder=3)
        axes.plot([p5, p95], [-row, -row], color=SERIES[0], linewidth=5, alpha=0.55, solid_capstyle="butt", zorder=3)
        axes.plot([p25, p75], [-row, -row], color=SERIES[0], linewidth=11, solid_capstyle="butt", zorder=3)
        axes.plot(median, -row, "o", markersize=5, color=SURFACE, markeredgecolor=INK, zorder=4)
    axes.axvline(0, color=MUTED, linewidth=1)
    axes.set_yticks([-row for row in range(len(known))], [file.label for file in known], color=INK)
    axes.set_ylim(-len(known) + 0.4, 0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("change in percentage points")
    lost = [(file.label, significant(-100 * file.figures["p_change.p5"], 2)) for file in known]
    summary = "; ".join(f"{label}: 5 % lost more than {points} points" for label, points in lost)
    return svg(figure, "changes", "Change of the right token's probability", f"{summary}.")


def has_changes(file: Measured) -> bool:
    return all(math.isfinite(file.figures.get(f"p_change.{key}", math.nan)) for key in CHANGES)


def by_position(files: Sequence[Measured]) -> str:
    """Draw the mean divergence by position in the window, a line per file."""
    lines = [(file, _middles(file.positions), file.positions.values) for file in files if has_positions(file)]
    title, axis = "Divergence by position in the window", "position in the window in tokens"
    return _lines("positions", title, axis, lines)


def settling(files: Sequence[Measured]) -> str:
    """Draw the mean over the windows read so far, a line per file."""
    lines = [(f, [float(n) for n in range(1, len(f.chunks) + 1)], f.chunks) for f in files if has_windows(f)]
    return _lines("settling", "Mean divergence by windows read", "windows read", lines)


def has_positions(file: Measured) -> bool:
    return bool(file.positions)


def has_windows(file: Measured) -> bool:
    return len(file.chunks) > 1


def _middles(curve: Curve) -> list[float]:
    edges, _ = _steps(curve)
    return [(a + b) / 2 for a, b in pairwise(edges)]


def _lines(name: str, title: str, axis: str, lines: Sequence[tuple[Measured, Sequence[float], Sequence[float]]]) -> str:
    """Draw lines on a logarithmic axis, each with its file's name at its end."""
    if not lines:
        return ""
    figure, axes = new(max(300, 80 + 17 * len(lines)))
    floor = _floor([value for _, _, ys in lines for value in ys])
    for (_, xs, ys), style in zip(lines, colours(len(lines)), strict=True):
        axes.plot(xs, [max(y, floor) for y in ys], **style, marker="o" if len(xs) == 1 else None)
    axes.set_yscale("log")
    plain_logarithm(axes.yaxis, [max(y, floor) for _, _, ys in lines for y in ys])
    axes.set_xlabel(axis)
    axes.set_ylabel("mean KL divergence in nats")
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    longest = max(len(file.label) for file, _, _ in lines)
    figure.get_layout_engine().set(rect=(0, 0, 1 - min(0.52, (0.64 * FONT * longest + 16) / WIDTH), 1))
    figure.canvas.draw()
    ends = [(max(xs), max(ys[-1], floor)) for _, xs, ys in lines]
    wanted = [float(y) for _, y in axes.transData.transform(ends)]
    left = float(axes.get_window_extent().x1) + 8
    for place, (file, _, _), style, y in zip(_apart(wanted, 15), lines, colours(len(lines)), wanted, strict=True):
        axes.annotate(
            file.label,
            (left, place),
            xycoords="figure pixels",
            va="center",
            color=style["color"],
            annotation_clip=False,
            in_layout=False,
        )
        if abs(place - y) > 4:
            axes.annotate(
                "",
                (left - 7, y),
                (left - 1, place),
                xycoords="figure pixels",
                textcoords="figure pixels",
                arrowprops={"arrowstyle": "-", "color": style["color"], "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
                annotation_clip=False,
            )
    summary = "; ".join(f"{file.label}: from {significant(ys[0])} to {significant(ys[-1])}" for file, _, ys in lines)
    return svg(figure, name, title, f"{summary}.")


def _apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Return positions close to the wanted ones, with at least a gap between any two."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[tuple[float, int]] = []  # middle, how many
    for i in order:
        groups.append((wanted[i], 1))
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            (a, m), (b, n) = groups[-2:]
            groups[-2:] = [((a * m + b * n) / (m + n), m + n)]
    places = [middle + gap * (i - (count - 1) / 2) for middle, count in groups for i in range(count)]
    return [place for _, place in sorted(zip(order, places, strict=True))]
