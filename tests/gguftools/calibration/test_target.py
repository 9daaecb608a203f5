"""Files of a wanted size: their bytes, their recipe, and how close they are to the original."""

from __future__ import annotations

import json
import weakref

import pytest

import gguftools
from gguftools.calibration.encoded import Encoded
from gguftools.calibration.sensitivity import Judge, _Measurement
from gguftools.calibration.target import SearchOptions
from gguftools.calibration.texts import Calibration
from gguftools.measurement.texts import named_texts
from gguftools.models.outputs import write_quantized
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing.options import WriteOptions
from quants.errors import FileError, OptionError

from ..calls import options_of
from ..command_line import EXAMPLE, TEXT, typed

SMALL = {"n_ctx": 64, "chunks": 16, "own_texts": False}
SIZE = 1_700_000  # bytes of a file of two layers


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return gguftools.convert(EXAMPLE, tmp_path_factory.mktemp("target") / "whole.gguf", "F16").outputs[0].file


@pytest.fixture(scope="module")
def base(whole):
    """The same model with two of its four layers: a search takes as long as there are weights."""
    return (
        gguftools.quantize(whole, "COPY", whole.with_name("base.gguf"), options=QuantizeOptions(prune_layers=[2, 3]))
        .outputs[0]
        .file
    )


@pytest.fixture(scope="module")
def calibration():
    return Calibration(tuple(named_texts([str(TEXT)])), **SMALL)


@pytest.fixture(scope="module")
def found(base, calibration, tmp_path_factory):
    folder = tmp_path_factory.mktemp("found")
    return gguftools.quantize(
        base, output=folder / "out.gguf", search=SearchOptions(target_size=SIZE, calibrate=calibration)
    )


def formats(output):
    return {tensor.name: tensor.format for tensor in output.tensors}


def test_size_is_right_to_a_thousandth(found):
    output = found.outputs[0]
    assert output.file.stat().st_size == output.nbytes
    assert SIZE * 0.999 < output.nbytes <= SIZE


def test_prediction_is_what_is_measured(found):
    assert found.search["predicted"] == pytest.approx(found.search["measured"], rel=0.4)


def test_better_than_the_stock_recipe_at_its_size(whole, tmp_path):
    matrix = tmp_path / "matrix.gguf"
    gguftools.imatrix(whole, TEXT, output=matrix, chunks=4)
    stock = gguftools.quantize(whole, "Q3_K_M", tmp_path, imatrix=matrix).outputs[0]
    calibration = Calibration(tuple(named_texts([str(TEXT)])), **SMALL | {"chunks": 24})
    own = gguftools.quantize(
        whole, output=tmp_path / "own.gguf", search=SearchOptions(target_size=stock.nbytes, calibrate=calibration)
    )
    assert own.outputs[0].nbytes <= stock.nbytes
    report = gguftools.divergence(whole, stock.file, own.outputs[0].file, n_ctx=128, chunks=6)
    before, after = (file.kl_divergence["mean"] for file in report.files)
    assert after < 0.8 * before


def test_the_text_is_the_recipe_of_the_file(base, found, tmp_path):
    output = found.outputs[0]
    text = output.file.with_name("out-recipe.txt")
    assert text.read_text() == found.search["recipe"]
    matrix = tmp_path / "matrix.gguf"
    gguftools.imatrix(base, TEXT, output=matrix, chunks=1)
    again = gguftools.quantize(base, str(text), tmp_path / "again.gguf", imatrix=matrix).outputs[0]
    assert formats(again) == formats(output)


