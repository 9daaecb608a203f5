"""Recipes for image models of a wanted size: by the errors of their weights, which no one has to run for."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

import gguftools
from benchmarks.diffusion_models import flux_shapes, write
from gguftools.calibration import weight_search as searching
from gguftools.calibration.block_losses import losses_by_block
from gguftools.calibration.target import SearchOptions
from gguftools.calibration.texts import Calibration
from gguftools.inspection.weight_errors import weight_errors
from gguftools.quantization.options import QuantizeOptions
from quants import format_named, from_array
from quants.errors import FileError, FormatError, OptionError

from ..calls import options_of
from ..command_line import TEXT, run

SIZE = 5_600_000
SHAPES = flux_shapes(1, 1, 256)
WEIGHTS = {name: shape for name, shape in SHAPES.items() if "_blocks" in name and name.endswith(".weight")}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "flux.safetensors"
    write(path, SHAPES, random=True)
    return path


@pytest.fixture(scope="module")
def matrix(tmp_path_factory):
    """As stable-diffusion.cpp writes it: the old format, and names with the prefix of the checkpoint.

    The first columns matter a hundred times as much.
    """
    path = tmp_path_factory.mktemp("matrix") / "flux.dat"
    names = [name for name, shape in SHAPES.items() if len(shape) == 2 and "_blocks" in name]
    data = struct.pack("<i", len(names))
    for name in names:
        full, width = f"model.diffusion_model.{name}".encode(), SHAPES[name][1]
        values = np.where(np.arange(width) < 64, 100, 1).astype("<f4")
        data += struct.pack("<i", len(full)) + full + struct.pack("<ii", 3, width) + (3 * values).tobytes()
    path.write_bytes(data)
    return path


def flux_arrays():
    random = np.random.default_rng(3)
    return {name: random.standard_normal(shape, np.float32).astype(np.float16) for name, shape in SHAPES.items()}


def found(source, folder, **options):
    given = options_of("quantize", **{"target_size": SIZE} | options)
    return gguftools.quantize(source, output=folder / "out.gguf", **given)


def mean(errors):
    """The root mean square over values of errors by weight."""
    values = {name: math.prod(SHAPES[name]) for name in errors}
    return math.sqrt(sum(errors[name] ** 2 * count for name, count in values.items()) / sum(values.values()))


def formats(report):
    return {tensor.name: tensor.format for tensor in report.outputs[0].tensors}


def test_a_file_has_the_size(source, tmp_path):
    report = found(source, tmp_path)
    output = report.outputs[0]
    assert output.file.stat().st_size == output.nbytes
    assert 0.99 * SIZE < output.nbytes <= SIZE
    chosen = formats(report)
    assert {chosen[name] for name in SHAPES if name.endswith(".bias")} == {"F32"}
    assert {chosen[name] for name in ("img_in.weight", "final_layer.linear.weight")} == {"BF16"}
    assert {chosen[name] for name in SHAPES if "mlp.0.weight" in name} <= {"Q6_K", "Q5_K", "Q4_K", "IQ4_XS", "Q3_K"}


def test_the_error_is_that_of_the_file(source, tmp_path):
    """`diff --errors` measures the same: each weight's rows are a sample of it."""
    report = found(source, tmp_path)
    measured = weight_errors(source, report.outputs[0].file)
    weights = {each.name: each.errors for each in measured.tensors if each.b not in ("F32", "BF16")}
    assert report.search["error"] == pytest.approx(mean({n: e.relative for n, e in weights.items()}), rel=0.02)
    assert set(weights) == set(WEIGHTS)
    assert report.search["recipe"].count("\n^") == len(WEIGHTS)


def test_no_one_format_of_that_size_has_less_error(source, tmp_path):
    tensors, form = gguftools.open(source).tensors, format_named("Q4_K")
    errors = {name: math.sqrt(searching.relative_errors(tensors[name], [form])["Q4_K"]) for name in WEIGHTS}
    uniform = gguftools.quantize(source, "Q4_K_S", tmp_path).outputs[0]
    own = found(source, tmp_path, target_size=uniform.nbytes, overwrite=True)
    assert own.outputs[0].nbytes <= uniform.nbytes
    assert own.search["error"] < 0.99 * mean(errors)


