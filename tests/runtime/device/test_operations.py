"""Every operation has a function on a device; what passes bring besides texts, beside the executor for texts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguftools.models.model import open
from runtime.branches import Branches, Tree
from runtime.graph import operations as op
from runtime.model import RunningModel
from tests import absent_keys
from tests.conftest import DATA

pytestmark = pytest.mark.device
E2E = DATA / "golden" / "e2e"
COMPUTED_BY_RUN = {op.Input}
ABSTRACT = {"Routing", "Several", "Indexing", "Recurrent"}
CLOSE = 1e-5  # of the values' standard deviation


def operations(base: type[op.Operation] = op.Operation) -> Iterator[type[op.Operation]]:
    for each in base.__subclasses__():
        if each.__name__ not in ABSTRACT:
            yield each
        yield from operations(each)


def lacking() -> set[str]:
    from runtime.device import executor
    from runtime.graph import text

    assert executor.COMPUTE is not text.COMPUTE
    return {each.__name__ for each in operations() if each not in executor.COMPUTE} - {
        each.__name__ for each in COMPUTED_BY_RUN
    }


def test_every_operation_has_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.device import executor

    assert len(set(operations())) > 90
    assert not lacking()
    monkeypatch.delitem(executor.COMPUTE, op.PerHead)
    assert lacking() == {"PerHead"}


def test_abstract_operations_are_in_no_graph() -> None:
    for name in absent_keys.descriptions():
        model = model_of(name)
        if model.encoder_decoder is None and model.encoder is None and model.codes is None:
            from runtime import decoder

            assert not {type(node.operation).__name__ for node in decoder.graph_of(model.network).nodes} & ABSTRACT


def model_of(name: str, device: str = "") -> RunningModel:
    description = absent_keys.descriptions()[name]
    case = absent_keys.cases()[name][0]
    model = RunningModel(description.metadata(case), absent_keys.tensors(description), threads=2, precision="exact")
    return on(model, device)


def on(model: RunningModel, device: str) -> RunningModel:
    if device:
        from runtime.device.torch_device import torch_device

        model.device = torch_device(device)
    return model


def opened(name: str, device: str = "") -> RunningModel:
    source = open(E2E / name)
    return on(RunningModel(source.metadata, source.tensors, threads=2, precision="exact"), device)


def assert_close(ours: Any, wanted: Any, bound: float = CLOSE) -> None:
    assert ours.shape == wanted.shape
    assert np.abs(ours - wanted).max() < bound * wanted.std()


@pytest.mark.parametrize("name", ["tiny-dense-f16.gguf", "tiny-moe-f16.gguf"])
def test_texts_that_begin_alike(name: str) -> None:
    ours, wanted = opened(name, "cpu"), opened(name)
    rng = np.random.default_rng(1)
    trees = tuple(
        Tree(rng.integers(5, 100, trunk).tolist(), tuple(rng.integers(5, 100, n).tolist() for n in lengths))
        for trunk, lengths in ((7, (3, 1, 6)), (1, (4,)), (0, (2, 5)), (3, (0, 2)), (4, (0,)))
    )
    branches = Branches(trees)
    assert_close(ours.branched_logits(branches).float32(), wanted.branched_logits(branches).float32())


def test_a_tree_of_tokens_after_a_cached_text() -> None:
    ours, wanted = opened("tiny-dense-f16.gguf", "cpu"), opened("tiny-dense-f16.gguf")
    ids = np.random.default_rng(1).integers(5, 100, 17)
    found = []
    for model in (ours, wanted):
        cache = model.new_cache()
        model.forward(ids[:10], cache)
        found.append(model.lazy_forward(ids[10:], cache, (-1, 0, 0, 1, 2, -1, 5)).float32())
    assert_close(*found)


def test_a_table_of_values_of_all_nodes() -> None:
    from runtime.node_values import observe_values

    ours, wanted = model_of("llama-yarn", "cpu"), model_of("llama-yarn")
    values: list[list[tuple[str, Any]]] = [[], []]
    for model, mine in zip((ours, wanted), values, strict=True):
        observe_values(model, [3, 1, 4, 1, 5], lambda node, value, mine=mine: mine.append((node.name, value)))  # type: ignore[misc]
    assert [name for name, _ in values[0]] == [name for name, _ in values[1]]
    for (_, mine), (_, theirs) in zip(*values, strict=True):
        assert_close(mine, theirs, 2 * CLOSE)


def test_weights_that_are_no_numbers_name_the_layer() -> None:
    from quants.errors import ModelError
    from quants.tensor import from_array

    model = model_of("llama-yarn", "cpu")
    layer = model.network.layers[1]
    wrong = np.full(layer.need("ffn_down.weight").shape, np.nan, np.float32)
    layer.tensors["ffn_down.weight"] = from_array("blk.1.ffn_down.weight", wrong)  # type: ignore[index]
    with pytest.raises(ModelError, match=r"no longer finite from 'blk\.1'"):
        model.forward(np.arange(5))


def test_mixed_inputs_of_values_are_observed() -> None:
    for name in ("llama-yarn", "gpt-oss-bf16", "gemma2", "phi2"):
        seen: list[dict[tuple[str, int], list[Any]]] = [{}, {}]
        for model, mine in zip((model_of(name, "cpu"), model_of(name)), seen, strict=True):
            ids = np.random.default_rng(3).integers(0, model.vocabulary_size, (2, 21))
            forward = model.new_pass(*ids.shape)
            forward.tokens = ids.reshape(-1)
            forward.observe_values = lambda weight, first, x, mine=mine: mine.setdefault((weight, first), []).append(x)  # type: ignore[misc]
            from runtime import decoder
            from runtime.embedding import embed

            decoder.decode(forward, embed(forward, forward.tokens))
        assert seen[0].keys() == seen[1].keys()
        assert seen[0]
        for key, theirs in seen[1].items():
            mixed, wanted = np.concatenate(seen[0][key]), np.concatenate(theirs)
            assert mixed.shape == wanted.shape
            assert_close(mixed.T @ mixed, wanted.T @ wanted)  # rows come in any order


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (5, 2), (2, 33)], ids=str)
@pytest.mark.parametrize(
    "name", ["llama-yarn", "gemma3", "deepseek-v32", "granite-hybrid", "minicpm3", "rwkv7", "bert"]
)
def test_texts_of_other_shapes(name: str, shape: tuple[int, int]) -> None:
    ours, wanted = model_of(name, "cpu"), model_of(name)
    ids = np.random.default_rng(3).integers(0, ours.vocabulary_size, shape)
    assert_close(ours.forward(ids), wanted.forward(ids), 2 * CLOSE)


@pytest.mark.parametrize("name", ["llama-yarn", "gpt-oss-bf16", "gemma2", "mpt", "bloom", "deepseek-v2-yarn"])
def test_attention_some_queries_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.device import attention

    ours, wanted = model_of(name, "cpu"), model_of(name)
    ids = np.random.default_rng(3).integers(0, ours.vocabulary_size, (3, 33))
    whole = wanted.forward(ids)
    for scores, rows in ((1, 512), (1 << 26, 7), (3000, 5)):
        monkeypatch.setattr(attention, "SCORES", scores)
        monkeypatch.setattr(attention, "ROWS", rows)
        assert_close(ours.forward(ids), whole, 2 * CLOSE)


def test_a_pass_waits_for_a_device_once_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts' numbers of tokens, and whether values are finite: nothing else is read back before the result."""
    import torch

    ours = model_of("qwen2-moe", "cpu")
    ids = np.arange(24).reshape(2, 12)
    ours.forward(ids)
    read = {"tolist": 0, "__bool__": 0, "item": 0}

    def counted(name: str) -> Any:
        function = getattr(torch.Tensor, name)

        def count(x: Any) -> Any:
            read[name] += 1
            return function(x)

        return count

    for name in read:
        monkeypatch.setattr(torch.Tensor, name, counted(name))
    ours.forward(ids)
    layers = len(ours.network.layers)
    assert read["tolist"] <= layers
    assert read["__bool__"] == layers
    assert not read["item"]


