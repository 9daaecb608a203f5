"""Print one row a line in a pipe and whole words on a terminal; help shows every option and an example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from gguftools.__main__ import build_app
from gguftools.cli.options import HIDDEN_SPELLINGS

from ..command_line import EXAMPLE, on_terminal, program, run, typed

KEY = "llama.attention.layer_norm_rms_epsilon"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    assert run("convert", EXAMPLE, "-o", "model.gguf", cwd=path).returncode == 0
    return path


def commands():
    return program().commands


@pytest.mark.parametrize("columns", ["40", "80"])
def test_a_row_is_a_line_in_a_pipe(folder: Path, columns: str):
    lines = run("show", "model.gguf", cwd=folder, environment={"COLUMNS": columns}).stdout.splitlines()
    row = next(line for line in lines if line.startswith(KEY + " "))
    assert re.fullmatch(KEY + r" +FLOAT32 +\S+", row)


@pytest.mark.parametrize("columns", [50, 80])
def test_words_are_whole_on_a_terminal(folder: Path, columns: int):
    code, written = on_terminal("show", "model.gguf", cwd=folder, columns=columns)
    piped = run("show", "model.gguf", cwd=folder).stdout
    words = {word for word in piped.split() if re.fullmatch(r"[\w.]+", word)}
    assert code == 0
    assert KEY in words
    assert not words - set(re.sub("\x1b\\[[0-9;]*m", "", written).split())


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_help_has_every_option_in_full(monkeypatch: pytest.MonkeyPatch, columns: str):
    monkeypatch.setenv("COLUMNS", columns)
    for name, command in commands().items():
        text = typed(name, "--help").stdout
        for option in command.params:
            for flag in {*option.opts, *option.secondary_opts}.difference(HIDDEN_SPELLINGS):
                assert getattr(option, "hidden", False) or not flag.startswith("-") or re.search(rf"{flag}\b", text), (
                    f"{name} --help has no {flag} at {columns} columns"
                )
        assert "<bool>" not in text
        assert "<list[str]>" not in text


def test_h_is_help():
    """Also after something else made a context of the command alone: click keeps the first one's spellings."""
    for command in program().commands.values():
        command.get_help_option(typer.Context(command))
    for name in ("", *commands()):
        words = [name] if name else []
        short = typed(*words, "-h")
        assert short.returncode == 0, (name, short.stderr)
        assert short.stdout == typed(*words, "--help").stdout
        assert short.stdout.startswith("Usage: ")


def test_every_help_has_an_example():
    for name in commands():
        assert f"\nExamples:\n  gguftools {name}" in typed(name, "--help").stdout


@pytest.mark.parametrize("place", ["before", "after"])
def test_quiet_leaves_results_alone(folder: Path, place: str):
    words = ("-q", "diff", "model.gguf", EXAMPLE) if place == "before" else ("diff", "-q", "model.gguf", EXAMPLE)
    code, written = on_terminal(*words, cwd=folder)
    assert code == 0
    assert "\r\x1b[K" not in written
    assert len(written.splitlines()) == 1


@pytest.mark.parametrize("flag", ["-v", "--verbose"])
def test_verbose_says_what_is_read_and_written(folder: Path, flag: str):
    done = run("split", flag, "model.gguf", "--max-tensors", 20, "-o", f"shard{flag}", cwd=folder)
    assert done.returncode == 0
    assert re.search(r"opened model\.gguf: .* 39 tensors", done.stderr)
    assert done.stderr.count("wrote shard") == 2


def test_the_shell_completes_commands_and_recipes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def offered(words: str) -> list[str]:
        monkeypatch.setenv("_GGUFTOOLS_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", f"gguftools {words}")
        monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
        with pytest.raises(SystemExit):
            build_app()(prog_name="gguftools")
        return capsys.readouterr().out.split()

    assert "Q4_K_M" in offered("quantize model.gguf Q4")
    assert "Q6_K" in offered("quantize model.gguf Q4_K_M --output-tensor-type Q6")
    assert offered("imat") == ["imatrix", "imatrix-info"]


def test_completion_can_be_had(monkeypatch: pytest.MonkeyPatch):
    assert "--install-completion" in typed("--help").stdout
