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
from .perplexity import windows_at_once
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
WIDENED = 1 << 27  # numbers of a weight that are widened to float32 at a time
SCORES = 1 << 26  # numbers of attention's scores at a time


@dataclass(frozen=True)
class PlanOptions:
    """What is planned.

    measurement: "perplexity", "divergence" (both need logits of the second half of each window) or "imatrix" (all
    positions, no logits). fast: products in TF32. memory: bytes for weights on the card, None for most of it. disk:
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
        from runtime.graph.placement import bytes_on_device, segments
        from runtime.graph.work import Texts, work_of
        from runtime.model import RunningModel

        net = RunningModel(model.metadata, model.tensors)
        if net.encoder_decoder or net.encoder or net.codes or net.network.block.hidden_states:
            raise OptionError(f"{model.path}: {net.architecture.name} models are not planned", "plan a text model")
        has_head = options.measurement != "imatrix"
        kept = options.n_ctx - options.n_ctx // 2 if has_head else options.n_ctx
        self.graph, self.texts = graph_of(net.network), Texts(windows, options.n_ctx, kept)
        self.batch = Texts(min(windows, windows_at_once(model, options.n_ctx, on_device=True)), options.n_ctx, kept)
        self.batches = math.ceil(windows / self.batch.count)
        self.head = _head_of(net) if has_head else None
        self.file_bytes = sum(map(bytes_on_device, net.tensors.values()))
        parts = segments(self.graph)
        tensors = [*{id(each): each for part in parts for each in part.tensors}.values()]
        tensors += [] if self.head is None else [self.head]
        counted = work_of(self.graph, self.texts)
        if self.head is not None:
            counted.add("head", 2 * self.texts.count * (kept - 1) * self.head.rows * self.head.width)
            counted.numbers += 3 * self.texts.count * kept * self.head.rows
        self.batch_bytes = sum(map(_bytes_read_on_card, tensors))
        self.states = _state_bytes(self.graph, self.texts, parts)
        self.work = FileWork(
            str(model.path),
            len(self.graph.layer_outputs),
            max(part.nbytes for part in parts),
            sum(map(bytes_on_device, tensors)),
            sum(each.nbytes for each in tensors),
            sum(each.rows * each.width for each in tensors if _is_decoded(each)),
            max(self.states, default=0),
            counted.flop,
            counted.numbers,
        )

    @property
    def head_bytes(self) -> int:
        from runtime.graph.placement import bytes_on_device

        return 0 if self.head is None else bytes_on_device(self.head)


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
    from runtime.graph.placement import SHARE, segments

    memory = int((card.memory - RESERVED) * SHARE) if options.memory is None else options.memory
    resident = file.file_bytes <= memory
    parts = segments(file.graph, None if resident else memory // 2)
    streamed = [part for part in parts if part.alone]
    weights, waiting = file.file_bytes, 0
    if not resident:
        pairs = [sum(each.nbytes for each in parts[i : i + 2]) for i in range(len(parts))]
        weights = max(pairs) + file.head_bytes + 2 * _largest_matrix(parts)
        waiting = 2 * sum(file.states) + 2 * len(streamed) * max(file.states)  # once more before experts
    once = sum(_bytes_read_on_card(each) for part in streamed for each in part.alone)
    computed = 4 * file.work.numbers + once + file.batches * (file.batch_bytes - once)
    seconds = {
        "products": sum(file.work.flop.values()) / (card.rate(options.fast) * PRODUCTS_SHARE),
        "bandwidth": computed / (card.bandwidth * MEMORY_SHARE),
        "transfer": (file.work.weight_bytes + waiting) / (card.link * LINK_SHARE),
        "disk": file.work.read_bytes / options.disk,
        "decoding": _decoding(file.work, options),
    }
    computing, reading = seconds["products"] + seconds["bandwidth"], seconds["disk"] + seconds["decoding"]
    total = sum(seconds.values()) if resident else max(computing, seconds["transfer"], reading)
    peak = weights + _activation_bytes(file) + RESERVED
    placement = "resident" if resident else "experts" if streamed else "layers"
    moved = file.work.weight_bytes + waiting
    limit = max(seconds, key=lambda part: seconds[part])
    return CardPlan(card.name, placement, moved, weights, peak, seconds, total, limit, peak <= card.memory)


def _decoding(work: FileWork, options: PlanOptions) -> float:
    """Return seconds for decoding weights, or copying those that are kept as stored."""
    processors = options.processors or os.cpu_count() or 1
    return work.decoded / (DECODED * processors) + (work.weight_bytes - 4 * work.decoded) / COPIED


def _largest_matrix(parts: "Sequence[Segment]") -> int:
    """Return the bytes of the largest expert that is moved alone, 0 if none is."""
    from runtime.graph.placement import bytes_on_device

    alone = (
        bytes_on_device(each) // each.shape[0] for part in parts for each in part.tensors if each not in part.whole
    )
    return max(alone, default=0)


def _activation_bytes(file: _Counted) -> int:
    """Return the bytes of a batch's values on the card at most, with weights and scores in float32 for the time of an
    operation.
    """
    from runtime.graph.work import live_numbers, scores_of

    live = max(live_numbers(file.graph, file.batch))
    scores = max((scores_of(node.operation, file.batch) for node in file.graph.nodes), default=0)
    weights = (each.rows * each.width for node in file.graph.nodes for each in node.operation.weights())
    widened = min(WIDENED, max(max(weights, default=0), 0 if file.head is None else file.head.rows * file.head.width))
    logits = 0 if file.head is None else min(WIDENED, file.batch.count * file.batch.kept * file.head.rows)
    return 4 * (live + max(3 * min(SCORES, scores), widened + 2 * logits))
