"""Files whose weights are encoded with error feedback: nearer to the original at the same size, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from gguftools.calibration.choosing import AIM, choose, pieces_of
from gguftools.calibration.computed import Processor
from gguftools.calibration.texts import Calibration, calibration_windows
from gguftools.conversion.convert import convert
from gguftools.conversion.quantize import quantize
from gguftools.measurement.divergence import divergence
from gguftools.measurement.importance import imatrix
from gguftools.measurement.texts import NamedText, named_texts
from gguftools.quantization.options import QuantizeOptions
from gguftools.writing.options import WriteOptions
from quants import format_named
from quants.errors import FileError, ModelError, OptionError

from ...archs import checkpoints
from ...conftest import DATA, ROOT
from ..command_line import typed

TEXT = ROOT / "examples" / "persuasion.txt"
SMALL = Calibration((NamedText("novel", TEXT),), own_texts=False, n_ctx=128, chunks=16)
FEW = Calibration(SMALL.texts, own_texts=False, n_ctx=128, chunks=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("feedback") / "model.gguf"
    return convert(ROOT / "examples" / "austen-4m", target, "f16").outputs[0].file


@pytest.fixture(scope="module")
def matrix(model: Path) -> Path:
    path = model.with_name("imatrix.gguf")
    imatrix(model, TEXT, path, chunks=8)
    return path


@pytest.fixture(scope="module")
def two(model: Path) -> Path:
    """The same model with two layers, for what needs one behind another."""
    return (
        quantize(model, "COPY", model.with_name("two.gguf"), options=QuantizeOptions(prune_layers=[2, 3]))
        .outputs[0]
        .file
    )


@pytest.fixture(scope="module")
def fed_two(two: Path) -> Path:
    return quantize(two, "Q4_0", two.with_name("fed-two.gguf"), gptq=FEW, write=WriteOptions(threads=2)).outputs[0].file


@pytest.fixture(scope="module")
def shallow(model: Path) -> Path:
    """The same model with its first layer alone, for what does not depend on how many there are."""
    return (
        quantize(model, "COPY", model.with_name("shallow.gguf"), options=QuantizeOptions(prune_layers=[1, 2, 3]))
        .outputs[0]
        .file
    )


def test_the_file_is_nearer(two: Path, fed_two: Path, tmp_path: Path) -> None:
    """With 1,024 tokens of one text. As much as there is for larger ones, see below."""
    imatrix(two, TEXT, tmp_path / "imatrix.gguf", chunks=8)
    weighted = quantize(two, "Q4_0", tmp_path / "weighted.gguf", imatrix=tmp_path / "imatrix.gguf").outputs[0].file
    assert abs(fed_two.stat().st_size - weighted.stat().st_size) < 1000  # keys say where the matrix is from
    found = divergence(two, weighted, fed_two, text=[ROOT / "examples" / "persuasion.txt"], chunks=4).as_dict()["files"]
    before, after = (file["kl_divergence"] for file in found)
    assert after["mean"] < 0.6 * before["mean"]
    assert after["p99"] < before["p99"]


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "most"), [("Q4_0", 0.5), ("IQ2_XS", 0.5), ("Q3_K_M", 0.6), ("IQ3_XXS", 0.5)])
def test_the_file_is_nearer_at_the_same_size(
    model: Path, matrix: Path, tmp_path: Path, recipe: str, most: float
) -> None:
    weighted, fed = tmp_path / "weighted.gguf", tmp_path / "fed.gguf"
    quantize(model, recipe, weighted, imatrix=matrix)
    report = quantize(model, recipe, fed, imatrix=matrix, gptq=Calibration(SMALL.texts, chunks=24))
    assert fed.stat().st_size == weighted.stat().st_size
    assert report.outputs[0].nbytes == fed.stat().st_size
    for text in (ROOT / "examples" / "persuasion.txt", DATA / "golden" / "calibration.txt"):
        found = divergence(model, weighted, fed, text=[text], chunks=6).as_dict()["files"]
        before, after = (file["kl_divergence"] for file in found)
        assert after["mean"] < most * before["mean"]
        assert after["p99"] < before["p99"]


def test_what_is_said_of_each_weight(two: Path, tmp_path: Path) -> None:
    report = quantize(two, "Q4_K_M", tmp_path / "fed.gguf", gptq=FEW, write=WriteOptions(statistics=True))
    tensors = {tensor.name: tensor for tensor in report.outputs[0].tensors}
    value = tensors["blk.1.attn_v.weight"]
    assert value.feedback is not None
    assert value.feedback["method"] == "feedback"
    assert value.feedback["damping"] > 0
    assert 0 < value.feedback["error"] < value.feedback["error_before"]
    assert value.rmse
    assert value.as_dict()["feedback"] == value.feedback
    assert {"token_embd.weight", "output.weight"} <= {name for name, each in tensors.items() if each.feedback}
    assert tensors["output_norm.weight"].feedback is None
    aimed = {name: each.feedback["aimed"] for name, each in tensors.items() if each.feedback}
    assert sum(aimed.values()) > len(aimed) // 4
    assert not aimed["token_embd.weight"]  # nothing is before it
    assert "feedback" not in tensors["output_norm.weight"].as_dict()


def test_the_bytes_do_not_depend_on_threads(two: Path, fed_two: Path, tmp_path: Path) -> None:
    quantize(two, "Q4_0", tmp_path / "again.gguf", gptq=FEW, write=WriteOptions(threads=1))
    assert (tmp_path / "again.gguf").read_bytes() == fed_two.read_bytes()


def test_nothing_is_left_beside_the_file(fed_two: Path) -> None:
    assert not list(fed_two.parent.glob("*.encoded*"))


def test_a_killed_run_is_gone_on_with(two: Path, fed_two: Path, tmp_path: Path) -> None:
    target = tmp_path / "fed.gguf"
    code = (
        "import gguftools, sys\n"
        "from tests.gguftools.calibration.test_feedback import FEW\n"
        "gguftools.quantize(sys.argv[1], 'Q4_0', sys.argv[2], gptq=FEW)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.Popen([sys.executable, "-c", code, two, target], cwd=ROOT, env=environment)
    journal = tmp_path / "fed.gguf.encoded.journal"
    until = time.monotonic() + 300
    while time.monotonic() < until and not (journal.exists() and journal.read_bytes().count(b"\n") > 5):
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert not target.exists()
    kept = journal.read_bytes().count(b"\n")
    assert kept > 5
    with pytest.raises(FileError, match="with other options"):
        quantize(two, "Q4_1", target, gptq=FEW, write=WriteOptions(resume=True))
    told: list[int] = []
    quantize(
        two,
        "Q4_0",
        target,
        gptq=FEW,
        write=WriteOptions(resume=True, progress=lambda done, total, name: told.append(done)),
    )
    assert told[0] > 0  # what was kept counts as done
    assert target.read_bytes() == fed_two.read_bytes()
    assert not list(tmp_path.glob("*.encoded*"))


def test_a_tensor_whose_bytes_changed_is_encoded_anew(two: Path, fed_two: Path, tmp_path: Path) -> None:
    """As after a kill, but a byte of what was kept is another."""
    from gguftools.calibration import outputs

    target, stop = tmp_path / "fed.gguf", RuntimeError("stop")

    def fail(done: int, total: int, name: str) -> None:
        if name == "blk.1":
            raise stop

    with pytest.raises(RuntimeError, match="stop"):
        quantize(two, "Q4_0", target, gptq=FEW, write=WriteOptions(progress=fail))
    kept = tmp_path / "fed.gguf.encoded"
    data = bytearray(kept.read_bytes())
    data[len(data) // 2] ^= 255
    kept.write_bytes(data)
    assert outputs.VERSION
    quantize(two, "Q4_0", target, gptq=FEW, write=WriteOptions(resume=True))
    assert (target.read_bytes() == fed_two.read_bytes()) is True


def test_room_for_what_is_encoded_ahead_is_asked_for_first(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept until the file is written."""
    size = quantize(model, "Q4_0", tmp_path / "x.gguf", write=WriteOptions(dry_run=True)).outputs[0].nbytes
    monkeypatch.setattr("gguftools.quantization.outputs.free_bytes", lambda path: 2 * size - 1)
    with pytest.raises(FileError, match=f"{2 * size:,} are needed"):
        quantize(model, "Q4_0", tmp_path / "x.gguf", gptq=SMALL)
    assert not list(tmp_path.iterdir())


