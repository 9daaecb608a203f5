"""A few tokens as a list of machine operations, beside the same text at once in float32."""

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from quants import Tensor, encode, format_named, from_array
from quants.errors import ModelError, OptionError
from runtime import thread_team as threads_in_step
from runtime.graph import compiled
from runtime.graph import operations as op
from runtime.graph.compiled import CompiledGraph
from runtime.graph.text import COMPUTE
from runtime.kernels import dots, thread_team
from runtime.kv_cache import KVCache
from runtime.model import MAX_STEPS, RunningModel
from runtime.products.gemv import MAX_TOKENS
from runtime.profile import Profile
from runtime.thread_team import team_of

from .recorded import in_pieces, models, text_of, written

WIDTH, INNER, VOCABULARY, HEADS, KV_HEADS, HEAD_WIDTH = 96, 160, 131, 6, 2, 16
KEYS = {
    "embedding_length": WIDTH,
    "block_count": 2,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "context_length": 512,
}
NORMS = {"attn_norm.weight": (WIDTH,), "ffn_norm.weight": (WIDTH,)}
ATTENTION = {
    "attn_q.weight": (HEADS * HEAD_WIDTH, WIDTH),
    "attn_k.weight": (KV_HEADS * HEAD_WIDTH, WIDTH),
    "attn_v.weight": (KV_HEADS * HEAD_WIDTH, WIDTH),
    "attn_output.weight": (WIDTH, HEADS * HEAD_WIDTH),
}
FUSED = {
    "attn_qkv.weight": ((HEADS + 2 * KV_HEADS) * HEAD_WIDTH, WIDTH),
    "attn_output.weight": (WIDTH, HEADS * HEAD_WIDTH),
}
FEED_FORWARD = {"ffn_up.weight": (INNER, WIDTH), "ffn_down.weight": (WIDTH, INNER)}
GATED = FEED_FORWARD | {"ffn_gate.weight": (INNER, WIDTH)}
LLAMA = NORMS | ATTENTION | GATED
AROUND = {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)}
HEAD_NORMS = {"attn_q_norm.weight": (HEAD_WIDTH,), "attn_k_norm.weight": (HEAD_WIDTH,)}
WIDE_HEADS = {
    "attn_q.weight": (HEADS * 64, WIDTH),
    "attn_k.weight": (KV_HEADS * 64, WIDTH),
    "attn_v.weight": (KV_HEADS * 32, WIDTH),
    "attn_output.weight": (WIDTH, HEADS * 32),
}
POST_NORMS = {"post_attention_norm.weight": (WIDTH,), "post_ffw_norm.weight": (WIDTH,)}


@pytest.fixture(autouse=True)
def _threads_share_small_models(monkeypatch):
    """Models here are so small that one thread alone would run them."""
    monkeypatch.setattr(threads_in_step, "BYTES_OF_A_WAIT", 0)


def with_biases(shapes):
    return shapes | {name.replace("weight", "bias"): shape[:1] for name, shape in shapes.items()}


