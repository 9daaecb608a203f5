"""Experts as compiled operations, against those that texts go through (`runtime.feed_forward.experts`)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from quants import Tensor, encode, format_named, from_array
from runtime.compiled_experts import Rooms, add_experts, experts_spec, supports
from runtime.experts import route
from runtime.few_inputs import as_vectors, vectors
from runtime.feed_forward import experts
from runtime.kernels import expert_operations, pass_state
from runtime.model import Model
from runtime.team import Team
from runtime.token_step import Operations

RNG = np.random.default_rng(3)
WIDTH, INNER, EXPERTS, USED, SHARED = 512, 256, 16, 4, 288
GROUPED = {"expert_group_count": 4, "expert_group_used_count": 2}
FAMILIES = {  # architecture, keys, names of more tensors
    "qwen3moe": ("qwen3moe", {"expert_weights_norm": True}, ()),
    "mixtral": ("llama", {"expert_count": EXPERTS}, ()),
    "olmoe": ("olmoe", {}, ()),
    "deepseek v2": ("deepseek2", {"expert_weights_scale": 16.0, "expert_gating_func": 1, **GROUPED}, ("shared",)),
    "deepseek v3": (
        "deepseek2",
        {"expert_weights_scale": 2.5, "expert_gating_func": 2, "expert_weights_norm": True, **GROUPED},
        ("shared", "correction"),
    ),
    "gpt-oss": ("gpt-oss", {"swiglu_limit": 0.75}, ("biases",)),
    "qwen2moe": ("qwen2moe", {}, ("shared", "shared gate")),
    "fused": ("qwen3moe", {"expert_weights_norm": True}, ("fused",)),
    "llama4": ("llama4", {"expert_count": EXPERTS, "interleave_moe_layer_step": 1}, ("shared",)),
    "scaled": ("qwen3moe", {"expert_weights_norm": True}, ("scaled",)),
    "softcap": ("grok", {"router_logit_softcapping": 2.0}, ()),
    "relu2": ("nemotron_h_moe", {"expert_weights_norm": True}, ("shared", "ungated")),
    "clamped": ("deepseek4", {"expert_gating_func": 4, "swiglu_clamp_exp": [0.5]}, ("shared",)),
}


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order():
    global RNG
    RNG = np.random.default_rng(3)


def array(*shape):
    return (3 * RNG.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)


def stored(name, values, form):
    if form is None:
        return from_array(name, values)
    raw = np.ascontiguousarray(encode(form, values.reshape(-1, values.shape[-1])))
    return Tensor(name, values.shape, format_named(form), lambda start, stop: raw[start:stop])


def tensors_of(more, form, width=WIDTH, inner=INNER):
    """Of one layer; stacks and shared experts in a format, all else float32."""
    weights = {"ffn_up_exps": (EXPERTS, inner, width), "ffn_down_exps": (EXPERTS, width, inner)}
    if "fused" in more:
        weights["ffn_gate_up_exps"] = (EXPERTS, 2 * inner, width)
        del weights["ffn_up_exps"]
    elif "ungated" not in more:
        weights["ffn_gate_exps"] = (EXPERTS, inner, width)
    if "shared" in more:
        weights |= {"ffn_up_shexp": (SHARED, width), "ffn_down_shexp": (width, SHARED)}
        if "ungated" not in more:
            weights["ffn_gate_shexp"] = (SHARED, width)
    made = {}
    for name, shape in weights.items():
        own = form if shape[-1] % format_named(form).block_size == 0 else "Q8_0"
        made[f"{name}.weight"] = stored(name, array(*shape), own)
    plain = {"ffn_gate_inp.weight": array(EXPERTS, width)}
    if "shared gate" in more:
        plain["ffn_gate_inp_shexp.weight"] = array(1, width)
    if "correction" in more:
        plain["exp_probs_b.bias"] = array(EXPERTS)
    if "scaled" in more:
        plain |= {"ffn_down_exps.scale": np.abs(array(EXPERTS)), "ffn_gate_inp.scale": 1 + array(width)}
    if "biases" in more:
        plain |= {f"ffn_{name}_exps.bias": array(EXPERTS, inner) for name in ("gate", "up")}
        plain |= {"ffn_down_exps.bias": array(EXPERTS, width), "ffn_gate_inp.bias": array(EXPERTS)}
    return made | {name: from_array(name, values) for name, values in plain.items()}


def network_of(name, tensors, width=WIDTH, used=USED, **keys):
    metadata = {"general.architecture": name} | {
        f"{name}.{key}": value
        for key, value in {
            "embedding_length": width, "block_count": 1, "attention.head_count": 2, "expert_used_count": used,
            "attention.layer_norm_rms_epsilon": 1e-6, **keys,
        }.items()
    }  # fmt: skip
    named = {f"blk.0.{key}": replace(tensor, name=f"blk.0.{key}") for key, tensor in tensors.items()}
    attention = {f"blk.0.attn_{part}.weight": array(width, width) for part in ("q", "k", "v", "output")}
    around = attention | {"token_embd.weight": array(4, width), "output_norm.weight": array(width)}
    return Model(metadata, {**named, **{key: from_array(key, value) for key, value in around.items()}})


class Compiled:
    """The experts of a model's only layer as operations."""

    def __init__(self, model, threads, **settings):
        network, self.threads = model.network, threads
        self.layer, width = network.layers[0], network.hyper.width
        assert supports(network, self.layer)
        self.operations, self.state = Operations(), np.zeros(pass_state.SIZE, np.int64)
        self.x, self.out, self.rooms = vectors(width), vectors(width), Rooms()
        self.spec = experts_spec(network, self.layer, threads)
        add_experts(self.operations, self.spec, self.x, self.out, self.state, rooms=self.rooms, **settings)

    def __call__(self, x, before=0.0):
        def prepare():
            packed = as_vectors(x)
            self.state[0] = len(x)
            for at in ("floats", "shorts", "numbers"):
                getattr(self.x, at)[: len(x)] = getattr(packed, at)
            self.out.floats[:] = 7
            self.out.floats[: len(x), : x.shape[1]] = before

        Team(self.threads).run(np.stack(self.operations.rows), prepare, lambda: None)
        assert (self.out.floats[len(x) :] == 7).all()
        return self.out.floats[: len(x), : x.shape[1]].copy()

    def choice(self, tokens):
        """Each thread's."""
        used = self.spec.routing.used
        found = next(value for (use, *_), value in self.rooms.known.items() if use == "choice")
        places = pass_state.MAX_TOKENS * used
        ids = found[:, : tokens * used].reshape(-1, tokens, used)
        weights = found[:, 3 * places :].copy().view(np.float32)[:, : tokens * used].reshape(-1, tokens, used)
        return ids, weights


