"""Stream layers: what is on the device at once, in which order weights are read, and that results stay the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quants import Tensor
from quants.errors import FileError, ModelError, OptionError
from runtime import decoder
from runtime.ahead import AheadOptions
from runtime.graph.placement import bytes_between, bytes_of_values, bytes_on_device, placed, segments
from runtime.importance import Importance
from runtime.model import RunningModel

from . import models

pytestmark = pytest.mark.device
WINDOWS, LENGTH = 2, 16


def on_device(model: RunningModel, memory: int | None = None) -> RunningModel:
    from runtime.device.torch_device import torch_device

    model.device = torch_device("cpu", memory)
    return model


def memory_for(model: RunningModel, layers: float) -> int:
    """Return the bytes of this many layers and a batch's values."""
    graph = decoder.graph_of(model.network)
    return int(layers * segments(graph)[1].nbytes) + bytes_of_values(graph, WINDOWS, LENGTH)


def losses(model: RunningModel, batches: list[Any], options: AheadOptions | None = None) -> list[Any]:
    with model.prepare([(ids, 0) for ids in batches], options):
        return [model.lazy_logits(ids).losses(ids) for ids in batches]


def counted(model: RunningModel) -> list[str]:
    """Return a list that gets a line for each read of a weight of a layer, "name" or "name[expert]"."""
    reads: list[str] = []

    def reader(tensor: Tensor) -> Callable[[int, int], Any]:
        def read(start: int, stop: int) -> Any:
            rows = tensor.shape[1] if len(tensor.shape) == 3 else tensor.rows
            whole = (start, stop) == (0, tensor.rows)
            reads.append(tensor.name if whole else f"{tensor.name}[{start // max(1, rows)}]")
            return tensor.read(start, stop)

        return read

    for layer in model.network.layers:
        for role, tensor in layer.tensors.items():
            layer.tensors[role] = replace(tensor, read=reader(tensor))  # type: ignore[index]
    return reads


@pytest.mark.parametrize("room", [2.2, 1.2])
def test_results_are_those_of_a_model_that_fits(room: float) -> None:
    batches = models.texts()
    wanted = losses(on_device(models.model()), batches)
    model = models.model()
    progress: list[tuple[int, int]] = []
    memory = memory_for(model, room)
    on_device(model, memory)
    made = losses(model, batches, AheadOptions(progress=lambda done, of: progress.append((done, of))))
    np.testing.assert_array_equal(made, wanted)
    assert progress == [(done, 4) for done in range(1, 5)]


def test_each_layer_is_read_once_for_all_texts() -> None:
    model = models.model()
    reads = counted(model)
    on_device(model, memory_for(model, 2.2))
    losses(model, models.texts())
    assert sorted(reads) == sorted(each.name for layer in model.network.layers for each in layer.tensors.values())


def test_each_used_expert_is_read_once_for_all_texts() -> None:
    model = models.model(experts=24)
    reads = counted(model)
    graph = decoder.graph_of(model.network)
    alone = segments(graph, 0)[1]
    on_device(model, alone.most + bytes_of_values(graph, WINDOWS, LENGTH))
    batches = [ids[:, :4] for ids in models.texts(count=2)]
    made = losses(model, batches)
    experts = [each for each in reads if "_exps" in each]
    assert len(set(experts)) == len(experts) < 3 * 24 * 4  # some are not used
    np.testing.assert_array_equal(made, losses(on_device(models.model(experts=24)), batches))


@pytest.mark.parametrize("room", ["two layers", "one layer", "two experts", "one expert"])
def test_weights_stay_below_the_bound(room: str) -> None:
    model = models.model(experts=6)
    graph = decoder.graph_of(model.network)
    whole, alone = segments(graph)[1], segments(graph, 0)[1]
    bound = {"two layers": 2 * whole.nbytes, "one layer": whole.nbytes, "two experts": alone.most}
    weights = bound.get(room, alone.least)
    on_device(model, weights + bytes_of_values(graph, WINDOWS, LENGTH))
    batches = models.texts()
    with model.prepare([(ids, 0) for ids in batches]):
        made = model.lazy_logits(batches[0])
    assert model.device is not None
    assert 0 < model.device.weights.peak <= weights  # type: ignore[attr-defined]
    np.testing.assert_array_equal(made.x, on_device(models.model(experts=6)).lazy_logits(batches[0]).x)


