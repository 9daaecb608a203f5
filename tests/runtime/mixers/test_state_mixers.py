"""Mixers with states as compiled operations, beside the same over numpy: one token after another, several at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from quants import Tensor, encode, format_named, from_array
from runtime.decoder import through_layer, token_mixer
from runtime.kernels import context_state, rwkv_operations, thread_team
from runtime.kernels import state_operations as ops
from runtime.mixers import delta_mixers, rwkv_mixers
from runtime.mixers import state_mixers as mixers
from runtime.model import RunningModel
from runtime.products.gemv import as_vectors, vectors
from runtime.thread_team import team_of

PLANS = [[1] * 6, [8], [3, 1, 5], [2, 7]]  # tokens of one run after another
EXACT = 2e-6  # of the largest value
ROUNDED = 2e-4  # a mixer rounds the inputs of two to four products in a row to 16 bits, with norms between
TWO_LAYERS = 5e-4  # the same of two layers with their nets, whose norms of heads may divide by little


@dataclass
class Rows:
    """A list of operations as it is written."""

    rows: list = field(default_factory=list)
    kept: list = field(default_factory=list)

    def add(self, operation, fields, wait=True):
        self.kept += [value for value in fields.values() if isinstance(value, np.ndarray)]
        self.rows.append(thread_team.operation_row(operation(), fields, wait))


def model_of(architecture, shapes, keys, form="F32", seed=1):
    rng, tensors = np.random.default_rng(seed), {}
    width = keys["embedding_length"]
    shapes = {"token_embd.weight": (8, width), "output_norm.weight": (width,)} | {
        f"blk.{i}.{name}": shape for i in range(keys["block_count"]) for name, shape in shapes.items()
    }
    for name, shape in shapes.items():
        values = (rng.standard_normal(shape) / np.sqrt(shape[-1] if len(shape) > 1 else 4)).astype(np.float32)
        if name.endswith("ssm_a"):
            values = -np.abs(values)
        if len(shape) == 2 and shape[1] % 32 == 0 and "conv" not in name and not name.endswith("ssm_a"):
            raw = encode(form, values)
            tensors[name] = Tensor(name, shape, format_named(form), lambda start, stop, raw=raw: raw[start:stop])
        else:
            tensors[name] = from_array(name, values)
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    return RunningModel({"general.architecture": architecture} | named, tensors)


def assert_same(model, wanted, spec_of, write, threads, tolerance, index=0):
    """Two texts through a layer's mixer: results, and what is left in the states, as of numpy's."""
    rng, layer = np.random.default_rng(5), model.network.layers[index]
    spec, width = spec_of(model, layer), model.network.hparams.width
    states = [[np.zeros(shape, np.float32) for shape in spec.state_shapes] for _ in range(2)]
    tables = [np.array([text[i].ctypes.data for text in states]) for i in range(len(spec.state_shapes))]
    state, operations = np.zeros(context_state.SIZE, np.int64), Rows()
    x, out = vectors(width), vectors(width)
    write(mixers.Mixer(operations, state, tables, x, out, True), spec)
    rows = np.stack(operations.rows)
    caches = [model.new_cache(), model.new_cache()]
    for plan in PLANS:
        for count in plan:
            slots = np.sort(rng.integers(0, 2, count)) if count > 2 else rng.integers(0, 2, count)
            rng.shuffle(slots)
            values = rng.standard_normal((count, width)).astype(np.float32)
            expected, base = np.empty((count, width), np.float32), rng.standard_normal((count, width))
            for slot, cache in enumerate(caches):
                of_slot = np.flatnonzero(slots == slot)
                if len(of_slot):
                    forward = model.new_pass(1, len(of_slot), cache)
                    expected[of_slot] = wanted(forward, layer, values[of_slot])

            def prepare(count=count, values=values, slots=slots, base=base):
                given = as_vectors(values)
                x.floats[:count], x.shorts[:count] = given.floats, given.shorts
                x.numbers[:count], out.floats[:count, :width] = given.numbers, base
                state[context_state.TOKENS] = count
                state[context_state.SLOTS : context_state.SLOTS + count] = slots

            team_of(threads).run(rows, prepare, lambda: state.fill(0))
            found = out.floats[:count, :width] - base
            assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max() + 1e-6
    for slot, cache in enumerate(caches):
        kept = cache.states(layer.index)
        assert len(kept) == len(spec.state_shapes)
        for own, other in zip(states[slot], kept, strict=True):
            assert own.shape == other[0].shape
            assert np.abs(own - other[0]).max(initial=0) <= tolerance * np.abs(other).max(initial=0)


BASE = {"block_count": 1, "attention.layer_norm_rms_epsilon": 1e-5}


def mamba2(width, heads, head_width, size, groups, taps, form="F32", **keys):
    inner = heads * head_width
    channels = inner + 2 * groups * size
    shapes = {
        "attn_norm.weight": (width,),
        "ssm_in.weight": (inner + channels + heads, width),
        "ssm_conv1d.weight": (channels, taps),
        "ssm_conv1d.bias": (channels,),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads, 1),
        "ssm_d": (heads, 1),
        "ssm_norm.weight": (groups, inner // groups),
        "ssm_out.weight": (width, inner),
    }
    own = {
        "embedding_length": width,
        "ssm.inner_size": inner,
        "ssm.state_size": size,
        "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
        "ssm.conv_kernel": taps,
    }
    return model_of("mamba2", shapes, BASE | own | {f"ssm.{key}": value for key, value in keys.items()}, form)


MAMBA2 = {
    "plain": (mamba2, (64, 4, 64, 32, 1, 4), {}, EXACT),
    "wide heads": (mamba2, (96, 3, 80, 16, 3, 2), {"time_step_min": 0.3, "time_step_max": 0.9}, EXACT),
    "odd widths": (mamba2, (40, 6, 10, 7, 2, 8), {}, EXACT),
    "norm before the gate": (mamba2, (64, 8, 32, 16, 2, 4), {"norm_before_gate": True}, EXACT),
    "quantized": (mamba2, (256, 8, 64, 128, 1, 4, "Q8_0"), {}, ROUNDED),
}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", MAMBA2)
def test_mamba2(kind, threads):
    make, numbers, keys, tolerance = MAMBA2[kind]
    model = make(*numbers, **keys)

    def spec_of(model, layer):
        return mixers.mamba2_spec(layer, model.network.keys, model.network.hparams.eps)

    assert_same(model, token_mixer, spec_of, mixers.write_mamba2, threads, tolerance)


def mamba(width, inner, size, rank, taps, form="F32", norms=(), **keys):
    shapes = {
        "attn_norm.weight": (width,),
        "ssm_in.weight": (2 * inner, width),
        "ssm_conv1d.weight": (inner, taps),
        "ssm_conv1d.bias": (inner,),
        "ssm_x.weight": (rank + 2 * size, inner),
        "ssm_dt.weight": (inner, rank),
        "ssm_dt.bias": (inner,),
        "ssm_a": (inner, size),
        "ssm_d": (inner,),
        "ssm_out.weight": (width, inner),
    } | {f"ssm_{name}_norm.weight": (rank if name == "dt" else size,) for name in norms}
    own = {
        "embedding_length": width,
        "ssm.inner_size": inner,
        "ssm.state_size": size,
        "ssm.time_step_rank": rank,
        "ssm.conv_kernel": taps,
    }
    return model_of("mamba", shapes, BASE | own | {f"ssm.{key}": value for key, value in keys.items()}, form)


MAMBA = {
    "plain": (mamba, (64, 128, 16, 4, 4), {}, EXACT),
    "odd widths": (mamba, (40, 276, 5, 3, 3), {}, EXACT),
    "norms": (mamba, (64, 320, 16, 8, 4), {"norms": ("dt", "b", "c")}, EXACT),
    "norms without weights": (mamba, (64, 320, 16, 40, 4), {"dt_b_c_rms": True}, EXACT),
    "quantized": (mamba, (256, 512, 16, 32, 4, "Q8_0"), {"norms": ("dt", "b", "c")}, ROUNDED),
}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", MAMBA)
def test_mamba(kind, threads):
    make, numbers, keys, tolerance = MAMBA[kind]
    model = make(*numbers, **keys)

    def spec_of(model, layer):
        return mixers.mamba_spec(layer, model.network.keys, model.network.hparams.eps)

    assert_same(model, token_mixer, spec_of, mixers.write_mamba, threads, tolerance)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("width", "taps", "form", "tolerance"),
    [(64, 3, "F32", EXACT), (40, 4, "F32", EXACT), (520, 1, "F32", EXACT), (512, 3, "Q8_0", ROUNDED)],
)
def test_short_convolution(width, taps, form, tolerance, threads):
    model = model_of(
        "lfm2",
        {
            "attn_norm.weight": (width,),
            "shortconv.in_proj.weight": (3 * width, width),
            "shortconv.conv.weight": (width, taps),
            "shortconv.out_proj.weight": (width, width),
        },
        BASE | {"embedding_length": width},
        form,
    )
    assert_same(
        model,
        token_mixer,
        lambda model, layer: mixers.short_convolution_spec(layer),
        mixers.write_short_convolution,
        threads,
        tolerance,
    )


HEADS = {"attention.head_count": 4, "attention.head_count_kv": 4}


def gated_delta(architecture, width, groups, heads, size, head_width, taps=4, form="F32"):
    inner, keys = heads * head_width, groups * size
    shapes = {
        "attn_norm.weight": (width,),
        "attn_qkv.weight": (2 * keys + inner, width),
        "attn_gate.weight": (inner, width),
        "ssm_conv1d.weight": (2 * keys + inner, taps),
        "ssm_a": (heads,),
        "ssm_dt.bias": (heads,),
        "ssm_norm.weight": (head_width,),
        "ssm_out.weight": (width, inner),
    }
    if architecture == "qwen3next":
        shapes["ssm_ba.weight"] = 2 * heads, width
    else:
        shapes |= {"ssm_beta.weight": (heads, width), "ssm_alpha.weight": (heads, width)}
    own = {
        "embedding_length": width,
        "ssm.inner_size": inner,
        "ssm.state_size": size,
        "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
        "ssm.conv_kernel": taps,
    }
    return model_of(architecture, shapes, BASE | HEADS | own, form)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("numbers", "tolerance"),
    [
        (("qwen3next", 64, 2, 4, 32, 64), EXACT),
        (("qwen35", 64, 2, 6, 16, 80), EXACT),
        (("qwen35", 40, 3, 3, 7, 10, 2), EXACT),
        (("qwen3next", 256, 2, 8, 64, 64, 4, "Q8_0"), ROUNDED),
    ],
)
def test_gated_delta(numbers, tolerance, threads):
    def spec_of(model, layer):
        return delta_mixers.gated_delta_spec(model.network, layer)

    write = delta_mixers.write_gated_delta
    assert_same(gated_delta(*numbers), token_mixer, spec_of, write, threads, tolerance)


def kimi_delta(width, heads, size, rank, form="F32", bound=None):
    inner = heads * size
    shapes = {
        "attn_norm.weight": (width,),
        "ssm_a": (heads,),
        "ssm_dt.bias": (inner,),
        "ssm_beta.weight": (heads, width),
        "ssm_norm.weight": (size,),
        "attn_output.weight": (width, inner),
    }
    for kind in "qkv":
        shapes |= {f"attn_{kind}.weight": (inner, width), f"ssm_conv1d_{kind}.weight": (1, inner, 1, 4)}
    for kind in "fg":
        shapes |= {f"ssm_{kind}_a.weight": (rank, width), f"ssm_{kind}_b.weight": (inner, rank)}
    if not rank:
        shapes = {name: shape for name, shape in shapes.items() if not name.endswith("_b.weight")}
        shapes = {name: (inner, width) if "_a.w" in name else shape for name, shape in shapes.items()}
    own = {"embedding_length": width, "kda.head_dim": size, "ssm.conv_kernel": 4, "attention.head_count": heads}
    own["attention.head_count_kv"] = 0
    if bound is not None:
        own["kda.gate_lower_bound"] = bound
    return model_of("kimi-linear", shapes, BASE | HEADS | own, form)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("numbers", "tolerance"),
    [
        ((64, 4, 64, 32), EXACT),
        ((40, 3, 10, 7, "F32", -5.0), EXACT),
        ((64, 2, 48, 0), EXACT),
        ((256, 4, 64, 64, "Q8_0"), ROUNDED),
    ],
)
def test_kimi_delta(numbers, tolerance, threads):
    def spec_of(model, layer):
        return delta_mixers.kimi_delta_spec(model.network, layer)

    write = delta_mixers.write_kimi_delta
    assert_same(kimi_delta(*numbers), token_mixer, spec_of, write, threads, tolerance)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("width", "heads", "size", "form", "tolerance"),
    [(64, 4, 64, "F32", EXACT), (40, 3, 10, "F32", EXACT), (256, 4, 64, "Q8_0", ROUNDED)],
)
def test_lightning(width, heads, size, form, tolerance, threads):
    inner = heads * size
    model = model_of(
        "minimax-01",
        {
            "attn_norm.weight": (width,),
            "attn_qkv.weight": (3 * inner, width),
            "attn_gate.weight": (inner, width),
            "attn_norm_2.weight": (inner,),
            "attn_output.weight": (width, inner),
        },
        BASE
        | {
            "embedding_length": width,
            "attention.head_count": heads,
            "attention.head_count_kv": heads,
            "block_count": 2,
            "attention.key_length": size,
            "attention.value_length": size,
        },
        form,
    )

    def spec_of(model, layer):
        return delta_mixers.lightning_spec(model.network, layer)

    assert_same(model, token_mixer, spec_of, delta_mixers.write_lightning, threads, tolerance, 1)


RWKV = {"wkv.head_size": 16, "attention.layer_norm_epsilon": 1e-5}
RWKV_NORMS = [f"attn_norm{which}.{part}" for which in ("", "_2") for part in ("weight", "bias")]


def rwkv6_shapes(width):
    rank = 32
    return dict.fromkeys(RWKV_NORMS, (width,)) | {
        "time_mix_w1.weight": (5 * rank, width),
        "time_mix_w2.weight": (5, width, rank),
        "time_mix_lerp_x.weight": (width,),
        "time_mix_lerp_fused.weight": (5, width),
        "time_mix_decay.weight": (width,),
        "time_mix_decay_w1.weight": (64, width),
        "time_mix_decay_w2.weight": (width, 64),
        "time_mix_receptance.weight": (width, width),
        "time_mix_key.weight": (width, width),
        "time_mix_value.weight": (width, width),
        "time_mix_gate.weight": (width, width),
        "time_mix_output.weight": (width, width),
        "channel_mix_key.weight": (96, width),
        "channel_mix_value.weight": (width, 96),
        "channel_mix_receptance.weight": (width, width),
        "channel_mix_lerp_k.weight": (width,),
        "channel_mix_lerp_r.weight": (width,),
    }


def rwkv6(width, size, form="F32", period=0, fused=True):
    shapes = rwkv6_shapes(width)
    shapes |= {"time_mix_ln.weight": (width,), "time_mix_ln.bias": (width,)}
    shapes["time_mix_first.weight"] = width // size, size
    if not fused:
        del shapes["time_mix_lerp_fused.weight"]
        shapes |= {f"time_mix_lerp_{kind}.weight": (width,) for kind in "wkvrg"}
    own = {"embedding_length": width, "wkv.head_size": size, "rescale_every_n_layers": period}
    return model_of("rwkv6", shapes, BASE | RWKV | own, form)


def rwkv7(width, size, form="F32", gate=True, norm=True):
    shapes = dict.fromkeys(RWKV_NORMS, (width,)) | {
        "time_mix_lerp_fused.weight": (5 + gate, width),
        "time_mix_receptance.weight": (width, width),
        "time_mix_key.weight": (width, width),
        "time_mix_value.weight": (width, width),
        "time_mix_output.weight": (width, width),
        "time_mix_k_k.weight": (width,),
        "time_mix_k_a.weight": (width,),
        "time_mix_r_k.weight": (width,),
        "channel_mix_key.weight": (96, width),
        "channel_mix_value.weight": (width, 96),
        "channel_mix_lerp_k.weight": (width,),
    }
    for kind in "wav" + "g" * gate:
        shapes |= {f"time_mix_{kind}1.weight": (32, width), f"time_mix_{kind}2.weight": (width, 32)}
        shapes |= {f"time_mix_{kind}0.weight": (width,)} if kind != "g" else {}
    if norm:
        shapes |= {"time_mix_ln.weight": (width,), "time_mix_ln.bias": (width,)}
    own = {"embedding_length": width, "wkv.head_size": size, "block_count": 2}
    return model_of("rwkv7", shapes, BASE | RWKV | own, form)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("form", ["F32", "Q8_0"])
def test_rwkv6_of_a_qwen(form, threads):
    """Heads share keys, and have no norm."""
    shapes = {name: shape for name, shape in rwkv6_shapes(256).items() if "channel" not in name and "_2" not in name}
    del shapes["attn_norm.bias"]
    shapes |= {"time_mix_key.weight": (64, 256), "time_mix_value.weight": (64, 256), "ffn_norm.weight": (256,)}
    shapes |= {"ffn_up.weight": (96, 256), "ffn_gate.weight": (96, 256), "ffn_down.weight": (256, 96)}
    own = {
        "embedding_length": 256,
        "wkv.head_size": 32,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "token_shift_count": 1,
    }
    model = model_of("rwkv6qwen2", shapes, BASE | own, form)

    def spec_of(model, layer):
        return rwkv_mixers.time_mix6_spec(model.network, layer)

    tolerance = ROUNDED if form == "Q8_0" else 4 * EXACT
    assert_same(model, token_mixer, spec_of, rwkv_mixers.write_time_mix6, threads, tolerance)


def write_rwkv_layer(network, mixer, layer, stream, tables, first_values=None):
    """Norms and mixers of one layer on a residual stream, as whoever builds a graph has them."""

    def of_norm(name):
        norm = mixers.Norm(layer.array(f"{name}.weight"), network.hparams.eps, 1, layer.array(f"{name}.bias"), True)
        x = mixers.normed(mixer, norm, stream.floats, stream.width)
        return replace(mixer, x=x, out=stream, adds=True, tables=tables)

    if "time_mix_k_k.weight" in layer:
        spec = rwkv_mixers.time_mix7_spec(network, layer)
        values = rwkv_mixers.write_time_mix7(of_norm("attn_norm"), spec, first_values)
    else:
        values = rwkv_mixers.write_time_mix6(of_norm("attn_norm"), rwkv_mixers.time_mix6_spec(network, layer))
    rwkv_mixers.write_channel_mix(of_norm("attn_norm_2"), rwkv_mixers.channel_mix_spec(network, layer))
    return values


def assert_same_rwkv(model, spec_of_layer, threads, tolerance):
    """All layers one after another; states are compared of the last one."""
    network, early = model.network, []

    def write(mixer, spec):
        stream, values = vectors(mixer.x.width), None
        copied = {ops.WIDTH: stream.width, ops.GROUPS: 1, **mixers.rows_in(mixer.x.floats), **mixers.rows_out(stream)}
        mixer.add(ops.norm_groups, copied)
        for layer in network.layers:
            tables = mixer.tables
            if layer is not network.layers[-1]:
                early.append([[np.zeros(shape, np.float32) for shape in spec.state_shapes] for _ in range(2)])
                tables = [np.array([text[i].ctypes.data for text in early[-1]]) for i in range(3)]
            values = write_rwkv_layer(network, mixer, layer, stream, tables, values)
        mixer.add(
            rwkv_operations.add_gated,
            {
                ops.WIDTH: stream.width,
                rwkv_operations.SCALE: 1.0,
                **mixers.rows_in(stream.floats),
                **mixers.rows_out(mixer.out),
            },
        )

    def wanted(forward, layer, x):
        for each in network.layers:
            x = through_layer(forward, each, x)
        return x

    def spec_of(model, layer):
        return spec_of_layer(network, layer)

    assert rwkv_mixers.supports(network)
    assert_same(model, wanted, spec_of, write, threads, tolerance, len(network.layers) - 1)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("numbers", "tolerance"),
    [
        ((64, 16), 4 * EXACT),
        ((320, 64, "F32", 1), 4 * EXACT),
        ((48, 16, "F32", 0, False), 4 * EXACT),
        ((256, 64, "Q8_0"), TWO_LAYERS),
    ],
)
def test_rwkv6(numbers, tolerance, threads):
    assert_same_rwkv(rwkv6(*numbers), rwkv_mixers.time_mix6_spec, threads, tolerance)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("numbers", "tolerance"),
    [
        ((64, 16), 4 * EXACT),
        ((320, 64), 4 * EXACT),
        ((64, 16, "F32", False, False), 4 * EXACT),
        ((256, 64, "Q8_0"), TWO_LAYERS),
    ],
)
def test_rwkv7(numbers, tolerance, threads):
    assert_same_rwkv(rwkv7(*numbers), rwkv_mixers.time_mix7_spec, threads, tolerance)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("width", "heads", "head_width", "form", "tolerance"), [(64, 3, 48, "F32", EXACT), (256, 4, 64, "Q8_0", ROUNDED)]
)
def test_mamba_of_heads(width, heads, head_width, form, tolerance, threads):
    inner, size, rank = heads * head_width, 16, 32
    model = model_of(
        "plamo2",
        {
            "attn_norm.weight": (width,),
            "ssm_in.weight": (2 * inner, width),
            "ssm_conv1d.weight": (inner, 4),
            "ssm_x.weight": (rank + 2 * size, inner),
            "ssm_dt.weight": (heads, rank),
            "ssm_dt.bias": (heads,),
            "ssm_a": (heads,),
            "ssm_d": (heads,),
            "ssm_out.weight": (width, inner),
            "ssm_b_norm": (size,),
            "ssm_c_norm": (size,),
            "ssm_dt_norm": (rank,),
            "ffn_norm.weight": (width,),
            "post_attention_norm": (width,),
            "post_ffw_norm": (width,),
            "ffn_up.weight": (2 * 96, width),
            "ffn_down.weight": (width, 96),
        },
        BASE
        | {
            "embedding_length": width,
            "ssm.inner_size": inner,
            "ssm.state_size": size,
            "ssm.time_step_rank": heads,
            "ssm.group_count": 0,
            "ssm.conv_kernel": 4,
            "attention.head_count": 4,
            "attention.head_count_kv": 0,
            "attention.key_length": 16,
            "attention.value_length": 16,
        },
        form,
    )

    def spec_of(model, layer):
        return mixers.mamba_of_heads_spec(layer, model.network.keys, model.network.hparams.eps)

    assert_same(model, token_mixer, spec_of, mixers.write_mamba_of_heads, threads, tolerance)