# name: architecture, tensors of a layer, tensors around the layers, keys
FAMILIES = {
    "llama": ("llama", LLAMA, {"output.weight": (VOCABULARY, WIDTH)}, {}),
    "frequency factors": ("llama", LLAMA, {"rope_freqs.weight": (HEAD_WIDTH // 2,)}, {}),
    "yarn": (
        "llama",
        LLAMA,
        {},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
    ),
    "biases": ("qwen2", LLAMA | {f"attn_{p}.bias": ATTENTION[f"attn_{p}.weight"][:1] for p in "qkv"}, {}, {}),
    "norms of heads": (
        "qwen3",
        LLAMA | HEAD_NORMS,
        {},
        {"attention.key_length": HEAD_WIDTH, "attention.value_length": HEAD_WIDTH},
    ),
    "windows and caps": (
        "gemma2",
        LLAMA | POST_NORMS,
        {},
        {
            "attention.sliding_window": 20,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "attention.key_length": HEAD_WIDTH,
            "attention.value_length": HEAD_WIDTH,
        },
    ),
    "wide heads": ("qwen3", LLAMA | WIDE_HEADS, {}, {"attention.key_length": 64, "attention.value_length": 32}),
    "wide windows": (
        "gemma2",
        LLAMA | WIDE_HEADS | POST_NORMS,
        {},
        {
            "attention.sliding_window": 20,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "attention.key_length": 64,
            "attention.value_length": 32,
        },
    ),
    "scales": (
        "granite",
        LLAMA,
        {},
        {"embedding_scale": 1.7, "residual_scale": 0.6, "logit_scale": 0.3, "attention.scale": 0.4},
    ),
    "layer norms": ("starcoder2", with_biases(NORMS | ATTENTION | FEED_FORWARD), {"output_norm.bias": (WIDTH,)}, {}),
    "fused": (
        "gptneox",
        with_biases(NORMS | FUSED | FEED_FORWARD),
        {"output_norm.bias": (WIDTH,)},
        {"use_parallel_residual": False, "rope.dimension_count": 8},
    ),
    "parallel": (
        "gptneox",
        with_biases(NORMS | FUSED | FEED_FORWARD),
        {"output_norm.bias": (WIDTH,)},
        {"use_parallel_residual": True},
    ),
    "one norm": ("command-r", {k: v for k, v in LLAMA.items() if k != "ffn_norm.weight"}, {}, {"logit_scale": 0.0625}),
}
BIASED_OUTPUT = {"output.weight": (VOCABULARY, WIDTH), "output.bias": (VOCABULARY,)}
TOKENS = np.random.default_rng(2).integers(0, VOCABULARY, 72)


def stored(name, values, form):
    if len(values.shape) == 1 or form == "F32":
        return from_array(name, values)
    raw = encode(form, values)
    return Tensor(name, values.shape, format_named(form), lambda start, stop: raw[start:stop])


def file_of(family, form="F32", damaged=None, more=None, keys=None):
    """Keys and tensors. damaged: a tensor with a NaN in it."""
    architecture, layer, around, own = FAMILIES[family]
    rng, tensors = np.random.default_rng(3), {}
    shapes = AROUND | around | {f"blk.{i}.{name}": s for i in range(2) for name, s in layer.items()} | (more or {})
    for name, shape in shapes.items():
        values = (rng.standard_normal(shape) / np.sqrt(shape[-1] if len(shape) > 1 else 4)).astype(np.float32)
        if len(shape) == 1 and name.endswith("weight"):
            values = np.abs(values) + 0.5
        if name == damaged:
            values[-1, -1] = np.nan
        tensors[name] = stored(name, values, form)
    keys = KEYS | own | (keys or {})
    keys = {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in keys.items()}
    return keys, tensors


def model_of(family, form="F32", threads=1, precision="float32", **more):
    return RunningModel(*file_of(family, form, **more), threads=threads, precision=precision)


def in_steps(model, tokens, sizes, cache=None):
    """Logits of the tokens, handed over so many at a time; the last size again and again."""
    cache = model.new_cache() if cache is None else cache
    found, at, sizes = [], cache.length, list(sizes)
    while at < len(tokens):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        found.append(model.forward(tokens[at : at + size], cache))
        at += len(found[-1])
        assert cache.length == at
    return np.concatenate(found)


def assert_close(found, wanted, tolerance=1e-5):
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < tolerance * wanted.std()


@pytest.fixture
def calls(monkeypatch):
    """How many tokens each run of a compiled graph took."""
    seen, run = [], CompiledGraph.run

    def count(self, texts, layers=()):
        seen.append(sum(len(text.ids) for text in texts))
        return run(self, texts, layers)

    monkeypatch.setattr(CompiledGraph, "run", count)
    return seen


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_token_by_token_is_the_text_at_once(family, threads, calls):
    """Past the room that a cache begins with, so that its arrays move."""
    whole = model_of(family, precision="exact").forward(TOKENS)
    assert_close(in_steps(model_of(family, threads=threads), TOKENS, [1]), whole)
    assert calls == [1] * len(TOKENS)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("kind", "family"), [("f16", "llama"), ("q8_0", "wide heads"), ("q8_0", "wide windows")])
def test_rounded_caches_keep_what_texts_keep(kind, family, threads, calls):
    """Bytes and logits; the reference for blocks is the format's encoder, which texts take."""
    text, steps = (model_of(family, threads=threads).new_cache(kind) for _ in range(2))
    model = model_of(family, threads=threads)
    exact = model_of(family, precision="exact")
    whole = np.concatenate([exact.forward(TOKENS[:66], text), exact.forward(TOKENS[66:], text)])
    found = in_steps(model, TOKENS, [1, 8, 3, 1], steps)
    assert calls
    assert_close(found, whole, 2e-2)  # a number near the middle of two may be rounded either way
    assert np.abs(found - whole).mean() < 2e-3 * whole.std()
    exactly = in_steps(model, TOKENS, [1])
    assert np.abs(exactly - whole).max() > 1e-4 * whole.std()
    for ours, theirs in zip(steps.arrays(0), text.arrays(0), strict=True):
        assert ours.dtype == np.uint8
        assert (ours[: len(TOKENS)] != theirs[: len(TOKENS)]).mean() < 1e-3


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
@pytest.mark.parametrize("damaged", ["blk.0.attn_k.weight", "blk.1.attn_v.weight"])
@pytest.mark.parametrize("size", [2, 20])
def test_damage_shows_through_a_rounded_cache(kind, damaged, size):
    model = model_of("wide heads", damaged=damaged)
    with pytest.raises(ModelError, match="not finite"):
        in_steps(model, TOKENS[:20], [size], model.new_cache(kind))


def test_blocks_need_whole_heads():
    with pytest.raises(OptionError, match="whole blocks of 32; these are 16 wide"):
        model_of("llama").forward(TOKENS[:1], KVCache("q8_0"))
    with pytest.raises(OptionError, match="'q4_0' is not known"):
        KVCache("q4_0")


@pytest.mark.parametrize("sizes", [[8], [3, 5, 2, 7, 1], [40, 8, 2, 9, 6], [66, 1], [1, 65, 4]])
@pytest.mark.parametrize("family", ["norms of heads", "windows and caps", "fused"])
def test_some_tokens_at_a_time_and_texts_in_between(family, sizes, calls):
    whole = model_of(family, precision="exact").forward(TOKENS)
    assert_close(in_steps(model_of(family, threads=2), TOKENS, sizes), whole)
    assert sum(calls) == len(TOKENS) - sum(size for size in sizes if size > MAX_STEPS * MAX_TOKENS)


@pytest.mark.parametrize("form", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "IQ4_NL"])
def test_stored_formats(form, calls):
    model = model_of("biases", form, 2)
    whole = model_of("biases", form, precision="exact").forward(TOKENS[:20])
    rounds = format_named(form).is_quantized  # to integers of 16 bits what is multiplied with integers
    assert_close(in_steps(model, TOKENS[:20], [1, 1, 8, 1]), whole, 1e-3 if rounds else 1e-5)
    assert calls


def test_an_output_with_a_bias(calls):
    model = model_of("llama", more=BIASED_OUTPUT)
    assert_close(in_steps(model, TOKENS[:9], [1]), RunningModel(model.metadata, model.tensors).forward(TOKENS[:9]))
    assert calls


def test_the_first_of_what_is_wanted(calls):
    model = model_of("llama")
    wanted = in_steps(model, TOKENS[:6], [6])
    for first in range(7):
        cache = model.new_cache()
        found = model.forward(TOKENS[:6], cache, first)
        np.testing.assert_array_equal(found, wanted[first:])
        assert found.shape == (6 - first, VOCABULARY)
        assert cache.length == 6
    assert model.forward(TOKENS[None, :6], model.new_cache()).shape == (1, 6, VOCABULARY)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("family", ["llama", "scales", "layer norms", "parallel"])
def test_states_on_the_way(family, threads, monkeypatch):
    """What layers are given, and what stands behind the last norm, in any order."""
    model, exact = model_of(family, threads=threads), model_of(family, precision="exact")
    monkeypatch.setattr(model, "_evaluate", None)
    for layers in ((), (0,), (1,), (2, 0, 1), (1, 1)):
        cache, beside, at = model.new_cache(), exact.new_cache(), 0
        for size in (1, 3, 11):
            found, wanted = (
                each.forward_with_states(TOKENS[at : at + size], layers, kept)
                for each, kept in ((model, cache), (exact, beside))
            )
            at += size
            assert_close(found[0], wanted[0])
            assert_close(found[1], wanted[1])
            assert found[1].shape == (size, WIDTH * max(1, len(layers)))
            assert cache.length == at


@pytest.mark.parametrize("damaged", ["token_embd.weight", "blk.1.ffn_down.weight", "output.weight"])
def test_damage_shows_beside_states(damaged):
    model = model_of("llama", damaged=damaged)
    with pytest.raises(ModelError, match="not finite"):
        model.forward_with_states([VOCABULARY - 1, 3], (1,), model.new_cache())


def test_caches_in_turn_and_anew():
    """A model serves several texts; a cache that is reset begins again in its memory."""
    model = model_of("windows and caps", threads=2)
    wanted = in_steps(model, TOKENS, [1])
    other = in_steps(model, TOKENS[::-1], [1])
    one, two = model.new_cache(), model.new_cache()
    for i, (token, reverse) in enumerate(zip(TOKENS, TOKENS[::-1], strict=True)):
        np.testing.assert_array_equal(model.forward([token], one)[0], wanted[i])
        np.testing.assert_array_equal(model.forward([reverse], two)[0], other[i])
    one.reset()
    np.testing.assert_array_equal(in_steps(model, TOKENS[::-1], [1], one), other)
    one.reset()
    np.testing.assert_allclose(in_steps(model, TOKENS, [60, 1], one)[60:], wanted[60:], atol=1e-4 * wanted.std())


def test_threads_give_the_same_bits():
    alone, *others = (in_steps(model_of("biases", "Q8_0", threads), TOKENS[:12], [1, 4]) for threads in (1, 2, 3))
    for other in others:
        np.testing.assert_array_equal(other, alone)


def test_models_beside_each_other_do_not_interfere():
    settings = [
        ("llama", "Q8_0", 1, "float32"),
        ("llama", "Q8_0", 2, "llama.cpp"),
        ("windows and caps", "F16", 3, "float32"),
        ("llama", "Q8_0", 2, "exact"),
    ]
    models = [model_of(*each) for each in settings]
    alone = [in_steps(model_of(*each), TOKENS[:20], [1]) for each in settings]
    assert np.abs(alone[1] - alone[0]).max() > 1e-3 * alone[0].std()  # what is rounded shows
    with ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            for found, wanted in zip(pool.map(lambda m: in_steps(m, TOKENS[:20], [1]), models), alone, strict=True):
                np.testing.assert_array_equal(found, wanted)


def test_one_model_in_several_threads_at_once():
    model = model_of("norms of heads", "Q8_0", 2)
    texts = [np.roll(TOKENS[:30], shift) for shift in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: in_steps(model, text, [1]), texts))
    for text, each in zip(texts, found, strict=True):
        np.testing.assert_array_equal(each, in_steps(model, text, [1]))