def test_a_layer_that_does_not_fit_is_named() -> None:
    model = models.model(experts=6)
    graph = decoder.graph_of(model.network)
    least, values = segments(graph, 0)[1].least, bytes_of_values(graph, WINDOWS, LENGTH)
    on_device(model, least + values - 1)
    with pytest.raises(OptionError, match=rf"one expert of layer 0 take {least:,} bytes") as caught:
        losses(model, models.texts())
    assert caught.value.hint is not None
    assert f"{least + values:,} are enough" in caught.value.hint
    losses(on_device(models.model(experts=6), least + values), models.texts())


def test_a_dense_layer_that_does_not_fit_is_named() -> None:
    graph = decoder.graph_of(models.model().network)
    with pytest.raises(OptionError, match="the weights of layer 0"):
        placed(graph, 10_000, 0)


def test_equal_texts_are_both_served() -> None:
    model = models.model()
    on_device(model, memory_for(model, 2.2))
    first, second = models.texts(count=2)
    made = losses(model, [first, second, first])
    np.testing.assert_array_equal(made[0], made[2])
    assert model._ahead is not None
    assert model._ahead.take(_batch(first)) is None  # each result is served once


def _use_one(model: RunningModel, ahead: Any, ids: Any) -> None:
    """Use the first of several batches, then fail."""
    with ahead:
        model.lazy_logits(ids)
        model.lazy_logits([models.VOCABULARY])


def _batch(ids: Any) -> Any:
    from runtime.ahead import AheadBatch

    return AheadBatch(ids, 0)


def test_groups_are_bounded_by_the_hosts_memory() -> None:
    model = models.model()
    reads, graph = counted(model), decoder.graph_of(model.network)
    on_device(model, memory_for(model, 2.2))
    progress: list[tuple[int, int]] = []
    options = AheadOptions(
        progress=lambda done, of: progress.append((done, of)), host_memory=bytes_between(graph, 2 * WINDOWS * LENGTH)
    )
    batches = models.texts(count=5)
    made = []
    with model.prepare([(ids, 0) for ids in batches], options):
        assert not reads  # nothing is computed before it is asked for
        for number, ids in enumerate(batches):
            made.append(model.lazy_logits(ids).losses(ids))
            assert reads.count("blk.0.attn_q.weight") == number // 2 + 1  # groups of two
    assert progress[0] == (1, 12)
    assert progress[-1] == (12, 12)
    np.testing.assert_array_equal(made, losses(on_device(models.model()), batches))


def test_what_was_not_used_is_dropped() -> None:
    model = models.model()
    on_device(model, memory_for(model, 2.2))
    batches = models.texts()
    ahead = model.prepare([(ids, 0) for ids in batches])
    with pytest.raises(ModelError, match="outside the vocabulary"):
        _use_one(model, ahead, batches[0])
    assert ahead.take(_batch(batches[1])) is None
    assert not ahead._results
    assert not model.device.weights.nbytes  # type: ignore[union-attr]


def test_a_text_that_was_not_prepared_is_computed_too() -> None:
    model = models.model()
    on_device(model, memory_for(model, 2.2))
    prepared, other = models.texts(count=2)
    with model.prepare([(prepared, 0)]):
        made = model.lazy_logits(other).losses(other)
    np.testing.assert_array_equal(made, losses(on_device(models.model()), [other])[0])


@pytest.mark.parametrize("experts", [0, 6])
def test_sums_for_an_importance_matrix_are_the_same(experts: int) -> None:
    from runtime.device.importance import DeviceImportance

    batches, sums = models.texts(), []
    graph = decoder.graph_of(models.model(experts=experts).network)
    least = max(part.least for part in segments(graph, 0)) + bytes_of_values(graph, WINDOWS, LENGTH)
    for memory in (None, least):
        model, importance = on_device(models.model(experts=experts), memory), DeviceImportance()
        model.observe = importance.observe
        losses(model, batches, AheadOptions(host_memory=bytes_between(graph, 2 * WINDOWS * LENGTH)))
        sums.append(importance.finish())
    ours, wanted = models.model(experts=experts), Importance()
    ours.observe = wanted.observe
    for ids in batches:
        ours.lazy_logits(ids)
    assert sums[0].keys() == sums[1].keys() == wanted.sums.keys()
    for name, mine in wanted.sums.items():
        for part in ("squares", "inputs", "counts"):
            np.testing.assert_array_equal(getattr(sums[0][name], part), getattr(sums[1][name], part))
        np.testing.assert_allclose(sums[0][name].squares, mine.squares, rtol=2e-5)
        np.testing.assert_array_equal(sums[0][name].counts, mine.counts)


