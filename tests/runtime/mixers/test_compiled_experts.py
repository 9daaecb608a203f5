"""Experts as compiled operations, against those that texts go through (`runtime.decoder.feed_forward`)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from archs.spec import weigh_input
from quants import Tensor, encode, format_named, from_array
from runtime.decoder import feed_forward
from runtime.graph.builder import Builder
from runtime.graph.lowering import MachineList
from runtime.graph.net import route
from runtime.graph.operations import Input
from runtime.graph.text import run
from runtime.kernels import context_state
from runtime.layer import ForwardContext, Layer
from runtime.mixers.compiled_experts import Output, Rooms, add_choice, add_experts, experts_spec, supports
from runtime.model import RunningModel
from runtime.products.gemv import as_vectors, vectors
from runtime.thread_team import Team

RNG = np.random.default_rng(3)
WIDTH, INNER, EXPERTS, USED, SHARED = 512, 256, 16, 4, 288
NORMED = {"normalize_experts": True}
GROUPED = {"expert_groups": 4, "expert_groups_used": 2}
FAMILIES = {  # what differs from a plain mixture in the model's numbers, and tensors
    "qwen3moe": (NORMED, ()),
    "mixtral, scaled": (NORMED | {"experts_scale": 2.5}, ("scaled",)),
    "olmoe": ({}, ()),
    "deepseek v2": ({"experts_scale": 16.0, **GROUPED}, ("shared",)),
    "deepseek v3": ({"scoring": "sigmoid", "experts_scale": 2.5, **NORMED, **GROUPED}, ("shared", "correction")),
    "gpt-oss": ({"scoring": "softmax_of_top", "activation": "swiglu_oai", "activation_limit": 0.75}, ("biases",)),
    "qwen2moe": ({}, ("shared", "shared gate")),
    "grok": ({"router_softcap": 2.0, "activation": "gelu"}, ()),
    "llama4": ({"scoring": "sigmoid", "weigh_expert": weigh_input}, ("shared",)),
    "gemma4": ({"activation": "gelu_tanh", **NORMED}, ("fused", "scaled")),
    "nemotron": ({"scoring": "sigmoid", "activation": "relu2", "gated": False}, ("shared", "correction")),
    "smallthinker": ({"scoring": "sigmoid", "activation": "relu", **NORMED}, ("shared", "fused shared")),
    "deepseek v4": (
        {"scoring": "sqrt_softplus", "experts_limit": 0.5, "net_limit": 0.25, "clamps_gate_first": True, **NORMED},
        ("shared", "correction"),
    ),
    "step": ({"scoring": "sigmoid", "experts_limit": 0.25, "net_limit": 0.5, **NORMED}, ("shared",)),
}


def routed(network, x):
    """What texts choose for x: numbers of experts, and weights."""
    found = []
    for part in (1, 2):
        b = Builder(network)
        value, b.layer = b.add("input", Input((x.shape[1],))), network.layers[0]
        chosen = route(b, network.layers[0], value)[part]
        graph = replace(b.graph(), nodes=tuple(b.nodes[: chosen.number + 1]))
        found.append(run(graph, ForwardContext(network, 1, len(x)), x))
    return found


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


def tensors_of(more=(), form="F32", width=WIDTH, inner=INNER, gated=True):
    """Of one layer; stacks and shared experts in a format, all else float32."""
    weights = {"ffn_up_exps": (EXPERTS, inner, width), "ffn_down_exps": (EXPERTS, width, inner)}
    if "fused" in more:
        weights["ffn_gate_up_exps"] = (EXPERTS, 2 * inner, width)
        del weights["ffn_up_exps"]
    elif gated:
        weights["ffn_gate_exps"] = (EXPERTS, inner, width)
    if "shared" in more:
        weights |= {"ffn_up_shexp": (SHARED, width), "ffn_down_shexp": (width, SHARED)}
    if "fused shared" in more:
        weights["ffn_up_shexp"] = (2 * SHARED, width)
    elif "shared" in more and gated:
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


def network_of(tensors, numbers=(), width=WIDTH):
    """A model of one layer, with other numbers of its block, of the model and of the layer."""
    keys = {
        "embedding_length": width,
        "block_count": 1,
        "attention.head_count": 2,
        "expert_used_count": USED,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "expert_weights_norm": False,
    }
    metadata = {"general.architecture": "qwen3moe"} | {f"qwen3moe.{key}": value for key, value in keys.items()}
    shapes = {
        "gate_exps": (EXPERTS, 8, width),
        "up_exps": (EXPERTS, 8, width),
        "down_exps": (EXPERTS, width, 8),
        "gate_inp": (EXPERTS, width),
    }
    around = {f"blk.0.ffn_{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    around |= {"token_embd.weight": array(4, width), "output_norm.weight": array(width)}
    network = RunningModel(metadata, {name: from_array(name, values) for name, values in around.items()}).network
    numbers = dict(numbers)

    def changed(group):
        return replace(group, **{key: value for key, value in numbers.items() if hasattr(group, key)})

    layer = Layer("blk.0.", {name: replace(tensor, name=f"blk.0.{name}") for name, tensor in tensors.items()})
    hparams = replace(changed(network.hparams), layers=(changed(network.hparams.layers[0]),))
    return replace(network, block=changed(network.block), hparams=hparams, layers=(layer,))


def family(name, form="F32", width=WIDTH, inner=INNER, **tensors):
    numbers, more = FAMILIES[name]
    made = tensors_of(more, form, width, inner, numbers.get("gated", True))
    return network_of(made | tensors, numbers, width)


def expected(network, x):
    return feed_forward(ForwardContext(network, 1, len(x)), network.layers[0], x.copy())


class Compiled:
    """The experts of a network's only layer as operations."""

    def __init__(self, network, threads, **settings):
        self.threads, width = threads, network.hparams.width
        assert supports(network, network.layers[0])
        self.operations, self.state = MachineList(), np.zeros(context_state.SIZE, np.int64)
        self.x, self.out, self.rooms = vectors(width), vectors(width), Rooms()
        self.spec = experts_spec(network, network.layers[0], threads)
        add_experts(self.operations, self.spec, self.x, Output(self.out, **settings), self.state, rooms=self.rooms)

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
        places = context_state.MAX_TOKENS * used
        ids = found[:, : tokens * used].reshape(-1, tokens, used)
        weights = found[:, 3 * places :].copy().view(np.float32)[:, : tokens * used].reshape(-1, tokens, used)
        return ids, weights