def test_weights_that_fit_few_steps_get_few_bits(tmp_path):
    arrays, easy = flux_arrays(), "single_blocks.0.linear2.weight"
    arrays[easy] = np.sign(arrays[easy])
    save_file(arrays, tmp_path / "easy.safetensors")
    report = found(tmp_path / "easy.safetensors", tmp_path)
    order = ["Q8_0", "Q6_K", "Q5_K", "Q4_K", "IQ4_XS", "Q3_K", "Q2_K"]
    ranks = {name: order.index(form) for name, form in formats(report).items() if name in WEIGHTS}
    assert ranks[easy] > max(rank for name, rank in ranks.items() if name != easy)


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """All blocks of Flux.1, which are thin: formats of 32 values alone fit."""
    path = tmp_path_factory.mktemp("deep") / "flux.safetensors"
    write(path, flux_shapes(19, 38, 64), random=True)
    return path


def bits_by_block(report):
    values, bits = {}, {}
    for tensor in report.outputs[0].tensors:
        if "_blocks" in tensor.name and len(tensor.shape) == 2:
            block = ".".join(tensor.name.split(".")[:2])
            values[block] = values.get(block, 0) + math.prod(tensor.shape)
            bits[block] = bits.get(block, 0) + 8 * tensor.nbytes
    return {block: bits[block] / values[block] for block in values}


def test_blocks_of_flux_count_by_what_they_lose(deep, tmp_path):
    """As measured: the first most, and those before the last more than the middle."""
    bits = bits_by_block(found(deep, tmp_path, target_size=None, target_bpw=7.5))
    middle = [bits[f"single_blocks.{i}"] for i in range(10, 25)]
    assert bits["double_blocks.0"] > max(middle)
    assert bits["single_blocks.34"] > sum(middle) / len(middle)


def test_shares_of_a_block_are_its_loss(deep):
    model = gguftools.open(deep)
    names = [name for name, tensor in model.tensors.items() if "_blocks" in name and len(tensor.shape) == 2]
    losses = losses_by_block("flux", names)
    assert len(losses) == 57
    assert losses["double_blocks.0."] == pytest.approx(125.26 - 61.301)
    assert losses["single_blocks.37."] == pytest.approx(4.3127 - 0.13739)
    assert max(losses.values()) / min(losses.values()) > 20
    assert losses_by_block("chroma", names) == losses_by_block("flux", names[:-4]) == {}


def test_a_small_weight_is_measured_whole(tmp_path):
    values = np.random.default_rng(1).standard_normal((96, 256), np.float32)
    errors = searching.relative_errors(from_array("a", values), [format_named("Q4_K"), format_named("Q8_0")])
    for name, error in errors.items():
        form = format_named(name)
        lost = form.decode(form.encode(values)) - values
        assert error == pytest.approx(float(np.square(lost).sum() / np.square(values).sum()), rel=1e-5)


def test_a_large_weight_is_sampled_from_end_to_end(monkeypatch):
    monkeypatch.setattr(searching, "SAMPLED", 8 * 256)
    values = np.zeros((1000, 256), np.float32)
    values[0], values[-1] = 1, np.linspace(-1, 1, 256)
    tensor, read = from_array("a", values), []

    def reading(start, stop):
        read.append((start, stop))
        return tensor.read(start, stop)

    seen = type(tensor)("a", tensor.shape, tensor.format, reading)
    assert searching.relative_errors(seen, [format_named("Q4_0")])["Q4_0"] > 0
    assert (len(read), read[0], read[-1]) == (8, (0, 1), (999, 1000))


def test_a_weight_of_zeros_costs_nothing():
    zeros = from_array("a", np.zeros((4, 256), np.float32))
    assert searching.relative_errors(zeros, [format_named("Q4_K")]) == {"Q4_K": 0.0}


def test_values_that_are_not_finite_are_refused(tmp_path):
    values = np.ones((4, 256), np.float32)
    values[3, 2] = np.nan
    with pytest.raises(FormatError, match="'a' has NaN"):
        searching.relative_errors(from_array("a", values), [format_named("Q4_K")])


def test_the_text_is_the_recipe_of_the_file(source, tmp_path):
    report = found(source, tmp_path)
    text = tmp_path / "out-recipe.txt"
    assert text.read_text() == report.search["recipe"]
    assert "columns_weighted_alike" in text.read_text()
    assert formats(gguftools.quantize(source, str(text), tmp_path / "again.gguf")) == formats(report)


def test_bits_per_weight_count_all_tensors(source, tmp_path):
    report = found(source, tmp_path, target_size=None, target_bpw=9.5, dry_run=True)
    assert 9.4 < report.outputs[0].bits_per_weight <= 9.5
    assert not list(tmp_path.iterdir())


