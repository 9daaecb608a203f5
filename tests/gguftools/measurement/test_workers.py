"""Importance and divergence measured by workers: the figures of one thread to the last bit, whoever was lost."""

import json
import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from gguftools.io.gguf.reader import open_gguf
from gguftools.measurement import divergence_tasks, importance
from gguftools.measurement.workers import opened_once
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing import executors
from quants.errors import FileError, GgufToolsError, ModelError, OptionError
from runtime.evaluation.windows import Window, batched, grouped_alike
from runtime.importance import Importance, add_sums

from ...conftest import ROOT
from ..elsewhere import Elsewhere, spawned

AUSTEN, TEXT = ROOT / "examples" / "austen-4m", ROOT / "examples" / "persuasion.txt"
WINDOWS: dict[str, Any] = {"n_ctx": 64, "chunks": 70}  # 32 windows run together: three batches


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        yield executor


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two layers of austen-4m."""
    folder = tmp_path_factory.mktemp("files")
    paths = {name: folder / f"{name}.gguf" for name in ("F16", "Q4_K_M", "Q4_0")}
    gguftools.convert(AUSTEN, folder / "whole.gguf", "f16")
    gguftools.quantize(folder / "whole.gguf", "COPY", paths["F16"], options=QuantizeOptions(prune_layers=[2, 3]))
    for name in ("Q4_K_M", "Q4_0"):
        gguftools.quantize(paths["F16"], name, paths[name])
    return paths


def damaged(source: Path, target: Path, name: str = "blk.1.ffn_down.weight") -> Path:
    """The F16 model with a weight that is not a number."""
    shutil.copy(source, target)
    part = open_gguf(target).parts[0]
    with target.open("r+b") as file:
        file.seek(part.offsets[name] + 3 * part.tensors[name].row_bytes)
        file.write(np.array([np.nan], "<f2").tobytes())
    return target


def refusal(call: Any) -> tuple[type[GgufToolsError], str, str | None]:
    with pytest.raises(GgufToolsError) as caught:
        call()
    return type(caught.value), str(caught.value), caught.value.hint


@pytest.mark.parametrize("source", ["file", "checkpoint"])
def test_workers_measure_the_matrix_of_one_thread(
    source: str, pool: ProcessPoolExecutor, files: dict[str, Path], tmp_path: Path
) -> None:
    model = AUSTEN if source == "checkpoint" else files["Q4_K_M"]
    seen: list[int] = []
    options = gguftools.ImatrixOptions(with_output=True, save_every=20)
    gguftools.imatrix(model, TEXT, tmp_path / "one.gguf", threads=1, options=options, **WINDOWS)
    gguftools.imatrix(
        model,
        TEXT,
        tmp_path / "workers.gguf",
        options=replace(options, executor=pool),
        progress=lambda done, *_: seen.append(done),
        **WINDOWS,
    )
    assert (tmp_path / "workers.gguf").read_bytes() == (tmp_path / "one.gguf").read_bytes()
    assert seen == [0, 20, 40, 60, 70]
    assert len(list(tmp_path.iterdir())) == 2


def test_sums_of_batches_add_up() -> None:
    rows = np.random.default_rng(0).standard_normal((3, 40, 16)).astype(np.float32)
    total: dict[str, Any] = {}
    for batch in rows:
        found = Importance()
        found.observe("a", batch)
        for sums in found.sums.values():
            for array in (sums.squares, sums.inputs, sums.counts):
                array.flags.writeable = False  # as what comes from elsewhere can be
        add_sums(total, found.sums)
    exact = rows.astype(np.float64)
    assert total["a"].counts.tolist() == [120]
    np.testing.assert_allclose(total["a"].squares[0], (exact**2).sum((0, 1)), rtol=1e-14)
    np.testing.assert_allclose(total["a"].inputs[0], exact.sum((0, 1)), rtol=1e-12, atol=1e-12)


def test_tasks_are_small(files: dict[str, Path]) -> None:
    executor = Elsewhere()
    gguftools.imatrix(files["Q4_0"], TEXT, options=gguftools.ImatrixOptions(executor=executor), n_ctx=512, chunks=8)
    assert len(executor.sizes) == 2
    assert max(executor.sizes) < 20_000


class Killed(BaseException):
    pass


def test_a_killed_run_of_workers_goes_on_without_them(files: dict[str, Path], tmp_path: Path) -> None:
    def killed(done: int, *_: object) -> None:
        if done >= 40:
            raise Killed

    options = gguftools.ImatrixOptions(save_every=20)
    with pytest.raises(Killed):
        gguftools.imatrix(
            files["F16"],
            TEXT,
            tmp_path / "a.gguf",
            options=replace(options, executor=Elsewhere()),
            progress=killed,
            **WINDOWS,
        )
    seen: list[int] = []
    gguftools.imatrix(
        files["F16"],
        TEXT,
        tmp_path / "a.gguf",
        options=replace(options, resume=True),
        progress=lambda done, *_: seen.append(done),
        **WINDOWS,
    )
    assert seen[0] in (20, 40)
    gguftools.imatrix(files["F16"], TEXT, tmp_path / "b.gguf", options=options, **WINDOWS)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


# Python up to 3.11 iterates over a pool's tasks when it breaks, while others add to them.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="finds processes by /proc")
def test_workers_that_are_killed_lose_no_window(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "FIRST_WAIT", 0.001)
    kills, killed = 2, list[int]()

    def kill_one(done: int, *_: object) -> None:
        if len(killed) < kills and (found := spawned()):
            killed.append(random.Random(done).choice(found))
            threading.Timer(0.05, os.kill, (killed[-1], signal.SIGKILL)).start()

    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as own:
        many: dict[str, Any] = {"n_ctx": 64, "chunks": 120}
        gguftools.imatrix(
            files["F16"],
            TEXT,
            tmp_path / "a.gguf",
            options=gguftools.ImatrixOptions(save_every=16, executor=own),
            progress=kill_one,
            **many,
        )
    assert len(killed) == kills
    gguftools.imatrix(files["F16"], TEXT, tmp_path / "b.gguf", threads=1, **many)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_what_a_worker_finds_wrong_in_a_model_is_the_same_line(
    pool: ProcessPoolExecutor, files: dict[str, Path], tmp_path: Path
) -> None:
    model = damaged(files["F16"], tmp_path / "damaged.gguf")
    here, there = (
        refusal(
            lambda each=each: gguftools.imatrix(
                model, TEXT, tmp_path / "m.gguf", options=gguftools.ImatrixOptions(executor=each), **WINDOWS
            )
        )
        for each in (None, pool)
    )
    assert here == there
    assert here[0] is ModelError
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.gguf"]


def test_a_model_that_no_worker_can_open(files: dict[str, Path]) -> None:
    changed = gguftools.open(files["F16"])
    changed.tensors["blk.0.attn_q.weight"] = changed.tensors["blk.0.attn_q.weight"].float32() * 2
    arrays = gguftools.Model(changed.metadata, {name: np.asarray(t) for name, t in changed.tensors.items()})
    for model in (changed, arrays):
        with pytest.raises(OptionError, match="a model that only this process has, made or changed in it") as caught:
            gguftools.imatrix(model, TEXT, options=gguftools.ImatrixOptions(executor=Elsewhere()), **WINDOWS)
        assert "save it and name that file" in str(caught.value.hint)


def test_changed_keys_travel(files: dict[str, Path]) -> None:
    model = gguftools.open(files["F16"])
    model.metadata[f"{model.architecture}.rope.freq_base"] = 500.0
    here = gguftools.imatrix(model, TEXT, threads=1, **WINDOWS)
    there = gguftools.imatrix(model, TEXT, options=gguftools.ImatrixOptions(executor=Elsewhere()), **WINDOWS)
    before = gguftools.imatrix(files["F16"], TEXT, threads=1, **WINDOWS)
    name = "blk.1.attn_output.weight"
    assert np.array_equal(here.entries[name].sums, there.entries[name].sums)
    assert not np.array_equal(here.entries[name].sums, before.entries[name].sums)


def test_a_source_that_is_another_for_workers_can_be_mended(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums so far are kept."""
    done = importance._sums_of
    calls = [0]

    def gone(task: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise FileError("model.gguf cannot be read by a worker: Stale file handle")
        return done(task)

    class Local(Elsewhere):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:  # a function of a test does not travel
            from concurrent.futures import Future

            future: Future[Any] = Future()
            future.set_result(fn(*args))
            return future

    monkeypatch.setattr(importance, "_sums_of", gone)
    options = gguftools.ImatrixOptions(save_every=20)
    with pytest.raises(FileError, match="cannot be read by a worker"):
        gguftools.imatrix(
            files["F16"], TEXT, tmp_path / "m.gguf", options=replace(options, executor=Local()), **WINDOWS
        )
    assert (tmp_path / "m.gguf.partial").exists()
    seen: list[int] = []
    gguftools.imatrix(
        files["F16"],
        TEXT,
        tmp_path / "m.gguf",
        options=replace(options, resume=True),
        progress=lambda n, *_: seen.append(n),
        **WINDOWS,
    )
    assert seen == [40, 60, 70]


def test_workers_that_compute_otherwise_are_refused(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.products import precision

    calls: list[str] = []

    def products(name: str) -> str:
        calls.append(name)
        return "float32" if len(calls) > 1 else "16-bit integers"

    monkeypatch.setattr(precision, "products", products)
    monkeypatch.setattr(importance, "_opened", opened_once(importance._opened.__wrapped__))  # none is kept
    with pytest.raises(OptionError, match="a worker computes products in float32, this process in 16-bit integers"):
        gguftools.imatrix(files["F16"], TEXT, options=gguftools.ImatrixOptions(executor=Elsewhere()), **WINDOWS)


READ: dict[str, Any] = {"text": TEXT, "n_ctx": 64, "chunks": 70}


def plain(report: Any) -> dict[str, Any]:
    """Figures as they are, none of which may be NaN."""
    return dict(report.as_dict())


def test_workers_find_the_divergence_of_one_thread(pool: ProcessPoolExecutor, files: dict[str, Path]) -> None:
    seen: list[tuple[int, int, float]] = []
    chosen = files["F16"], files["Q4_K_M"], files["Q4_0"]
    one = gguftools.divergence(*chosen, threads=1, **READ)
    many = gguftools.divergence(
        *chosen, options=gguftools.DivergenceOptions(executor=pool), progress=lambda *told: seen.append(told), **READ
    )
    assert plain(many) == plain(one)
    assert [done for done, *_ in seen] == list(range(71))
    assert seen[-1][2] == one.files[0].kl_divergence["mean"]


@pytest.mark.parametrize("name", ["base.kld", "base.gguf"])
def test_workers_measure_from_a_base_that_was_kept(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    gguftools.divergence(files["F16"], options=gguftools.DivergenceOptions(save_base=tmp_path / name), **READ)
    kept = {} if name == "base.kld" else {"base_model": files["F16"]}
    options = gguftools.DivergenceOptions(**kept)
    one = gguftools.divergence(tmp_path / name, files["Q4_0"], chunks=40, threads=1, options=options)
    many = gguftools.divergence(
        tmp_path / name, files["Q4_0"], chunks=40, options=replace(options, executor=Elsewhere())
    )
    assert plain(many) == plain(one)


def test_answers_of_conversations_go_to_workers(files: dict[str, Path], tmp_path: Path) -> None:
    """Windows of any length, whose predictions begin anywhere."""
    lines = TEXT.read_text().splitlines()[:30]
    talks = [
        {"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b * (1 + i % 3)}]}
        for i, (a, b) in enumerate(pairwise([line for line in lines if len(line) > 30]))
    ]
    text = tmp_path / "talks.jsonl"
    text.write_text("\n".join(map(json.dumps, talks)))
    chosen = files["F16"], files["Q4_0"]
    given: dict[str, Any] = {"text": text, "n_ctx": 256}
    options = gguftools.DivergenceOptions(chat=True)
    models = [gguftools.open(path) for path in chosen]
    for model in models:
        model.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    one = gguftools.divergence(*models, threads=1, options=options, **given)
    many = gguftools.divergence(*models, options=replace(options, executor=Elsewhere()), **given)
    assert one.texts[0].windows > 3
    assert plain(many) == plain(one)


def test_tasks_of_a_divergence_are_small(files: dict[str, Path]) -> None:
    executor = Elsewhere()
    gguftools.divergence(
        files["F16"],
        files["Q4_0"],
        options=gguftools.DivergenceOptions(executor=executor),
        text=TEXT,
        n_ctx=512,
        chunks=8,
    )
    assert len(executor.sizes) == 2
    assert max(executor.sizes) < 40_000


def test_a_killed_divergence_goes_on(pool: ProcessPoolExecutor, files: dict[str, Path], tmp_path: Path) -> None:
    """From windows that workers measured, whoever goes on."""

    def killed(done: int, *_: object) -> None:
        if done == 40:
            raise Killed

    chosen = files["F16"], files["Q4_0"]
    whole = gguftools.divergence(*chosen, **READ)
    for first, second in ((pool, None), (None, pool)):
        with pytest.raises(Killed):
            gguftools.divergence(
                *chosen,
                options=gguftools.DivergenceOptions(record=tmp_path / "record", executor=first),
                progress=killed,
                **READ,
            )
        lines = (tmp_path / "record").read_bytes().count(b"\n")
        assert lines == 41
        again = gguftools.divergence(
            *chosen, options=gguftools.DivergenceOptions(record=tmp_path / "record", executor=second), **READ
        )
        assert plain(again) == plain(whole)
        assert not (tmp_path / "record").exists()


def test_what_a_worker_finds_wrong_in_predictions_is_the_same_line(
    pool: ProcessPoolExecutor, files: dict[str, Path], tmp_path: Path
) -> None:
    model = damaged(files["F16"], tmp_path / "damaged.gguf", "output.weight")
    here, there = (
        refusal(
            lambda each=each: gguftools.divergence(
                files["F16"], model, options=gguftools.DivergenceOptions(executor=each), **READ
            )
        )
        for each in (None, pool)
    )
    assert here == there
    assert "damaged.gguf: logits of window 1 are not finite" in here[1]


def test_what_workers_cannot_do(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a base is saved by the process that runs it, not by workers"):
        gguftools.divergence(
            files["F16"],
            files["Q4_0"],
            options=gguftools.DivergenceOptions(save_base=tmp_path / "b.gguf", executor=Elsewhere()),
            **READ,
        )
    changed = gguftools.open(files["Q4_0"])
    changed.tensors["blk.0.attn_q.weight"] = changed.tensors["blk.0.attn_q.weight"].float32() * 2
    with pytest.raises(OptionError, match="a model that only this process has"):
        gguftools.divergence(files["F16"], changed, options=gguftools.DivergenceOptions(executor=Elsewhere()), **READ)
    base = tmp_path / "base.kld"
    gguftools.divergence(files["F16"], options=gguftools.DivergenceOptions(save_base=base), **READ)
    told = divergence_tasks.worker_spec(base, None, {"b": gguftools.open(files["Q4_0"])}, None, None, "float32")
    os.utime(base, ns=(1, 1))
    assert isinstance(told.base, divergence_tasks._Kept)
    with pytest.raises(FileError, match="was changed while it was read, or is another file for a worker"):
        told.base.open()


def test_windows_are_sent_in_the_groups_that_one_process_makes() -> None:
    scored = np.arange(8, 15)
    windows = [Window(np.arange(length), scored, scored + 1) for length in [16] * 7 + [20] * 4]
    for sizes in ([32], [48], [32, 48], [1]):
        parts = list(grouped_alike(windows, sizes))
        assert [len(part) for part in parts] == {
            (32,): [2, 2, 2, 1, 1, 1, 1, 1],
            (48,): [3, 3, 1, 2, 2],
            (32, 48): [6, 1, 2, 2],
            (1,): [1] * 11,
        }[tuple(sizes)]
        for size in sizes:
            apart = [len(group) for part in parts for group in batched(part, size)]
            assert apart == [len(group) for group in batched(windows, size)]
