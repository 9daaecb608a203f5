"""Observers of nodes, by name or by kind of operation: they see values, and may change them."""

from __future__ import annotations

import numpy as np
import pytest

from quants.errors import ModelError, OptionError
from runtime.graph import operations as op
from runtime.graph.builder import Builder
from runtime.model import RunningModel
from runtime.node_values import observe_values, run_observed, whole_graph

from ... import absent_keys

TOKENS = (5, 1, 7, 3)


def test_each_node_is_observed_once_with_its_shape(qwen2):
    graph, seen = whole_graph(qwen2), {}
    observe_values(qwen2, TOKENS, lambda node, array: seen.setdefault(node.name, (node, array)))
    assert list(seen) == [node.name for node in graph.nodes]
    assert all(array.shape == (len(TOKENS), *node.value.shape) for node, array in seen.values())
    assert np.array_equal(seen["result_output"][1], qwen2.logits(TOKENS))


def test_observers_by_name_and_kind(qwen2):
    found = {"one": [], "each": [], "kind": []}
    run_observed(
        qwen2,
        TOKENS,
        {
            "attn_out-1": lambda node, _: found["one"].append(node.name),
            "attn_out": lambda node, _: found["each"].append(node.name),
            op.Rope: lambda node, _: found["kind"].append(node.name),
        },
    )
    assert found == {
        "one": ["attn_out-1"],
        "each": ["attn_out-0", "attn_out-1"],
        "kind": ["Qcur_rope-0", "Kcur_rope-0", "Qcur_rope-1", "Kcur_rope-1"],
    }


def test_what_is_changed_in_place_goes_on(qwen2):
    def silence(_, value):
        value[:] = 0

    values = {}
    observers = {
        "attn_out": silence,
        "ffn_inp-0": lambda node, x: values.update({node.name: x.copy()}),
        "embd": lambda node, x: values.update({node.name: x.copy()}),
    }
    changed = run_observed(qwen2, TOKENS, observers)
    assert np.array_equal(values["ffn_inp-0"], values["embd"])
    assert not np.allclose(changed, qwen2.logits(TOKENS))


def test_what_cannot_be_observed(qwen2):
    with pytest.raises(OptionError, match="no node 'attn_ot'"):
        run_observed(qwen2, TOKENS, {"attn_ot": lambda *_: None})
    with pytest.raises(OptionError, match="no tokens"):
        run_observed(qwen2, (), {})
    with pytest.raises(ModelError, match="outside the vocabulary"):
        run_observed(qwen2, (512,), {})


def test_a_name_belongs_to_one_node():
    b = Builder(None)  # type: ignore[arg-type]
    x = b.add("x", op.Input((4,)))
    for factor in (2.0, 3.0, 4.0):
        b.add("y", op.Scale(x, factor))
    assert [node.name for node in b.nodes] == ["x", "y", "y_2", "y_3"]


@pytest.mark.parametrize("name", ["t5-encoder", "wavtokenizer"])
def test_models_that_end_in_states_or_spectra(name):
    description = absent_keys.descriptions()[name]
    model = RunningModel(description.metadata(absent_keys.cases()[name][0]), absent_keys.tensors(description))
    nodes, values = whole_graph(model).nodes, {}
    observe_values(model, TOKENS, lambda node, array: values.setdefault(node.name, array))
    assert {tensor.name for node in nodes for tensor in node.operation.weights()} == set(model.tensors)
    assert np.array_equal(values[nodes[-1].name], model.forward(np.array(TOKENS)))
