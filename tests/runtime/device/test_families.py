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
CHAOTIC = {"gemma3n": 2e-2}  # its copies amplify the last bits of random weights
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


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_family(name: str) -> None:
    ours, wanted = on_torch(name), model_of(name)
    ids = np.random.default_rng(3).integers(0, ours.vocabulary_size, (2, LENGTH))
    if ours.encoder_decoder is not None:
        texts = ids[0].tolist(), ids[1, :PIECE].tolist()
        assert_close(name, ours.logits(*texts), wanted.logits(*texts))
        return
    logits = wanted.forward(ids)
    assert_close(name, ours.forward(ids), logits)
    if not ours.network.block.causal or ours.network.block.hidden_states:
        return
    assert np.abs(ours.lazy_logits(ids).losses(ids) - wanted.lazy_logits(ids).losses(ids)).max() < bound(name)
    if name not in LONG_TEXTS_DIFFER:
        cache = ours.new_cache()
        pieces = [ours.forward(ids[0, i : i + PIECE], cache) for i in range(0, LENGTH, PIECE)]
        assert_close(name, np.concatenate(pieces), logits[0])


def bound(name: str) -> float:
    return CHAOTIC.get(name, 1e-4)


def assert_close(name: str, ours: Any, wanted: Any) -> None:
    assert np.abs(ours - wanted).max() < bound(name) * wanted.std()


@pytest.mark.parametrize("by_expert", [False, True], ids=["layers", "experts"])
@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_streaming_is_the_same(name: str, by_expert: bool) -> None:
    from runtime.device.streaming import StreamOptions, stream

    model = on_torch(name)
    if model.encoder_decoder or model.encoder or model.codes:
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
