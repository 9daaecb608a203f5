"""Configs that leave out a part of what other checkpoints of their class say, or say more."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from archs.config import normalized
from archs.families.dbrx import DBRX
from archs.families.minicpm import MINICPM3
from archs.plans.text import map_tensors
from gguftools.io.checkpoint.folder import open_checkpoint
from gguftools.models.sources import of_checkpoint
from quants.errors import ModelError

from .checkpoints import build

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@pytest.fixture
def stretched(tmp_path: Path) -> Path:
    """MiniCPM 3 whose rotation is scaled as Llama 3's."""
    build("minicpm3", tmp_path / "x")
    path = tmp_path / "x" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config.pop("rope_parameters", None)
    path.write_text(json.dumps({**config, "rope_theta": 10_000.0, "rope_scaling": LLAMA3}), encoding="utf-8")
    return tmp_path / "x"


def test_a_rotation_scaled_as_llama_3_has_divisors(stretched: Path) -> None:
    assert float(of_checkpoint(stretched).tensors["rope_freqs.weight"].float32().max()) == LLAMA3["factor"]


def test_a_family_without_divisors_refuses_such_a_rotation(stretched: Path) -> None:
    checkpoint = open_checkpoint(stretched)
    config = normalized(checkpoint.config, MINICPM3.defaults, MINICPM3.keys)
    with pytest.raises(ModelError, match="scales its rotation as llama3 does, which files of minicpm3 do not say"):
        map_tensors(replace(MINICPM3, generated=()), config, checkpoint.tensors)


def test_parts_of_a_config_have_defaults_of_their_own() -> None:
    config = normalized({"model_type": "dbrx", "ffn_config": {"moe_top_k": 2}}, DBRX.defaults, DBRX.keys)
    assert config["ffn_config"] == {"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 2}
    assert config["attn_config"] == {"kv_n_heads": 1}