def test_importance_weighs_errors(source, matrix, tmp_path):
    """Names with and without the checkpoint's prefix are the same weight's."""
    report = found(source, tmp_path, imatrix=matrix)
    assert report.without_importance == ()
    assert "columns_weighted_by_flux.dat" in report.search["recipe"]
    measured = weight_errors(source, report.outputs[0].file, imatrix=matrix)
    weighted = {each.name: each.errors.weighted for each in measured.tensors if each.name in WEIGHTS}
    assert report.search["error"] == pytest.approx(mean(weighted), rel=0.02)


def test_importance_opens_smaller_sizes(source, matrix, tmp_path):
    with pytest.raises(OptionError, match="too small") as caught:
        found(source, tmp_path, target_size=4_500_000)
    assert caught.value.hint == "with an importance matrix, formats of fewer bits can be used"
    report = found(source, tmp_path, target_size=4_500_000, imatrix=matrix)
    assert 0.98 * 4_500_000 < report.outputs[0].nbytes <= 4_500_000
    assert set(formats(report).values()) & {"IQ2_XS", "IQ2_S", "IQ2_XXS", "IQ3_XXS", "IQ1_M", "IQ1_S"}


def test_formats_that_the_user_chose_stay(source, tmp_path):
    report = found(source, tmp_path, rules={"linear1": "Q8_0"})
    assert formats(report)["single_blocks.0.linear1.weight"] == "Q8_0"
    assert report.outputs[0].nbytes <= SIZE
    assert "linear1" not in report.search["recipe"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target_size": 3_000_000}, r"too small: [\d,]+ bytes to [\d,]+ bytes can be reached"),
        ({"target_size": 90_000_000}, r"too large: [\d,]+ bytes to [\d,]+ bytes can be reached"),
        ({"gptq": str(TEXT)}, "image and video models are not run, so there is no GPTQ"),
        ({"calibrate": str(TEXT)}, "on no texts"),
        ({"calibrate": Calibration(device="cuda")}, "needs no device"),
    ],
)
def test_what_cannot_be_is_refused(source, tmp_path, options, said):
    with pytest.raises(OptionError, match=said):
        found(source, tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_no_gptq_without_a_search_either(source, tmp_path):
    with pytest.raises(OptionError, match="no GPTQ"):
        gguftools.quantize(source, "Q4_K_M", tmp_path / "out.gguf", gptq=str(TEXT))


def test_no_frontier(source):
    with pytest.raises(OptionError, match="are not run"):
        gguftools.frontier(source, [4.0])


def test_exact_blocks_are_for_weights_that_may_be_quantized(tmp_path):
    """Programs that read these files take others for plain numbers."""
    on_grid = {name: np.full(shape, 127, np.float16) for name, shape in SHAPES.items()}
    for each in on_grid.values():
        each[..., ::2] = 3
    save_file(on_grid, tmp_path / "grid.safetensors")
    report = gguftools.convert(tmp_path / "grid.safetensors", tmp_path / "exact.gguf", "exact")
    exact = {tensor.name for tensor in report.outputs[0].tensors if tensor.format not in ("F32", "F16", "BF16")}
    assert exact == set(WEIGHTS)


class StoppedError(Exception):
    """What a progress raises."""


def test_an_interrupted_search_goes_on(source, tmp_path, monkeypatch):
    measured = []
    own = searching.relative_errors
    monkeypatch.setattr(
        searching, "relative_errors", lambda tensor, *rest: measured.append(tensor.name) or own(tensor, *rest)
    )

    def stop(done, total, where):
        if done > total / 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        found(source, tmp_path, progress=stop, threads=1)
    assert [path.name for path in tmp_path.iterdir() if "search" in path.name]
    measured.clear()
    report = found(source, tmp_path, resume=True)
    count = report.search["recipe"].count("\n^")
    assert 0 < len(measured) < count
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-recipe.txt", "out.gguf"]
    fresh = found(source, tmp_path, overwrite=True)
    assert (formats(fresh), fresh.search) == (formats(report), report.search)


def test_other_work_is_not_gone_on_with(source, matrix, tmp_path):
    def stop(done, total, where):
        raise StoppedError

    with pytest.raises(StoppedError):
        found(source, tmp_path, progress=stop)
    with pytest.raises(FileError, match="was begun from other files"):
        found(source, tmp_path, resume=True, imatrix=matrix)


def test_a_search_on_a_text_model_measures_its_own_importance(matrix):
    from ..command_line import EXAMPLE

    options = {"imatrix": matrix, "search": SearchOptions(target_bpw=5.0)}
    with pytest.raises(OptionError, match="does not go with an importance matrix"):
        gguftools.quantize(EXAMPLE, output="out.gguf", **options, options=QuantizeOptions())


def test_command(source, tmp_path):
    done = run("quantize", source, "--target-size", SIZE, "-o", "out.gguf", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "relative error of weights" in done.stdout
