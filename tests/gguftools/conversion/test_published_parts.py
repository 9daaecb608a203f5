"""Parts of published config.json that say more than the tests' small ones: what no encoder reads may be anything."""

import json
from pathlib import Path
from typing import Any

import pytest

from gguftools.models.model import of_parts
from gguftools.models.sources import of_encoders
from quants.errors import ModelError
from tests.archs.checkpoints import build_encoder

SIDES = {"max_image_size": {"longest_edge": 384}, "size": {"longest_edge": 1920}, "use_base_siglip": False}
WHISPER: dict[str, Any] = {  # its decoder, of which these models have nothing
    "vocab_size": 51866,
    "decoder_layers": 32,
    "decoder_attention_heads": 20,
    "decoder_ffn_dim": 5120,
    "max_target_positions": 448,
    "median_filter_width": 7,
    "use_weighted_layer_sum": False,
    "mask_time_prob": 0.05,
    "begin_suppress_tokens": [220, 50256],
    "bos_token_id": 50257,
    "eos_token_id": 50257,
    "is_encoder_decoder": True,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "smolvlm": {"vision_config": SIDES},
    "idefics3": {"vision_config": SIDES},
    "ultravox": {"audio_config": WHISPER, "norm_init": 0.4, "ignore_index": -100, "custom_pipelines": {"x": {}}},
    "qwen2-audio": {"audio_config": WHISPER},
    "voxtral": {"audio_config": WHISPER},
    "audio-flamingo3": {"audio_config": WHISPER},
    "meralion2": {"speech_config": WHISPER},
    "pixtral": {"vision_config": {"rope_theta": 10000.0, "image_token_id": 10, "tie_word_embeddings": False}},
    "gemma3n": {"vision_config": {"label_names": ["LABEL_0"], "model_args": None, "num_classes": 2}},
    "minicpm-v-2-6": {"vision_config": {"slice_config": {"max_slice_nums": 9}}, "slice_mode": True},
    "kimi-vl": {"vision_config": {"torch_dtype": "bfloat16", "_attn_implementation": "sdpa"}},
    "internvl": {
        "dynamic_image_size": True,
        "ps_version": "v2",
        "template": "internvl2_5",
        "use_thumbnail": True,
        "vision_config": {
            "drop_path_rate": 0.0,
            "length_penalty": 1.0,
            "no_repeat_ngram_size": 0,
            "num_beams": 1,
            "prefix": None,
            "pruned_heads": {},
            "task_specific_params": None,
            "top_k": 50,
            "typical_p": 1.0,
            "shared_expert": False,
            "moe_config": None,
            "num_experts": 8,
            "num_shared_experts": 4,
            "num_routed_experts": 4,
            "moe_intermediate_size": 24,
            "moe_output_scale": 4.0,
            "ep_size": 1,
            "capacity_factor": 1.2,
            "eval_capacity_factor": 1.4,
            "noisy_gate_policy": "RSample_before",
            "laux_allreduce": "all_nodes",
        },
    },
    "qwen2-5-omni": {"enable_audio_output": True, "token2wav_config": {"bigvgan_config": {}, "dit_config": {}}},
}


def read(folder: Path) -> tuple[dict[str, Any], list[str]]:
    model = of_parts(of_encoders(folder))
    return {key: str(value) for key, value in model.metadata.items()}, list(model.tensors)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_published_parts_say_beside_changes_nothing(tmp_path: Path, name: str) -> None:
    build_encoder(name, tmp_path / name)
    before = read(tmp_path / name)
    path = tmp_path / name / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key, value in PUBLISHED[name].items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(config), encoding="utf-8")
    assert read(tmp_path / name) == before


def test_a_side_that_is_read_is_a_number(tmp_path: Path) -> None:
    build_encoder("hunyuan-vl", tmp_path / "hunyuan-vl")
    path = tmp_path / "hunyuan-vl" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["vision_config"] |= SIDES
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match=r'"vision_config.max_image_size" is .*a whole number'):
        of_encoders(tmp_path / "hunyuan-vl")


def test_pixtral_says_both_sides_of_a_patch(tmp_path: Path) -> None:
    build_encoder("pixtral", tmp_path / "pixtral")
    before = read(tmp_path / "pixtral")
    path = tmp_path / "pixtral" / "preprocessor_config.json"
    said = json.loads(path.read_text(encoding="utf-8")) | {"patch_size": {"height": 14, "width": 14}}
    path.write_text(json.dumps(said), encoding="utf-8")
    assert read(tmp_path / "pixtral") == before
