"""State spaces and short convolutions against loops over tokens, at once, in pieces, and several texts together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quants import from_array
from runtime.kernels.scan import delta_channels, delta_heads, scan_channels, scan_heads
from runtime.mixers.recurrence import convolved_by
from runtime.model import RunningModel

RNG = np.random.default_rng(6)
WIDTH, INNER, SIZE, RANK, TAPS, HEADS, GROUPS = 8, 12, 4, 3, 4, 6, 2


def array(*shape):
    return (RNG.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)


def positive(*shape):
    return np.abs(RNG.standard_normal(shape)).astype(np.float32)


MAMBA = {
    "attn_norm.weight": (WIDTH,),
    "ssm_in.weight": (2 * INNER, WIDTH),
    "ssm_conv1d.weight": (INNER, TAPS),
    "ssm_conv1d.bias": (INNER,),
    "ssm_x.weight": (RANK + 2 * SIZE, INNER),
    "ssm_dt.weight": (INNER, RANK),
    "ssm_dt.bias": (INNER,),
    "ssm_a": (INNER, SIZE),
    "ssm_d": (INNER,),
    "ssm_out.weight": (WIDTH, INNER),
}
MAMBA2 = {
    "attn_norm.weight": (WIDTH,),
    "ssm_in.weight": (2 * INNER + 2 * GROUPS * SIZE + HEADS, WIDTH),
    "ssm_conv1d.weight": (INNER + 2 * GROUPS * SIZE, TAPS),
    "ssm_dt.bias": (HEADS,),
    "ssm_a": (HEADS, 1),
    "ssm_d": (HEADS, 1),
    "ssm_norm.weight": (GROUPS, INNER // GROUPS),
    "ssm_out.weight": (WIDTH, INNER),
}
ATTENTION = {
    "attn_q.weight": (8, WIDTH),
    "attn_k.weight": (4, WIDTH),
    "attn_v.weight": (4, WIDTH),
    "attn_output.weight": (WIDTH, 8),
}
PLAIN_NET = {"ffn_up.weight": (10, WIDTH), "ffn_down.weight": (WIDTH, 10)}
NET = PLAIN_NET | {"ffn_gate.weight": (10, WIDTH)}
CONVOLUTION = {
    "attn_norm.weight": (WIDTH,),
    "shortconv.in_proj.weight": (3 * WIDTH, WIDTH),
    "shortconv.conv.weight": (WIDTH, TAPS),
    "shortconv.out_proj.weight": (WIDTH, WIDTH),
}
NORM = {"attn_norm.weight": (WIDTH,)}
SSM_KEYS = {"ssm.inner_size": INNER, "ssm.state_size": SIZE, "ssm.time_step_rank": RANK, "ssm.conv_kernel": TAPS}
SSM2_KEYS = SSM_KEYS | {"ssm.time_step_rank": HEADS, "ssm.group_count": GROUPS}
HEAD_KEYS = {"attention.head_count": 2, "attention.head_count_kv": 1}
MODELS = {
    "mamba": ("mamba", [MAMBA, MAMBA], SSM_KEYS),
    "mamba2": ("mamba2", [MAMBA2, MAMBA2], SSM2_KEYS),
    "side by side": ("falcon-h1", [MAMBA2 | ATTENTION | NET | {"ffn_norm": (WIDTH,)}], SSM2_KEYS | HEAD_KEYS),
    "one part a layer": (
        "nemotron_h",
        [MAMBA2, NORM | PLAIN_NET, NORM | ATTENTION],
        SSM2_KEYS | {"attention.head_count": 2, "attention.head_count_kv": [0, 0, 1]},
    ),
    "convolutions": ("lfm2", [CONVOLUTION | NET | {"ffn_norm.weight": (WIDTH,)}] * 2, {}),
}


def model_of(kind):
    name, layers, keys = MODELS[kind]
    tensors = {"token_embd.weight": array(20, WIDTH), "output_norm.weight": array(WIDTH)}
    for i, shapes in enumerate(layers):
        for key, shape in shapes.items():
            tensors[f"blk.{i}.{key}"] = -positive(*shape) if key == "ssm_a" else 2 * array(*shape)
    metadata = {"general.architecture": name} | {
        f"{name}.{key}": value
        for key, value in (
            {"embedding_length": WIDTH, "block_count": len(layers), "attention.layer_norm_rms_epsilon": 1e-5} | keys
        ).items()
    }
    return RunningModel(metadata, {key: from_array(key, values) for key, values in tensors.items()})


def test_scan_of_channels():
    n, channels = 5, 48
    x, dt, a = array(n, channels), positive(n, channels), -positive(SIZE, channels)
    b, c, state = array(n, SIZE), array(n, SIZE), array(SIZE, channels)
    now, y = state.copy(), np.full_like(x, np.nan)
    for start, stop in ((0, 1), (1, 3)):
        scan_channels(a, x, dt, b, c, now, y, start, stop)
    wanted = state.astype(np.float64)
    for t in range(n):
        wanted = wanted * np.exp(dt[t] * a) + dt[t] * x[t] * b[t][:, None]
        np.testing.assert_allclose(y[t], c[t] @ wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(now, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("each", [32, 144])
def test_scan_of_heads(each):
    n = 5
    x, dt, a = array(n, HEADS, each), positive(n, HEADS), -positive(HEADS)
    b, c, state = array(n, GROUPS, SIZE), array(n, GROUPS, SIZE), array(HEADS, SIZE, each)
    now, y = state.copy(), np.full_like(x, np.nan)
    for start, stop in ((0, 4), (4, HEADS)):
        scan_heads(a, x, dt, b, c, now, y, start, stop)
    wanted = state.astype(np.float64)
    for t in range(n):
        for h in range(HEADS):
            g = h // (HEADS // GROUPS)
            wanted[h] = wanted[h] * np.exp(dt[t, h] * a[h]) + dt[t, h] * np.outer(b[t, g], x[t, h])
            np.testing.assert_allclose(y[t, h], c[t, g] @ wanted[h], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(now, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [16, 80])
@pytest.mark.parametrize("by_channel", [False, True])
def test_delta_rule(by_channel, width):
    n, size = 5, 7
    v, q, k = array(n, HEADS, width), array(n, HEADS, size), array(n, HEADS, size)
    decay, beta = np.exp(-positive(n, HEADS, *[size] * by_channel)), positive(n, HEADS)
    state = array(HEADS, size, width)
    now, y = state.copy(), np.full_like(v, np.nan)
    for start, stop in ((0, 4), (4, HEADS)):
        (delta_channels if by_channel else delta_heads)(v, q, k, decay, beta, now, y, start, stop)
    wanted = state.astype(np.float64)
    for t in range(n):
        for h in range(HEADS):
            faded = wanted[h] * (decay[t, h][:, None] if by_channel else decay[t, h])
            wanted[h] = faded + beta[t, h] * np.outer(k[t, h], v[t, h] - k[t, h] @ faded)
            np.testing.assert_allclose(y[t, h], q[t, h] @ wanted[h], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(now, wanted, rtol=1e-5, atol=1e-6)


def test_convolution_looks_back_and_not_into_other_texts():
    model = model_of("mamba")
    layer = model.network.layers[0]
    x = array(2 * 6, INNER)
    cache = model.new_cache()
    taps, bias = layer.need_array("ssm_conv1d.weight"), layer.array("ssm_conv1d.bias")
    out = convolved_by(model.new_pass(2, 6, cache), layer, taps, bias, x)
    (tail,) = cache.states(layer.index)
    taps, bias = layer.array("ssm_conv1d.weight"), layer.array("ssm_conv1d.bias")
    for text in range(2):
        rows = x[6 * text : 6 * text + 6]
        for t in range(6):
            wanted = bias + sum(taps[:, TAPS - 1 - back] * rows[t - back] for back in range(min(t, TAPS - 1) + 1))
            np.testing.assert_allclose(out[6 * text + t], wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(tail[text], rows[-(TAPS - 1) :])


def assert_same_logits(found, wanted):
    """Equal but for the order of sums, which another BLAS or number of rows changes: measured by what logits are like,
    since one near zero is a difference of larger numbers.
    """
    assert np.abs(found - wanted).max() <= 2e-4 * wanted.std()


@pytest.mark.parametrize("kind", MODELS)
def test_pieces_of_a_text_continue_each_other(kind):
    model = model_of(kind)
    ids = RNG.integers(0, 20, 13)
    whole = model.logits(ids)
    cache = model.new_cache()
    for _ in range(2):  # a cache can be used again
        found = [model.forward(ids[start:stop], cache) for start, stop in ((0, 2), (2, 3), (3, 4), (4, 11), (11, 13))]
        assert_same_logits(np.concatenate(found), whole)
        assert cache.length == len(ids)
        cache.reset()
        assert cache.length == 0


@pytest.mark.parametrize("kind", MODELS)
def test_texts_do_not_see_each_other(kind):
    model = model_of(kind)
    ids = RNG.integers(0, 20, (3, 5))
    assert_same_logits(model.forward(ids), np.stack([model.forward(text) for text in ids]))


def test_time_steps_are_bounded_where_the_file_says_so():
    free = model_of("mamba2")
    bounds = {"mamba2.ssm.time_step_min": 0.5, "mamba2.ssm.time_step_max": 0.5}
    bounded = RunningModel({**free.metadata, **bounds}, free.tensors)
    ids = RNG.integers(0, 20, 6)
    changed = {name: t for name, t in free.tensors.items() if "ssm_in" not in name and "ssm_dt" not in name}
    for i in range(2):  # rows that make the time step: no input, and a bias whose softplus is one half
        weight = free.tensors[f"blk.{i}.ssm_in.weight"].float32().copy()
        weight[-HEADS:] = 0
        changed[f"blk.{i}.ssm_in.weight"] = from_array("in", weight)
        changed[f"blk.{i}.ssm_dt.bias"] = from_array("bias", np.full(HEADS, math.log(math.expm1(0.5)), np.float32))
    assert_same_logits(bounded.logits(ids), RunningModel(free.metadata, changed).logits(ids))
    assert np.abs(bounded.logits(ids) - free.logits(ids)).max() > 1e-3
