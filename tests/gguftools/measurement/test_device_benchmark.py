"""The benchmark of devices works, on torch's processor and in small; what it measures there says nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

import gguftools
from benchmarks import device as benchmark
from benchmarks.synthetic_models import synthetic_model
from gguftools.measurement.cards import CARDS

TINY = benchmark.Sizes("small", "small", "small-experts", 3, 2, 128, 2, 4)


def test_all_layers_read_the_same_bytes():
    model = synthetic_model("small", layers=2)
    first, second = (model.tensors[f"blk.{index}.ffn_up.weight"] for index in range(2))
    assert np.array_equal(first.raw(), second.raw())
    assert first.float32().std() == pytest.approx(256**-0.5, rel=0.01)
    longer = synthetic_model("llama-3.1-8b").tensors["token_embd.weight"]
    period = 4096
    assert np.array_equal(longer.raw(4000, 3 * period + 5), longer.raw()[4000 : 3 * period + 5])
    assert np.array_equal(longer.raw(5, 9), longer.raw(period + 5, period + 9))


def test_synthetic_models_of_any_format_are_files(tmp_path: Path):
    synthetic_model("small-experts", layers=2, format="Q4_K").save(tmp_path / "m.gguf")
    opened = gguftools.open(tmp_path / "m.gguf")
    assert opened.tensors["blk.1.ffn_down_exps.weight"].format.name == "Q4_K"
    assert opened.tensors["blk.1.ffn_gate_inp.weight"].format.name == "F32"
    assert gguftools.validate(tmp_path / "m.gguf").ok


def test_a_table_of_all_cards():
    columns, rows = benchmark.card_table()
    assert [row[0] for row in rows] == [card.name for card in CARDS]
    assert {len(row) for row in rows} == {len(columns)}
    assert "too large" not in str(rows)


@pytest.mark.device
def test_without_time_everything_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "device.json"
    benchmark.main(["--device", "cpu", "--small", "--minutes", "0", "--json", str(path)])
    document = json.loads(path.read_text("utf-8"))
    peaks, *others = document["results"]
    assert peaks["float32_tflops"] > 0
    assert document["card"]["source"] == "measured"
    assert len(others) > 8
    assert all(each["left_out"] for each in others)
    assert capsys.readouterr().out.count("left out") == len(others)


@pytest.mark.device
def test_sections(tmp_path: Path):
    run = benchmark.Run("cpu", TINY, tmp_path, time.monotonic() + 600, "torch's processor")
    benchmark.measure_peaks(run)
    for placement, memory in (("resident", None), ("streamed", 1 << 26)):
        benchmark.measure_perplexity(run, "small", placement, True, synthetic_model("small"), memory)
    benchmark.measure_file(run, "Q4_K")
    _, resident, streamed, read = run.results
    for each in resident, streamed:
        assert each["tokens"] == 3 * 512
        assert each["tokens_per_second"] > 0
        assert each["share_of_peak"] > 0
    assert read["gb_s"] > 0
    assert not list(tmp_path.glob("*.gguf"))
