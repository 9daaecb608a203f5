"""Comparing a converted model with transformers, and what is said where that can't be done."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gguftools.cli.ui import print_report
from gguftools.conversion.convert import convert
from gguftools.inspection.original import logits_check
from gguftools.inspection.original.logits_check import check_output, require_checkable
from gguftools.io.checkpoint.folder import open_checkpoint
from gguftools.writing.options import WriteOptions
from gguftools.writing.report import LogitReport
from quants.errors import ModelError, OptionError

from .... import zoo_build
from ....conftest import ROOT
from ....zoo import ZOO
from ...command_line import typed

MODEL = ROOT / "examples" / "austen-4m"


def run(*arguments) -> tuple[int, str]:
    done = typed("convert", *map(str, arguments))
    return done.returncode, done.stdout + done.stderr


def test_without_torch(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, said = run(MODEL, "-o", tmp_path / "out.gguf", "--check", 2)
    assert code == 1
    assert said.splitlines() == [
        "error: checking compares with transformers on torch, which is not installed",
        'hint: pip install "gguftools[verify]", or leave out --check-logits',
    ]
    assert not list(tmp_path.iterdir())


@pytest.fixture
def torch_found(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())


def test_what_cannot_be_compared(torch_found):
    require_checkable(MODEL)
    with pytest.raises(OptionError, match="checking needs the model in a folder"):
        require_checkable("hf://jane/austen-4m")
    with pytest.raises(OptionError, match="adapters and predictors make another model"):
        require_checkable(MODEL, changed=True)


@pytest.mark.parametrize(
    ("difference", "exact", "passed", "said"),
    [
        (3e-6, True, True, "within 3e-06 std of transformers' on 2 random prompts: as expected"),
        (0.02, True, False, "within 0.02 std of transformers' on 2 random prompts: expected at most 0.001"),
        (float("nan"), True, False, "within nan std of transformers' on 2 random prompts: expected at most 0.001"),
        (0.02, False, True, "within 0.02 std of transformers' on 2 random prompts: not an error, because weights"),
    ],
)
def test_verdict(difference, exact, passed, said, tmp_path, capsys):
    report = convert(MODEL, tmp_path / "out.gguf")
    report = replace(report, check=LogitReport(2, 64, difference, exact))
    assert report.check.ok is passed
    print_report(report, False)
    assert said in capsys.readouterr().out
    print_report(report, True)
    assert json.loads(capsys.readouterr().out)["check"]["verdict"] == ("ok" if passed else "wrong")


@pytest.mark.parametrize(("exact", "exit_code"), [(True, 1), (False, 0)])
def test_exit_code(torch_found, monkeypatch, tmp_path, exact, exit_code):
    monkeypatch.setattr(logits_check, "check_output", lambda *_: LogitReport(1, 32, 0.1, exact))
    code, said = run(MODEL, "-o", tmp_path / "out.gguf", "--check", 1)
    assert code == exit_code
    assert "within 0.1 std of transformers' on 1 random prompt: " in said


class Echo:
    """A model whose logits are its prompt's tokens, and 0, 1, 2 … behind each."""

    vocabulary_size, metadata = 40, {"echo.context_length": 9}
    architecture = SimpleNamespace(name="echo")

    def __init__(self, two_sides: bool = False) -> None:
        self.encoder_decoder = object() if two_sides else None

    def logits(self, tokens, following=()):
        return np.add.outer(np.float32([*tokens, *following]), np.arange(40, dtype=np.float32))


def compared(monkeypatch, folder, model, config, error=0.0):
    """The report on three prompts beside logits that are off by `error` once, and the prompts."""
    (folder / "config.json").write_text(json.dumps(config))
    output, asked = convert(MODEL, folder / "out.gguf", write=WriteOptions(overwrite=True)).outputs[0], []

    def truth(model, folder, prompts, progress):
        asked.extend(prompts)
        found = [model.logits(*each) for each in prompts]
        found[1] = found[1] + np.float32(error) * (np.arange(40) == 7)
        return found

    monkeypatch.setattr(logits_check, "load", lambda _: model)
    monkeypatch.setattr(logits_check, "_truth", truth)
    return check_output(output, folder, 3), asked