def assert_close(found, wanted, bound):
    assert np.abs(found - wanted).max() < bound * np.abs(wanted).max()


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family):
    name, keys, more = FAMILIES[family]
    model = network_of(name, tensors_of(more, "F32"), **keys)
    for tokens, threads in ((1, 1), (1, 2), (3, 2), (8, 3)):
        x, before = array(tokens, WIDTH), array(tokens, WIDTH)
        forward = model.new_pass(1, tokens)
        wanted = experts(forward, model.network.layers[0], x.copy(), x.copy())
        assert_close(Compiled(model, threads)(x), wanted, 2e-6)
        alone = Compiled(model, 1, adds=True, scale=0.5)(x, before)
        assert_close(alone, before + np.float32(0.5) * wanted, 2e-6)
        np.testing.assert_array_equal(Compiled(model, threads, adds=True, scale=0.5)(x, before), alone)


@pytest.mark.parametrize("form", ["F16", "BF16", "Q8_0", "Q4_K", "Q6_K", "MXFP4"])
def test_formats(form):
    """Int16 inputs of two products in a row, of which the second one's carry the first one's rounding."""
    model = network_of("qwen2moe", tensors_of(("shared", "shared gate"), form))
    for tokens, threads in ((1, 2), (8, 2)):
        x = array(tokens, WIDTH)
        wanted = experts(model.new_pass(1, tokens), model.network.layers[0], x.copy(), x.copy())
        assert_close(Compiled(model, threads)(x), wanted, 2e-6 if form in ("F16", "BF16") else 5e-5)


