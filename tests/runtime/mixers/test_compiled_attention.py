"""Attention layers as compiled operations, against the functions that texts take."""

import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from quants import Tensor, encode, format_named, from_array
from runtime.decoder import token_mixer
from runtime.graph.lowering import MachineList
from runtime.kernels import context_state, thread_team
from runtime.kernels import token_parts as parts
from runtime.kv_cache import KVCache
from runtime.mixers.compiled_attention import (
    Bound,
    Workspace,
    Writer,
    attention_spec,
    latent_attention_spec,
    write_attention,
    write_latent_attention,
)
from runtime.mixers.self_attention import alibi_slopes, temperature
from runtime.model import RunningModel
from runtime.products.gemv import MAX_TOKENS, aligned, stored_rows, vectors
from runtime.thread_team import team_of

WIDTH, HEADS, KV_HEADS, KEY, ROOM = 64, 6, 2, 32, 400
RNG = np.random.default_rng(4)
STATE = RNG.bit_generator.state
KEYS = {
    "embedding_length": WIDTH,
    "block_count": 2,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "context_length": 512,
    "attention.key_length": KEY,
    "attention.value_length": KEY,
}


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order():
    RNG.bit_generator.state = STATE


def array(*shape):
    values = (RNG.standard_normal(shape) / math.sqrt(shape[-1] if len(shape) > 1 else 2)).astype(np.float32)
    return 1.5 * values


def stored(name, values, form):
    if values.ndim == 1 or form == "F32" or not name.endswith("weight") or "norm" in name or values.shape[-1] % 32:
        return from_array(name, values)
    raw = encode(form, values.reshape(-1, values.shape[-1]))
    return Tensor(name, values.shape, format_named(form), lambda start, stop: raw[start:stop])


def model_of(shapes, keys=None, architecture="llama", form="F32"):
    """Two layers of such tensors."""
    tensors = {"token_embd.weight": from_array("token_embd.weight", array(4, WIDTH))}
    for i in range(2):
        for name, shape in shapes.items():
            values = array(*shape)
            if "norm" in name and name.endswith("weight"):
                values = np.abs(values) + 0.5
            full = f"blk.{i}.{name}"
            tensors[full] = stored(full, values, form)
    metadata = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key}": value for key, value in (KEYS | (keys or {})).items()}
    with mock.patch("runtime.model.check_model"):  # layers that have attention alone
        return RunningModel(metadata, tensors, precision="exact")


def separate(heads=HEADS, kv_heads=KV_HEADS, key=KEY, value=KEY, **more):
    shapes = {
        "attn_q.weight": (heads * key, WIDTH),
        "attn_k.weight": (kv_heads * key, WIDTH),
        "attn_v.weight": (kv_heads * value, WIDTH),
        "attn_output.weight": (WIDTH, heads * value),
    }
    return shapes | {name.replace("__", "."): shape for name, shape in more.items()}


def changed(model, block=None, hparams=None, **layer):
    """The same network with other numbers for all layers."""
    network = model.network
    own = replace(network.hparams.with_layers(lambda i, own: layer), **(hparams or {}))
    model.__dict__["network"] = replace(network, block=replace(network.block, **(block or {})), hparams=own)
    return model


