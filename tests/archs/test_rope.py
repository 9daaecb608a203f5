"""Rotations that a config scales, gives by kind of layer or by parts of positions: as files say them, or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from archs.config import ReadConfig, normalized
from archs.hparams.model_hparams import read_hparams
from archs.plans.text import architecture_metadata
from archs.registry import by_gguf_name, by_hf_class
from gguftools.io.checkpoint.folder import open_checkpoint
from gguftools.models.sources import of_checkpoint
from quants.errors import ModelError

from .checkpoints import build

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}


def written(folder: Path, entry: str, without: tuple[str, ...] = (), **text: Any) -> Path:
    """The entry's checkpoint with other keys of its text model."""
    build(entry, folder / entry)
    path = folder / entry / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    part = config.get("text_config", config)
    for key in without:
        part.pop(key, None)
        config.pop(key, None)
    part.update(text)
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder / entry


def prepared(hf_class: str, **config: Any) -> tuple[str, dict[str, Any]]:
    """The family's name, and its keys without that in front."""
    architecture = by_hf_class([hf_class])
    full = normalized(config, architecture.defaults, architecture.keys)
    full = ReadConfig(architecture.prepare(full, {})[0]) if architecture.prepare else full
    made = architecture_metadata(architecture, full)
    name = f"{architecture.name}."
    return architecture.name, {key.removeprefix(name): getattr(each, "data", each) for key, each in made.items()}


@pytest.mark.parametrize("scaling", [YARN, LLAMA3], ids=lambda scaling: scaling["rope_type"])
def test_a_scaling_of_windowed_layers_that_no_file_says_is_refused(tmp_path: Path, scaling: dict[str, Any]) -> None:
    folder = written(tmp_path, "muse-glimmer", rope_parameters={**PLAIN, **scaling})
    problem = f"scales its rotation as {scaling['rope_type']} does, which files of muse-glimmer do not say"
    with pytest.raises(ModelError, match=problem):
        of_checkpoint(folder)


def test_full_layers_of_step_are_scaled_by_yarn(tmp_path: Path) -> None:
    folder = written(tmp_path, "step3p5", rope_scaling=YARN)
    gguftools.convert(folder, tmp_path / "x.gguf", "f32")
    metadata = gguftools.load(tmp_path / "x.gguf").metadata
    assert metadata["step35.rope.scaling.type"] == "yarn"
    assert metadata["step35.rope.scaling.original_context_length"] == 32
    gguftools.export(tmp_path / "x.gguf", tmp_path / "back")
    back = json.loads((tmp_path / "back" / "config.json").read_text(encoding="utf-8"))
    said = back.get("text_config", back)["rope_scaling"]
    assert {key: said[key] for key in YARN} == YARN


def test_a_scaling_by_a_tensor_that_is_not_made_is_refused(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 32}
    folder = written(tmp_path, "step3p5", rope_scaling={"rope_type": "longrope", **factors})
    with pytest.raises(ModelError, match="scales its rotation as longrope does, which files of step35 do not say"):
        of_checkpoint(folder)


@pytest.mark.parametrize("sections", [[2, 1, 1], [4, 0, 0], [0, 2, 2]])
def test_rows_are_ordered_as_the_file_rotates_them(tmp_path: Path, sections: list[int]) -> None:
    folder = written(tmp_path, "glm4v", rope_scaling={"rope_type": "default", "mrope_section": sections})
    source = open_checkpoint(folder).tensors["model.language_model.layers.0.self_attn.q_proj.weight"].float32()
    gguftools.convert(folder, tmp_path / "x.gguf", "f32")
    model = gguftools.load(tmp_path / "x.gguf")
    halves = sections[1] > 0 < sections[0]
    assert model.network.hparams.rope == ("halves" if halves else "adjacent")
    assert np.array_equal(model.tensors["blk.0.attn_q.weight"].float32(), source) != halves
    assert model.network.hparams.rope_sections == (*sections, 0)


def test_sections_that_glm_leaves_out_are_those_of_its_class(tmp_path: Path) -> None:
    assert prepared("Glm4vForConditionalGeneration")[1]["rope.dimension_sections"] == [8, 12, 12, 0]
    assert prepared("Qwen2VLForConditionalGeneration")[1]["rope.dimension_sections"] == [16, 24, 24, 0]
    assert prepared("Qwen3VLForConditionalGeneration")[1]["rope.dimension_sections"] == [24, 20, 20, 0]


def test_a_part_of_positions_may_turn_nothing() -> None:
    name, keys = prepared("Qwen2VLForConditionalGeneration", rope_scaling={"type": "mrope", "mrope_section": [4, 0, 4]})
    numbers = read_hparams(by_gguf_name(name), {f"{name}.{key}": each for key, each in keys.items()})
    assert numbers.rope_sections == (4, 0, 4, 0)


def test_settings_of_no_kind_hold_in_layers_with_windows() -> None:
    kinds = {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"], "swa_rope_theta": 500.0}
    assert prepared("Dots3NoteForCausalLM", **kinds)[1]["rope.freq_base_swa"] == 500
    assert prepared("Dots3NoteForCausalLM", **kinds, rope_parameters=PLAIN)[1]["rope.freq_base_swa"] == 10_000
    for hf_class in ("Dots3NoteForCausalLM", "ModernBertModel"):
        with pytest.raises(ModelError, match=r"scales the rope of windowed layers.* \(yarn\)"):
            prepared(hf_class, **kinds, rope_scaling=YARN)
    full = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "rope_scaling": YARN}
    for hf_class in ("Dots3NoteForCausalLM", "ModernBertModel"):
        assert prepared(hf_class, **full)[1]["rope.scaling.type"] == "yarn"


def test_an_export_says_that_layers_with_windows_are_not_scaled(tmp_path: Path) -> None:
    said = {"indexed_attention": {**PLAIN, **YARN}, "sliding_attention": {**PLAIN, "rope_theta": 500.0}}
    folder = written(tmp_path, "dots3-note", without=("rope_theta", "swa_rope_theta"), rope_parameters=said)
    gguftools.convert(folder, tmp_path / "x.gguf", "f32")
    gguftools.export(tmp_path / "x.gguf", tmp_path / "back")
    back = json.loads((tmp_path / "back" / "config.json").read_text(encoding="utf-8"))
    assert back["rope_parameters"] == said
    assert back["rope_scaling"] is None


def test_a_head_beside_tied_text_is_kept_where_the_wrapper_says_nothing(tmp_path: Path) -> None:
    folder = written(tmp_path, "glm5-next", without=("tie_word_embeddings",), tie_word_embeddings=True)
    assert "output.weight" in of_checkpoint(folder).tensors