def test_experts_have_inputs_of_their_own(tmp_path: Path) -> None:
    checkpoints.build("qwen3-5-moe", tmp_path / "qwen3-5-moe")
    source = convert(tmp_path / "qwen3-5-moe", tmp_path / "moe.gguf", "f32").outputs[0].file
    text = Calibration((NamedText("novel", TEXT),), own_texts=False, n_ctx=64, chunks=32)
    report = quantize(source, "Q4_0", tmp_path / "fed.gguf", gptq=text)
    quantize(source, "Q4_0", tmp_path / "plain.gguf")
    tensors = {tensor.name: tensor for tensor in report.outputs[0].tensors}
    assert any(tensor.feedback for name, tensor in tensors.items() if "_exps" in name)
    found = divergence(source, tmp_path / "plain.gguf", tmp_path / "fed.gguf", text=[TEXT], n_ctx=64, chunks=8)
    before, after = (file["kl_divergence"]["mean"] for file in found.as_dict()["files"])
    assert after < before


def test_an_expert_that_saw_little_is_drawn_towards_all() -> None:
    from runtime.hessians import Hessians

    found, random = Hessians(), np.random.default_rng(0)
    for expert, rows in enumerate((400, 400, 3)):
        found.observe("e", random.standard_normal((rows, 8)).astype(np.float32) * [1, 1, 1, 1, 5, 5, 5, 5], expert, 3)
    pieces = list(pieces_of(found.pieces("e", 12), []))
    assert [(piece.start, piece.stop) for piece in pieces] == [(0, 4), (4, 8), (8, 12)]
    assert np.linalg.matrix_rank(found.of["e", 2].matrix().whole(), 1e-3) == 3
    assert np.linalg.eigvalsh(pieces[2].inputs.whole()).min() > 0.3
    assert np.allclose(pieces[0].inputs.whole(), found.of["e", 0].matrix().whole(), rtol=0.5, atol=0.5)


