"""Count the work of a graph without running it: floating-point operations, numbers read and written, live values.

A multiplication with its addition counts as two operations. What is cheap beside products (norms, gates, sums) counts
only in the numbers that it reads and writes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quants import Tensor

from . import encoder_operations as encoder
from . import indexer_operations as indexer
from . import operations as op
from . import recurrent_operations as recurrent
from .builder import Graph
from .operations import Operation, Value

SCORE_STEPS = 8  # times that attention reads or writes its scores
STATE_STEPS = 6  # operations of a recurrence for each number of its state


@dataclass(frozen=True)
class Texts:
    """Texts of equal length that go through a graph together, or one batch after another.

    kept: of each text's tokens, those whose logits are needed.
    """

    count: int
    length: int
    kept: int

    def rows(self, value: Value) -> int:
        """Return the tokens that a value has a row of."""
        return self.count * (self.kept if value.rows == "kept" else self.length)


@dataclass
class Work:
    """flop: operations by kind: "products", "experts", "attention", "recurrence". numbers: read and written."""

    flop: dict[str, int] = field(default_factory=dict)
    numbers: int = 0

    def add(self, kind: str, flop: int) -> None:
        """Count operations."""
        if flop:
            self.flop[kind] = self.flop.get(kind, 0) + flop


def work_of(graph: Graph, texts: Texts, start: int = 0, stop: int | None = None) -> Work:
    """Return the work of the nodes start … stop of a graph."""
    work, skipped = Work(), not_computed(graph, texts.length)
    for node in graph.nodes[start:stop]:
        if node.value.number in skipped:
            continue
        operation, count = node.operation, COUNTED.get(type(node.operation))
        if count is not None:
            kind, flop = count(operation, texts)
            work.add(kind, flop)
        if not operation.is_view:
            work.numbers += sum(texts.rows(each) * each.width for each in (*operation.inputs(), node.value))
        work.numbers += SCORE_STEPS * scores_of(operation, texts)
    return work


def not_computed(graph: Graph, length: int) -> set[int]:
    """Return the numbers of the values that no text of this length needs: selections where all keys are visible."""
    skipped: set[int] = set()
    for node in graph.nodes:
        operation = node.operation
        if isinstance(operation, indexer.Candidates):
            entries = operation.size if operation.of != "entries" else _ratio_of(graph, operation.x)
            count = -(-length // entries) if operation.of == "blocks" else length // entries
            if count <= operation.top_k:
                skipped.add(node.value.number)
        elif node.value.rows == "some" and any(each.number in skipped for each in operation.inputs()):
            skipped.add(node.value.number)
    return skipped


def _ratio_of(graph: Graph, value: Value) -> int:
    operation = _operation(graph, value)
    return operation.ratio if isinstance(operation, indexer.Compress) else 1


def live_numbers(graph: Graph, texts: Texts) -> list[int]:
    """Return, after each node, the numbers of all values that later nodes read."""
    sizes, live, after = dict[int, int](), 0, []
    last_read = {value.number: node.value.number for node in graph.nodes for value in node.operation.inputs()}
    for node, forgotten in zip(graph.nodes, graph.memory.forgotten, strict=True):
        sizes[node.value.number] = 0 if node.operation.is_view else texts.rows(node.value) * node.value.width
        live += sizes[node.value.number]
        live -= sum(sizes.pop(number, 0) for number in forgotten)
        inputs = (each for each in node.operation.inputs() if isinstance(_operation(graph, each), op.Input))
        live -= sum(sizes.pop(each.number, 0) for each in inputs if last_read[each.number] == node.value.number)
        after.append(live)
    return after


def _operation(graph: Graph, value: Value) -> Operation:
    return graph.nodes[value.number].operation


def scores_of(operation: Operation, texts: Texts) -> int:
    """Return the numbers of attention's scores, 0 for other operations."""
    if not isinstance(operation, ATTENTION):
        return 0
    return texts.rows(operation.q) * texts.length * operation.q.shape[0]


# Operations of one type: their kind, and how many


Count = Callable[[Any, Texts], tuple[str, int]]