@pytest.mark.parametrize("pieces", [(40,), (9, 1, 30)], ids=["at once", "in pieces"])
def test_adapters_inside_a_model(pieces: tuple[int, ...]) -> None:
    ours, wanted = model_of("granite-switch", "cpu"), model_of("granite-switch")
    ids = np.random.default_rng(3).integers(0, ours.vocabulary_size, 40)
    controls = wanted.network.keys.stored("adapters.token_ids_activate")
    assert controls is not None
    ids[5], ids[21] = controls[1], controls[0]
    found = []
    for model in (ours, wanted):
        cache, start, parts = model.new_cache(), 0, []
        for count in pieces:
            parts.append(model.forward(ids[start : start + count], cache))
            start += count
        found.append(np.concatenate(parts))
    assert_close(*found, 2 * CLOSE)
    ids[5] = controls[0]
    assert np.abs(ours.forward(ids) - found[0])[5:].max() > 1e-3  # the adapter counts


IMAGES: dict[str, dict[str, Any]] = {
    "cogvlm": {"layout": "together"},
    "qwen3-vl": {"grid": (2, 3), "deep": True},
    "gemma3": {"whole": True},
    "hunyuan-vl": {"grid": (2, 2), "layout": "framed"},
}


@pytest.mark.parametrize("first", [0, 9])
@pytest.mark.parametrize("name", IMAGES)
def test_images_in_a_text(name: str, first: int) -> None:
    from runtime.images import EmbeddedImage

    ours, wanted = model_of(name, "cpu"), model_of(name)
    given = dict(IMAGES[name])
    parts = 1 + (wanted.network.deepstack or 0) if given.pop("deep", False) else 1
    width, rng = wanted.network.hparams.width * parts, np.random.default_rng(3)
    ids = rng.integers(0, ours.vocabulary_size, 20)
    images = [EmbeddedImage(5, rng.standard_normal((6, width), np.float32) * np.float32(0.1), **given)]
    if name == "cogvlm":
        assert "blk.0.vis_attn_qkv.weight" in wanted.tensors
    found = [model.forward(ids, model.new_cache(), first, images) for model in (ours, wanted)]
    assert_close(*found, 2 * CLOSE)
    assert np.abs(ours.forward(ids)[first:] - found[0]).max() > 1e-2