@pytest.mark.parametrize(("width", "inner", "form"), [(80, 36, "F32"), (36, 80, "F16"), (96, 32, "Q8_0"), (288, 544, "Q4_0")])
def test_edge_widths(width, inner, form):
    model = network_of("qwen3moe", tensors_of((), form, width, inner), width)
    for tokens, threads in ((1, 1), (5, 2), (2, 3)):
        x = array(tokens, width)
        wanted = experts(model.new_pass(1, tokens), model.network.layers[0], x.copy(), x.copy())
        assert_close(Compiled(model, threads)(x), wanted, 5e-5)


@pytest.mark.parametrize("family", ["qwen3moe", "mixtral", "deepseek v2", "deepseek v3", "gpt-oss", "softcap", "clamped"])
def test_choice(family):
    """The same experts in the same order, also of equal scores, -0 and 0, and numbers that are none."""
    name, keys, more = FAMILIES[family]
    tensors = tensors_of(more, "F32", EXPERTS, 32)
    tensors["ffn_gate_inp.weight"] = from_array("router", np.eye(EXPERTS, dtype=np.float32))
    model = network_of(name, tensors, EXPERTS, **keys)
    compiled = Compiled(model, 2)
    logits = 4 * RNG.standard_normal((400, EXPERTS)).astype(np.float32)
    logits[100:200] = np.round(logits[100:200])
    logits[200:250] = RNG.integers(0, 2, (50, EXPERTS))
    logits[250] = 0
    for start in range(0, len(logits), 8):
        x = logits[start : start + 8]
        ids, weights = route(model.new_pass(1, len(x)), model.network.layers[0], x)
        compiled(x)
        for found, own in zip(*compiled.choice(len(x)), strict=True):
            np.testing.assert_array_equal(found, ids)
            np.testing.assert_allclose(own, weights, rtol=1e-6, atol=1e-7)


def test_what_is_not_finite_stays_with_its_token():
    model = network_of("qwen3moe", tensors_of((), "Q8_0"), expert_weights_norm=True)
    for value in (np.nan, np.inf, -np.inf):
        x = array(3, WIDTH)
        x[1, 5] = value
        finite = np.isfinite(Compiled(model, 2)(x))
        assert finite[[0, 2]].all()
        assert not finite[1].any()


def test_what_is_left_out():
    """Mixtures that other ways have to compute."""
    tensors = tensors_of((), "F32")
    for more in ("ffn_gate_tid2eid.weight", "ffn_up_chexps.weight", "ffn_latent_down.weight", "ffn_up_exps.scale"):
        model = network_of("qwen3moe", tensors | {more: from_array(more, array(4, WIDTH))})
        assert not supports(model.network, model.network.layers[0])
    model = network_of("phimoe", tensors)
    assert not supports(model.network, model.network.layers[0])  # sparsemixer
    model = network_of("cohere2moe", tensors_of(("shared",), "F32"))
    assert not supports(model.network, model.network.layers[0])  # halves the sum with the shared expert
    ternary = tensors | {"ffn_up_exps.weight": stored("up", array(EXPERTS, INNER, WIDTH), "TQ1_0")}
    model = network_of("qwen3moe", ternary)
    assert not supports(model.network, model.network.layers[0])


def test_activations_and_scorings_have_numbers():
    assert set(expert_operations.KINDS.values()) == set(range(len(expert_operations.KINDS)))
    assert set(expert_operations.SCORINGS.values()) == set(range(len(expert_operations.SCORINGS)))