class Compiled:
    """Layers written down once, for texts in slots, whose caches grow."""

    def __init__(self, model, layers, write, spec_of, slots, kind, threads):
        self.model, self.kind, self.threads = model, kind, threads
        self.network, self.state = model.network, np.zeros(context_state.SIZE, np.int64)
        self.operations, self.x, workspace = MachineList(), vectors(WIDTH), Workspace(threads)
        self.tables = [Bound(np.zeros(slots, np.int64), np.zeros(slots, np.int64)) for _ in layers]
        self.out = aligned((len(layers), MAX_TOKENS, 256))
        for i, (layer, bound) in enumerate(zip(layers, self.tables, strict=True)):
            weights = {t.name: stored_rows(t) for t in layer.tensors.values() if len(t.shape) > 1}
            writer = Writer(self.operations, layer, weights, self.state, workspace, bound)
            source = self.network.hparams.layers[layer.index].kv_source_layer
            if source is not None:
                bound.keys, bound.values = self.tables[source].keys, self.tables[source].values
            mixed = write(writer, spec_of(self.network, layer), self.x)
            writer.product("attn_output", mixed, self.out[i])
        self.rows = np.stack(self.operations.rows)
        for layer, bound in zip(layers, self.tables, strict=True):
            self._bind(layer, bound)

    def _bind(self, layer, bound):
        forward, own = self.model.new_pass(1, ROOM), self.network.hparams.layers[layer.index]
        if bound.rotating:
            cos, sin = forward.rope(own)
            self.kept = [*getattr(self, "kept", []), cos, sin]
            bound.put_angles(self.rows, cos, sin)
        factors = temperature(forward, own.rotates)
        if factors is not None:
            self.kept.append(factors)
            bound.put_factors(self.rows, factors)
        terms = self.network.block.alibi_terms
        if bound.biased:
            self.terms = np.ascontiguousarray(terms(alibi_slopes(self.network, own.heads), ROOM, own.attention_scale))
            bound.put_terms(self.rows, self.terms)
        bound.put_cache_type(self.rows, self.kind)

    def __call__(self, texts, caches):
        """Outputs of each layer, (layers, tokens, width), of some tokens for each slot after those in its cache."""
        for bound, layer in zip(self.tables, range(len(self.tables)), strict=True):
            for slot, cache in enumerate(caches):
                if self.network.hparams.layers[layer].kv_source_layer is None:
                    keys, values = cache.arrays(layer)
                    bound.keys[slot], bound.values[slot] = keys.ctypes.data, values.ctypes.data
        at = 0
        self.x.floats[:], self.state[:] = 0, 0
        for slot, (x, cache) in enumerate(zip(texts, caches, strict=True)):
            for i, row in enumerate(x):
                self.x.floats[at, :WIDTH] = row
                for table, value in (
                    (context_state.POSITIONS, cache.length + i),
                    (context_state.ANGLES, cache.length + i),
                    (context_state.SLOTS, slot),
                ):
                    self.state[table + at] = value
                at += 1
        self.state[context_state.TOKENS] = at
        Writer(pack := MachineList(), None, {}, self.state, None, None).add(
            parts.pack_rows,
            {
                parts.OUT: self.x.floats,
                parts.OUT_WIDTH: self.x.room,
                parts.SHORTS: self.x.shorts,
                parts.NUMBERS_AT: self.x.numbers,
            },
        )
        rows = np.concatenate([np.stack(pack.rows), self.rows])
        if self.threads < 3:
            team_of(self.threads).run(rows, lambda: None, lambda: None)
        else:
            one_after_another(rows, self.threads)
        return self.out[:, :at, :WIDTH].copy()


def one_after_another(rows, threads):
    """Run operations as slowly as threads may: each goes as far as it can without the others, the last one first.

    What a thread needs of another, and does not wait for, is so not there.
    """
    start = 0
    for end in np.flatnonzero(rows[:, 1]) + 1:
        for thread in reversed(range(threads)):
            for row in rows[start:end]:
                thread_team.run_share(row, thread, threads)
        start = end
    assert start == len(rows)


def check(
    model,
    write,
    spec_of,
    *,
    kinds=("f32", "f16", "q8_0"),
    before=(90, 3, 170),
    counts=(1, 3, 4),
    layers=1,
    threads=(1, 2, 3),
    bound=5e-6,
):
    """Layers of the model, in slots with so many tokens in caches and so many new ones, against texts."""
    chosen, given = model.network.layers[:layers], [array(n, WIDTH) for n in before]
    for kind in kinds:
        for slots in (1, len(before)):
            caches, news, wanted, copies = [], [], [], []
            for i in range(slots):
                cache = KVCache(kind, ROOM)
                forward = model.new_pass(1, before[i], cache)
                for layer in chosen:
                    token_mixer(forward, layer, given[i])
                news.append(array(counts[i] if slots > 1 else 8, WIDTH))
                copies.append(cache.copy())
                caches.append(cache)
                forward = model.new_pass(1, len(news[-1]), cache)
                wanted.append([token_mixer(forward, layer, news[-1]) for layer in chosen])
            wanted = np.concatenate(wanted, axis=1)
            for number in threads:
                own = [cache.copy() for cache in copies]
                found = Compiled(model, chosen, write, spec_of, slots, kind, number)(news, own)
                limit = bound if kind == "f32" else 2e-3  # a number near the middle of two is rounded either way
                assert np.abs(found - wanted).max() < limit * np.abs(wanted).max(), (kind, slots, number)
                assert np.abs(found - wanted).mean() < 0.3 * limit * np.abs(wanted).max(), (kind, slots, number)