def test_what_inputs_held_back_speak_against_is_not_done() -> None:
    """Fitted to inputs that have nothing to do with those that judge: the encoder without feedback is taken."""
    from gguftools.calibration.choosing import Piece
    from runtime.products.block_diagonal import BlockDiagonal

    random = np.random.default_rng(1)
    few = random.standard_normal((4, 256))
    rows = random.standard_normal((32, 256)).astype(np.float32)
    form = format_named("Q4_K")
    piece = Piece(0, 32, BlockDiagonal((few.T @ few / 4,)), BlockDiagonal((np.eye(256),)))
    chosen = choose(rows, piece, form, lambda rows: form.encode(rows), "plain", Processor(2))
    assert (chosen.method, chosen.error) == ("plain", chosen.error_before)
    assert np.array_equal(chosen.raw, form.encode(rows))


def drifted(noise: float) -> tuple[Any, np.ndarray, np.ndarray]:
    """A piece whose inputs drifted from those of the original, as did those held back; and new ones of both."""
    from gguftools.calibration.choosing import Piece
    from runtime.hessians import Products

    random, found = np.random.default_rng(3), []
    mixing = random.standard_normal((256, 256)) * np.exp(random.standard_normal(256))
    for _ in range(3):
        y = (random.standard_normal((4000, 256)) @ mixing).astype(np.float32)
        x = y + noise * np.roll(y, 1, axis=1) + random.standard_normal(y.shape).astype(np.float32)
        products = Products.of(256, 256)
        products.add(x, 2)
        products.compare(x, y, 2)
        found.append((products, x, y))
    (fitted, _, _), (held, _, _), (_, x, y) = found
    return Piece(0, 64, fitted.matrix(), held.matrix(), fitted.drift(), held.drift()), x, y


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_make_up_for_a_part_of_what_inputs_lost(threads: int) -> None:
    piece, x, y = drifted(0.3)
    rows, form = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32), format_named("Q5_0")
    chosen = choose(rows, piece, form, form.encode, "plain", Processor(threads))
    without = choose(rows, piece._replace(drift=None), form, form.encode, "plain", Processor(threads))
    assert chosen.aimed
    assert not without.aimed
    assert (chosen.method, chosen.damping, chosen.error) == (without.method, without.damping, without.error)
    lost, usual = (((x @ form.decode(each.raw).T - y @ rows.T) ** 2).sum() for each in (chosen, without))
    assert lost < 0.75 * usual


def test_a_drift_that_inputs_held_back_do_not_have_is_left() -> None:
    piece, _, _ = drifted(0.3)
    rows, form = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32), format_named("Q5_0")
    assert choose(rows, piece, form, form.encode, "plain", Processor(2)).aimed
    other = choose(rows, piece._replace(held_drift=piece.held_drift * -1.0), form, form.encode, "plain", Processor(2))
    assert (other.method, other.aimed) == ("feedback", False)


