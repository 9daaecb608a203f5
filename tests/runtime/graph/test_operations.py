"""Single operations by both executors, at widths around those of a block, for one to eight tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from archs.spec import ScaledSum, add
from runtime.graph import operations as op
from runtime.graph import text
from runtime.graph.builder import Builder
from runtime.graph.lower import lower
from runtime.graph.operations import Value
from runtime.kernels import context_state
from runtime.layer import ForwardContext
from runtime.thread_team import team_of

from .test_compiled import model_of

Write = Callable[[Builder, Value], Value]


def of_heads(b: Builder, x: Value) -> Value:
    return b.add("heads", op.PlainNorm(b.add("columns", op.Columns(x, 0, x.width)), 1e-5))


def of_columns(b: Builder, x: Value) -> Value:
    x = b.add("own", op.Scale(x, 0.5))
    return b.add("it", op.Add(x, b.add("scaled", op.Scale(b.add("columns", op.Columns(x, 0, x.width)), 2.0))))


OPERATIONS: dict[str, Write] = {
    "scale": lambda b, x: b.add("it", op.Scale(x, 0.3)),
    "clamp": lambda b, x: b.add("it", op.Clamp(x, 0.5)),
    "norm": lambda b, x: b.add("it", op.PlainNorm(x, 1e-5)),
    "columns": lambda b, x: b.add("it", op.Columns(x, x.width // 3, x.width)),
    "columns of what is read later": lambda b, x: of_columns(b, x),
    "norm of columns": of_heads,
    "sum": lambda b, x: b.add("it", op.Combine(b.add("twice", op.Scale(x, 2.0)), x, add)),
    "scaled sum": lambda b, x: b.add("it", op.Combine(b.add("twice", op.Scale(x, 2.0)), x, ScaledSum(0.5))),
    "add": lambda b, x: b.add("it", op.Add(x, b.add("twice", op.Scale(x, 2.0)), 0.7)),
    "add and read": lambda b, x: b.add("it", op.Add(b.add("sum", op.Add(x, b.add("twice", op.Scale(x, 2.0)))), x)),
} | {
    f"activation {name}": lambda b, x, name=name: b.add("it", op.Activate(x, name))  # type: ignore[misc]
    for name in ("silu", "gelu", "gelu_tanh", "relu", "relu2")
}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("width", [3, 16, 31, 255, 256, 257, 520])
@pytest.mark.parametrize("name", OPERATIONS)
def test_executors_agree_about_an_operation(name: str, width: int, threads: int) -> None:
    network, rng = model_of("llama").network, np.random.default_rng(width)
    b = Builder(network)
    OPERATIONS[name](b, b.add("input", op.Input((width,))))
    graph = b.graph()
    lowering = lower(network, graph, threads)
    assert not lowering.calls
    rows = np.stack(lowering.list.rows)
    for tokens in (1, 5, 8):
        x = rng.standard_normal((tokens, width)).astype(np.float32)
        wanted = text.run(graph, ForwardContext(network, 1, tokens), x.copy())
        lowering.vectors_of(graph.nodes[0].value).floats[:tokens, :width] = x
        lowering.state[context_state.TOKENS] = tokens
        team_of(threads).run(rows, lambda: None, lambda: None)
        out = lowering.vectors_of(graph.output)
        assert np.abs(out.floats[:tokens, : out.width] - wanted).max() <= 2e-6 * max(1, np.abs(wanted).max())


def test_neighbours_are_called_together() -> None:
    """With small operations and kept rows between them; only what machine operations read goes in rows."""
    b = Builder(model_of("llama").network, keeps=True)
    x = b.add("x", op.Input((6,)))
    y = b.add("doubled", op.Scale(b.add("offset", op.Offset(x, 0.5)), 2.0))
    y = b.kept(b.add("tanh", op.Activate(y, "tanh")))
    y = b.add("sum", op.Add(b.add("offset_again", op.Offset(y, 0.25)), y))
    z = b.add("product", op.Multiply(y, y))
    calls = lower(b.network, b.graph(), 1).calls
    names = [[node.name for node in call.nodes] for call in calls]
    assert names == [["offset", "doubled", "tanh", "rows_kept", "offset_again", "sum", "product"]]
    assert set(calls[0].to) == {z.number}
