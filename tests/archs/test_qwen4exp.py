"""Qwen4 Exp's table of n-grams: shards that are missing, and files whose numbers are not the table's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from archs.families.qwen4exp import prepare, published, table_from_gguf
from archs.validation.model_validators import faults
from quants import from_array
from quants.errors import ModelError
from runtime.model import RunningModel
from tests.archs import checkpoints

SHARD = "model.layers.0.ple.ple_embedding.ngram_embedding.shard_{}.weight"
BUFFER = "model.layers.0.ple.ple_embedding.{}"


def config(**changes: Any) -> dict[str, Any]:
    return {"ple_layer_ids": [1], "split_ngram_parts": 2, "num_hidden_layers": 1, **changes}


def test_a_shard_or_a_number_that_is_missing_stops_the_conversion() -> None:
    shards = {SHARD.format(i): from_array(SHARD.format(i), np.full((2, 4), i, np.float32)) for i in (1, 0)}
    names = [BUFFER.format(each) for each in ("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes")]
    numbers = {name: from_array(name, np.array([3, 5], np.int64)) for name in names}
    found, tensors = prepare(config(), shards | numbers)
    table = tensors[SHARD.replace(".shard_{}", "")].float32()
    assert (table[:, 0].tolist(), found["ple_offsets"]) == ([0, 0, 1, 1], [3, 5])
    with pytest.raises(ModelError, match="shard 2 is missing"):
        prepare(config(split_ngram_parts=3), shards | numbers)
    with pytest.raises(ModelError, match=r"lacks 'ple_embedding\.layer_multipliers'"):
        prepare(config(), shards)
    with pytest.raises(ModelError, match="whole numbers of 64 bits"):
        prepare(config(), shards | {names[0]: from_array(names[0], np.ones(2, np.float32))})
    with pytest.raises(ModelError, match="one layer alone"):
        prepare(config(ple_layer_ids=[1, 3]), shards | numbers)


def test_numbers_that_lie_about_the_table_are_faults(tmp_path: Path) -> None:
    checkpoints.build("qwen4-exp", tmp_path / "qwen4-exp")
    gguftools.convert(tmp_path / "qwen4-exp", tmp_path / "f32.gguf", "f32")
    model = gguftools.load(tmp_path / "f32.gguf")
    for key, value, said in (
        ("head_vocab_sizes", [41, 43, 47, 54], "means rows 131 to 185 of 184"),
        ("head_vocab_sizes", [41, 43, 47], "has 3 items; 4 are expected"),
        ("layers", [1], "no layer with a delta net and a table"),
        ("layer_multipliers", [1], "has 1 items"),
        ("eos_token_id", None, "is missing"),
    ):
        metadata = dict(model.metadata) | {f"qwen4exp.ple.{key}": value}
        assert any(said in str(fault) for fault in faults(model.architecture, metadata, model.tensors)), key
    tensors = {name: tensor for name, tensor in model.tensors.items() if not name.startswith("per_layer")}
    with pytest.raises(ModelError, match=r"per_layer_token_embd\.weight' is missing"):
        RunningModel(model.metadata, tensors)


def test_a_table_in_shards_comes_back() -> None:
    shards = {SHARD.format(i): from_array(SHARD.format(i), np.full((2 - i, 4), i, np.float32)) for i in (0, 1)}
    names = [BUFFER.format(each) for each in ("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes")]
    numbers = {name: from_array(name, np.array([3, i], np.int64)) for i, name in enumerate(names)}
    found, tensors = prepare(config(), shards | numbers)
    again = published(found, tensors)
    assert {name: (each.shape, each.raw().tolist()) for name, each in again.items()} == {
        name: (each.shape, each.raw().tolist()) for name, each in (shards | numbers).items()
    }


@pytest.mark.parametrize(
    ("sizes", "rows", "said"),
    [([41, 47], 88, "no primes one after the other"), ([40, 41], 81, "no primes"), ([41, 43], 83, "has 83 rows")],
)
def test_tables_that_transformers_would_not_make_are_refused(sizes: list[int], rows: int, said: str) -> None:
    table = {"per_layer_token_embd.weight": from_array("", np.zeros((rows, 1), np.float32))}
    with pytest.raises(ModelError, match=said):
        table_from_gguf({"ple.head_vocab_sizes": sizes}, table)