@pytest.mark.parametrize("precision", ["exact", "llama.cpp"])
def test_other_precisions_are_computed_as_texts(precision, calls):
    model = model_of("llama", precision=precision)
    assert_close(in_steps(model, TOKENS[:9], [1]), model.forward(TOKENS[:9]), 1e-3)
    assert not calls


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama", {f"blk.{i}.attn_sinks.weight": (HEADS,) for i in range(2)}),
        ("one norm", {f"blk.{i}.attn_q_norm.weight": (HEADS, HEAD_WIDTH) for i in range(2)}),
    ],
)
def test_tensors_that_few_families_have(family, more, calls):
    model = model_of(family, more=more)
    whole = model_of(family, more=more, precision="exact").forward(TOKENS[:9])
    assert np.abs(model_of(family).forward(TOKENS[:9]) - whole).max() > 1e-3 * whole.std()
    assert_close(in_steps(model, TOKENS[:9], [1]), whole)
    assert calls
    assert not model._compiled.lowering.calls


def test_a_format_that_no_operation_reads(calls, monkeypatch):
    """Its products are computed as those of texts, in the middle of the list."""
    monkeypatch.delitem(dots.OF_FORMAT, "Q8_0")
    model = model_of("llama", "Q8_0")
    assert_close(in_steps(model, TOKENS[:9], [1]), model.forward(TOKENS[:9]))
    assert calls
    called = [node.operation for call in model._compiled.lowering.calls for node in call.nodes]
    assert set(map(type, called)) >= {op.Linear, op.Attention}


