"""Plan measurements on graphics cards from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gguftools.measurement.cards import CARDS

from ..command_line import EXAMPLE, TEXT, refused, run, typed


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    assert run("convert", EXAMPLE, "-o", path, cwd=path.parent).returncode == 0
    return path


def test_all_cards_or_one(model: Path):
    done = typed("perplexity", model, "-f", TEXT, "--plan", "-c", 128)
    assert "FLOP" in done.stdout
    assert "all on the card" in done.stdout
    for card in CARDS:
        assert f"\n{card.name}  " in done.stdout
    one = typed("perplexity", model, "-f", TEXT, "--plan", "--card", "geforce rtx 4090", "--json")
    plan = json.loads(one.stdout)
    assert [card["card"] for card in plan["cards"]] == ["RTX 4090"]
    assert plan["files"][0]["layers"] == 4
    assert plan["measurement"] == "perplexity"
    assert plan["tokens"] % 512 == 0


def test_memory_and_several_files(model: Path):
    done = typed("perplexity", model, model, "-f", TEXT, "--plan", "--card", "T4", "--device-memory", "1M", "--json")
    plan = json.loads(done.stdout)
    assert len(plan["files"]) == 2
    assert plan["cards"][0]["fits"] is False


def test_a_plan_writes_nothing(model: Path, tmp_path: Path):
    done = typed("imatrix", model, "-f", TEXT, "-o", tmp_path / "x.gguf", "--plan", "--card", "T4", "--fast")
    assert "imatrix of" in done.stdout
    assert "TF32" in done.stdout
    assert "head" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_a_plan_does_not_know(model: Path):
    refused(typed("perplexity", model, "-f", TEXT, "--plan", "--card", "Voodoo 2"), "no card is called so")
    refused(typed("perplexity", model, "-f", TEXT, "--card", "T4"), "--card needs --plan", code=2)
    refused(typed("perplexity", model, "-f", TEXT, "--plan", "--sparse"), "cannot be combined", code=2)
    refused(typed("imatrix", model, "-f", TEXT, "-o", "x", "--plan", "--resume"), "cannot be combined", code=2)
