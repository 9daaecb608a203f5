"""Mixtures of experts against loops over tokens, written from the models' definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quants import from_array
from quants.errors import ModelError
from runtime.decoder import feed_forward
from runtime.experts import sparse_mixer, within_best_groups
from runtime.model import RunningModel

WIDTH, INNER, EXPERTS, USED = 8, 6, 8, 3
RNG = np.random.default_rng(3)


def softmax(x):
    e = np.exp(x - np.max(x))
    return e / e.sum()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def array(*shape):
    return (RNG.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)


def weights(**more):
    stacks = {
        "gate_exps": (EXPERTS, INNER, WIDTH),
        "up_exps": (EXPERTS, INNER, WIDTH),
        "down_exps": (EXPERTS, WIDTH, INNER),
        "gate_inp": (EXPERTS, WIDTH),
    }
    return {f"ffn_{name}.weight": 3 * array(*shape) for name, shape in stacks.items()} | more


def model_of(name, tensors, **keys):
    metadata = {"general.architecture": name} | {
        f"{name}.{key}": value
        for key, value in {
            "embedding_length": WIDTH,
            "block_count": 1,
            "attention.head_count": 2,
            "expert_used_count": USED,
            "attention.layer_norm_rms_epsilon": 1e-6,
            **keys,
        }.items()
    }
    named = {f"blk.0.{key}": value for key, value in tensors.items()}
    named |= {"token_embd.weight": array(4, WIDTH), "output_norm.weight": array(WIDTH)}
    return RunningModel(metadata, {key: from_array(key, value) for key, value in named.items()})


def fed(model, x):
    return feed_forward(model.new_pass(1, len(x)), model.network.layers[0], x)


def expert(tensors, e, x):
    gate, up = (tensors[f"ffn_{name}_exps.weight"][e].astype(np.float64) @ x for name in ("gate", "up"))
    return tensors["ffn_down_exps.weight"][e].astype(np.float64) @ (silu(gate) * up)


@pytest.mark.parametrize("normalized", [False, True])
def test_softmax_routing_with_a_gated_shared_expert(normalized):
    shared = {
        "ffn_gate_shexp.weight": array(5, WIDTH),
        "ffn_up_shexp.weight": array(5, WIDTH),
        "ffn_down_shexp.weight": array(WIDTH, 5),
        "ffn_gate_inp_shexp.weight": array(1, WIDTH),
    }
    tensors = weights(**shared)
    x = array(11, WIDTH)
    found = fed(model_of("qwen2moe", tensors, expert_weights_norm=normalized), x.copy())
    for token, out in zip(x.astype(np.float64), found, strict=True):
        scores = softmax(tensors["ffn_gate_inp.weight"] @ token)
        chosen = np.argsort(-scores)[:USED]
        factor = 1 / scores[chosen].sum() if normalized else 1
        wanted = sum(scores[e] * factor * expert(tensors, e, token) for e in chosen)
        inner = silu(shared["ffn_gate_shexp.weight"] @ token) * (shared["ffn_up_shexp.weight"] @ token)
        wanted = wanted + sigmoid(shared["ffn_gate_inp_shexp.weight"] @ token) * (
            shared["ffn_down_shexp.weight"] @ inner
        )
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


def test_sigmoid_routing_with_correction_groups_and_scale():
    tensors = weights(**{"exp_probs_b.bias": array(EXPERTS)})
    keys = {
        "expert_gating_func": 2,
        "expert_group_count": 4,
        "expert_group_used_count": 2,
        "expert_weights_scale": 2.5,
        "expert_weights_norm": True,
    }
    x = array(40, WIDTH)
    found = fed(model_of("glm4moe", tensors, **keys), x.copy())
    for token, out in zip(x.astype(np.float64), found, strict=True):
        scores = sigmoid(tensors["ffn_gate_inp.weight"] @ token)
        ranked = scores + tensors["exp_probs_b.bias"]
        groups = sorted(range(4), key=lambda g: -(ranked[2 * g] + ranked[2 * g + 1]))[:2]
        allowed = [e for e in range(EXPERTS) if e // 2 in groups]
        chosen = sorted(allowed, key=lambda e: -ranked[e])[:USED]
        total = sum(scores[e] for e in chosen)
        wanted = sum(2.5 * scores[e] / total * expert(tensors, e, token) for e in chosen)
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


def test_softmax_over_the_chosen_with_biases_and_clamped_units():
    biases = {
        "ffn_gate_exps.bias": 3 * array(EXPERTS, INNER),
        "ffn_up_exps.bias": array(EXPERTS, INNER),
        "ffn_down_exps.bias": array(EXPERTS, WIDTH),
        "ffn_gate_inp.bias": array(EXPERTS),
    }
    attention = {f"attn_{part}.weight": array(WIDTH, WIDTH) for part in ("q", "k", "v", "output")}
    norms = {f"{part}_norm.weight": array(WIDTH) for part in ("attn", "post_attention")}
    tensors = weights(**biases, **attention, **norms)
    x = 2 * array(20, WIDTH)
    found = fed(model_of("gpt-oss", tensors, swiglu_limit=0.75), x.copy())
    for token, out in zip(x.astype(np.float64), found, strict=True):
        logits = tensors["ffn_gate_inp.weight"] @ token + biases["ffn_gate_inp.bias"]
        chosen = np.argsort(-logits)[:USED]
        wanted = np.zeros(WIDTH)
        for e, share in zip(chosen, softmax(logits[chosen]), strict=True):
            gate, up = (
                tensors[f"ffn_{name}_exps.weight"][e].astype(np.float64) @ token + biases[f"ffn_{name}_exps.bias"][e]
                for name in ("gate", "up")
            )
            gate, up = np.minimum(gate, 0.75), np.clip(up, -0.75, 0.75)
            inner = gate * sigmoid(1.702 * gate) * (up + 1)
            wanted += share * (tensors["ffn_down_exps.weight"][e] @ inner + biases["ffn_down_exps.bias"][e])
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pairs", [False, True])
def test_groups_count_as_their_best_or_their_best_two(pairs):
    ranked = array(50, 12)
    found = within_best_groups(ranked, 3, 2, pairs)
    for row, out in zip(ranked, found, strict=True):
        value = [sum(sorted(row[4 * g : 4 * g + 4])[-2 if pairs else -1 :]) for g in range(3)]
        worst = int(np.argmin(value))
        wanted = row.copy()
        wanted[4 * worst : 4 * worst + 4] = -np.inf
        np.testing.assert_array_equal(out, wanted)


def test_sparse_mixer_weighs_each_expert_among_those_near_it():
    """One token by hand: 1.97 is within 2 % of 2.0, 1.95 is not; then 1.95 is within 2 % of 1.97."""
    chosen, weight = sparse_mixer(np.array([[1.95, 2.0, 1.97, -3.0]], np.float32), 2, 0.01)
    assert chosen.tolist() == [[1, 2]]
    np.testing.assert_allclose(weight, [[1 / (1 + math.exp(-0.03)), 1 / (1 + math.exp(-0.02))]], rtol=1e-6)


def test_sparse_mixer_on_negative_logits_measures_by_their_size():
    logits = np.array([[-1.0, -1.005, -1.03, -2.0]], np.float32)
    chosen, weight = sparse_mixer(logits, 2, 0.01)
    assert chosen.tolist() == [[0, 1]]
    first = softmax(np.array([-1.0, -1.005]))[0]  # 0.03 / 1.03 is more than 2 %
    np.testing.assert_allclose(weight, [[first, 1.0]], rtol=1e-5)  # and so is 0.025 / 1.03


def test_a_file_without_router_says_so():
    with pytest.raises(ModelError, match="ffn_gate_inp"):
        model_of("qwen3moe", {name: values for name, values in weights().items() if "gate_inp" not in name})


def test_unknown_gating_is_refused():
    with pytest.raises(ModelError, match="expert_gating_func"):
        model_of("glm4moe", weights(), expert_gating_func=9)
