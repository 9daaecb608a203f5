"""DeepSeek V4, GLM-5-Next, HY V4: checkpoints as published, files that lie, texts beside each other and in pieces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from archs.families.deepseek4 import DEEPSEEK4, hash_layers, prepare, ratios
from archs.families.glm5_next import bound, head_width
from archs.hparams.model_hparams import read_hparams
from archs.prequantized import unpacked
from archs.validation.model_validators import faults
from gguftools.io.checkpoint.dtypes import checkpoint_formats
from gguftools.quantization.options import QuantizeOptions
from quants import Tensor, from_array
from quants.errors import ModelError
from runtime.model import RunningModel
from tests.archs import checkpoints

ENTRIES = ("deepseek-v4", "glm5-next", "hy-v4")
TEXTS = np.random.default_rng(3).integers(10, 250, (2, 45))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("streams")
    for entry in ENTRIES:
        checkpoints.build(entry, folder / entry)
        gguftools.convert(folder / entry, folder / f"{entry}.gguf", "f32")
    return {entry: folder / f"{entry}.gguf" for entry in ENTRIES}


@pytest.fixture(scope="module")
def models(files: dict[str, Path]) -> dict[str, RunningModel]:
    return {entry: gguftools.load(file) for entry, file in files.items()}


@pytest.mark.parametrize("entry", ENTRIES)
def test_texts_beside_each_other_and_in_pieces(entry: str, models: dict[str, RunningModel]) -> None:
    model = RunningModel(models[entry].metadata, models[entry].tensors, precision="exact")
    alone = [model.logits(text.tolist()) for text in TEXTS]
    std = alone[0].std()
    assert np.abs(model.forward(TEXTS) - np.stack(alone)).max() < 1e-4 * std
    cache = model.new_cache()
    pieces = [model.forward(piece, cache) for piece in np.split(TEXTS[0], [3, 4, 17, 24])]
    assert np.abs(np.concatenate(pieces) - alone[0]).max() < 1e-4 * std
    if entry != "glm5-next":  # whose delta attention remembers no state
        cache.truncate(18)
        assert np.abs(model.forward(TEXTS[0][18:], cache) - alone[0][18:]).max() < 1e-4 * std


def stored(name: str, dtype: str, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    raw = np.random.default_rng(seed).integers(110, 120, shape, np.uint8)
    return Tensor(name, shape, checkpoint_formats()[dtype], lambda start, stop: raw[start:stop])


def test_scales_beside_weights_as_published() -> None:
    parts = [
        stored("layers.1.attn.wq_a.weight", "F8_E4M3", (4, 32)),
        stored("layers.1.attn.wq_a.scale", "F8_E8M0", (1, 1)),
        stored("layers.1.ffn.experts.0.w1.weight", "I8", (4, 16)),
        stored("layers.1.ffn.experts.0.w1.scale", "F8_E8M0", (4, 1)),
        from_array("layers.0.ffn.gate.bias", np.ones(4, np.float32)),
        from_array("layers.0.ffn.gate.tid2eid", np.ones((8, 2), np.int64)),
        from_array("mtp.0.enorm.weight", np.ones(4, np.float32)),
    ]
    config = {"num_hidden_layers": 2, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    config, tensors = prepare(config, {tensor.name: tensor for tensor in parts})
    found = unpacked(config, tensors).tensors
    assert {name: each.format.name for name, each in found.items() if name.startswith("layers.1.")} == {
        "layers.1.attn.wq_a.weight": "F32",
        "layers.1.ffn.experts.0.w1.weight": "MXFP4",
    }
    assert found["layers.1.ffn.experts.0.w1.weight"].shape == (4, 32)
    wanted = parts[0].float32() * parts[1].float32()[0, 0]
    np.testing.assert_array_equal(found["layers.1.attn.wq_a.weight"].float32(), wanted)
    assert "layers.0.ffn.gate.unread_bias" in found  # of a layer whose experts follow from token ids
    assert "model.layers.2.0.enorm.weight" in found  # behind the last layer


def test_kinds_of_layers_in_both_spellings() -> None:
    published = {"num_hidden_layers": 3, "compress_ratios": [0, 4, 128, 0]}
    saved = {
        "num_hidden_layers": 3,
        "compress_rates": {"compressed_sparse_attention": 8},
        "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
    }
    assert ratios(published) == [0, 4, 128, 0]
    assert ratios(saved) == [0, 8, 128]
    assert ratios({"num_hidden_layers": 5}) == [128, 128, 128, 4, 128]
    assert hash_layers({"mlp_layer_types": ["hash_moe", "moe"]}) == 1
    assert hash_layers({"num_hidden_layers": 2, "num_hash_layers": 3}) == 2
    with pytest.raises(ModelError, match="after others"):
        hash_layers({"mlp_layer_types": ["moe", "hash_moe"]})


def test_what_delta_attention_forgets_at_most() -> None:
    assert bound({}) == bound({"linear_attn_config": {"gate_lower_bound": None}}) == -5
    assert bound({"linear_attn_config": {"gate_lower_bound": None, "safe_gate": False}}) is None
    assert bound({"linear_attn_config": {"gate_lower_bound": -2.0}}) == -2
    with pytest.raises(ModelError, match="as many of both"):
        head_width({"linear_attn_config": {"num_heads": 3, "head_dim": 8}, "num_attention_heads": 4})


Change = Callable[[dict[str, Any], dict[str, Tensor]], Any]


def changed(name: str, values: Any) -> Change:
    return lambda keys, tensors: tensors.update({name: from_array(name, np.asarray(values))})


def key(name: str, value: Any) -> Change:
    return lambda keys, tensors: keys.update({f"deepseek4.{name}": value})


def without(name: str) -> Change:
    return lambda keys, tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (key("attention.compress_ratios", [0, 4]), "has 2 items"),
        (key("attention.compress_ratios", [0, 4, 64, 4]), "entries stand for 64 tokens"),
        (key("attention.output_group_count", 3), "output_group_count"),
        (key("hyper_connection.sinkhorn_iterations", None), "is missing"),
        (key("rope.dimension_count", 66), "means 66 values"),
        (key("attention.indexer.key_length", 8), "even number of 8"),
        (key("attention.indexer.top_k", 0), "missing or 0"),
        (without("output_hc_base.weight"), "output_hc_base"),
        (without("blk.1.attn_compressor_ape.weight"), "attn_compressor_ape"),
        (without("blk.1.indexer.proj.weight"), "indexer.proj"),
        (without("blk.2.hc_ffn_scale.weight"), "hc_ffn_scale"),
        (changed("blk.1.hc_attn_scale.weight", np.ones(2, np.float32)), "hc_attn"),
        (changed("blk.0.ffn_gate_tid2eid.weight", np.zeros((288, 3), np.int32)), "experts for each token"),
        (changed("blk.0.ffn_gate_tid2eid.weight", np.zeros((288, 2), np.float32)), "experts for each token"),
    ],
)
def test_files_that_lie(change: Change, said: str, models: dict[str, RunningModel]) -> None:
    keys, tensors = dict(models["deepseek-v4"].metadata), dict(models["deepseek-v4"].tensors)
    change(keys, tensors)
    assert said in "; ".join(map(str, faults(DEEPSEEK4, keys, tensors)))


def test_experts_that_there_are_not(models: dict[str, RunningModel]) -> None:
    tensors = dict(models["deepseek-v4"].tensors)
    changed("blk.0.ffn_gate_tid2eid.weight", np.full((288, 2), 4, np.int32))({}, tensors)
    with pytest.raises(ModelError, match="names expert 4"):
        RunningModel(models["deepseek-v4"].metadata, tensors).logits([1, 2])


def test_layers_with_entries_alone_are_stretched(models: dict[str, RunningModel]) -> None:
    found = read_hparams(DEEPSEEK4, models["deepseek-v4"].metadata).layers
    assert [(own.rope_base, own.rope_scaled) for own in found[:2]] == [(10_000.0, False), (160_000.0, True)]


def test_layers_that_are_left_out(files: dict[str, Path], tmp_path: Path) -> None:
    gguftools.quantize(
        files["deepseek-v4"], "COPY", tmp_path / "pruned.gguf", options=QuantizeOptions(prune_layers=[0, 2])
    )
    found = gguftools.load(tmp_path / "pruned.gguf")
    assert list(found.metadata["deepseek4.attention.compress_ratios"]) == [4, 4, 0]  # of a further layer, too
    assert found.metadata["deepseek4.hash_layer_count"] == 0
    assert np.isfinite(found.logits([1, 2, 3])).all()