def test_an_observer_sees_the_inputs_of_all_products(calls):
    seen = []
    model = RunningModel(*file_of("llama"), observe=lambda name, *rest: seen.append(name))
    assert_close(in_steps(model, TOKENS[:2], [1]), model_of("llama", precision="exact").forward(TOKENS[:2]))
    assert len(seen) == 2 * 15
    assert not calls


def test_a_profile_counts_each_operation(calls):
    model = model_of("llama")
    model.profile = Profile()
    assert_close(in_steps(model, TOKENS[:2], [1]), model_of("llama", precision="exact").forward(TOKENS[:2]))
    assert model.profile.seconds["products"] > 0
    assert not calls


@pytest.mark.parametrize(
    "damaged",
    ["token_embd.weight", "output.weight", "blk.0.attn_k.weight", "blk.1.attn_v.weight", "blk.1.ffn_down.weight"],
)
@pytest.mark.parametrize("form", ["F32", "F16"])
def test_damaged_weights_are_found(damaged, form, calls):
    model = model_of("llama", form, damaged=damaged)
    tokens = [VOCABULARY - 1, 3]
    with pytest.raises(ModelError, match="not finite"):
        in_steps(model, tokens, [1])
    assert calls


@pytest.mark.parametrize("name", ["blk.0.ffn_up.weight", "blk.1.attn_q.weight", "output.weight"])
def test_damaged_scales_are_found(name, calls):
    keys, tensors = file_of("llama", "Q8_0")
    raw = tensors[name].raw().copy()
    raw[5, 34:36] = 0, 0x7E  # a NaN in float16
    tensors[name] = Tensor(name, tensors[name].shape, format_named("Q8_0"), lambda start, stop: raw[start:stop])
    with pytest.raises(ModelError, match="not finite"):
        in_steps(RunningModel(keys, tensors), [1, 2, 3], [1])
    assert calls


