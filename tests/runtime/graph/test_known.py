"""Regions are written as one only where each of their operations is known; all else is called, and gives the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from runtime.graph import attention, builder, known, lower, region_writers, writers
from runtime.graph import operations as op
from runtime.graph.builder import Builder
from runtime.graph.operations import Value
from runtime.graph.text import COMPUTE
from runtime.layer import Layer

from .recorded import in_pieces, models, operation_types, text_of
from .test_compiled import TOKENS, assert_close, in_steps, model_of

OPERATIONS = sorted(operation_types(), key=lambda each: each.__name__)


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda each: each.__name__)
def test_each_operation_has_executors(kind: type[op.Operation]) -> None:
    """For texts, and for a few tokens: a writer, or a line in the list of those that are only called."""
    assert kind is op.Input or kind in COMPUTE
    assert (kind in writers.WRITERS) != (kind in lower.CALLED)


@pytest.fixture(scope="module")
def tables() -> dict[str, known.Table]:
    found: dict[str, known.Table] = {}
    for name in ("deepseek-v3", "qwen2-moe"):
        model, _ = models(name)
        assert model._compiled is not None
        for region in model._compiled.graph.regions:
            found[region.type] = known.TABLES[region.type](model.network, region.layer)
    assert found.keys() == known.TABLES.keys() == known.ORDERS.keys() == region_writers.REGIONS.keys() - known.WHOLE
    return found


@pytest.mark.parametrize("region", known.TABLES)
def test_tables_know_each_attribute(region: str, tables: dict[str, known.Table]) -> None:
    """An attribute that is added to an operation keeps regions from being written until its writer knows it."""
    for kind, attributes in tables[region].items():
        plain = {each.name for each in fields(kind) if each.type not in ("Value", "Layer", Value, Layer)}
        assert plain == attributes.keys(), kind.__name__


def count_calls(model: Any) -> int:
    return len(model._compiled.lowering.calls)


def scaled(b: Builder, value: Value) -> Value:
    return b.add("scaled_twice", op.Scale(value, 2.0))


def normed_otherwise(b: Builder, value: Value) -> Value:
    return b.add("normed_twice", op.PlainNorm(value, 0.3))


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def change(function: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    CHANGES[function.__name__] = function
    return function


@change
def a_scale_of_what_attention_gives(patch: pytest.MonkeyPatch) -> None:
    gated = attention.gated
    patch.setattr(attention, "gated", lambda b, layer, x, mixed, gate: scaled(b, gated(b, layer, x, mixed, gate)))


@change
def a_norm_of_queries_without_weights(patch: pytest.MonkeyPatch) -> None:
    made = attention.queries_keys_values

    def changed(b: Builder, layer: Layer, x: Value) -> tuple[Value, Value, Value]:
        q, k, v = made(b, layer, x)
        return normed_otherwise(b, q), k, v

    patch.setattr(attention, "queries_keys_values", changed)


@change
def values_that_rotate(patch: pytest.MonkeyPatch) -> None:
    made = attention.queries_keys_values

    def changed(b: Builder, layer: Layer, x: Value) -> tuple[Value, Value, Value]:
        q, k, v = made(b, layer, x)
        return q, k, b.add("Vcur_rope", op.Rope(v, b.numbers(layer)))

    patch.setattr(attention, "queries_keys_values", changed)


@change
def keys_that_rotate_twice(patch: pytest.MonkeyPatch) -> None:
    made = attention.queries_keys_values

    def changed(b: Builder, layer: Layer, x: Value) -> tuple[Value, Value, Value]:
        q, k, v = made(b, layer, x)
        return q, b.add("Kcur_rope", op.Rope(k, b.numbers(layer))), v

    patch.setattr(attention, "queries_keys_values", changed)


@pytest.mark.parametrize("name", CHANGES)
def test_regions_with_operations_that_no_writer_knows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = model_of("llama", precision="exact").forward(TOKENS[:9])
    assert count_calls(model_of("llama")) == 0
    CHANGES[name](monkeypatch)
    whole = model_of("llama", precision="exact").forward(TOKENS[:9])
    assert np.abs(whole - before).max() > 1e-3 * whole.std()
    model = model_of("llama")
    assert_close(in_steps(model, TOKENS[:9], [1, 3]), whole)
    assert count_calls(model) > 0


def test_an_epsilon_that_is_not_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms without weights, whose epsilon the writer of attention takes from the model's numbers."""
    add = builder.Builder.add

    def changed(self: Builder, name: str, operation: op.Operation) -> Value:
        if isinstance(operation, op.PlainNorm):
            operation = op.PlainNorm(operation.x, 0.5)
        return add(self, name, operation)

    model, exact = models("llama4")
    plain = written_by_region(model)
    monkeypatch.setattr(builder.Builder, "add", changed)
    model, exact = models("llama4")
    ids = text_of("llama4", model)
    assert plain
    assert not written_by_region(model)
    whole = exact.forward(ids)
    assert np.abs(in_pieces(model, ids, (1, 3)) - whole).max() < 1e-4 * whole.std()


def written_by_region(model: Any) -> bool:
    return not any(isinstance(call.nodes[-1].operation, op.Attention) for call in model._compiled.lowering.calls)
