"""Where commands write: one rule for folders, what - means, and what --quiet leaves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gguftools.cli.outputs import PRINTED

from ...conftest import DATA, ROOT
from ..command_line import EXAMPLE, refused, run, typed

TEXT = ROOT / "examples" / "persuasion.txt"
WRITES = {
    "convert": ["CK", "-o"],
    "quantize": ["m.gguf", "Q8_0", "-o"],
    "split": ["m.gguf", "-o"],
    "merge": ["s-00001-of-00001.gguf", "-o"],
    "convert-endian": ["m.gguf", "-o"],
    "attest": ["m.gguf", "-o"],
    "set-metadata": ["m.gguf", "general.name=x", "-o"],
    "patch": ["make", "m.gguf", "m.gguf", "-o"],
    "graft": ["m.gguf", "--drop", "output_norm", "--force", "-o"],
}
TO_FILES = {
    "imatrix": ["m.gguf", "-f", TEXT, "-o"],
    "hash": ["m.gguf", "-o"],
    "imatrix-info": ["im.gguf", "--merge"],
    "report": ["results.json", "--html"],
    "embed": ["m.gguf", "-p", "x", "--pooling", "mean", "-o"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(DATA / "golden" / "e2e" / "tiny-dense-f16.gguf", tmp_path / "m.gguf")
    shutil.copyfile(DATA / "golden" / "e2e" / "tiny-dense.imatrix.gguf", tmp_path / "im.gguf")
    return tmp_path


def words(command: str, output: str) -> list[object]:
    return [EXAMPLE if word == "CK" else word for word in (WRITES | TO_FILES)[command]] + [output]


@pytest.mark.parametrize("command", [name for name in WRITES if name not in ("merge", "graft")])
def test_a_name_that_ends_in_a_slash_is_a_folder_that_is_made(command: str, folder: Path):
    done = typed(command, *words(command, "new/"), "--quiet")
    assert done.returncode == 0, done.stderr
    written = sorted(f"new/{path.name}" for path in (folder / "new").iterdir())
    assert len(written) == 1
    assert done.stdout.splitlines() == written  # with --quiet the name of the file alone


def test_a_folder_that_nothing_was_written_to_is_not_left(folder: Path):
    before = sorted(folder.iterdir())
    assert typed("quantize", "m.gguf", "Q8_0", "-o", "new/", "--dry-run").returncode == 0
    refused(typed("quantize", "m.gguf", "Q9_9", "-o", "new/"), "Q9_9")
    refused(typed("quantize", "m.gguf", "Q8_0", "-o", "absent/new/"), "absent/new cannot be made")
    refused(typed("quantize", "m.gguf", "Q8_0", "-o", "absent/x.gguf"), "there is no folder absent")
    assert sorted(folder.iterdir()) == before


def test_the_hint_about_several_recipes_can_be_followed(folder: Path):
    said = refused(typed("quantize", "m.gguf", "Q8_0", "Q4_0", "-o", "both"), "end it with a slash: both/")
    assert typed("quantize", "m.gguf", "Q8_0", "Q4_0", "-o", said.split()[-1], "-q").returncode == 0
    assert len(list((folder / "both").iterdir())) == 2


@pytest.mark.parametrize("command", [*WRITES, *TO_FILES])
def test_standard_output_is_no_file(command: str, folder: Path):
    """What is printed anyway is printed; the rest is refused."""
    done = typed(command, *words(command, "-"))
    if command not in PRINTED:
        refused(done, "standard output", "name a file")
    assert not (folder / "-").exists()


def test_quiet_leaves_results(folder: Path):
    assert typed("-q", "split", "m.gguf", "-o", "s").stdout == "s-00001-of-00001.gguf\n"
    assert typed("merge", "s-00001-of-00001.gguf", "-o", "whole.gguf", "-q").stdout == "whole.gguf\n"
    assert "Q8_0" in typed("quantize", "m.gguf", "Q8_0", "--dry-run", "-q").stdout  # the plan is the result
    typed("convert", EXAMPLE, "-o", "a.gguf", "-q")
    done = run("perplexity", "a.gguf", "-f", TEXT, "-c", 64, "--chunks", 1, "-q", cwd=folder)
    assert done.stdout.startswith("perplexity ")
    assert len(done.stdout.splitlines()) == 1


def test_a_size_of_shards_has_a_unit(folder: Path):
    said = refused(typed("split", "m.gguf", "--split-max-size", "1", "-o", "s", "--dry-run"), "has no unit", code=1)
    assert "1M, 1G, or 1B for bytes" in said
    done = typed("split", "m.gguf", "--split-max-size", "1B", "-o", "s", "--dry-run")
    assert done.returncode == 0
    assert "shards have one tensor, which is larger than --split-max-size" in done.stderr
    assert "larger than" not in typed("split", "m.gguf", "--split-max-size", "1G", "-o", "s", "--dry-run").stderr


def test_kernels_are_named_where_they_took_time():
    from gguftools.cli.ui import prepared

    assert prepared(0.04) == ""
    assert prepared(5.1) == ", after 5.1 s to load or compile kernels"


def test_experts_are_shown_where_there_are_some(folder: Path):
    assert "1/1" not in typed("imatrix-info", "im.gguf").stdout
    assert "/" in typed("imatrix-info", DATA / "golden" / "e2e" / "tiny-moe.imatrix.gguf").stdout.replace(str(DATA), "")