def test_ids_outside_the_vocabulary():
    model = model_of("llama")
    with pytest.raises(ModelError, match="outside the vocabulary"):
        model.forward([VOCABULARY], model.new_cache())


@pytest.mark.parametrize("at", ["prepare", "start"])
def test_an_interruption_lets_the_other_threads_go(monkeypatch, at):
    """Who waits for the interrupted thread must not wait for ever, and the next step is right again."""
    model = model_of("llama", threads=3)
    cache = model.new_cache()
    before = model.forward(TOKENS[:1], cache)

    def interrupted(*anything):
        raise KeyboardInterrupt

    submit = ThreadPoolExecutor.submit

    def submit_the_first(pool, run, *arguments):
        return submit(pool, run, *arguments) if arguments == (1,) else interrupted()

    with monkeypatch.context() as patched:
        if at == "prepare":
            patched.setattr(compiled.Run, "_prepare", interrupted)
        else:  # of the second helper, when the first is at work
            while (team_of(3).states[thread_team.APART :: thread_team.APART] != thread_team.GONE).any():
                time.sleep(0.01)
            patched.setattr(ThreadPoolExecutor, "submit", submit_the_first)
        with pytest.raises(KeyboardInterrupt):
            model.forward(TOKENS[1:2], cache)
    assert cache.length == 1
    wanted = in_steps(model_of("llama"), TOKENS[:2], [1])
    np.testing.assert_array_equal(np.concatenate([before, model.forward(TOKENS[1:2], cache)]), wanted)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_cache_stays_as_it_was_where_a_token_is_damaged(threads):
    model = model_of("llama", threads=threads, damaged="token_embd.weight")
    tokens = [3, 5, 7, 11]
    wanted, cache = in_steps(model, tokens, [1]), model.new_cache()
    for i, token in enumerate(tokens):
        with pytest.raises(ModelError, match="not finite"):
            model.forward([VOCABULARY - 1], cache)
        assert cache.length == i
        np.testing.assert_array_equal(model.forward([token], cache)[0], wanted[i])