def test_sums_are_those_of_the_processor() -> None:
    import torch

    from runtime.device.importance import DeviceImportance

    made = np.random.default_rng(0)
    ours, theirs = Importance(), DeviceImportance()
    for rows in (1, 63, 64, 65, 300):
        x = (made.standard_normal((rows, 40)) * np.exp(made.standard_normal(40)) + 0.3).astype(np.float32)
        y = x[:, ::-1].copy()
        for name, values in (("a", x), ("b", x), ("c", y)):
            ours.observe(name, values, 1, 3)
            theirs.observe_tensor(name, torch.from_numpy(values), 1, 3)
        theirs.rest()  # the sums go on from the host
    sums = theirs.finish()
    for name, mine in ours.sums.items():
        np.testing.assert_allclose(sums[name].squares, mine.squares, rtol=1e-6)
        scale = np.sqrt(mine.squares * mine.counts[:, None])
        assert np.abs(sums[name].inputs - mine.inputs).max() <= 1e-6 * scale.max()
        np.testing.assert_array_equal(sums[name].counts, mine.counts)


def test_sums_of_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.device import importance

    monkeypatch.setattr(importance, "has_float64", lambda device: False)
    monkeypatch.setattr(importance, "WAITING", 1000)
    test_sums_are_those_of_the_processor()


def test_weights_go_through_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from runtime.device import transfers

    monkeypatch.setattr(transfers, "BUFFER", 4 * 32 * 5)  # five rows at a time
    tensor = models.model().network.layers[0].need("ffn_gate.weight")
    copies = transfers.WeightCopies(torch.device("cpu"), staged=True)
    np.testing.assert_array_equal(copies.load(tensor).numpy(), tensor.float32())
    np.testing.assert_array_equal(copies.load(tensor, slice(3, 20)).numpy(), tensor.float32(3, 20))
    np.testing.assert_array_equal(copies.send(copies.decoded(tensor)).numpy(), tensor.float32())


@pytest.mark.parametrize("room", ["one layer", "one expert"])
def test_a_device_whose_commands_come_from_one_thread(room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.model(experts=6)
    graph = decoder.graph_of(model.network)
    weights = segments(graph)[1].nbytes if room == "one layer" else segments(graph, 0)[1].least
    on_device(model, weights + bytes_of_values(graph, WINDOWS, LENGTH))
    assert model.device is not None
    monkeypatch.setattr(model.device.weights.copies, "from_any_thread", False)  # type: ignore[attr-defined]
    batches = models.texts()
    np.testing.assert_array_equal(losses(model, batches), losses(on_device(models.model(experts=6)), batches))


def test_tokens_at_once_leave_room_for_weights() -> None:
    model = models.model(layers=2, width=256, net=1024)
    graph = decoder.graph_of(model.network)
    device = on_device(model).device
    assert device is not None
    assert device.tokens_at_once(graph, 512) == 2048
    assert device.tokens_at_once(graph, 5000) == 5000
    layer = segments(graph)[1].nbytes
    on_device(model, 2 * layer + bytes_of_values(graph, 4, 64))
    assert model.device is not None
    assert 256 <= model.device.tokens_at_once(graph, 64) < 2048


class Killed(BaseException):
    """Stand for a signal that ends the process."""


def killed_after(layers: int) -> Callable[[int, int], None]:
    def progress(done: int, of: int) -> None:
        if done == layers:
            raise Killed

    return progress


def kept(target: Path, head: Any = None) -> Any:
    from gguftools.measurement.pass_state import pass_state

    return pass_state(target, {"files": "a", "texts": "b"} if head is None else head)


@pytest.mark.parametrize("experts", [0, 6])
def test_a_pass_goes_on_after_it_was_interrupted(tmp_path: Path, experts: int) -> None:
    batches, target = models.texts(), tmp_path / "out"
    wanted, sums = _measured(experts, batches, AheadOptions())
    with pytest.raises(Killed), kept(target) as store:
        _measured(experts, batches, AheadOptions(progress=killed_after(3), store=store, store_every=0))
    done: list[int] = []
    with kept(target) as store:
        options = AheadOptions(progress=lambda layers, of: done.append(layers), store=store, store_every=0)
        made, resumed = _measured(experts, batches, options)
    assert done == [3, 4]
    np.testing.assert_array_equal(made, wanted)
    for name, mine in sums.items():
        for part in ("squares", "inputs", "counts"):
            np.testing.assert_array_equal(getattr(resumed[name], part), getattr(mine, part))
    assert not [*tmp_path.iterdir()]


def _measured(experts: int, batches: list[Any], options: AheadOptions) -> tuple[list[Any], Any]:
    from runtime.device.importance import DeviceImportance

    model, importance = models.model(experts=experts), DeviceImportance()
    graph = decoder.graph_of(model.network)
    least = max(part.least for part in segments(graph, 0)) + bytes_of_values(graph, WINDOWS, LENGTH)
    on_device(model, least)
    model.observe = importance.observe
    made = losses(model, batches, options)
    return made, importance.finish()


def test_a_killed_process_is_resumed(tmp_path: Path) -> None:
    target, root = tmp_path / "out", Path(__file__).parents[3]
    code = (
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(root)!r})\n"
        "from pathlib import Path\n"
        "from tests.runtime.device import models\n"
        "from tests.runtime.device import test_streaming as t\n"
        "from runtime.ahead import AheadOptions\n"
        "def end(done, of):\n"
        "    done == 2 and os.kill(os.getpid(), signal.SIGKILL)\n"
        f"with t.kept(Path({str(target)!r})) as store:\n"
        "    t._measured(0, models.texts(), AheadOptions(progress=end, store=store, store_every=0))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
    assert ended.returncode == -signal.SIGKILL
    done: list[int] = []
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as there
    try:
        with kept(target) as store:
            options = AheadOptions(progress=lambda layers, of: done.append(layers), store=store)
            made, _ = _measured(0, models.texts(), options)
        wanted, _ = _measured(0, models.texts(), AheadOptions())
    finally:
        torch.set_num_threads(threads)
    assert done[0] == 2
    np.testing.assert_array_equal(made, wanted)


