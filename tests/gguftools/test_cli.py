"""The command line as a user meets it: exit codes, one-line errors, JSON, silence in a pipe, interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from ..conftest import ROOT
from .command_line import run as gguftools

MODEL = ROOT / "examples" / "austen-4m"
TEXT = ROOT / "examples" / "persuasion.txt"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the example converted to f16."""
    path = tmp_path_factory.mktemp("cli")
    done = gguftools("convert", MODEL, "-o", "model-f16.gguf", "--outtype", "f16", cwd=path)
    assert (done.returncode, done.stderr) == (0, "")
    return path


def test_help_needs_no_compiler_and_no_models(folder):
    script = "import sys; sys.argv = ['gguftools', '--help']\ntry:\n import gguftools.__main__ as m; m.main()\n"
    script += "except SystemExit: pass\n"
    script += "assert not {'numba', 'transformers', 'torch', 'gguf', 'rich', 'numpy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("convert", "quantize", "perplexity", "set-metadata", "show"):
        assert command in done.stdout


def test_several_recipes_in_one_pass(folder):
    done = gguftools("quantize", "model-f16.gguf", "Q4_K_M", "Q8_0", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "model-Q4_K_M.gguf").exists()
    assert (folder / "model-Q8_0.gguf").exists()
    assert "bits per weight" in done.stdout


def test_perplexity_as_json(folder):
    done = gguftools("perplexity", "model-f16.gguf", "-f", TEXT, "--chunks", 2, "--json", cwd=folder)
    result = json.loads(done.stdout)
    assert {"perplexity", "standard_error", "chunks", "tokens_per_second", "compile_seconds"} <= set(result)
    assert len(result["chunks"]) == 2
    assert done.stderr == ""


def test_text_from_a_pipe(folder):
    text = TEXT.read_text()[:20_000]
    done = gguftools("perplexity", "model-f16.gguf", "-f", "/dev/stdin", "--chunks", 1, cwd=folder, stdin=text)
    assert (done.returncode, done.stderr) == (0, "")


def test_show_as_json(folder):
    done = gguftools("show", "model-f16.gguf", "--json", cwd=folder)
    shown = json.loads(done.stdout)
    assert shown["metadata"]["llama.block_count"] == {"type": "UINT32", "value": 4}
    assert shown["metadata"]["tokenizer.ggml.tokens"]["length"] == 2048
    tensor = next(t for t in shown["tensors"] if t["name"] == "blk.0.attn_q.weight")
    assert (tensor["type"], tensor["shape"]) == ("F16", [256, 256])


def test_show_one_key(folder):
    assert gguftools("show", "model-f16.gguf", "--key", "general.name", cwd=folder).stdout == "Austen 4M\n"


WRONG = {
    "a file that is not there": (["show", "absent.gguf"], 1, "absent.gguf"),
    "a text instead of a model": (["show", str(TEXT)], 1, "is not a GGUF file"),
    "an unknown recipe": (["quantize", "model-f16.gguf", "Q4_KM"], 1, "Q4_K_M"),
    "an unknown key": (["show", "model-f16.gguf", "--key", "general.nam"], 1, "general.name"),
    "a folder without a model": (["convert", "."], 1, "config.json"),
    "no folder for the output": (["convert", str(MODEL), "-o", "no/where.gguf"], 1, "no"),
    "a missing argument": (["convert"], 2, "MODEL"),
    "an unknown option": (["convert", str(MODEL), "--outtyp", "f16"], 2, "--outtyp"),
    "a command that is none": (["konvert"], 2, "konvert"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_clear_error(case, folder):
    arguments, code, mention = WRONG[case]
    before = set(folder.rglob("*"))
    done = gguftools(*arguments, cwd=folder)
    assert done.returncode == code, done.stderr
    assert mention.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr
    if code == 1:
        assert len(done.stderr.splitlines()) <= 2, done.stderr
    assert set(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "line",
    [
        "show {} | head -1",
        "show --json {} | head -1",
        "hash {} | head -1",
        "show {} > /dev/full",
        "hash {} > /dev/full",
    ],
)
def test_output_that_nobody_takes(line, folder):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m gguftools {line.format('model-f16.gguf')}"],
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert len(done.stderr.splitlines()) == ("full" in line), done.stderr


@pytest.mark.slow  # console/test_long_runs.py interrupts there, too
def test_interruption_leaves_nothing_behind(folder):
    """Ctrl-C in the middle of work: no partial file, the source untouched."""
    source = folder / "model-f16.gguf"
    size, before = source.stat().st_size, set(folder.iterdir())
    process = subprocess.Popen(
        [sys.executable, "-m", "gguftools", "quantize", str(source), "Q4_K_M", "-o", str(folder / "cut.gguf")],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder / "cold")},
    )
    while process.poll() is None and not (folder / "cold").exists():  # until it compiles, the cache being cold
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode in (0, 130), errors
    if process.returncode:
        assert "Traceback" not in errors
        assert not (folder / "cut.gguf").exists()
        assert {p for p in folder.iterdir() if p.name != "cold"} <= before | set(folder.glob("*.partial*"))
    assert source.stat().st_size == size
