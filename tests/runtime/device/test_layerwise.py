"""Layers run one after another on a device: their outputs, and the sums of what their products read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gguftools
from quants.errors import ModelError
from quants.tensor import from_array
from runtime import layerwise
from runtime.graph.layers import layer_graph
from runtime.graph.placement import bytes_of_values, bytes_on_device
from runtime.hessians import Hessians
from runtime.model import RunningModel
from tests import absent_keys
from tests.conftest import ROOT

pytestmark = pytest.mark.device
FAMILIES = ["qwen3", "gemma2", "gpt-oss-mxfp4", "phi3", "deepseek-v2-yarn", "mamba2", "rwkv7", "qwen3-moe", "gpt2"]


def of_family(name: str) -> RunningModel:
    description, case = absent_keys.descriptions()[name], absent_keys.cases()[name][0]
    return RunningModel(description.metadata(case), absent_keys.tensors(description), threads=2, precision="exact")


def austen(**changed: Any) -> RunningModel:
    model = gguftools.load(ROOT / "examples" / "austen-4m", threads=2)
    return RunningModel(model.metadata, {**model.tensors, **changed}, threads=2, precision="exact")


def on_torch(model: RunningModel, memory: int | None = None) -> RunningModel:
    from runtime.device.torch_device import torch_device

    model.device = torch_device("cpu", memory)
    return model


def ids_of(model: RunningModel) -> list[np.ndarray]:
    ids = np.random.default_rng(3).integers(0, model.vocabulary_size, (3, 40))
    return [ids[:2], ids[2:]]


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_give_the_processors_states(name: str) -> None:
    assert_same_states(on_torch(of_family(name)), of_family(name))


@pytest.mark.parametrize("name", ["gpt-oss-mxfp4", "qwen3-moe"])
def test_a_layer_that_does_not_fit(name: str) -> None:
    """One expert after another is on the device."""
    wanted = of_family(name)
    layers = [sum(map(bytes_on_device, layer.tensors.values())) for layer in wanted.network.layers]
    network = wanted.network
    room = bytes_of_values(layer_graph(network, network.layers[0], (network.hparams.width,)), 2, 40)
    ours = on_torch(of_family(name), room + max(layers) * 3 // 4)
    assert_same_states(ours, wanted, 1)
    assert ours.device.weights.peak < max(layers)


def assert_same_states(ours: RunningModel, wanted: RunningModel, count: int = 2) -> None:
    batches, expected = (layerwise.begin(each, ids_of(each)[:count]) for each in (ours, wanted))
    for layer, same in zip(ours.network.layers, wanted.network.layers, strict=True):
        layerwise.advance(batches, layer)
        layerwise.advance(expected, same)
        layerwise.drop(ours, layer)
        for one, two in zip(batches, expected, strict=True):
            apart, bound = np.abs(one.states() - two.x).max(), 1e-5 * two.x.std()
            assert apart < bound
    assert not ours.device.weights.nbytes


def test_dropped_weights_make_room_for_others() -> None:
    """A layer with other tensors gives other states, also where it takes the memory of the one before."""
    model, wanted = on_torch(austen()), austen()
    layer, same = model.network.layers[0], wanted.network.layers[0]
    (batch,), (expected,) = (layerwise.begin(each, ids_of(each)[:1]) for each in (model, wanted))
    norm = layer.tensors["attn_norm.weight"]
    for factor in (1, 2, 3):
        scaled = from_array(norm.name, norm.float32() * np.float32(factor))
        made = []
        for each, own, start in ((model, layer, batch), (wanted, same, expected)):
            after = layerwise.Batch(start.forward, start.x)
            changed = layerwise.with_tensors(own, [scaled])
            layerwise.advance([after], changed)
            layerwise.drop(each, changed)
            made.append(after.states())
        assert np.abs(made[0] - made[1]).max() < 1e-5 * made[1].std()


def test_values_that_are_no_numbers_name_the_layer() -> None:
    name = "blk.1.ffn_down.weight"
    broken = austen().tensors[name].float32()
    broken[3, 5] = np.nan
    model = on_torch(austen(**{name: from_array(name, broken)}))
    batches = layerwise.begin(model, ids_of(model))
    layerwise.advance(batches, model.network.layers[0])
    with pytest.raises(ModelError, match=r"no longer finite from 'blk\.1'"):
        layerwise.advance(batches, model.network.layers[1])


def sums(name: str, model: RunningModel, aims: RunningModel, columns: int) -> list[Hessians]:
    """What the products of each layer read, and how far that is from what those of `aims` read."""
    found = []
    batches, others = layerwise.begin(model, ids_of(model)), layerwise.begin(aims, ids_of(aims))
    for layer, other in zip(model.network.layers, aims.network.layers, strict=True):
        found.append(layerwise.hessians(model, columns))
        layerwise.watch_differences(batches, others, other, found[-1])
        layerwise.advance(batches, layer)
    found.append(layerwise.hessians(model, columns))
    layerwise.watch_head(batches, "output.weight", found[-1])
    return found


@pytest.mark.parametrize("columns", [1 << 20, 256], ids=["whole", "cut"])
@pytest.mark.parametrize("name", ["austen", *FAMILIES])
def test_sums_of_inputs_are_the_processors(name: str, columns: int) -> None:
    """Of all products, the values' mixed inputs, experts, and the head; and of differences from other inputs."""
    from runtime.device.hessians import DeviceHessians

    def changed(model: RunningModel) -> RunningModel:
        embedding = model.tensors["token_embd.weight"]
        values = embedding.float32()
        noise = np.random.default_rng(1).standard_normal(values.shape).astype(np.float32) * values.std() / 4
        tensors = {**model.tensors, embedding.name: from_array(embedding.name, values + noise)}
        return RunningModel(model.metadata, tensors, threads=2, precision="exact")

    make = austen if name == "austen" else lambda: of_family(name)
    ours = sums(name, on_torch(changed(make())), on_torch(make()), columns)
    wanted = sums(name, changed(make()), make(), columns)
    for one, two in zip(ours, wanted, strict=True):
        assert isinstance(one, DeviceHessians)
        assert one.of.keys() == two.of.keys()
        assert one.values.keys() == two.values.keys()
        assert shared(one) == shared(two)
        of_all = [(one.of[key], products) for key, products in two.of.items()]
        of_all += [(one.values[key], products) for key, products in two.values.items()]
        for own, products in of_all:
            assert (own.count, own.compared) == (products.count, products.compared)
            assert_close(own.matrix(), products.matrix())
            drift, other = own.drift(), products.drift()
            assert (drift is None) == (other is None)
            if drift is not None and other is not None:
                assert_close(drift, other, 1e-4)