def check_attention(model, **more):
    check(model, write_attention, lambda network, layer: attention_spec(network, layer.index), **more)


def test_plain_attention():
    check_attention(model_of(separate()))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "key", "value"),
    [(5, 1, 24, 40), (4, 4, 36, 72), (20, 1, 80, 80), (6, 2, 10, 6), (14, 2, 64, 48)],
)
def test_widths(heads, kv_heads, key, value):
    model = model_of(
        separate(heads, kv_heads, key, value),
        {
            "attention.head_count": heads,
            "attention.head_count_kv": kv_heads,
            "attention.key_length": key,
            "attention.value_length": value,
            "rope.dimension_count": key // 4 * 2,
        },
    )
    check_attention(model, kinds=("f32", "f16"), threads=(2,))


@pytest.mark.parametrize("layer", [{"window": 37}, {"chunk": 40}, {"window": 5, "rotates": False}, {"rope_width": 8}])
def test_what_is_seen(layer):
    check_attention(changed(model_of(separate()), **layer), threads=(2,))


def test_softcap_sinks_and_value_scale():
    model = model_of(separate(attn_sinks__weight=(HEADS,)))
    check_attention(changed(model, hparams={"attention_softcap": 2.0, "value_scale": 0.7}), threads=(2,))


def test_slopes():
    check_attention(changed(model_of(separate()), hparams={"alibi": 8.0}, rotates=False), threads=(2,))


def test_terms_of_keys():
    block = {"alibi_terms": lambda slopes, keys, scale: slopes[:, None] * np.arange(keys, dtype=np.float32) * scale}
    check_attention(changed(model_of(separate()), block, {"alibi": 8.0}, rotates=False), threads=(2,))


def test_temperature():
    block = {"query_scale": lambda hparams, positions, rotated: (1 + np.log1p(positions) / 4).astype(np.float32)}
    check_attention(changed(model_of(separate()), block), threads=(2,))


NORMS = {
    "one for all heads": {"attn_q_norm.weight": (KEY,), "attn_k_norm.weight": (KEY,)},
    "one for each": {"attn_q_norm.weight": (HEADS, KEY), "attn_k_norm.weight": (KV_HEADS, KEY)},
    "of all heads": {"attn_q_norm.weight": (HEADS * KEY,), "attn_k_norm.weight": (KV_HEADS * KEY,)},
    "of keys": {"attn_k_norm.weight": (KV_HEADS * KEY,)},
}


@pytest.mark.parametrize("norms", NORMS)
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("steps", [("clamp", "norm", "rope"), ("rope", "norm_without_weights", "norm", "clamp")])
def test_norms(norms, kind, steps):
    more = dict(NORMS[norms])
    if kind == "layer":
        more |= {name.replace("weight", "bias"): shape for name, shape in more.items()}
    model = model_of(separate(**more))
    changed(model, {"norm": kind, "qkv_steps": steps}, {"clamp": 0.9}, qk_l2_norm=True)
    check_attention(model, kinds=("f32",), threads=(3,))


def test_norms_of_each_head_with_an_epsilon_of_their_own():
    model = model_of(separate(**NORMS["one for each"]))
    check_attention(changed(model, {"head_norm_epsilon": 1e-3}), kinds=("f32",), threads=(2,))


@pytest.mark.parametrize("norms", ["one for all heads", "of all heads"])
def test_keys_that_are_values(norms):
    shapes = separate(**NORMS[norms])
    del shapes["attn_v.weight"]
    model = changed(model_of(shapes), {"qkv_steps": ("norm_values", "norm", "rope")})
    check_attention(model, kinds=("f32", "q8_0"), threads=(1, 2, 3))


@pytest.mark.parametrize("rope", ["halves", "adjacent"])
def test_fused_with_biases(rope):
    rows = (HEADS + 2 * KV_HEADS) * KEY
    model = model_of(
        {
            "attn_qkv.weight": (rows, WIDTH),
            "attn_qkv.bias": (rows,),
            "attn_output.weight": (WIDTH, HEADS * KEY),
            "attn_output.bias": (WIDTH,),
        }
    )
    check_attention(changed(model, hparams={"rope": rope}), threads=(3,))