def assert_close(found, wanted, bound):
    assert np.abs(found - wanted).max() < bound * np.abs(wanted).max()


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name):
    network = family(name)
    for tokens, threads in ((1, 1), (1, 2), (3, 2), (8, 3)):
        x, before = array(tokens, WIDTH), array(tokens, WIDTH)
        wanted = expected(network, x)
        assert_close(Compiled(network, threads)(x), wanted, 2e-6)
        alone = Compiled(network, 1, adds=True, scale=0.5)(x, before)
        assert_close(alone, before + np.float32(0.5) * wanted, 2e-6)
        np.testing.assert_array_equal(Compiled(network, threads, adds=True, scale=0.5)(x, before), alone)


def test_a_router_with_an_input_of_its_own():
    """As in Arctic and SmallThinker; also the next layer's, in the same memory."""
    network = family("deepseek v3")
    compiled, other, x = Compiled(network, 2), vectors(WIDTH), array(8, WIDTH)
    wanted = compiled(x)
    compiled.operations = MachineList()
    settings = compiled.operations, compiled.spec
    choice = add_choice(*settings, compiled.x, compiled.state, compiled.rooms)
    add_experts(*settings, other, Output(compiled.out), compiled.state, rooms=compiled.rooms, choice=choice)
    assert (compiled(x) == 0).all()
    other.floats[:8] = x
    assert_close(compiled(x), wanted, 2e-6)


@pytest.mark.parametrize("form", ["F16", "BF16", "Q8_0", "Q4_K", "Q6_K", "MXFP4"])
def test_formats(form):
    """Two products in a row round their inputs to integers of 16 bits."""
    network = family("qwen2moe", form)
    for tokens, threads in ((1, 2), (8, 2)):
        x = array(tokens, WIDTH)
        assert_close(Compiled(network, threads)(x), expected(network, x), 2e-6 if form in ("F16", "BF16") else 1e-4)


@pytest.mark.parametrize(
    ("width", "inner", "form"), [(80, 36, "F32"), (36, 80, "F16"), (96, 32, "Q8_0"), (288, 544, "Q4_0")]
)
def test_edge_widths(width, inner, form):
    """Of rows that are no whole vectors, blocks or groups of blocks; the fewer columns, the more rounding shows."""
    network = family("gemma4", form, width, inner)
    for tokens, threads in ((1, 1), (5, 2), (2, 3)):
        x = array(tokens, width)
        assert_close(Compiled(network, threads)(x), expected(network, x), 2e-6 if form in ("F32", "F16") else 1e-4)


