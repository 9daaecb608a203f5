"""Print how models fit into memory."""

from typing import TYPE_CHECKING

from ..inspection.fitting import shell
from .ui import print_line, print_table

if TYPE_CHECKING:
    from ..inspection.fitting import FileFit, FitReport

COLUMNS = ("file", "weights", "cache", "compute", "mmproj", "total", "in RAM", "fits", "longest context")


def print_fit(report: "FitReport") -> None:
    """Print a table of files, what is only estimated, and how to run the chosen file, or each."""
    cpu = report.options.cpu
    rows = [_row(each, report) for each in report.files]
    encoder = any(each.whole.encoder for each in report.files)
    dropped = {i for i, name in enumerate(COLUMNS) if (name == "mmproj" and not encoder) or (name == "in RAM" and cpu)}
    if report.memory is None:
        dropped |= {COLUMNS.index("fits"), COLUMNS.index("longest context")}
    print_table(
        _title(report),
        [name for i, name in enumerate(COLUMNS) if i not in dropped],
        [[cell for i, cell in enumerate(row) if i not in dropped] for row in rows],
        "".join("l" if name in ("file", "fits") else "r" for i, name in enumerate(COLUMNS) if i not in dropped),
    )
    for each in report.files:
        if each.estimated:
            low, high = binary(each.compute_low), binary(sum(each.whole.compute))
            print_line(f"{each.path.name}: estimated ({each.estimated}): compute buffers of {low} to {high}")
    if report.memory is None:
        return
    if report.chosen is not None:
        print_line(f"run: {shell(report.files[report.chosen].command)}")
        return
    for each in report.files:
        print_line(_plan(each, cpu))


def _title(report: "FitReport") -> str:
    options = report.options
    types = {options.cache_type, options.cache_type_v or options.cache_type}
    room = "" if report.memory is None else f" in {binary(report.memory)}, {binary(options.margin)} left free"
    slots = f", {options.parallel} slots" if options.parallel > 1 else ""
    return f"context {options.context:,}, cache {'/'.join(sorted(types))}{slots}{room}"


def _row(each: "FileFit", report: "FitReport") -> list[str]:
    place, whole = (1 if report.options.cpu else 0), each.whole
    total = whole.ram if report.options.cpu else whole.device
    mark = "~" if each.estimated else ""
    if report.memory is None:
        verdict = ""
    elif each.fits:
        verdict = "yes"
    elif each.cpu_moe:
        verdict = f"with experts of {each.cpu_moe} layers in RAM"
    elif each.gpu_layers:
        verdict = f"{each.gpu_layers} of {each.layers} layers"
    else:
        verdict = "no"
    return [
        each.path.name,
        binary(whole.weights[place]),
        binary(whole.cache[place]),
        mark + binary(whole.compute[place]),
        binary(whole.encoder),
        mark + binary(total),
        binary(whole.ram),
        verdict,
        "none" if each.longest is None else f"{each.longest:,}",
    ]


def _plan(each: "FileFit", cpu: bool) -> str:
    if cpu or not each.gpu_layers:
        return f"{each.path.name} does not fit" + ("" if cpu else ": there is no room for a layer")
    use = f"{binary(each.use.device)} on the card, {binary(each.use.ram)} in RAM"
    return f"{use}: {shell(each.command)}"


def binary(count: int) -> str:
    """Return bytes in MiB, or in GiB from 10 GiB on."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 10 << 30 else f"{count / (1 << 20):,.0f} MiB"
