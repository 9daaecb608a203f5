"""A model run layer by layer: the hidden states of a run at once, and what its products' inputs are like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gguftools
from quants import Tensor
from quants.errors import ModelError
from quants.tensor import from_array
from runtime import decoder, layerwise
from runtime.hessians import Hessians, Inputs
from runtime.model import RunningModel

from ..archs import checkpoints
from ..conftest import ROOT
from .test_encoder_decoder import model_of

LENGTH = 48


@pytest.fixture(scope="module")
def model() -> RunningModel:
    return gguftools.load(ROOT / "examples" / "austen-4m")


@pytest.fixture(scope="module")
def ids(model: RunningModel) -> np.ndarray:
    return np.random.default_rng(3).integers(0, model.vocabulary_size, (3, LENGTH))


def _through(model: RunningModel, ids: np.ndarray, watched: Hessians | None = None) -> list[layerwise.Batch]:
    batches = layerwise.begin(model, [ids[:2], ids[2:]])
    for layer in model.network.layers:
        if watched is not None:
            layerwise.watch(batches, layer, watched)
        layerwise.advance(batches, layer)
    return batches


def test_it_ends_where_a_run_at_once_does(model: RunningModel, ids: np.ndarray) -> None:
    batches = _through(model, ids, Hessians(2))
    expected = model.lazy_logits(ids).x.reshape(-1, model.tensors["token_embd.weight"].shape[1])
    found = Hessians()
    layerwise.watch_head(batches, "output.weight", found)
    truth = expected.T.astype(np.float64) @ expected / len(expected)
    (products,) = found.of.values()
    assert products.count == len(expected)
    assert np.allclose(products.matrix().whole(), truth, rtol=1e-4, atol=1e-5)


def test_copies_of_hidden_states_end_where_a_run_at_once_does(tmp_path: Path) -> None:
    checkpoints.build("gemma3n", tmp_path / "gemma3n")
    model, found = gguftools.load(tmp_path / "gemma3n"), Hessians()
    ids = np.random.default_rng(3).integers(0, model.vocabulary_size, (3, 20))
    batches = _through(model, ids, Hessians(2))
    expected = model.lazy_logits(ids).x.reshape(3 * 20, -1)
    ends = np.concatenate([layerwise.head_input(batch) for batch in batches])
    layerwise.watch_head(batches, "output.weight", found)
    assert found.of["output.weight", 0].count == 60
    assert np.allclose(found.of["output.weight", 0].matrix().whole(), expected.T @ expected / 60, rtol=1e-4, atol=1e-5)
    assert ends.shape == expected.shape


def test_inputs_are_those_that_products_have(model: RunningModel, ids: np.ndarray) -> None:
    seen: dict[str, list[np.ndarray]] = {}
    watched = gguftools.load(ROOT / "examples" / "austen-4m")
    watched.observe = lambda name, x, expert, experts: seen.setdefault(name, []).append(x.copy())
    watched.forward(ids)
    found = Hessians(2)
    _through(model, ids, found)
    for name in ("blk.0.attn_q.weight", "blk.1.attn_output.weight", "blk.3.ffn_up.weight", "blk.2.ffn_down.weight"):
        x = np.concatenate(seen[name]).astype(np.float64)
        ((start, stop, products),) = found.pieces(name, model.tensors[name].rows)
        assert (start, stop) == (0, model.tensors[name].rows)
        mean, least = x.T @ x / len(x), 1e-5 * np.abs(x).max() ** 2
        assert np.allclose(products.matrix().whole(), mean, rtol=1e-3, atol=least), name


def test_sums_do_not_depend_on_threads(ids: np.ndarray) -> None:
    found = []
    for threads in (1, 2):
        model = gguftools.load(ROOT / "examples" / "austen-4m", threads=threads)
        found.append(Hessians(threads))
        _through(model, ids, found[-1])
    assert all(np.array_equal(mine.uppers, found[1].of[key].uppers) for key, mine in found[0].of.items())
    assert all(np.array_equal(mine.uppers, found[1].values[key].uppers) for key, mine in found[0].values.items())


def test_weights_of_one_input_share_it(model: RunningModel, ids: np.ndarray) -> None:
    found = Hessians()
    batches = layerwise.begin(model, [ids])
    layerwise.watch(batches, model.network.layers[0], found)
    of = {name.split(".")[2]: products for (name, _), products in found.of.items()}
    assert of["attn_q"] is of["attn_k"] is of["attn_v"]
    assert of["ffn_up"] is of["ffn_gate"]
    assert len({id(products) for products in of.values()}) == 4
    assert all(products.count == ids.size for products in of.values())


def test_values_are_seen_through_attention(model: RunningModel, ids: np.ndarray) -> None:
    """What attention gives its output projection is the values' weight times the mixed inputs, in every head."""
    name, own = "blk.0.attn_v.weight", model.network.hparams.layers[0]
    weight = model.tensors[name].float32()[: own.value_width]  # the same for all heads, whose inputs are summed up
    alike = from_array(name, np.tile(weight, (own.kv_heads, 1)))
    seen: dict[str, np.ndarray] = {}
    changed = RunningModel(model.metadata, {**model.tensors, name: alike}, threads=1)
    found = Hessians()
    layerwise.watch(layerwise.begin(changed, [ids]), changed.network.layers[0], found)
    ((_, _, products),) = found.pieces(name, alike.rows)
    assert products is found.values[name, 0]
    changed.observe = lambda name, x, expert, experts: seen.setdefault(name, x.copy())
    changed.forward(ids)
    asked = np.arange(own.heads // 2, LENGTH, own.heads)
    outputs = seen["blk.0.attn_output.weight"].reshape(3, LENGTH, own.heads, -1)[:, asked].astype(np.float64)
    assert products.count == outputs.size // own.value_width
    expected = np.einsum("tqhi,tqhj->ij", outputs, outputs) / products.count
    assert np.allclose(weight @ products.matrix().whole() @ weight.T, expected, rtol=1e-3, atol=1e-4 * expected.max())


def test_a_token_that_all_look_at_is_most_of_what_values_are() -> None:
    found = Hessians()
    x = np.zeros((4, 8), np.float32)
    x[0, 0] = 1
    found.observe("blk.0.attn_qkv.weight", x)
    found.observe_values("blk.0.attn_qkv.weight", 20, np.tile(x[:1], (4, 1)))
    pieces = found.pieces("blk.0.attn_qkv.weight", 30)
    assert [(start, stop) for start, stop, _ in pieces] == [(0, 20), (20, 30)]
    assert [products.matrix().diagonal()[0] for _, _, products in pieces] == [0.25, 1]


def test_how_far_inputs_are_from_those_aimed_at(model: RunningModel, ids: np.ndarray) -> None:
    """Of products that read alike and of values, in a model whose embeddings are others."""
    name = "token_embd.weight"
    noise = np.random.default_rng(0).standard_normal(model.tensors[name].shape).astype(np.float32)
    values = model.tensors[name].float32()
    changed = {**model.tensors, name: from_array(name, values + noise * values.std() / 2)}
    other, layer, found = RunningModel(model.metadata, changed, threads=2), model.network.layers[0], Hessians(2, 256)
    aims, batches = (layerwise.begin(each, [ids[:2], ids[2:]]) for each in (model, other))
    before, expected = [batch.x.copy() for batch in batches], layerwise.begin(model, [ids[:2], ids[2:]])
    layerwise.advance(expected, layer)
    layerwise.watch_differences(batches, aims, layer, found)
    assert all(np.array_equal(batch.x, x) for batch, x in zip(batches, before, strict=True))
    assert all(np.array_equal(one.x, two.x) for one, two in zip(aims, expected, strict=True))
    seen: list[dict[str, list[np.ndarray]]] = [{}, {}]
    for each, into in zip((model, other), seen, strict=True):
        for batch in layerwise.begin(each, [ids]):
            batch.forward.observe = lambda name, x, *_, into=into: into.setdefault(name, []).append(x.copy())
            batch.forward.observe_values = lambda name, row, x, into=into: into.setdefault("mixed", []).append(x.copy())
            decoder.through_layer(batch.forward, layer, batch.x)
    for name, products in (
        ("blk.0.attn_k.weight", found.of["blk.0.attn_k.weight", 0]),
        ("blk.0.ffn_down.weight", found.of["blk.0.ffn_down.weight", 0]),
        ("mixed", found.values["blk.0.attn_v.weight", 0]),
    ):
        y, x = (np.concatenate(each[name]).astype(np.float64) for each in seen)
        drift = products.drift()
        assert drift is not None
        assert len(drift.blocks) == -(-x.shape[1] // 256)
        truth = (y - x).T @ x / len(x)
        for here, block in drift.columns():
            assert np.allclose(block, truth[here, here], rtol=1e-3, atol=1e-4 * np.abs(truth).max())


def test_experts_are_not_compared() -> None:
    inputs, found, x = Inputs(), Hessians(), np.ones((4, 8), np.float32)
    for expert in (0, 1):
        inputs.observe("e", x, expert, 2)
    inputs.observe("w", 2 * x)
    inputs.observe("other", 2 * x[:3])
    found.aims = inputs
    found.observe("e", x.copy(), 0, 2)
    found.observe("other", x.copy())
    found.observe("w", x.copy())
    assert found.of["e", 0].drift() is None
    assert found.of["other", 0].drift() is None
    drift = found.of["w", 0].drift()
    assert drift is not None
    assert np.array_equal(drift.whole(), np.ones((8, 8)))
    found.observe("w", x.copy())  # with nothing to compare it with
    assert found.of["w", 0].drift() is None


def test_changed_weights_are_what_runs_on(model: RunningModel, ids: np.ndarray) -> None:
    layer = model.network.layers[0]
    name = "blk.0.ffn_down.weight"
    zeros: Tensor = from_array(name, np.zeros(model.tensors[name].shape, np.float32))
    before, after = (layerwise.begin(model, [ids]) for _ in range(2))
    layerwise.advance(before, layer)
    layerwise.advance(after, layerwise.with_tensors(layer, [zeros]))
    assert not np.allclose(before[0].x, after[0].x)


@pytest.mark.parametrize("name", ["gemma4-e", "cohere2-moe", "nemotron-h-moe", "lfm2-moe", "qwen3-5"])
def test_hidden_states_stay_while_inputs_are_watched(name: str, tmp_path: Path) -> None:
    checkpoints.build(name, tmp_path / name)
    model = gguftools.load(tmp_path / name)
    batches = layerwise.begin(model, [np.arange(2 * LENGTH).reshape(2, LENGTH) % model.vocabulary_size])
    for layer in model.network.layers:
        before = batches[0].x.copy()
        found = Hessians()
        layerwise.watch(batches, layer, found)
        assert found.of
        assert np.array_equal(batches[0].x, before)
        layerwise.advance(batches, layer)
        assert not np.array_equal(batches[0].x, before)


def test_models_whose_layers_are_no_row() -> None:
    with pytest.raises(ModelError, match="t5 models cannot be run one layer after another"):
        layerwise.begin(model_of("t5"), [np.zeros((1, 8), np.int64)])