def test_the_largest_difference_counts(monkeypatch, tmp_path):
    report, asked = compared(monkeypatch, tmp_path, Echo(), {"pad_token_id": 5}, error=3.0)
    assert [len(tokens) for tokens, _ in asked] == [9, 9, 9]
    assert (report.prompts, report.tokens) == (3, 27)
    assert all(following == [] for _, following in asked)
    assert {token for tokens, _ in asked for token in tokens} <= set(range(40)) - {5}
    wanted = Echo().logits(*asked[1])
    wanted[:, 7] += 3
    assert report.difference == pytest.approx(3 / wanted.std(), rel=1e-5)


def test_a_decoder_begins_with_its_own_token(monkeypatch, tmp_path):
    report, asked = compared(monkeypatch, tmp_path, Echo(two_sides=True), {"decoder_start_token_id": 33})
    assert report.difference == 0
    for tokens, following in asked:
        assert len(tokens) == len(following) == 9
        assert following[0] == 33
        assert following[1:] != tokens[1:]
    _, asked = compared(monkeypatch, tmp_path, Echo(two_sides=True), {})
    assert {following[0] for _, following in asked} == {0}


def test_logits_of_another_shape(monkeypatch, tmp_path):
    monkeypatch.setattr(logits_check, "load", lambda _: Echo())
    monkeypatch.setattr(
        logits_check, "_truth", lambda model, folder, prompts, progress: [np.zeros((9, 41))] * len(prompts)
    )
    (tmp_path / "config.json").write_text("{}")
    output = convert(MODEL, tmp_path / "out.gguf").outputs[0]
    with pytest.raises(ModelError, match=r"gives logits \(9, 40\), transformers \(9, 41\)"):
        check_output(output, tmp_path, 1)


@pytest.mark.verify
@pytest.mark.parametrize("outtype", ["auto", "f32"])
def test_a_right_file(tmp_path, outtype):
    code, said = run(MODEL, "-o", tmp_path / "out.gguf", "--outtype", outtype, "--check", 2, "--json")
    check = json.loads(said)["check"]
    assert code == 0
    assert check["difference"] < 1e-5
    assert check["exact"]
    assert check["tokens"] == 64


@pytest.mark.verify
def test_a_quantized_file_is_reported(tmp_path):
    code, said = run(MODEL, "-o", tmp_path / "out.gguf", "--outtype", "Q4_K_M", "--check", 1)
    assert code == 0
    assert "not an error, because weights were rounded" in said


@pytest.mark.verify
def test_a_wrong_file_is_found(tmp_path):
    output = convert(MODEL, tmp_path / "out.gguf", "f32").outputs[0]
    other = Path(shutil.copytree(MODEL, tmp_path / "other"))
    raw = bytearray((other / "model.safetensors").read_bytes())
    norm = open_checkpoint(other).tensors["model.norm.weight"].raw().tobytes()
    at = raw.index(norm)
    raw[at : at + len(norm)] = (np.frombuffer(norm, np.uint16) ^ 1).tobytes()  # the last bit of each weight of a norm
    (other / "model.safetensors").write_bytes(raw)
    assert not check_output(output, other, 1).ok
    assert check_output(output, MODEL, 1).ok


@pytest.mark.verify
def test_models_that_need_code_of_their_own_are_refused(tmp_path):
    folder = Path(shutil.copytree(MODEL, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    output = convert(folder, tmp_path / "out.gguf").outputs[0]
    own = {"model_type": "austen", "auto_map": {"AutoConfig": "config.Austen", "AutoModelForCausalLM": "model.Austen"}}
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    with pytest.raises(ModelError, match="transformers cannot load") as caught:
        check_output(output, folder, 1)
    assert "\n" not in str(caught.value)


@pytest.mark.verify
@pytest.mark.parametrize("entry", ["bert", "t5", "roberta", "falcon-rw-style", "gemma3", "gpt-oss-mxfp4"])
def test_kinds_of_models(shared, tmp_path, entry):
    zoo_build.build(ZOO, entry, tmp_path / entry)
    output = convert(tmp_path / entry, tmp_path / "out.gguf", "f32").outputs[0]
    found = check_output(output, tmp_path / entry, 2)
    assert found.exact
    assert found.difference < 2e-5