def test_formats_that_the_user_chose_stay(base, calibration, tmp_path):
    report = gguftools.quantize(
        base,
        output=tmp_path / "out.gguf",
        search=SearchOptions(target_bpw=5.0, calibrate=calibration),
        options=QuantizeOptions(rules={"attn_v": "Q8_0"}),
        write=WriteOptions(dry_run=True),
    )
    output = report.outputs[0]
    assert {t.format for t in output.tensors if "attn_v" in t.name} == {"Q8_0"}
    text = tmp_path / "recipe.txt"
    text.write_text(report.search["recipe"])
    assert formats(gguftools.quantize(base, str(text), write=WriteOptions(dry_run=True)).outputs[0]) == formats(output)
    text.unlink()
    assert 4.99 < report.outputs[0].bits_per_weight <= 5.0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target_bpw": 1.0}, r"too small: 3\.\d+ bits per weight to \d\.\d+"),
        ({"target_size": 90_000_000}, r"too large: [\d,]+ bytes to [\d,]+ bytes can be reached"),
        ({"target_bpw": float("nan")}, "bits per weight"),
        ({"target_size": 2_000_000, "target_bpw": 4.0}, "a size or bits"),
        ({"target_size": 2.5}, "number of bytes"),
        ({"recipes": "Q4_K_M", "target_bpw": 4.0}, "does not go with a recipe"),
        ({"target_bpw": 4.0, "prune_layers": [1]}, "pruned"),
        ({"calibrate": str(TEXT)}, "a size or bits"),
    ],
)
def test_what_cannot_be_is_refused(base, tmp_path, options, said):
    with pytest.raises(OptionError, match=said):
        gguftools.quantize(base, output=tmp_path / "out.gguf", **options_of("quantize", **options))
    assert not list(tmp_path.iterdir())


class StoppedError(Exception):
    """What a progress raises."""


def stop_at(where):
    def progress(done, total, what):
        if what == where:
            raise StoppedError

    return progress


@pytest.fixture
def counted(monkeypatch):
    """Layers that are measured, and how often a whole model is judged."""
    calls = {"layers": [], "models": 0}
    layer, model = _Measurement._measure_layer, Judge.of_model

    def measure(self, i, *rest):
        calls["layers"].append(i)
        layer(self, i, *rest)

    def judge(self, net):
        calls["models"] += 1
        return model(self, net)

    monkeypatch.setattr(_Measurement, "_measure_layer", measure)
    monkeypatch.setattr(Judge, "of_model", judge)
    return calls


def gone_on_with(base, target, search, found):
    """Take a stopped run up, and see that it ends as one that was not."""
    assert not target.exists()
    assert target.with_name("out.gguf.search.journal").exists()
    again = gguftools.quantize(base, output=target, search=search, write=WriteOptions(resume=True))
    assert again.search == found.search
    assert target.read_bytes() == found.outputs[0].file.read_bytes()
    assert sorted(path.name for path in target.parent.iterdir()) == ["out-recipe.txt", "out.gguf"]


@pytest.mark.parametrize(("where", "layers"), [("blk.1", [1]), ("without embedding", [])])
def test_a_search_that_was_stopped_is_gone_on_with(base, calibration, found, tmp_path, counted, where, layers):
    target, search = tmp_path / "out.gguf", SearchOptions(SIZE, calibrate=calibration)
    with pytest.raises(StoppedError):
        gguftools.quantize(base, output=target, search=search, write=WriteOptions(progress=stop_at(where)))
    counted["layers"] = []
    gone_on_with(base, target, search, found)
    assert counted["layers"] == layers


def test_a_run_that_was_stopped_behind_its_search_measures_nothing(
    base, calibration, found, tmp_path, counted, monkeypatch
):
    target, search = tmp_path / "out.gguf", SearchOptions(SIZE, calibrate=calibration)

    def write(model, recipes, paths, run, *given):
        if not run.dry_run:
            raise StoppedError
        return write_quantized(model, recipes, paths, run, *given)

    with monkeypatch.context() as patched:
        patched.setattr("gguftools.conversion.quantize.write_quantized", write)
        with pytest.raises(StoppedError):
            gguftools.quantize(base, output=target, search=search)
    assert target.with_name("out.gguf.search").stat().st_size == 0  # of encoded weights nothing is left on disk
    counted["layers"], counted["models"] = [], 0
    gone_on_with(base, target, search, found)
    assert counted == {"layers": [], "models": 0}


