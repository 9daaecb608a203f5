"""MiMo V2.5's queries, keys and values in FP8, which each rank has a share of, with scales of its own; its experts."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

import gguftools
from archs.families.mimo import by_ranks
from gguftools.io.checkpoint.dtypes import checkpoint_formats
from gguftools.io.checkpoint.safetensors import open_safetensors
from quants.errors import ModelError
from tests.archs import checkpoints
from tests.archs.prequantized.writers import stored

RANKS, WIDTHS, BLOCK, INPUTS = 4, (64, 32, 20), 16, 40  # 29 rows of a rank: a block and most of another


def test_rows_of_ranks_become_queries_keys_and_values() -> None:
    random, total = np.random.default_rng(1), sum(WIDTHS)
    codes = random.integers(0, 0x78, (total, INPUTS)).astype(np.uint8)
    scales = random.uniform(0.5, 2, (2 * RANKS, 3)).astype(np.float32)
    plain = checkpoint_formats()["F8_E4M3"].decode(codes)
    wanted: dict[int, list[NDArray[np.float32]]] = {0: [], 1: [], 2: []}
    for row in range(total):
        rank, own = divmod(row, total // RANKS)
        part = int(np.searchsorted(np.cumsum(WIDTHS) // RANKS, own, side="right"))
        wanted[part].append(plain[row] * np.repeat(scales[2 * rank + own // BLOCK], BLOCK)[:INPUTS])
    parts = stored({"w": ("F8_E4M3", codes), "s": ("F32", scales), "few": ("F32", scales[:-1])})
    found = by_ranks(parts["w"], parts["s"], WIDTHS, [BLOCK, BLOCK]).float32()
    np.testing.assert_array_equal(found, np.array(wanted[0] + wanted[1] + wanted[2]))
    with pytest.raises(ModelError, match="no rows of 4 or 8 ranks"):
        by_ranks(parts["w"], parts["few"], WIDTHS, [BLOCK, BLOCK])


def test_experts_of_two_values_a_byte_stay_mxfp4(tmp_path: Path) -> None:
    checkpoints.build("mimo-v2-5", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config |= {"moe_intermediate_size": 32, "quantization_config": {"quant_method": "fp8", "store_dtype": "mxfp4"}}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    random, weights = np.random.default_rng(0), {}
    for name, tensor in open_safetensors(tmp_path / "model" / "model.safetensors").items():
        rows, width = (64, 32) if "down_proj" in name else (32, 64)
        if ".mlp.experts." not in name:
            weights[name] = tensor.float32()
            continue
        weights[name] = random.integers(0, 256, (rows, width // 2)).astype(np.uint8)
        weights[f"{name}_scale"] = random.integers(118, 128, (rows, width // 32)).astype(np.uint8)
    save_file(weights, tmp_path / "model" / "model.safetensors")
    gguftools.convert(tmp_path / "model", tmp_path / "f32.gguf", "f32")
    found = gguftools.open(tmp_path / "f32.gguf").tensors["blk.1.ffn_up_exps.weight"]
    codes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    for expert in range(4):
        start = f"model.layers.1.mlp.experts.{expert}.up_proj.weight"
        pairs, scales = weights[start], weights[f"{start}_scale"]
        values = codes[np.stack((pairs & 15, pairs >> 4), -1).reshape(32, 64)]
        wanted = values * np.repeat(np.exp2(scales.astype(np.float32) - 127), 32, axis=1)
        np.testing.assert_array_equal(found.float32().reshape(4, 32, 64)[expert], wanted)
    assert found.format.name == "MXFP4"