def test_the_correction_is_a_part_of_the_least_squares() -> None:
    from quants.feedback import upper_factor
    from runtime.products.block_diagonal import BlockDiagonal

    random = np.random.default_rng(0)
    x = random.standard_normal((500, 96))
    y = x + 0.1 * random.standard_normal(x.shape)
    hessian, drift = x.T @ x / 500, (y - x).T @ x / 500
    triangles = [upper_factor(hessian, 1e-6)]
    found = Processor(2).correction(BlockDiagonal((drift,)), triangles, AIM).whole()
    rows = random.standard_normal((5, 96))
    best = np.linalg.lstsq(x, y @ rows.T, rcond=None)[0].T
    assert np.allclose(rows @ found, AIM * (best - rows), atol=1e-4)


def test_windows_that_are_held_back_are_not_fitted_to(model: Path) -> None:
    windows = calibration_windows(gguftools.open(model), SMALL)
    assert (windows.fitted.shape, windows.held.shape) == ((14, 128), (2, 128))
    assert not {row.tobytes() for row in windows.fitted} & {row.tobytes() for row in windows.held}
    both = calibration_windows(gguftools.open(model), Calibration(SMALL.texts, chunks=16))
    assert len(both.fitted) > 3 * len(windows.fitted)  # the package's own are read besides


def test_recipes_that_round_nothing(model: Path, tmp_path: Path) -> None:
    report = quantize(model, "BF16", tmp_path / "b.gguf", gptq=SMALL)
    assert "error feedback changes no tensor of BF16" in report.warnings


def test_wrong_texts(model: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Too short.")
    with pytest.raises(OptionError, match="short: the text has"):
        quantize(model, "Q4_0", tmp_path / "x.gguf", gptq=tmp_path / "short.txt")
    with pytest.raises(FileError, match=r"missing\.txt"):
        quantize(model, "Q4_0", tmp_path / "x.gguf", gptq=tmp_path / "missing.txt")
    with pytest.raises(OptionError, match="there is no text to calibrate on"):
        Calibration(own_texts=False)
    with pytest.raises(OptionError, match="n_ctx"):
        Calibration(n_ctx=4)
    assert not list(tmp_path.glob("x.gguf*"))


def test_a_text_is_no_output(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_bytes(TEXT.read_bytes())
    done = typed("quantize", model, "Q4_0", "-o", text, "--gptq", text, "--overwrite")
    assert done.returncode == 1
    assert "text.gguf" in done.stderr
    assert text.read_bytes() == TEXT.read_bytes()


def test_several_copies_of_hidden_states(tmp_path: Path) -> None:
    checkpoints.build("gemma3n", tmp_path / "gemma3n")
    source = convert(tmp_path / "gemma3n", tmp_path / "m.gguf", "f32").outputs[0].file
    text = Calibration((NamedText("novel", TEXT),), own_texts=False, n_ctx=64, chunks=32)
    report = quantize(source, "Q4_0", tmp_path / "fed.gguf", gptq=text)
    quantize(source, "Q4_0", tmp_path / "plain.gguf")
    tensors = {tensor.name: tensor.feedback for tensor in report.outputs[0].tensors}
    assert {"blk.0.attn_q.weight", "blk.1.ffn_down.weight", "blk.2.inp_gate.weight"} <= {
        name for name, feedback in tensors.items() if feedback and feedback["method"] == "feedback"
    }
    assert tensors["token_embd.weight"] is None
    found = divergence(source, tmp_path / "plain.gguf", tmp_path / "fed.gguf", text=[TEXT], n_ctx=64, chunks=8)
    before, after = (file["kl_divergence"]["mean"] for file in found.as_dict()["files"])
    assert after < before


def test_models_that_cannot_be_run_so(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime import layerwise
    from runtime.model import RunningModel

    both = property(lambda self: "both sides", lambda self, value: None)
    monkeypatch.setattr(RunningModel, "encoder_decoder", both, raising=False)
    with pytest.raises(ModelError, match="cannot be run one layer after another"):
        layerwise.check_layerwise(gguftools.load(model))
    with pytest.raises(ModelError, match="cannot be run one layer after another"):
        quantize(model, "Q8_0", tmp_path / "x.gguf", gptq=SMALL)
    assert not list(tmp_path.glob("x.gguf*"))


def test_the_command(shallow: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.gguf"
    words = ["quantize", shallow, "Q4_0", "-o", target, "--gptq", f"novel={TEXT}", "--gptq-only", "--gptq-chunks", "3"]
    done = typed(*words)
    assert done.returncode == 0, done.stderr
    assert "error feedback for 9 of 9 weights" in done.stdout
    done = typed(*words, "--overwrite", "--json")
    tensors = json.loads(done.stdout)["outputs"][0]["tensors"]
    assert sum("feedback" in tensor for tensor in tensors) == 9
    assert named_texts([f"novel={TEXT}"])[0].name == "novel"