def test_what_a_stopped_search_left_is_named(base, calibration, tmp_path):
    target = tmp_path / "out.gguf"
    with pytest.raises(StoppedError):
        gguftools.quantize(
            base,
            output=target,
            search=SearchOptions(target_bpw=4.5, calibrate=calibration),
            write=WriteOptions(progress=stop_at("blk.1")),
        )
    left = f"{target}.search"
    report = gguftools.quantize(base, "Q8_0", output=target)
    assert f"{left} is left of an interrupted run: finish that with `resume`, or delete it" in report.warnings
    other = Calibration(calibration.texts, n_ctx=64, chunks=12, own_texts=False)
    with pytest.raises(FileError, match="on other texts"):
        gguftools.quantize(
            base,
            output=target,
            search=SearchOptions(target_bpw=4.5, calibrate=other),
            write=WriteOptions(resume=True, overwrite=True),
        )
    report = gguftools.quantize(
        base, output=target, search=SearchOptions(target_bpw=4.5, calibrate=other), write=WriteOptions(overwrite=True)
    )
    assert f"{left} of an interrupted run is not used; `resume` would have gone on from it" in report.warnings
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-recipe.txt", "out.gguf"]


def test_a_search_asks_for_room_first(base, calibration, tmp_path, monkeypatch):
    monkeypatch.setattr("gguftools.io.atomic.free_bytes", lambda path: SIZE - 1)
    with pytest.raises(FileError, match=f"needs {SIZE:,} bytes"):
        gguftools.quantize(
            base, output=tmp_path / "out.gguf", search=SearchOptions(target_size=SIZE, calibrate=calibration)
        )
    assert not list(tmp_path.iterdir())


def test_weights_of_a_recipe_are_not_held_in_memory(base, calibration, tmp_path, monkeypatch):
    """What a search encodes is read from its file."""
    held = []
    keep = Encoded.keep

    def kept(self, like, form, raw, remark):
        held.append(weakref.ref(raw))
        return keep(self, like, form, raw, remark)

    monkeypatch.setattr(Encoded, "keep", kept)
    of_model, most = Judge.of_model, []

    def judge(self, net):
        most.append(sum(each() is not None for each in held))
        return of_model(self, net)

    monkeypatch.setattr(Judge, "of_model", judge)
    gguftools.quantize(
        base,
        output=tmp_path / "out.gguf",
        search=SearchOptions(target_bpw=4.5, calibrate=calibration),
        write=WriteOptions(dry_run=True),
    )
    assert len(held) >= 15
    assert max(most) < 4  # the last may wait for being collected


def test_a_recipe_that_is_there_is_not_replaced(base, tmp_path):
    (tmp_path / "out-recipe.txt").write_text("mine")
    with pytest.raises(FileError, match="already exists"):
        gguftools.quantize(base, output=tmp_path / "out.gguf", search=SearchOptions(target_bpw=4.0))


def test_frontier(base, calibration, tmp_path):
    plot = tmp_path / "frontier.svg"
    points = gguftools.frontier(base, [5, 3.5, 4], calibrate=calibration, plot=plot).points
    for point, wanted in zip(points, (3.5, 4, 5), strict=True):
        assert 0.999 * wanted <= point.bits_per_weight <= wanted
    losses = [point.measured for point in points]
    assert losses == sorted(losses, reverse=True)
    assert b"<svg" in plot.read_bytes()[:1000]


def test_a_frontier_out_of_reach_is_refused(base, tmp_path):
    with pytest.raises(OptionError, match="too small"):
        gguftools.frontier(base, [1.0, 4.0])
    with pytest.raises(OptionError, match="no name of an image"):
        gguftools.frontier(base, [4.0], plot=tmp_path / "x.pdf")


def test_command(base, tmp_path):
    done = typed(
        "quantize",
        base,
        "--target-bpw",
        4.5,
        "--calibrate",
        TEXT,
        "--gptq-only",
        "--gptq-chunks",
        4,
        "-o",
        tmp_path / "out.gguf",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["outputs"][0]["bits_per_weight"] <= 4.5
    assert set(report["search"]) == {"predicted", "measured", "recipe"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-recipe.txt", "out.gguf"]
