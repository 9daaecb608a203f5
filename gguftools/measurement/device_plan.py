"""Predict what measuring a model on a graphics card takes: work, memory, bytes and time. Nothing is run.

Operations are counted in the model's graph. A model whose weights fit is loaded, then computed; one that does not fit
goes through the card layer by layer, while the next layer is read, decoded and moved. What limits it then decides the
time. The shares below say how much of a published rate remains in practice.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from quants import Tensor
from quants.arguments import PathLike, as_count
from quants.errors import OptionError

from ..models.model import Model, opened
from .cards import CARDS, Card
from .texts import NamedText, windows_of

if TYPE_CHECKING:
    from runtime.graph.builder import Graph
    from runtime.graph.placement import Segment
    from runtime.graph.work import Texts
    from runtime.model import RunningModel

PRODUCTS_SHARE = 0.6  # of the published operations per second
MEMORY_SHARE = 0.7  # of the published bytes per second of the card's memory
LINK_SHARE = 0.8  # of the bytes per second between host and card
DISK = 3_000_000_000  # bytes per second, of an SSD
DECODED = 1_000_000_000  # weights per second and processor
COPIED = 10_000_000_000  # bytes per second of weights that are not decoded
RESERVED = 600 << 20  # bytes of the card that torch and the driver take


@dataclass(frozen=True)
class PlanOptions:
    """What is planned.

    measurement: "perplexity", "divergence" (both need logits of the second half of each window) or "imatrix" (all
    positions, no logits). fast: products in TF32. memory: bytes of the card to use, None for most of it. disk:
    bytes per second. processors: that decode weights, None for all.
    """

    measurement: str = "perplexity"
    n_ctx: int = 512
    fast: bool = False
    memory: int | None = None
    disk: int = DISK
    processors: int | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for impossible values."""
        as_count(self.n_ctx, "n_ctx", 4)
        as_count(self.disk, "disk", 1)
        if self.measurement not in ("perplexity", "divergence", "imatrix"):
            raise OptionError(f"measurement is {self.measurement!r}", "known are perplexity, divergence, imatrix")


@dataclass(frozen=True)
class FileWork:
    """What one model takes, whatever the card.

    layers: how many; layer_bytes: the largest, as on the card; weight_bytes: all weights, as on the card. read_bytes:
    from disk. decoded: weights that are decoded. state_bytes: hidden states on the host between layers. flop:
    operations by kind. numbers: read and written by the card besides weights.
    """

    file: str
    layers: int
    layer_bytes: int
    weight_bytes: int
    read_bytes: int
    decoded: int
    state_bytes: int
    flop: Mapping[str, int]
    numbers: int


@dataclass(frozen=True)
class CardPlan:
    """What one card does.

    placement: "resident", "layers" (streamed) or "experts" (streamed, stacked weights one matrix at a time).
    moved_bytes: to and from the card. weight_bytes: on the card at once; memory_bytes: of all at most. seconds: by
    part: "products", "bandwidth" (numbers that the card reads and writes), "transfer", "disk", "decoding". total:
    seconds. limit: the part that decides it. fits: whether memory_bytes are there.
    """

    card: str
    placement: str
    moved_bytes: int
    weight_bytes: int
    memory_bytes: int
    seconds: Mapping[str, float]
    total: float
    limit: str
    fits: bool


