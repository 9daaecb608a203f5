"""Error feedback and searches on a device: as good as the processor's, gone on with after a kill, and told."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

import gguftools
from gguftools.calibration.target import SearchOptions
from gguftools.calibration.texts import Calibration
from gguftools.conversion.convert import convert
from gguftools.conversion.quantize import quantize
from gguftools.lab.reproduction import reproduce
from gguftools.measurement.divergence import divergence
from gguftools.models.devices import DeviceOptions
from gguftools.provenance.manifest import manifest_path
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing.options import WriteOptions
from quants.errors import FileError, OptionError

from ...archs import checkpoints
from ...conftest import ROOT
from .test_feedback import FEW, TEXT

ON_TORCH = replace(FEW, device="cpu")
RECIPE = "Q4_0"
SMALL = 40_000_000  # bytes: for few windows, a layer, and matrices that are cut


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of austen-4m."""
    folder = tmp_path_factory.mktemp("device")
    convert(ROOT / "examples" / "austen-4m", folder / "whole.gguf", "f16")
    kept = QuantizeOptions(prune_layers=[2, 3])
    return quantize(folder / "whole.gguf", "COPY", folder / "two.gguf", options=kept).outputs[0].file


@pytest.fixture(scope="module")
def fed(two: Path) -> Path:
    target, run = two.with_name("fed.gguf"), WriteOptions(threads=2, manifest=True)
    return quantize(two, RECIPE, target, gptq=ON_TORCH, write=run).outputs[0].file


@pytest.mark.device
def test_the_file_is_as_near_as_the_processors(two: Path, fed: Path, tmp_path: Path) -> None:
    files = [tmp_path / "processor.gguf", tmp_path / "plain.gguf"]
    report = quantize(two, RECIPE, files[0], gptq=FEW)
    quantize(two, RECIPE, files[1])
    assert fed.stat().st_size == files[0].stat().st_size
    found = divergence(two, fed, *files, text=[TEXT], chunks=4).as_dict()["files"]
    ours, processors, plain = (file["kl_divergence"]["mean"] for file in found)
    assert ours < 1.1 * processors < 0.6 * plain
    assert all(each.feedback for each in report.outputs[0].tensors if each.format == RECIPE)


@pytest.mark.device
def test_a_small_device(two: Path, fed: Path, tmp_path: Path) -> None:
    """Matrices are cut to blocks that fit."""
    small = replace(FEW, device=DeviceOptions("cpu", memory=SMALL))
    cut = quantize(two, RECIPE, tmp_path / "cut.gguf", gptq=small).outputs[0].file
    found = divergence(two, fed, cut, text=[TEXT], chunks=4).as_dict()["files"]
    whole, blocks = (file["kl_divergence"]["mean"] for file in found)
    assert whole != blocks < 2 * whole


@pytest.mark.device
def test_a_stopped_run_is_gone_on_with(two: Path, fed: Path, tmp_path: Path) -> None:
    target, stop = tmp_path / "fed.gguf", RuntimeError("stop")

    def fail(done: int, total: int, name: str) -> None:
        if name == "blk.1":
            raise stop

    with pytest.raises(RuntimeError, match="stop"):
        quantize(two, RECIPE, target, gptq=ON_TORCH, write=WriteOptions(threads=2, progress=fail))
    with pytest.raises(FileError, match="with other options"):
        quantize(two, RECIPE, target, gptq=FEW, write=WriteOptions(resume=True))
    seen: list[int] = []
    run = WriteOptions(threads=2, resume=True, progress=lambda done, total, name: seen.append(done))
    quantize(two, RECIPE, target, gptq=ON_TORCH, write=run)
    assert seen[0] > 0
    assert target.read_bytes() == fed.read_bytes()
    assert not list(tmp_path.glob("*.encoded*"))


@pytest.mark.device
def test_experts_on_a_device(tmp_path: Path) -> None:
    checkpoints.build("qwen3-5-moe", tmp_path / "qwen3-5-moe")
    source = convert(tmp_path / "qwen3-5-moe", tmp_path / "moe.gguf", "f32").outputs[0].file
    text = Calibration(FEW.texts, own_texts=False, n_ctx=64, chunks=16)
    files = [tmp_path / "processor.gguf", tmp_path / "device.gguf"]
    places = [None, DeviceOptions("cpu", memory=SMALL)]
    reports = [
        quantize(source, RECIPE, file, gptq=replace(text, device=place))
        for file, place in zip(files, places, strict=True)
    ]
    fed = [{each.name for each in report.outputs[0].tensors if each.feedback} for report in reports]
    assert fed[0] == fed[1]
    assert any("_exps" in name for name in fed[0])
    found = divergence(source, *files, text=[TEXT], n_ctx=64, chunks=8).as_dict()["files"]
    processors, ours = (file["kl_divergence"]["mean"] for file in found)
    assert ours < 1.25 * processors


@pytest.mark.device
def test_the_manifest_names_the_device(two: Path, fed: Path) -> None:
    recorded = json.loads(manifest_path(fed).read_text())["parameters"]["gptq"]
    assert "torch" in recorded["device"]
    assert reproduce(fed, two).equal  # by digests
    with pytest.raises(OptionError, match="encoded on a device"):
        reproduce(fed, two, gptq=TEXT)


@pytest.mark.device
def test_workers_are_refused(two: Path, tmp_path: Path) -> None:
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))  # starts nothing yet
    with pytest.raises(OptionError, match="shares no work with workers"):
        quantize(two, RECIPE, tmp_path / "x.gguf", gptq=ON_TORCH, write=WriteOptions(executor=pool))
    pool.shutdown()
    assert not list(tmp_path.iterdir())


@pytest.mark.device
@pytest.mark.parametrize("memory", [None, SMALL], ids=["all of it", "a small device"])
def test_a_search_finds_what_the_processor_does(two: Path, tmp_path: Path, memory: int | None) -> None:
    found = []
    for place in (None, DeviceOptions("cpu", memory=memory)):
        search = SearchOptions(target_bpw=4.6, calibrate=replace(FEW, device=place))
        report = quantize(two, search=search, output=tmp_path / f"{len(found)}.gguf")
        found.append(report)
    sizes = [report.outputs[0].nbytes for report in found]
    measured = [report.search["measured"] for report in found if report.search is not None]
    assert abs(sizes[0] - sizes[1]) < 0.01 * sizes[0]
    assert measured[1] == pytest.approx(measured[0], rel=0.05)


@pytest.mark.device
def test_sizes_are_searched_on_a_device(two: Path) -> None:
    report = gguftools.frontier(two, [4, 5], calibrate=ON_TORCH)
    assert report.points[0].measured > report.points[1].measured > 0


def test_a_device_that_cannot_be(two: Path) -> None:
    with pytest.raises(OptionError, match="device"):
        Calibration(device="gpu")