UNORDERED = {  # sums whose order differs from run to run on some device, and what torch refuses as such
    "index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce", "put_", "cumsum", "cumsum_", "histc",
    "bincount", "kthvalue", "median",
}  # fmt: skip


def covering() -> list[str]:
    """Families that have every operation of all of them."""
    from runtime import decoder

    types = {}
    for name in absent_keys.descriptions():
        model = model_of(name)
        if model.encoder_decoder is None and model.encoder is None and model.codes is None:
            types[name] = {type(node.operation) for node in decoder.graph_of(model.network).nodes}
    left, chosen = set().union(*types.values()), []
    while left:
        best = max(types, key=lambda name: len(types[name] & left))
        chosen.append(best)
        left -= types[best]
    return chosen


def test_sums_have_the_same_order_in_each_run() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = function.__name__.partition(".")[0]
            kwargs = kwargs or {}
            seen.add(f"{name} that adds" if name.startswith("index_put") and (*args, False)[3] else name)
            return function(*args, **kwargs)

    for name in covering():
        model = model_of(name, "cpu")
        ids = np.random.default_rng(3).integers(0, model.vocabulary_size, (2, 20))
        with Watch():
            model.forward(ids)
    assert "matmul" in seen
    assert not seen & UNORDERED
    assert not [each for each in seen if "adds" in each]


def test_predicted_neurons(tmp_path: Path) -> None:
    import gguftools
    from tests.conftest import ROOT
    from tests.gguftools.lab.test_powerinfer import convert_with_predictor, with_relu

    base = with_relu(Path(shutil.copytree(ROOT / "examples" / "austen-4m", tmp_path / "austen")))
    convert_with_predictor(base, tmp_path)
    ids = np.random.default_rng(3).integers(0, 256, (2, 15))
    found, marked = [], []
    for device in ("cpu", ""):
        model = on(gguftools.load(tmp_path / "sparse.gguf"), device)
        model.precision = "exact"
        whole = model.forward(ids)
        sparsity = model.use_predictor()
        found.append(np.stack([whole, model.forward(ids)]))
        marked.append((sparsity.marked, sparsity.neurons))
    assert_close(*found, 2 * CLOSE)
    assert np.abs(found[0][0] - found[0][1]).max() > 0.1
    assert marked[0] == marked[1]


def test_a_block_after_cached_keys() -> None:
    from runtime import decoder

    found = []
    for model in (model_of("deepseek-v4", "cpu"), model_of("deepseek-v4")):
        rng, forward, layer = np.random.default_rng(3), model.new_pass(1, 5), model.network.layers[0]
        forward.positions = forward.rotated_at = np.arange(11, 16)
        forward.tokens = np.arange(5)
        keys = rng.standard_normal((11, 1, forward.numbers(layer).key_width), np.float32)
        forward.shared_keys[layer.index] = keys, keys
        width = model.network.hparams.width * int(model.network.keys.need("hyper_connection.count"))
        found.append(decoder.through_block_layer(forward, layer, rng.standard_normal((5, width), np.float32)))
    assert_close(*found, 2 * CLOSE)
