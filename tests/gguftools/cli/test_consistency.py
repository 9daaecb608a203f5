"""An option has the same name in all commands, and what measures prints JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..command_line import EXAMPLE, TEXT, run, typed


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    assert run("convert", EXAMPLE, "-o", path, cwd=path.parent).returncode == 0
    return path


@pytest.mark.parametrize(
    "call",
    [
        "split MODEL -o SET --split-max-size 4M",
        "split MODEL -o SET --split-max-tensors 20",
        "diff MODEL MODEL --all-tensors",
        "audit MODEL --tensor-values",
    ],
)
def test_the_same_thing_has_the_same_name_everywhere(call: str, model: Path, tmp_path: Path):
    named = {"MODEL": model, "SET": tmp_path / "set"}
    done = typed(*(named.get(word, word) for word in call.split()))
    assert done.returncode == 0, done.stderr


def test_what_measures_prints_json(model: Path, tmp_path: Path):
    done = typed("imatrix", model, "-f", TEXT, "-o", tmp_path / "i.gguf", "--chunks", 1, "-c", 64, "--json")
    assert json.loads(done.stdout)["chunks"] == 1


def test_the_demo_prints_json(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT.read_text()[:6_000])
    done = typed("demo", EXAMPLE, "--file", text, "-o", tmp_path / "demo", "--json")
    rows = json.loads(done.stdout)
    assert {row["recipe"] for row in rows} > {"Q8_0", "Q4_K_M"}
    assert all(row["perplexity"] > 1 and row["size_bytes"] > 0 for row in rows)
