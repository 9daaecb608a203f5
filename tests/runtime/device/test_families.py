"""Compute every family with torch as the executor for texts does: at once, in pieces with a cache, layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime import decoder
from runtime.embedding import embed
from runtime.graph.placement import bytes_of_values, segments
from runtime.model import RunningModel
from tests import absent_keys

pytestmark = pytest.mark.device
LENGTH, PIECE = 40, 9
DESCRIPTIONS = absent_keys.descriptions()
CLOSE = 1e-5  # of the logits' standard deviation
# Families whose results one unit in the last place of the input moves by more than half of that, of some tokens.
LAST_BITS_GROW = {
    "arwkv7",
    "bailing-moe-v3",
    "bailing-moe-v3-vl",
    "bamba",
    "deepseek-v2-first",
    "deepseek-v2-groups",
    "deepseek-v2-lite-27l",
    "deepseek-v2-lite-first",
    "deepseek-v2-qlora",
    "deepseek-v2-yarn",
    "deepseek-v3",
    "deepseek-v3-first",
    "deepseek-v4",
    "ernie4-5-moe",
    "exaone4-64-layers",
    "falcon-mamba",
    "gemma2-46-layers",
    "gemma3-62-layers",
    "gemma4-e",
    "glm5-next",
    "gpt-oss-bf16",
    "gpt-oss-mxfp4",
    "gpt-oss-truncate",
    "grove-moe",
    "jamba",
    "kimi-linear",
    "llama-yarn",
    "muse-glimmer",
    "phi3-longrope",
    "qwen2-yarn",
    "qwen3-5",
    "qwen3-5-moe",
    "qwen4-exp",
    "rwkv7",
}
GROWN = 1e-4
AMPLIFIES = {  # and by more than ten times as much, and why
    "gemma3n": "norms after gates of which few are left: every layer adds a fifth to what differs",
    "kimi-k3": "a norm of a head's output that is almost zero",
    "qwen3-next": "a norm of a head's output that is almost zero",
}
AMPLIFIED = 3e-3
LONG_TEXTS_DIFFER = {"phi3-longrope"}  # a text's length decides how it is rotated


def model_of(name: str) -> RunningModel:
    description = DESCRIPTIONS[name]
    case = absent_keys.cases()[name][0]
    return RunningModel(description.metadata(case), absent_keys.tensors(description), threads=2, precision="exact")


def on_torch(name: str) -> RunningModel:
    from runtime.device.torch_device import torch_device

    model = model_of(name)
    model.device = torch_device("cpu")
    return model


def text_of(model: RunningModel, texts: int = 2) -> Any:
    return np.random.default_rng(3).integers(0, model.vocabulary_size, (texts, LENGTH))


def is_plain(model: RunningModel) -> bool:
    return model.encoder_decoder is None and model.encoder is None and model.codes is None


def states(model: RunningModel, ids: Any, seed: int | None = None) -> Any:
    """The last layer's output. seed: each number of the input is moved up or down to the next one."""
    forward, x = _begun(model, ids)
    if seed is not None:
        up = np.random.default_rng(seed).integers(0, 2, x.shape, bool)
        x = np.nextafter(x, np.where(up, np.inf, -np.inf).astype(np.float32))
    return decoder.decode(forward, x)


def bound(name: str) -> float:
    return AMPLIFIED if name in AMPLIFIES else GROWN if name in LAST_BITS_GROW else CLOSE


@pytest.mark.parametrize("name", sorted({*LAST_BITS_GROW, *AMPLIFIES}))
def test_what_a_unit_in_the_last_place_moves(name: str) -> None:
    """The processor's own results, which is why those of a device are further apart."""
    model, moved = model_of(name), 0.0
    for seed in range(3, 13):
        ids = np.random.default_rng(seed).integers(0, model.vocabulary_size, (2, LENGTH))
        plain = states(model, ids)
        moved = max(moved, np.abs(states(model, ids, seed) - plain).max() / plain.std())
        if moved > bound(name) / 20:
            return
    raise AssertionError(f"no more than {moved:.1e}")


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_family(name: str) -> None:
    ours, wanted = on_torch(name), model_of(name)
    ids = text_of(wanted)
    close = bound(name)
    if ours.encoder_decoder is not None:
        texts = ids[0].tolist(), ids[1, :PIECE].tolist()
        assert_close(ours.logits(*texts), wanted.logits(*texts), close)
        return
    logits = wanted.forward(ids)
    assert_close(ours.forward(ids), logits, close)
    if not ours.network.block.causal or ours.network.block.hidden_states:
        return
    losses = [model.lazy_logits(ids).losses(ids) for model in (ours, wanted)]
    assert np.abs(losses[0] - losses[1]).max() < 2 * close * max(1, logits.std())
    if name not in LONG_TEXTS_DIFFER:
        cache = ours.new_cache()
        pieces = [ours.forward(ids[0, i : i + PIECE], cache) for i in range(0, LENGTH, PIECE)]
        assert_close(np.concatenate(pieces), logits[0], 2 * close)  # the processor's pieces differ, too


def assert_close(ours: Any, wanted: Any, close: float) -> None:
    assert np.abs(ours - wanted).max() < close * wanted.std()


@pytest.mark.parametrize("by_expert", [False, True], ids=["layers", "experts"])
@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_streaming_is_the_same(name: str, by_expert: bool) -> None:
    from runtime.device.streaming import StreamOptions, stream

    model = on_torch(name)
    if not is_plain(model):
        return
    texts = np.random.default_rng(3).integers(0, model.vocabulary_size, (3, 2, 24))
    passes, graph = [_begun(model, ids) for ids in texts], decoder.graph_of(model.network)
    if by_expert and not any(part.stacked for part in segments(graph)):
        return
    least = max(part.least for part in segments(graph, 0)) + bytes_of_values(graph, 2, 24)
    options = StreamOptions(least if by_expert else None)
    streamed = list(stream(graph, passes, model.device.weights, options))
    assert not model.device.weights.nbytes
    for ids, result in zip(texts, streamed, strict=True):
        np.testing.assert_array_equal(result, decoder.decode(*_begun(model, ids)))


def _begun(model: RunningModel, ids: Any) -> tuple[Any, Any]:
    forward = model.new_pass(*ids.shape)
    forward.tokens = ids.reshape(-1)
    return forward, embed(forward, forward.tokens)