@dataclass(frozen=True)
class DevicePlan:
    """The plan of a measurement of one or several files. tokens: read of each."""

    measurement: str
    tokens: int
    n_ctx: int
    fast: bool
    files: tuple[FileWork, ...]
    cards: tuple[CardPlan, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def device_plan(
    sources: Sequence[PathLike | Model], windows: int, cards: Sequence[Card] = CARDS, options: PlanOptions | None = None
) -> DevicePlan:
    """Plan the measurement of files on cards. windows: of n_ctx tokens, of the texts.

    Raises FileError, ModelError, and OptionError for a model that is no decoder of texts.
    """
    options = options or PlanOptions()
    as_count(windows, "windows", 1)
    counted = [_Counted(opened(source), windows, options) for source in sources]
    return DevicePlan(
        options.measurement,
        windows * options.n_ctx,
        options.n_ctx,
        options.fast,
        tuple(each.work for each in counted),
        tuple(_on_card(card, counted, options) for card in cards),
    )


def windows_in(model: Model, texts: Sequence[NamedText], n_ctx: int, chunks: int | None = None, stride: int = 0) -> int:
    """Return how many windows of n_ctx tokens a model reads of texts. Raises what `windows_of` does."""
    return sum(len(windows_of(model, each, n_ctx, chunks=chunks, stride=stride).windows) for each in texts)


class _Counted:
    """One model's graph, and the work of all windows."""

    def __init__(self, model: Model, windows: int, options: PlanOptions) -> None:
        from runtime.decoder import graph_of
        from runtime.graph.placement import bytes_between, bytes_of, segments, weights_of
        from runtime.graph.work import Texts, work_of
        from runtime.model import RunningModel

        net = RunningModel(model.metadata, model.tensors)
        if net.encoder_decoder or net.encoder or net.codes or net.network.block.hidden_states:
            raise OptionError(f"{model.path}: {net.architecture.name} models are not planned", "plan a text model")
        has_head = options.measurement != "imatrix"
        kept = options.n_ctx - options.n_ctx // 2 if has_head else options.n_ctx
        self.graph, self.texts = graph_of(net.network), Texts(windows, options.n_ctx, kept)
        self.head = [_head_of(net)] if has_head else []
        self.weights = [*weights_of(self.graph), *self.head]
        self.states = _state_bytes(self.graph, self.texts, segments(self.graph))
        counted = work_of(self.graph, self.texts)
        for head in self.head:
            counted.add("head", 2 * self.texts.count * (kept - 1) * head.rows * head.width)
            counted.numbers += 3 * self.texts.count * kept * head.rows
        self.work = FileWork(
            str(model.path),
            len(self.graph.layer_outputs),
            max(part.nbytes for part in segments(self.graph)),
            bytes_of(self.weights),
            sum(each.nbytes for each in self.weights),
            sum(each.rows * each.width for each in self.weights if _is_decoded(each)),
            bytes_between(self.graph, windows * options.n_ctx),
            counted.flop,
            counted.numbers,
        )

    @property
    def passes(self) -> int:
        """Return how often weights are read, if they are streamed: hidden states of some texts at a time fit."""
        from runtime.ahead import HOST_MEMORY

        return math.ceil(self.work.state_bytes / HOST_MEMORY)


@dataclass(frozen=True)
class _Placed:
    """Where a model's weights are. weights, values: bytes on the card at once. batches: of texts computed together."""

    placement: str
    weights: int
    values: int
    batches: int
    alone: "tuple[Tensor, ...]" = ()
    fits: bool = True


def _placed(file: _Counted, memory: int) -> _Placed:
    """Return where weights are with `memory` bytes of a card, as `runtime.device` decides it."""
    from runtime.graph.placement import TOKENS, bytes_of, bytes_of_values, placed, tokens_at_once

    count, length = file.texts.count, file.texts.length
    together = min(
        count, tokens_at_once(file.graph, length, (memory, memory), max(1, TOKENS // length), file.head) // length
    )
    values, batches = bytes_of_values(file.graph, together, length), math.ceil(count / together)
    if file.work.weight_bytes + values <= memory:
        return _Placed("resident", file.work.weight_bytes, values, batches)
    try:
        plan = placed(file.graph, memory, values)
    except OptionError:
        return _Placed("experts", file.work.layer_bytes, values, batches, fits=False)
    parts, numbers = plan.segments, range(len(plan.segments))
    weights = [part.most if plan.experts_ahead(number) else part.least for number, part in enumerate(parts)]
    pairs = [parts[at].most + parts[at + 1].nbytes for at in numbers[:-1] if plan.loads_ahead(at)]
    alone = tuple({id(each): each for part in parts for each in part.alone}.values())
    placement = "experts" if alone else "layers"
    return _Placed(placement, max(*weights, *pairs, bytes_of(file.head)), values, batches, alone)


def _head_of(net: "RunningModel") -> Tensor:
    return net.tensors.get("output.weight", net.tensors["token_embd.weight"])


def _is_decoded(tensor: Tensor) -> bool:
    from runtime.graph.placement import STORED

    return tensor.format.name not in (*STORED, "F32")


def _bytes_read_on_card(tensor: Tensor) -> int:
    """Return the bytes that a product reads and writes of a weight: 16 bits are widened to float32 before."""
    from runtime.graph.placement import STORED

    return tensor.rows * tensor.width * (2 + 4 + 4 if tensor.format.name in STORED else 4)


def _state_bytes(graph: "Graph", texts: "Texts", parts: "Sequence[Segment]") -> list[int]:
    """Return the bytes that wait on the host after each layer, of all windows."""
    from runtime.graph.work import live_numbers

    live = live_numbers(graph, texts)
    return [4 * live[part.stop - 1] for part in parts]


def _on_card(card: Card, files: Sequence[_Counted], options: PlanOptions) -> CardPlan:
    """Return the plan of all files, one after another, on one card."""
    plans = [_of_file(card, each, options) for each in files]
    seconds = {part: sum(plan.seconds[part] for plan in plans) for part in plans[0].seconds}
    worst = max(plans, key=lambda plan: ("resident", "layers", "experts").index(plan.placement))
    return CardPlan(
        card.name,
        worst.placement,
        sum(plan.moved_bytes for plan in plans),
        max(plan.weight_bytes for plan in plans),
        max(plan.memory_bytes for plan in plans),
        seconds,
        sum(plan.total for plan in plans),
        max(seconds, key=lambda part: seconds[part]),
        all(plan.fits for plan in plans),
    )


def _of_file(card: Card, file: _Counted, options: PlanOptions) -> CardPlan:
    from runtime.graph.placement import SHARE

    memory = int((card.memory - RESERVED) * SHARE) if options.memory is None else options.memory
    place, work = _placed(file, memory), file.work
    passes, waiting = 1, 0
    if place.placement != "resident":
        passes = file.passes
        waiting = 2 * sum(file.states)
        if place.alone:  # values wait before and after experts, too, whose tokens go up and down
            waiting *= 3
    once = sum(map(_bytes_read_on_card, place.alone))
    read = once * passes + place.batches * (sum(map(_bytes_read_on_card, file.weights)) - once)
    seconds = {
        "products": sum(work.flop.values()) / (card.rate(options.fast) * PRODUCTS_SHARE),
        "bandwidth": (4 * work.numbers + read) / (card.bandwidth * MEMORY_SHARE),
        "transfer": (passes * work.weight_bytes + waiting) / (card.link * LINK_SHARE),
        "disk": passes * work.read_bytes / options.disk,
        "decoding": passes * _decoding(work, options),
    }
    computing, reading = seconds["products"] + seconds["bandwidth"], seconds["disk"] + seconds["decoding"]
    overlaps = place.placement != "resident"
    total = max(computing, seconds["transfer"], reading) if overlaps else sum(seconds.values())
    peak, moved = place.weights + place.values + RESERVED, passes * work.weight_bytes + waiting
    limit, fits = max(seconds, key=lambda part: seconds[part]), place.fits and peak <= card.memory
    return CardPlan(card.name, place.placement, moved, place.weights, peak, seconds, total, limit, fits)


def _decoding(work: FileWork, options: PlanOptions) -> float:
    """Return seconds for decoding weights, or copying those that are kept as stored."""
    processors = options.processors or os.cpu_count() or 1
    return work.decoded / (DECODED * processors) + (work.weight_bytes - 4 * work.decoded) / COPIED