def compare_choices(name, logits, bias):
    """Of a router whose logits are these, 8 tokens at a time."""
    router = {"ffn_gate_inp.weight": np.eye(EXPERTS, dtype=np.float32), "ffn_gate_inp.bias": bias}
    network = family(name, width=EXPERTS, inner=32, **{key: from_array(key, value) for key, value in router.items()})
    compiled = Compiled(network, 2)
    for start in range(0, len(logits), 8):
        x = logits[start : start + 8]
        ids, weights = routed(network, x)
        compiled(x)
        for found, own in zip(*compiled.choice(len(x)), strict=True):
            np.testing.assert_array_equal(found, ids)
            np.testing.assert_allclose(own, weights, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", [name for name, (_, more) in FAMILIES.items() if "scaled" not in more])
def test_choice(name):
    """The same experts in the same order, also of equal scores; where the router reads a norm, logits are not ours."""
    logits = 4 * RNG.standard_normal((320, EXPERTS)).astype(np.float32)
    logits[100:200] = np.round(logits[100:200])
    logits[200:250] = RNG.integers(0, 2, (50, EXPERTS))
    logits[250] = 0
    compare_choices(name, logits, np.zeros(EXPERTS, np.float32))


@pytest.mark.parametrize("name", ["qwen3moe", "deepseek v3", "deepseek v4", "llama4"])
@pytest.mark.parametrize("nan", [[0], [9], [4, 5, 6, 7], [0, 5, 10, 15], [*range(14)]])
def test_scores_that_are_no_numbers_come_last(name, nan):
    bias = np.zeros(EXPERTS, np.float32)
    bias[nan] = np.nan
    compare_choices(name, RNG.standard_normal((16, EXPERTS)).astype(np.float32), bias)


@pytest.mark.parametrize("name", ["qwen3moe", "deepseek v3"])
def test_what_is_not_finite_stays_with_its_token(name):
    network = family(name, "Q8_0")
    for value in (np.nan, np.inf, -np.inf):
        x = array(3, WIDTH)
        x[1, 5] = value
        finite = np.isfinite(Compiled(network, 2)(x))
        assert finite[[0, 2]].all()
        assert not finite[1].any()


def test_experts_that_many_tokens_choose():
    """All the same, each its own, and as many as there are."""
    router = np.zeros((EXPERTS, WIDTH), np.float32)
    router[:, :EXPERTS] = 5 * np.eye(EXPERTS)
    for used in (1, 3, EXPERTS):
        network = network_of(
            tensors_of() | {"ffn_gate_inp.weight": from_array("router", router)}, {"experts_used": used, **NORMED}
        )
        x = array(8, WIDTH)
        for tokens in (x, np.repeat(x[:1], 8, axis=0), np.roll(np.pad(x[:, :1], ((0, 0), (0, WIDTH - 1))), 1)):
            assert_close(Compiled(network, 2)(tokens), expected(network, tokens), 2e-6)


def test_a_quantized_router_is_read_as_texts_read_it():
    router = stored("router", array(EXPERTS, WIDTH), "Q8_0")
    network, x = family("qwen3moe", **{"ffn_gate_inp.weight": router}), array(8, WIDTH)
    assert_close(Compiled(network, 2)(x), expected(network, x), 2e-6)


@pytest.mark.parametrize(
    "numbers",
    [
        {"scoring": "sparsemixer"},
        {"activation": "situ"},
        {"activation": "xielu"},
        {"weigh_expert": lambda net, x, weights: net(x)},
        {"add_shared_expert": lambda routed, shared: routed - shared},
        {"activation": "swiglu_oai", "net_limit": 1.0},
        {"expert_groups": 3},
        {"sparsity": 0.5},
    ],
)
def test_numbers_that_other_ways_compute(numbers):
    tensors = tensors_of(("shared",))
    network = network_of(tensors)
    assert supports(network, network.layers[0])
    network = network_of(tensors, numbers)
    assert not supports(network, network.layers[0])


@pytest.mark.parametrize(
    "name",
    [
        "ffn_gate_tid2eid.weight",
        "ffn_up_chexps.weight",
        "ffn_latent_down.weight",
        "ffn_routed_down.weight",
        "ffn_up_exps.scale",
        "ffn_down_shexp.scale",
        "ffn_sub_norm.weight",
    ],
)
def test_tensors_that_other_ways_compute_with(name):
    network = network_of(tensors_of(("shared",)) | {name: from_array(name, array(4, WIDTH))})
    assert not supports(network, network.layers[0])


def test_formats_that_are_not_multiplied_from_their_blocks():
    up = stored("up", array(EXPERTS, INNER, WIDTH), "TQ1_0")
    network = network_of(tensors_of() | {"ffn_up_exps.weight": up})
    assert not supports(network, network.layers[0])
