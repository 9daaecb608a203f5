"""Divergence on a device: figures of the processor, from bases of every form, resumed, and beside a noise floor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gguftools.conversion.convert import convert
from gguftools.measurement.divergence import divergence
from gguftools.measurement.divergence_report import DivergenceReport
from gguftools.measurement.options import DivergenceOptions, PerplexityOptions
from gguftools.measurement.perplexity import perplexity
from gguftools.models.devices import DeviceOptions
from quants.errors import FileError, OptionError

from ...conftest import ROOT

pytestmark = pytest.mark.device
WHOLE = DeviceOptions("cpu")
BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["resident", "streamed"])
N_CTX, CHUNKS = 128, 5


def device_of(streamed: bool, models: int) -> DeviceOptions:
    """Return a device that has room for so many models, or for a layer and a batch of each."""
    return DeviceOptions("cpu", memory=models * 7_000_000) if streamed else WHOLE


@pytest.fixture(autouse=True)
def no_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.graph.placement.WORKSPACE", 0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {
        name: convert(ROOT / "examples" / "austen-4m", folder / f"{name}.gguf", name).outputs[0].file
        for name in ("F16", "Q8_0", "Q4_0")
    }
    text = (ROOT / "examples" / "persuasion.txt").read_text(encoding="utf-8")
    (folder / "text").write_text(text[:12000], encoding="utf-8")
    return made


def text_of(model: Path) -> Path:
    return model.parent / "text"


def measured(base: Any, *others: Any, **options: Any) -> DivergenceReport:
    text = None if options.pop("stored", False) else text_of(base)
    return divergence(base, *others, text=text, n_ctx=N_CTX, chunks=CHUNKS, options=DivergenceOptions(**options))


@pytest.fixture(scope="module")
def on_processor(files: dict[str, Path]) -> DivergenceReport:
    return measured(files["F16"], files["Q8_0"], files["Q4_0"], precision="exact")


def assert_same(got: DivergenceReport, wanted: DivergenceReport) -> None:
    assert got.base_perplexity == pytest.approx(wanted.base_perplexity, rel=1e-5)
    assert got.base_entropy == pytest.approx(wanted.base_entropy, rel=1e-5)
    for one, two in zip(got.files, wanted.files, strict=True):
        for name in ("kl_divergence", "kl_reverse", "total_variation"):
            if two.figures[name]["mean"] is not None:
                assert one.figures[name]["mean"] == pytest.approx(two.figures[name]["mean"], rel=1e-4, abs=1e-8)
        assert one.figures["perplexity"] == pytest.approx(two.figures["perplexity"], rel=1e-5)
        assert one.figures["same_top"] == two.figures["same_top"]


@BOTH
def test_figures_are_those_of_the_processor(
    streamed: bool, files: dict[str, Path], on_processor: DivergenceReport
) -> None:
    got = measured(files["F16"], files["Q8_0"], files["Q4_0"], device=device_of(streamed, 3))
    assert_same(got, on_processor)
    assert (got.device, got.products, got.warnings) == ("the processor (torch)", "float32", [])
    assert got.noise_floor is not None
    assert 0 <= got.noise_floor < 1e-10
    assert (on_processor.device, on_processor.noise_floor, on_processor.noise_floor_max) == ("", None, None)


def test_weights_are_read_once_for_all_windows(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime.device import torch_device

    passes = []
    stream = torch_device.stream

    def counted(graph: Any, batches: Any, *rest: Any, **options: Any) -> Any:
        passes.append(sorted((forward.precision, forward.texts) for forward, _ in batches))
        return stream(graph, batches, *rest)

    monkeypatch.setattr(torch_device, "stream", counted)
    monkeypatch.setattr("runtime.device.self_test.check_device", lambda *given: None)
    measured(files["F16"], files["Q8_0"], device=device_of(True, 2))
    base, other = passes
    assert {precision for precision, _ in other} == {"float32"}
    assert ("exact", 1) in base  # the first windows a second time
    for each in passes:
        assert sum(texts for precision, texts in each if precision == "float32") == CHUNKS


@pytest.mark.parametrize("name", ["base.gguf", "base.kld", "top.gguf"])
def test_bases_of_every_form(name: str, files: dict[str, Path], tmp_path: Path) -> None:
    """Saved on the device and on the processor, read with files on both."""
    top_k = 40 if name == "top.gguf" else None
    ours, theirs = tmp_path / f"ours-{name}", tmp_path / f"device-{name}"
    measured(files["F16"], save_base=ours, top_k=top_k, precision="exact")
    measured(files["F16"], save_base=theirs, top_k=top_k, device=device_of(True, 1))
    wanted = measured(ours, files["Q4_0"], precision="exact", stored=True)
    for base in (ours, theirs):
        got = measured(base, files["Q4_0"], device=WHOLE, stored=True)
        assert_same(got, wanted)
        assert got.noise_floor is not None
        assert got.noise_floor < 1e-10
    assert_same(measured(theirs, files["Q4_0"], precision="exact", stored=True), wanted)


@BOTH
def test_a_killed_run_goes_on(
    streamed: bool, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = device_of(streamed, 2)
    record, how = tmp_path / "record", {"device": device, "record": tmp_path / "record"}

    def kill(done: int, *rest: Any) -> None:
        if done == 3:
            raise KeyboardInterrupt

    models = files["F16"], files["Q4_0"]
    whole = measured(*models, device=device)
    options: Any = {"n_ctx": N_CTX, "chunks": CHUNKS, "options": DivergenceOptions(**how)}
    with pytest.raises(KeyboardInterrupt):
        divergence(*models, text=text_of(models[0]), progress=kill, **options)
    with pytest.raises(FileError, match=r"device was the processor \(torch\), it is the processor now"):
        measured(*models, record=record)
    from runtime.model import RunningModel

    asked, announced = [], []
    run, prepare = RunningModel.lazy_logits, RunningModel.prepare

    def counted(self: RunningModel, tokens: Any, first: int = 0, exact: bool = False) -> Any:
        asked.append((len(tokens), exact))
        return run(self, tokens, first, exact)

    def prepared(self: RunningModel, batches: Any, *options: Any) -> Any:
        announced.append([len(tokens) for tokens, *_ in batches])
        return prepare(self, batches, *options)

    monkeypatch.setattr(RunningModel, "lazy_logits", counted)
    monkeypatch.setattr(RunningModel, "prepare", prepared)
    again = measured(*models, **how)
    assert asked == [(CHUNKS - 3, False)] * 2  # neither the first windows, nor the noise floor
    assert announced == [[CHUNKS - 3]] * 2
    assert not list(tmp_path.iterdir())
    assert again.noise_floor == whole.noise_floor
    assert_same(again, whole)


def test_a_pass_killed_between_layers_goes_on(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runtime.device.checkpoint import Checkpoint
    from runtime.device.streaming import _Pass

    how = {"device": device_of(True, 2), "record": tmp_path / "record"}
    models, layers = (files["F16"], files["Q4_0"]), []
    advance = _Pass._advance

    def kill(self: Any, stop: int) -> None:
        if len(layers) == 7:  # the base has four layers
            raise KeyboardInterrupt
        layers.append(stop)
        advance(self, stop)

    monkeypatch.setattr("runtime.device.torch_device.Checkpoint", lambda store, every: Checkpoint(store, 0.0))
    monkeypatch.setattr("runtime.device.self_test.check_device", lambda *given: None)
    whole = measured(*models, device=how["device"])
    monkeypatch.setattr(_Pass, "_advance", kill)
    with pytest.raises(KeyboardInterrupt):
        measured(*models, **how)
    assert {path.name for path in tmp_path.iterdir()} > {"record.0.pass", "record.1.pass"}
    counted: list[int] = []
    monkeypatch.setattr(_Pass, "_advance", lambda self, stop: (counted.append(stop), advance(self, stop))[1])
    again = measured(*models, **how)
    assert len(counted) < 7  # what came after the last layers that were finished
    assert_same(again, whole)
    assert again.noise_floor == whole.noise_floor
    assert not list(tmp_path.iterdir())


def test_a_divergence_as_small_as_noise_is_remarked(files: dict[str, Path]) -> None:
    report = measured(files["F16"], files["F16"], device=WHOLE)
    assert report.warnings == []  # equal files
    from gguftools.measurement.device_passes import lost_in_noise
    from runtime.evaluation.noise import NoiseFloor

    mean = measured(files["F16"], files["Q8_0"], device=WHOLE).files
    assert lost_in_noise(mean, None) == lost_in_noise(mean, NoiseFloor(1e-9, 1e-8)) == []
    (remark,) = lost_in_noise(mean, NoiseFloor(mean[0].kl_divergence["mean"] / 9, 1.0))
    assert "cannot be told from noise" in remark
    assert remark.startswith(str(files["Q8_0"]))


def test_the_noise_floor_is_that_of_the_pass(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of the run with factors of 10 bits, as of TF32; those of the second time are exact."""
    from runtime.device.context import DeviceContext
    from runtime.device.weights import product

    def rounded(x: Any) -> Any:
        import torch

        bits = x.contiguous().view(torch.int32)
        return ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)

    def rounded_product(self: Any, x: Any, weight: Any) -> Any:
        if self.forward.precision == "exact":
            return product(x, weight)
        return product(rounded(x), rounded(weight.float()))

    monkeypatch.setattr(DeviceContext, "product", rounded_product)
    for streamed in (False, True):
        report = measured(files["F16"], files["Q8_0"], device=device_of(streamed, 2))
        assert 1e-9 < report.noise_floor < 1e-4
        assert report.noise_floor < report.noise_floor_max
        options = PerplexityOptions(device=device_of(streamed, 1))
        alone = perplexity(files["F16"], text_of(files["F16"]), n_ctx=N_CTX, chunks=CHUNKS, options=options)
        assert report.noise_floor / 3 < alone.noise_floor < 3 * report.noise_floor  # of as many windows or fewer