@pytest.mark.parametrize("name", ["nemotron-h-moe", "granite-switch", "talkie", "gemma4-e"])
def test_a_cache_stays_as_it_was_where_an_operation_fails_in_the_middle(name, monkeypatch):
    """With keys and values, with states that are changed in place, and with what embeddings append."""
    model, _ = models(name)
    last = next(call.nodes[-1].operation for call in reversed(model._compiled.lowering.calls))
    compute, ids, fails = COMPUTE[type(last)], text_of(name, model), []

    def failing(forward, operation, read):
        if fails and operation is last:
            raise ModelError(fails.pop())
        return compute(forward, operation, read)

    monkeypatch.setitem(COMPUTE, type(last), failing)
    wanted, cache = in_pieces(model, ids, [1]), model.new_cache()
    for i, token in enumerate(ids):
        if i in (0, 1, 6):
            fails.append("something is wrong")
            with pytest.raises(ModelError, match="something is wrong"):
                model.forward([token], cache)
            assert cache.length == i
        np.testing.assert_array_equal(written(model.forward([token], cache)[0]), wanted[i])


def test_states_are_counted_where_an_interruption_comes_late(monkeypatch):
    """They have been changed in place by then, so that the token is there; nothing is there twice."""
    model, _ = models("mamba")
    ids = text_of("mamba", model)
    wanted, cache = in_pieces(model, ids, [1]), model.new_cache()
    np.testing.assert_array_equal(model.forward(ids[:1], cache)[0], wanted[0])

    def interrupted(*anything):
        raise KeyboardInterrupt

    for at, counted in (("_prepare", 1), ("logits", 2)):
        with monkeypatch.context() as patched:
            patched.setattr(compiled.Run, at, interrupted)
            with pytest.raises(KeyboardInterrupt):
                model.forward(ids[1:2], cache)
        assert cache.length == counted
    np.testing.assert_array_equal(model.forward(ids[2:3], cache)[0], wanted[2])


def test_one_thread_runs_models_that_read_little(monkeypatch):
    monkeypatch.undo()
    assert model_of("llama", threads=2)._compiled.workers == 1
    monkeypatch.setattr(threads_in_step, "BYTES_OF_A_WAIT", 1 << 10)
    assert model_of("llama", threads=2)._compiled.workers == 2


def test_a_cache_that_nobody_has_is_let_go():
    model = model_of("llama")
    cache = model.new_cache()
    model.forward([3], cache)
    watched = weakref.ref(cache)
    del cache
    gc.collect()
    assert watched() is None
    assert_close(model.forward([3], model.new_cache()), model_of("llama", precision="exact").forward([3]))
