"""Plan measurements on graphics cards: what is counted, and beside what streaming moves."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gguftools
from benchmarks.synthetic_models import synthetic_model
from gguftools.measurement.cards import CARDS, card_named
from gguftools.measurement.device_plan import PlanOptions, device_plan
from quants import Tensor
from quants.errors import OptionError
from runtime.model import RunningModel
from tests import absent_keys
from tests.conftest import ROOT

GB = 1e9


def plan(name: str, card: str, windows: int = 100, **options: Any) -> Any:
    made = device_plan([synthetic_model(name, empty=True)], windows, [card_named(card)], PlanOptions(**options))
    return made, made.files[0], made.cards[0]


def test_an_8b_is_resident_in_24_gigabytes_and_streamed_in_12():
    made, work, card = plan("llama-3.1-8b", "RTX 4090")
    assert made.tokens == 51200
    assert (work.layers, card.placement, card.fits) == (32, "resident", True)
    assert work.layer_bytes == pytest.approx(0.436 * GB, rel=0.01)
    assert work.weight_bytes == work.read_bytes == pytest.approx(15.0 * GB, rel=0.01)
    assert work.flop["products"] == pytest.approx(2 * 6.98e9 * 51200, rel=0.02)
    assert work.flop["head"] == pytest.approx(2 * 128256 * 4096 * 255 * 100)
    assert work.decoded == 0
    _, _, small = plan("llama-3.1-8b", "RTX 3060")
    assert (small.placement, small.fits) == ("layers", True)
    assert small.memory_bytes < 6 * GB
    assert small.moved_bytes > work.weight_bytes + 2 * work.state_bytes


def test_experts_are_streamed_where_a_layer_does_not_fit():
    _, work, card = plan("deepseek-v3-671b", "RTX 4090")
    assert work.layer_bytes > 22 * GB
    assert work.weight_bytes == pytest.approx(1340 * GB, rel=0.01)
    assert (card.placement, card.limit, card.fits) == ("experts", "disk", True)
    assert card.memory_bytes < 15 * GB
    assert card.total == pytest.approx(card.seconds["disk"] + card.seconds["decoding"])
    active = 37e9 * 2 * 51200  # of the published model's parameters
    assert work.flop["products"] + work.flop["experts"] == pytest.approx(active, rel=0.1)
    assert plan("deepseek-v3-671b", "H200")[2].placement == "layers"


def test_a_plan_without_logits_reads_no_head():
    _, work, _ = plan("llama-3.1-8b", "RTX 4090", measurement="imatrix")
    _, other, _ = plan("llama-3.1-8b", "RTX 4090")
    assert "head" not in work.flop
    assert other.weight_bytes - work.weight_bytes == 2 * 128256 * 4096
    assert work.flop["products"] > other.flop["products"]  # all positions of the last layer


def test_tf32_is_faster_where_a_card_has_it():
    for name, faster in (("A100 80GB", True), ("V100", False), ("Arc B580", False)):
        exact, fast = (plan("llama-3.1-8b", name, fast=fast)[2].seconds["products"] for fast in (False, True))
        assert (fast < exact / 7) is faster
        assert faster or fast == exact


def test_memory_decides_the_placement():
    card = plan("llama-3.1-8b", "H200", memory=int(2 * GB))[2]
    assert card.placement == "layers"
    assert card.memory_bytes < 6 * GB
    assert plan("llama-3.1-8b", "H200", memory=int(17 * GB))[2].placement == "resident"


def test_several_files_one_after_another():
    models = [synthetic_model("small", empty=True), synthetic_model("small", layers=2, empty=True)]
    both, one = (device_plan(each, 10, [card_named("T4")]) for each in (models, models[:1]))
    assert [each.layers for each in both.files] == [4, 2]
    assert both.cards[0].total > one.cards[0].total
    assert both.cards[0].memory_bytes == one.cards[0].memory_bytes


def test_as_plain_data():
    data = json.loads(json.dumps(plan("small", "T4")[0].as_dict()))
    assert data["cards"][0]["card"] == "T4"
    assert set(data["cards"][0]["seconds"]) == {"products", "bandwidth", "transfer", "disk", "decoding"}


def test_cards_by_name():
    assert card_named("NVIDIA GeForce RTX 4090").name == card_named("rtx-4090").name == "RTX 4090"
    assert card_named("m4 max").name == "Apple M4 Max 128GB"
    assert len({card.name for card in CARDS}) == len(CARDS) > 20
    with pytest.raises(OptionError, match="card 'A100': 2 cards are called so") as raised:
        card_named("A100")
    assert raised.value.hint == "choose one of A100 40GB, A100 80GB"
    with pytest.raises(OptionError, match="no card is called so"):
        card_named("Voodoo 2")
    for card in CARDS:
        assert card_named(card.name) is card


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"n_ctx": 2}, "n_ctx"), ({"disk": 0}, "disk"), ({"measurement": "speed"}, "measurement is 'speed'")],
)
def test_wrong_options(wrong: dict[str, Any], message: str):
    with pytest.raises(OptionError, match=message):
        PlanOptions(**wrong)


@pytest.mark.parametrize("name", ["bert", "flan-t5-style"])
def test_encoders_are_not_planned(name: str):
    description, case = absent_keys.descriptions()[name], absent_keys.cases()[name][0]
    model = gguftools.Model(description.metadata(case), dict(absent_keys.tensors(description)))
    with pytest.raises(OptionError, match="not planned"):
        device_plan([model], 2)


def test_no_torch_is_imported():
    code = (
        "import sys; from benchmarks.synthetic_models import synthetic_model as made;"
        "from gguftools.measurement.device_plan import device_plan;"
        "device_plan([made('small', empty=True)], 2); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"


@pytest.mark.device
@pytest.mark.parametrize(
    ("name", "memory", "placement"),
    [
        ("small", None, "resident"),
        ("small", 42 << 20, "layers"),
        ("small-experts", 50 << 20, "layers"),
        ("small-experts", 40 << 20, "experts"),
    ],
)
def test_beside_a_run(name: str, memory: int | None, placement: str):
    """Weights are read once, and no more of them are on the device at a time than planned."""
    from runtime.device.torch_device import torch_device

    read, model = [0], synthetic_model(name)

    def counted(tensor: Tensor) -> Tensor:
        def rows(start: int, stop: int) -> Any:
            read[0] += (stop - start) * tensor.row_bytes
            return tensor.read(start, stop)

        return replace(tensor, read=rows)

    net = RunningModel(model.metadata, {each: counted(tensor) for each, tensor in model.tensors.items()}, threads=2)
    net.device = device = torch_device("cpu", memory)
    read[0] = 0
    ids = np.random.default_rng(1).integers(0, 2000, (6, 64))
    size = max(1, net.tokens_at_once(64) // 64)
    batches = [ids[start : start + size] for start in range(0, len(ids), size)]
    with net.prepare([(batch, 32) for batch in batches]):
        for batch in batches:
            net.lazy_logits(batch, 32).losses(batch[:, 33:])
    options = PlanOptions(n_ctx=64, memory=memory or 1 << 40)
    planned = device_plan([model], len(ids), [card_named("T4")], options)
    card = planned.cards[0]
    assert card.placement == placement
    rows = model.tensors["token_embd.weight"].row_bytes * ids.size
    assert read[0] - rows == pytest.approx(planned.files[0].read_bytes, rel=0.02)
    assert device is not None
    assert card.weight_bytes / 3 < device.weights.peak < 1.05 * card.weight_bytes