@BOTH
def test_perplexity_has_a_noise_floor(streamed: bool, files: dict[str, Path]) -> None:
    model, how = files["F16"], {"n_ctx": N_CTX, "chunks": CHUNKS}
    got = perplexity(model, text_of(model), options=PerplexityOptions(device=device_of(streamed, 1)), **how)
    wanted = perplexity(model, text_of(model), options=PerplexityOptions(precision="exact"), **how)
    assert got.chunks == pytest.approx(wanted.chunks, rel=1e-5)
    assert got.noise_floor is not None
    assert 0 <= got.noise_floor < 1e-10
    assert wanted.noise_floor is None


def test_windows_of_one_text_each(files: dict[str, Path]) -> None:
    """A window that is a batch of its own is computed a second time in another length."""
    how: Any = {"text": text_of(files["F16"]), "n_ctx": 1040, "chunks": 2}
    got = divergence(files["F16"], files["Q4_0"], options=DivergenceOptions(device=WHOLE), **how)
    assert_same(got, divergence(files["F16"], files["Q4_0"], options=DivergenceOptions(precision="exact"), **how))


def test_what_a_device_cannot_do(files: dict[str, Path]) -> None:
    from concurrent.futures import ProcessPoolExecutor

    with pytest.raises(OptionError, match=r"as llama\.cpp does on the processor alone"):
        measured(files["F16"], files["Q4_0"], device=WHOLE, precision="llama.cpp")
    with ProcessPoolExecutor(1) as workers, pytest.raises(OptionError, match="workers compute on processors"):
        measured(files["F16"], files["Q4_0"], device=WHOLE, executor=workers)
    with pytest.raises(OptionError, match="no device 'cuda:7'"):
        measured(files["F16"], files["Q4_0"], device="cuda:7")
    with pytest.raises(OptionError, match="device"):
        measured(files["F16"], files["Q4_0"], device="gpu")