def _interrupted(target: Path, batches: list[Any]) -> None:
    with pytest.raises(Killed), kept(target) as store:
        _measured(0, batches, AheadOptions(progress=killed_after(2), store=store, store_every=0))


def test_a_pass_over_other_texts_starts_anew(tmp_path: Path) -> None:
    target = tmp_path / "out"
    _interrupted(target, models.texts())
    done: list[int] = []
    with kept(target) as store:
        _measured(0, models.texts(seed=9), AheadOptions(progress=lambda layers, of: done.append(layers), store=store))
    assert done[0] == 1


def test_a_pass_of_another_measurement_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "out"
    _interrupted(target, models.texts())
    with (
        pytest.raises(FileError, match="of another measurement: files differs"),
        kept(target, {"files": "c", "texts": "b"}),
    ):
        pass


def test_a_pass_on_another_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    target = tmp_path / "out"
    _interrupted(target, models.texts())
    monkeypatch.setattr(torch, "__version__", "1.0")
    with pytest.raises(FileError, match="another device or by another version"), kept(target) as store:
        _measured(0, models.texts(), AheadOptions(store=store))


@pytest.mark.parametrize("left", [0.5, 0.0])
def test_an_incomplete_pass_starts_anew(tmp_path: Path, left: float) -> None:
    target, data = tmp_path / "out", tmp_path / "out.pass"
    _interrupted(target, models.texts())
    os.truncate(data, int(data.stat().st_size * left))
    done: list[int] = []
    with kept(target) as store:
        _measured(0, models.texts(), AheadOptions(progress=lambda layers, of: done.append(layers), store=store))
    assert done[0] == 1


def test_the_write_before_the_last_is_used_if_the_last_is_damaged(tmp_path: Path) -> None:
    target, journal = tmp_path / "out", tmp_path / "out.pass.journal"
    _interrupted(target, models.texts())
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    journal.write_bytes(b"".join(lines[:2]) + lines[2][:-20])
    done: list[int] = []
    with kept(target) as store:
        _measured(0, models.texts(), AheadOptions(progress=lambda layers, of: done.append(layers), store=store))
    assert done[0] == 1
    assert done[1] == 2


def test_a_pass_is_used_by_one_run(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with kept(target), pytest.raises(FileError, match="another run is writing"), kept(target):
        pass


def test_observers_that_are_not_known_are_refused(tmp_path: Path) -> None:
    model = models.model()
    on_device(model, memory_for(model, 2.2))
    model.observe = Importance().observe
    with pytest.raises(OptionError, match="cannot be kept"), kept(tmp_path / "out") as store:
        losses(model, models.texts(), AheadOptions(store=store))


def test_bytes_on_device() -> None:
    tensor = models.model().network.layers[0].need("ffn_gate.weight")
    assert bytes_on_device(tensor) == 4 * 48 * 32