def _product(x: Value, weight: Tensor, texts: Texts) -> tuple[str, int]:
    return "products", 2 * texts.rows(x) * weight.rows * weight.width


def _of_role(o: Any, texts: Texts) -> tuple[str, int]:
    return _product(o.x, o.layer.need(f"{o.role}.weight"), texts)


def _one_of_several(o: op.ExpertLinear, texts: Texts) -> tuple[str, int]:
    weight = o.layer.need(f"{o.role}.weight")
    return "products", 2 * texts.rows(o.x) * weight.rows // weight.shape[0] * weight.width


def _down_by_neuron(o: op.DownByNeuron, texts: Texts) -> tuple[str, int]:
    return _product(o.x, o.layer.need("ffn_down_t.weight"), texts)


def _predicted_net(o: op.PredictedNet, texts: Texts) -> tuple[str, int]:
    return "products", 2 * texts.rows(o.x) * sum(each.rows * each.width for each in o.weights())


def _experts(o: op.Experts, texts: Texts) -> tuple[str, int]:
    used, stacked = o.chosen.width, (each for each in o.weights() if len(each.shape) == 3)
    return "experts", sum(2 * texts.rows(o.x) * used * (each.rows // each.shape[0]) * each.width for each in stacked)


def _attention(o: Any, texts: Texts) -> tuple[str, int]:
    """Count scores and mixing of values: every query with every key of its text."""
    mixed = o.latent if isinstance(o, op.LatentAttention) else _value_width(o)
    return "attention", 2 * scores_of(o, texts) * (o.q.shape[1] + mixed)


def _value_width(o: Any) -> int:
    if isinstance(o, op.SharedAttention):
        return o.own.value_width
    value: Value = getattr(o, "v", None) or o.q
    return value.shape[-1]


def _compressed_attention(o: indexer.CompressedAttention, texts: Texts) -> tuple[str, int]:
    keys = texts.length + (texts.length // o.ratio if o.entries is not None else 0)
    return "attention", 4 * texts.rows(o.q) * keys * o.q.width


def _indexer_scores(o: Any, texts: Texts) -> tuple[str, int]:
    keys = texts.length if isinstance(o, indexer.BlockScores) else texts.length // o.size
    return "attention", 2 * texts.rows(o.x) * keys * o.x.width


def _convolution(o: recurrent.Convolution, texts: Texts) -> tuple[str, int]:
    taps = o.layer.need(f"{o.taps[0]}.weight").width
    return "recurrence", 2 * texts.rows(o.x) * o.x.width * taps


def _scan(o: Any, texts: Texts) -> tuple[str, int]:
    """Count a state of as many numbers for each value as the keys of its head have."""
    key: Value = o.b if isinstance(o, (recurrent.ChannelScan, recurrent.HeadScan)) else o.k
    return "recurrence", STATE_STEPS * texts.rows(o.x) * o.x.width * key.shape[-1]


ATTENTION = (
    op.Attention,
    op.SharedAttention,
    op.LatentAttention,
    op.WidenedAttention,
    indexer.CompressedAttention,
    encoder.BiasedAttention,
)
COUNTED: Mapping[type[Operation], Count] = {
    op.Linear: _of_role,
    op.PerHead: _of_role,
    op.ExpertLinear: _one_of_several,
    op.PlainLinear: _of_role,
    indexer.GroupedLinear: _of_role,
    op.DownByNeuron: _down_by_neuron,
    op.PredictedNet: _predicted_net,
    op.Experts: _experts,
    op.Attention: _attention,
    op.SharedAttention: _attention,
    op.LatentAttention: _attention,
    op.WidenedAttention: _attention,
    encoder.BiasedAttention: _attention,
    indexer.CompressedAttention: _compressed_attention,
    indexer.IndexerScores: _indexer_scores,
    indexer.BlockScores: _indexer_scores,
    recurrent.Convolution: _convolution,
    recurrent.ChannelScan: _scan,
    recurrent.HeadScan: _scan,
    recurrent.LightningScan: _scan,
    recurrent.DeltaRule: _scan,
    recurrent.Wkv: _scan,
    recurrent.Wkv7: _scan,
}
