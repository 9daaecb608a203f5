"""Every operation has a function on a device; what passes bring besides texts, beside the executor for texts."""

from __future__ import annotations

from collections.abc import Iterator
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
            assert_close(np.concatenate(seen[0][key]), np.concatenate(theirs), 2 * CLOSE)