@pytest.mark.parametrize("gate", ["sigmoid", "softplus"])
@pytest.mark.parametrize("rows", [HEADS, HEADS * KEY])
def test_gates(gate, rows):
    model = model_of(separate(attn_gate__weight=(rows, WIDTH), attn_sub_norm__weight=(HEADS * KEY,)))
    check_attention(changed(model, {"attention_gate": gate}), kinds=("f32",), threads=(2,))


def test_gates_among_queries():
    shapes = separate(**NORMS["one for all heads"]) | {"attn_q.weight": (2 * HEADS * KEY, WIDTH)}
    model = changed(model_of(shapes), {"qkv_steps": ("clamp", "gates", "norm", "rope")})
    check_attention(model, kinds=("f32",))


def test_keys_of_an_earlier_layer():
    model = model_of(separate(**NORMS["one for all heads"]))
    own = model.network.hparams.with_layers(lambda i, own: {"kv_source_layer": 0 if i else None})
    model.__dict__["network"] = replace(model.network, hparams=own)
    check_attention(model, kinds=("f32", "f16"), layers=2)


@pytest.mark.parametrize("form", ["F16", "Q8_0"])
def test_stored_formats(form):
    check_attention(model_of(separate(), form=form), kinds=("f32",), bound=1e-4, threads=(2,))


LATENT, PLAIN, ROTATED, VALUE, QUERY = 96, 20, 32, 48, 64
MLA_KEYS = {
    "attention.head_count": 5,
    "attention.head_count_kv": 1,
    "attention.kv_lora_rank": LATENT,
    "attention.key_length_mla": PLAIN + ROTATED,
    "rope.dimension_count": ROTATED,
}
MLA = {
    "attn_kv_a_mqa.weight": (LATENT + ROTATED, WIDTH),
    "attn_k_b.weight": (5, LATENT, PLAIN),
    "attn_v_b.weight": (5, VALUE, LATENT),
    "attn_output.weight": (WIDTH, 5 * VALUE),
    "attn_kv_a_norm.weight": (LATENT,),
}
DIRECT = {"attn_q.weight": (5 * (PLAIN + ROTATED), WIDTH)}
LOW_RANK = {
    "attn_q_a.weight": (QUERY, WIDTH),
    "attn_q_a_norm.weight": (QUERY,),
    "attn_q_b.weight": (5 * (PLAIN + ROTATED), QUERY),
}


def check_latents(model, **more):
    check(model, write_latent_attention, latent_attention_spec, **more)


@pytest.mark.parametrize("queries", [DIRECT, LOW_RANK])
def test_latent_attention(queries):
    check_latents(model_of(MLA | queries, MLA_KEYS, "deepseek2"), bound=2e-5)


def test_latent_attention_with_all_that_it_may_have():
    more = {"attn_sinks.weight": (5,), "attn_k_norm.weight": (ROTATED,), "attn_gate.weight": (5 * VALUE, WIDTH)}
    block = {"query_scale": lambda hparams, positions, rotated: (1 + np.log1p(positions) / 4).astype(np.float32)}
    model = changed(model_of(MLA | LOW_RANK | more, MLA_KEYS, "deepseek2"), block, window=50)
    check_latents(model, kinds=("f32", "f16"), threads=(2,), bound=2e-5)


@pytest.mark.parametrize("form", ["F16", "Q8_0"])
def test_stored_formats_of_latents(form):
    check_latents(model_of(MLA | DIRECT, MLA_KEYS, "deepseek2", form), kinds=("f32",), bound=2e-4, threads=(2,))


def test_widened_latents():
    shapes = {
        "attn_kv_a_mqa.weight": (LATENT + ROTATED, WIDTH),
        "attn_kv_b.weight": (5 * (PLAIN + VALUE), LATENT),
        "attn_kv_a_norm.weight": (LATENT,),
        "attn_output.weight": (WIDTH, 5 * VALUE),
    } | DIRECT
    keys = MLA_KEYS | {
        "attention.head_count_kv": 5,
        "attention.key_length": PLAIN + ROTATED,
        "attention.value_length": VALUE,
    }
    del keys["attention.key_length_mla"]
    model = model_of(shapes, keys, "deepseek2")
    check_latents(model, kinds=("f32", "f16"), bound=2e-5)