def shared(found: Hessians) -> list[set[str]]:
    """The weights that share each sum."""
    groups: dict[int, set[str]] = {}
    for (name, expert), products in found.of.items():
        groups.setdefault(id(products), set()).add(f"{name} {expert}")
    return list(groups.values())


def assert_close(ours: Any, wanted: Any, bound: float = 1e-5) -> None:
    for one, two in zip(ours.blocks, wanted.blocks, strict=True):
        apart, largest = np.abs(one.cpu().numpy() - two).max(), np.abs(two).max()
        assert apart <= bound * largest


@pytest.mark.parametrize("columns", [1 << 20, 256], ids=["whole", "cut"])
def test_a_sum_is_exact(columns: int) -> None:
    """Of the same inputs: next to float64."""
    import torch

    from runtime.device.matrices import DeviceProducts

    random = np.random.default_rng(0)
    y = random.standard_normal((6000, 600)).astype(np.float32) * np.exp(random.standard_normal(600)).astype(np.float32)
    x = y + random.standard_normal(y.shape).astype(np.float32) / 4
    found = DeviceProducts.on(torch.device("cpu"), 600, columns)
    for rows in (slice(0, 5000), slice(5000, 6000)):
        pair = torch.from_numpy(x[rows]), torch.from_numpy(y[rows])
        found.add(pair[0], 1)
        found.compare(*pair, 1)
    drift = found.drift()
    assert drift is not None
    for matrix, left, bound in ((found.matrix(), x, 1e-6), (drift, y - x, 1e-6)):
        exact = left.astype(np.float64).T @ x.astype(np.float64) / len(x)
        largest = np.abs(exact).max()
        for here, block in matrix.columns():
            apart = np.abs(block.numpy() - exact[here, here]).max()
            assert apart < bound * largest
