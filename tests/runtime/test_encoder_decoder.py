"""Models that read one text and continue another."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quants import from_array
from quants.errors import ModelError
from runtime.graph.encoder_text import relative_bias
from runtime.model import RunningModel

RNG = np.random.default_rng(8)
WIDTH, HEADS, EACH, BUCKETS = 8, 2, 4, 8


def array(*shape):
    return (RNG.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)


def model_of(name="t5"):
    own = {f"attn_{letter}.weight": (WIDTH, WIDTH) for letter in "qkvo"} | {
        "attn_norm.weight": (WIDTH,),
        "ffn_norm.weight": (WIDTH,),
        "ffn_up.weight": (10, WIDTH),
        "ffn_down.weight": (WIDTH, 10),
    }
    cross = {f"cross_attn_{letter}.weight": (WIDTH, WIDTH) for letter in "qkvo"} | {"cross_attn_norm.weight": (WIDTH,)}
    shapes = {"token_embd.weight": (20, WIDTH), "enc.output_norm.weight": (WIDTH,), "dec.output_norm.weight": (WIDTH,)}
    for side, layers, parts in (("enc", 1, own), ("dec", 2, own | cross)):
        shapes[f"{side}.blk.0.attn_rel_b.weight"] = (BUCKETS, HEADS)
        for layer in range(layers):
            shapes |= {f"{side}.blk.{layer}.{part}": shape for part, shape in parts.items()}
    keys = {
        "embedding_length": WIDTH,
        "block_count": 1,
        "decoder_block_count": 2,
        "attention.head_count": HEADS,
        "attention.key_length": EACH,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    metadata = {"general.architecture": name} | {f"{name}.{key}": value for key, value in keys.items()}
    return RunningModel(metadata, {key: from_array(key, 2 * array(*shape)) for key, shape in shapes.items()})


def bucket(distance, causal):
    """Of a key `distance` before the query; 8 buckets, 16 is far."""
    count, start = 8, 0
    if not causal:
        count, start = 4, 4 if distance < 0 else 0
        distance = abs(distance)
    distance, exact = max(distance, 0), count // 2
    if distance < exact:
        return start + distance
    return start + min(count - 1, exact + int(math.log(distance / exact) / math.log(16 / exact) * (count - exact)))


@pytest.mark.parametrize("causal", [False, True])
def test_bias_is_that_of_the_distance(causal):
    table = array(BUCKETS, HEADS)
    found = relative_bias(from_array("b", table), np.arange(3, 33), 40, 16, causal=causal)
    assert found.shape == (HEADS, 30, 40)
    for i in range(30):
        for j in range(40):
            np.testing.assert_array_equal(found[:, i, j], table[bucket(i + 3 - j, causal)])


def test_decoder_continues_from_its_cache_and_sees_the_encoder():
    model = model_of()
    read, written = RNG.integers(0, 20, 6), RNG.integers(0, 20, 9)
    whole = model.logits(read, written)
    cache = model.encode(read)
    for _ in range(2):  # what was read outlives a reset
        found = [model.forward(written[start:stop], cache) for start, stop in ((0, 1), (1, 5), (5, 6), (6, 9))]
        np.testing.assert_allclose(np.concatenate(found), whole, rtol=1e-4, atol=1e-5)
        cache.reset()
    assert np.abs(model.logits(read[::-1], written) - whole).max() > 1e-3


def test_encoder_sees_both_sides():
    model = model_of()
    ids = RNG.integers(0, 20, 6)
    first = [k for k, _ in model.encode(ids).context]
    changed = [k for k, _ in model.encode(np.append(ids[:-1], (ids[-1] + 1) % 20)).context]
    assert np.abs(first[0][0] - changed[0][0]).max() > 1e-4


def test_what_cannot_run_says_so():
    model = model_of()
    with pytest.raises(ModelError, match="encode"):
        model.forward([1, 2])
    with pytest.raises(ModelError, match="vocabulary of 20"):
        model.encode([20])
