"""Count operations in a graph: by hand, and beside what torch's executor does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime import decoder
from runtime.embedding import embed
from runtime.graph.placement import segments
from runtime.graph.work import Texts, live_numbers, work_of
from runtime.model import RunningModel
from tests import absent_keys

DESCRIPTIONS = absent_keys.descriptions()
TEXTS = Texts(2, 40, 20)
UNCOUNTED = {  # products that are cheap in real models, and the share of these small ones that they are
    "granite-switch": 0.06,  # adapters
    "glm5-next": 0.04,  # mixing of streams
    "qwen4-exp": 0.06,  # n-grams, in one layer
}


def model_of(name: str) -> RunningModel:
    description = DESCRIPTIONS[name]
    return RunningModel(description.metadata(absent_keys.cases()[name][0]), absent_keys.tensors(description), threads=2)


def test_a_llama_by_hand():
    model = model_of("llama3-gqa-rope-tied")
    graph, own = decoder.graph_of(model.network), model.network.hparams.layers[0]
    products, layers = 0, model.network.layers
    for layer in layers:
        for role, tensor in layer.tensors.items():
            tokens = TEXTS.kept if layer is layers[-1] and role.startswith("ffn") else TEXTS.length
            products += 2 * tensor.size * TEXTS.count * tokens if len(tensor.shape) == 2 else 0
    scores = len(layers) * TEXTS.count * TEXTS.length**2 * own.heads
    attention = 2 * scores * (own.key_width + own.value_width)
    assert work_of(graph, TEXTS).flop == {"products": products, "attention": attention}


def test_states_between_layers():
    model = model_of("llama3-gqa-rope-tied")
    graph = decoder.graph_of(model.network)
    after, stops = live_numbers(graph, TEXTS), [part.stop for part in segments(graph)]
    width = model.network.hparams.width
    assert {after[stop - 1] for stop in stops[:-1]} == {TEXTS.count * TEXTS.length * width}
    assert after[-1] == TEXTS.count * TEXTS.kept * width


def test_parts_are_all_of_it():
    graph = decoder.graph_of(model_of("deepseek-v3").network)
    parts = [work_of(graph, TEXTS, part.start, part.stop) for part in segments(graph)]
    whole = work_of(graph, TEXTS)
    assert sum(part.numbers for part in parts) == whole.numbers
    assert sum(sum(part.flop.values()) for part in parts) == sum(whole.flop.values())
    assert set(whole.flop) == {"products", "attention", "experts"}


@pytest.mark.device
@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_as_many_products_as_torch_computes(name: str, monkeypatch: pytest.MonkeyPatch):
    """Recurrences are left out: by hand they are counted step by step, and a device computes pieces as products."""
    from torch.utils.flop_counter import FlopCounterMode

    from runtime.device import recurrent_operations
    from runtime.device.table import COMPUTE
    from runtime.device.torch_device import torch_device

    counted, in_recurrences = FlopCounterMode(display=False), [0]

    def left_out(function: Any) -> Any:
        def run(*arguments: Any) -> Any:
            before = counted.get_total_flops()
            result = function(*arguments)
            in_recurrences[0] += counted.get_total_flops() - before
            return result

        return run

    for operation, function in list(COMPUTE.items()):
        if function.__module__ == recurrent_operations.__name__:
            monkeypatch.setitem(COMPUTE, operation, left_out(function))

    model = model_of(name)
    if model.encoder_decoder or model.encoder or model.codes:
        return
    model.device = torch_device("cpu")
    ids: Any = np.random.default_rng(3).integers(0, model.vocabulary_size, (TEXTS.count, TEXTS.length))
    forward = model.new_pass(*ids.shape)
    forward.tokens = ids.reshape(-1)
    x = embed(forward, forward.tokens)
    with counted:
        decoder.decode(forward, x, TEXTS.length - TEXTS.kept)
    flop = work_of(decoder.graph_of(model.network), TEXTS).flop
    ours = sum(each for kind, each in flop.items() if kind != "recurrence")
    assert ours == pytest.approx(counted.get_total_flops() - in_recurrences[0], rel=UNCOUNTED.get(name, 0.02))
