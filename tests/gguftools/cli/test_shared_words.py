"""Options that mean one thing in every command: -m, -t, -y, -f -, -o -."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gguftools.cli.inputs import STANDARD_INPUT, with_standard_input
from gguftools.cli.usage import options_of, with_model_as_argument
from quants.errors import OptionError

from ..command_line import EXAMPLE, TEXT, program, refused, run, typed

COMMANDS = program().commands
WITHOUT_MODEL = (
    "architectures",
    "card",
    "diff",
    "divergence",
    "formats",
    "imatrix-info",
    "merge",
    "patch",
    "report",
    "schema",
    "upload",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    assert run("convert", "-m", EXAMPLE, "-o", path, cwd=path.parent).returncode == 0
    return path


@pytest.mark.parametrize("name", COMMANDS)
def test_the_model_may_be_given_as_an_option(name: str):
    command = COMMANDS[name]
    if "--model" in options_of(command):
        return
    words = with_model_as_argument(command, ["-m", "a.gguf", "--json"])
    assert words == (["-m", "a.gguf", "--json"] if name in WITHOUT_MODEL else ["a.gguf", "--json"])


@pytest.mark.parametrize(
    ("command", "words", "made"),
    [
        ("quantize", "Q8_0 -m in.gguf Q4_K_M", "in.gguf Q8_0 Q4_K_M"),
        ("quantize", "--imatrix -m --model=in.gguf", "in.gguf --imatrix -m"),
        ("show", "a -m b --model c", "a b c"),
        ("show", "-ma --key k", "a --key k"),
        ("show", "-- -m", "-- -m"),
        ("gpu-split", "-m a folder", "-m a folder"),
    ],
)
def test_the_option_takes_the_place_of_the_argument(command: str, words: str, made: str):
    assert with_model_as_argument(COMMANDS[command], words.split()) == made.split()


def test_an_option_gives_the_model(model: Path):
    assert typed("show", "-m", model, "--key", "general.name").stdout == "Austen 4M\n"
    done = typed("show", model, "--model", model, "--key", "general.name")
    assert done.stdout == "Austen 4M\n" * 2
    refused(typed("tokenize", "-m", model, model, "-p", "x"), "takes no argument", code=2)
    refused(typed("tokenize", "-p", "x", "-m"), "-m is given without a value", code=2)
    refused(typed("tokenize", "-p", "x", "--model="), "--model is given without a value", code=2)
    refused(typed("tokenize", "-m", model, "-m", model), "-m is given twice", code=2)


def test_threads_and_overwriting_have_short_names(model: Path, tmp_path: Path):
    for command in COMMANDS.values():
        options = options_of(command)
        assert ("--threads" in options) == ("-t" in options) == ("-j" in options)
        assert ("--overwrite" in options) == ("-y" in options)
    output = tmp_path / "copy.gguf"
    output.touch()
    refused(typed("quantize", model, "Q8_0", "-o", output, "-t", 1), "copy.gguf")
    assert typed("quantize", model, "Q8_0", "-o", output, "-t", 1, "-y").returncode == 0
    assert output.stat().st_size > 1_000_000


def test_a_text_comes_from_standard_input(model: Path, tmp_path: Path):
    text = TEXT.read_text()[:20_000]
    options = ("--chunks", 1, "-c", 64, "--json")
    piped = run("perplexity", model, "-f", "-", *options, cwd=tmp_path, stdin=text)
    assert (piped.returncode, piped.stderr) == (0, "")
    named = run("perplexity", model, "-f", TEXT, *options, cwd=tmp_path)
    assert json.loads(piped.stdout)["perplexity"] == json.loads(named.stdout)["perplexity"]
    done = run("imatrix", model, "-f", "-", "-o", "i.gguf", "--chunks", 1, "-c", 64, cwd=tmp_path, stdin=text)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "i.gguf").exists()


def test_standard_input_is_read_once():
    given = {"texts": ["a=-", "b.txt"], "file": Path("-"), "output": "-"}
    assert with_standard_input(given | {"file": None}) == {
        "texts": [f"a={STANDARD_INPUT}", "b.txt"],
        "file": None,
        "output": "-",
    }
    assert with_standard_input({"file": Path("-")}) == {"file": Path(STANDARD_INPUT)}
    with pytest.raises(OptionError, match="twice"):
        with_standard_input(given)
    with pytest.raises(OptionError, match="twice"):
        with_standard_input({"texts": ["-", "a=-"]})


def test_what_can_be_printed_is_written_to_standard_output(model: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = typed("hash", model, "-o", "-")
    assert (printed.returncode, printed.stdout) == (0, typed("hash", model).stdout)
    done = typed("embed", model, "--pooling", "mean", "-p", "word", "-o", "-", "--json")
    assert json.loads(done.stdout)["file"] == str(model)
    refused(typed("quantize", model, "Q8_0", "-o", "-"), "standard output", "name a file")
    assert list(tmp_path.iterdir()) == []
