"""What a run will take: the tasks that it does, counted; times by arithmetic that can be followed."""

import json
from pathlib import Path

import pytest

import gguftools
from archs.metadata import Metadata
from gguftools.writing import work_plan
from gguftools.writing.cost_model import CostModel, Prices
from gguftools.writing.items import Item
from gguftools.writing.options import WriteOptions
from gguftools.writing.pipeline import FilePlan, tasks_of
from gguftools.writing.work_plan import PART_BYTES, plan_work, read_prices
from quants import Tensor, format_named
from quants.errors import OptionError
from tests.conftest import ROOT

AUSTEN = ROOT / "examples" / "austen-4m"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FilePlan:
    """64 matrices of 4096 rows of 4096 values, BF16 to Q4_K; a value takes 1 ns to decode and 9 to encode."""
    monkeypatch.setattr(work_plan, "_decode_rate", lambda name: 1e-9)
    monkeypatch.setattr(work_plan, "_encode_rate", lambda name, weighted: 9e-9)
    shape, form = (4096, 4096), format_named("BF16")
    tensors = [Tensor(f"blk.{n}.ffn_up.weight", shape, form, read=None) for n in range(64)]  # type: ignore[arg-type]
    return FilePlan(tmp_path / "x.gguf", Metadata(), tuple(Item(each, format_named("Q4_K")) for each in tensors))


def test_one_worker_takes_the_sum(plan: FilePlan) -> None:
    cost_model = CostModel(1, rate=10**9, latency=0.001, prices=Prices(1.0, 2.0, 3.0, 4.0))
    found = plan_work([plan], cost_model)
    values = 64 * 4096 * 4096
    tasks = len(tasks_of([plan], 1, 512 << 20, False))
    assert (found.tasks, found.bytes_read, found.bytes_written) == (tasks, 2 * values, plan.layout.total)
    assert found.requests == tasks + -(-plan.layout.total // PART_BYTES)
    assert found.encode_seconds == pytest.approx(values * 10e-9)
    assert found.transfer_seconds == pytest.approx(tasks * 0.001 + (2 * values + values // 256 * 144) / 1e9)
    assert found.hours * 3600 == pytest.approx(found.encode_seconds + found.transfer_seconds)
    cost = found.hours + 2 * 2 * values / 1e9 + 3 * found.bytes_written / 1e9 + 4 * found.requests / 1000
    assert found.cost == pytest.approx(cost)


@pytest.mark.parametrize("workers", [2, 4, 64, 5000])
def test_workers_share_the_time_until_there_are_more_than_tasks(plan: FilePlan, workers: int) -> None:
    one, many = (plan_work([plan], CostModel(n, rate=10**9, latency=0.001)) for n in (1, workers))
    assert many.hours == pytest.approx(one.hours / min(workers, one.tasks), rel=0.02)
    assert many.busy == pytest.approx(min(1, one.tasks / workers), rel=0.02)


def test_a_plan_writes_nothing_and_counts_what_is_written(tmp_path: Path) -> None:
    planned = gguftools.convert(AUSTEN, tmp_path / "x.gguf", write=WriteOptions(cost_model=CostModel()))
    assert not list(tmp_path.iterdir())
    done = gguftools.convert(AUSTEN, tmp_path / "x.gguf")
    assert planned.work is not None
    assert planned.work.bytes_written == (tmp_path / "x.gguf").stat().st_size
    assert planned.work.bytes_read == done.source_bytes
    quantized = gguftools.quantize(
        tmp_path / "x.gguf", "Q4_K_M", tmp_path / "y.gguf", write=WriteOptions(cost_model=CostModel(3))
    )
    assert quantized.dry_run
    assert quantized.work is not None
    assert quantized.work.encode_seconds > 0
    assert quantized.as_dict()["work"]["workers"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"worker_hours": 1}',
        '{"worker_hour": -1}',
        '{"worker_hour": NaN}',
        '{"worker_hour": true}',
        '{"worker_hour": "1"}',
    ],
)
def test_what_is_no_price_table_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text(text)
    with pytest.raises(OptionError, match=r"prices\.json"):
        read_prices(tmp_path / "prices.json")
    (tmp_path / "prices.json").write_text(json.dumps({"gigabyte_read": 0.09}))
    assert read_prices(tmp_path / "prices.json") == Prices(gigabyte_read=0.09)
