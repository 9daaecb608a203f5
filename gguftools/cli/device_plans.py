"""Plan measurements on graphics cards for commands, and show the plans."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .device_options import DeviceChoice, PlanChoice

if TYPE_CHECKING:
    from ..measurement.device_plan import CardPlan, DevicePlan, FileWork
    from ..measurement.texts import NamedText
    from ..models.model import Model

PLACEMENTS = {"resident": "all on the card", "layers": "layer by layer", "experts": "expert by expert"}
UNITS = ("", "k", "M", "G", "T", "P", "E")


def show_plan(
    measurement: str,
    sources: "Sequence[Model]",
    texts: "Sequence[NamedText]",
    windows: tuple[int, int | None, int],
    where: DeviceChoice,
    choice: PlanChoice,
    threads: int | None,
    json: bool,
) -> None:
    """Plan a measurement and print the plan. windows: their tokens, how many are read of each text, the stride."""
    from ..measurement.cards import CARDS, card_named
    from ..measurement.device_plan import PlanOptions, device_plan, windows_in
    from .ui import print_result

    n_ctx, chunks, stride = windows
    options = PlanOptions(measurement, n_ctx, where.fast, where.device_memory, processors=threads)
    cards = CARDS if choice.card is None else [card_named(choice.card)]
    plan = device_plan(sources, windows_in(sources[0], texts, n_ctx, chunks, stride), cards, options)
    if not print_result(plan, json):
        _print(plan)


def _print(plan: "DevicePlan") -> None:
    from ..measurement.device_plan import DISK, PRODUCTS_SHARE
    from .ui import print_line, print_table, size

    products = "TF32 where a card has it" if plan.fast else "float32"
    print_line(f"{plan.measurement} of {plan.tokens:,} tokens, windows of {plan.n_ctx}, products in {products}")
    for work in plan.files:
        print_table(work.file, ("", ""), _rows_of(work), "ll")
    columns = ("card", "weights", "memory", "moved", "products", "bandwidth", "transfer", "disk", "decoding", "time")
    rows = [_row_of(each) for each in plan.cards]
    print_line(f"assumed: {PRODUCTS_SHARE:.0%} of a card's published operations per second, a disk of {size(DISK)}/s")
    print_table(None, (*columns, "limited by"), rows, "ll" + "r" * (len(columns) - 2) + "l")


def _rows_of(work: "FileWork") -> list[tuple[str, str]]:
    from .ui import size

    flop = ", ".join(f"{kind} {_short(count)}" for kind, count in work.flop.items())
    return [
        ("layers", f"{work.layers}, the largest {size(work.layer_bytes)} on the card"),
        ("weights", f"{size(work.weight_bytes)} on the card, {size(work.read_bytes)} on disk"),
        ("decoded", f"{_short(work.decoded)} weights"),
        ("FLOP", f"{_short(sum(work.flop.values()))}: {flop}"),
        ("hidden states", f"{size(work.state_bytes)} on the host between layers, if streamed"),
    ]


def _row_of(plan: "CardPlan") -> tuple[str, ...]:
    from .ui import size

    parts = [_time(plan.seconds[part]) for part in ("products", "bandwidth", "transfer", "disk", "decoding")]
    where, total = PLACEMENTS[plan.placement], _time(plan.total)
    limit = plan.limit if plan.fits else "memory: too little"
    return plan.card, where, size(plan.memory_bytes), size(plan.moved_bytes), *parts, total, limit


def _short(count: float) -> str:
    """Return a count with a unit: 3.20 P."""
    for unit in UNITS[:-1]:
        if count < 1000:
            return f"{count:.3g} {unit}".rstrip()
        count /= 1000
    return f"{count:.3g} {UNITS[-1]}"


def _time(seconds: float) -> str:
    if seconds >= 600:
        return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
