"""What encoders are run with where a file says nothing, beside what llama.cpp takes (tools/mtmd/clip.cpp, b11434)."""

from __future__ import annotations

from typing import Any

import pytest

from archs.unsupported_encoders import ABSENT, absent_value, activation, assumed, merged, projector_type, unread
from quants.errors import ModelError
from runtime.multimodal.audio import RUN as SOUND_KINDS
from runtime.multimodal.vision import RUN as IMAGE_KINDS

PIXELS = ("vision.image_min_pixels", "vision.image_max_pixels")


def file(kind: str, **keys: Any) -> dict[str, Any]:
    """Metadata of a file with an encoder for images; two underscores stand for a dot."""
    usual = {
        "has_vision_encoder": True,
        "projector_type": kind,
        "vision.patch_size": 14,
        "vision.image_size": 448,
        "vision.block_count": 24,
        "vision.attention.head_count": 16,
    }
    return {f"clip.{key.replace('__', '.')}": value for key, value in (usual | keys).items()}


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("gemma3", "vision.projector.scale_factor", 4),
        ("gemma3nv", "vision.projector.scale_factor", 1),
        ("gemma4v", "vision.projector.scale_factor", 3),
        ("internvl", "vision.projector.scale_factor", 1),
        ("idefics3", "vision.projector.scale_factor", 1),
        ("llama4", "vision.projector.scale_factor", 1),
        ("lfm2", "vision.projector.scale_factor", 1),
        ("minicpmv4_6", "vision.projector.scale_factor", 4),
        ("minicpmv4_6", "vision.wa_layer_indexes", (0,)),
        ("step3vl", "vision.preproc_image_size", 3024),
        ("idefics3", "vision.preproc_image_size", 0),
        ("lightonocr", "vision.preproc_image_size", 448),
        ("internvl", "vision.preproc_min_tiles", 1),
        ("internvl", "vision.preproc_max_tiles", 12),
        ("deepseekocr", "vision.preproc_max_tiles", 9),
        ("deepseekocr2", "vision.preproc_max_tiles", 6),
        ("pixtral", "vision.spatial_merge_size", 1),
        ("qwen2vl_merger", "vision.spatial_merge_size", 2),
        ("qwen2vl_merger", "vision.n_wa_pattern", 0),
        ("qwen2.5vl_merger", "vision.n_wa_pattern", None),
        ("qwen2vl_merger", "vision.attention.head_count_kv", 16),
        ("resampler", "minicpmv_version", 2),
        ("hunyuanvl", PIXELS[0], 256 * 28**2),
        ("hunyuanvl", PIXELS[1], 16_384 * 28**2),
        ("kimivl", PIXELS[1], 1024 * 28**2),
        ("kimik25", PIXELS[1], 4096 * 28**2),
        ("muse-glimmer", PIXELS[1], 4096 * 28**2),
        ("phi4", PIXELS[0], None),
        ("glm5v", PIXELS[0], None),
        ("deepseek4v", "vision.projector.scale_factor", None),
        ("mlp", "vision.feature_layer", 23),
        ("kimivl", "vision.projector.scale_factor", 2),  # not llama.cpp's 1, with which no projector fits
    ],
)
def test_absent_keys_mean_what_llama_cpp_takes(kind: str, key: str, value: Any) -> None:
    assert absent_value(kind, key, file(kind)) == value


def test_limits_of_tokens_go_by_the_files_own_patches() -> None:
    metadata = file("hunyuanvl", vision__patch_size=16, vision__spatial_merge_size=4)
    assert merged("hunyuanvl", metadata) == 4
    assert absent_value("hunyuanvl", PIXELS[0], metadata) == 256 * 64**2


def test_what_is_assumed_is_said() -> None:
    found = {each.key: (each.value, each.reason) for each in assumed(file("deepseekocr", vision__preproc_max_tiles=32))}
    assert found["clip.vision.preproc_min_tiles"] == (2, "absent: llama.cpp's default")
    assert "clip.vision.preproc_max_tiles" not in found
    reasons = {each.key: each.reason for each in assumed(file("kimivl"))}
    assert "no published model fits" in reasons["clip.vision.projector.scale_factor"]
    sound = {"clip.has_audio_encoder": True, "clip.audio.projector_type": "qwen2a"}
    assert [each.key for each in assumed(sound)] == ["clip.audio.attention.layer_norm_epsilon"]


def test_the_projector_of_the_whole_file_goes_before_the_parts() -> None:
    both = {"clip.projector_type": "gemma3", "clip.vision.projector_type": "internvl"}
    assert projector_type(both, "vision") == "gemma3"
    assert projector_type({"clip.audio.projector_type": "qwen2a"}, "audio") == "qwen2a"
    assert projector_type({}, "vision") is None


def test_two_activations_are_refused() -> None:
    assert activation({}) == "gelu_quick"
    assert activation({"clip.use_silu": True}) == "silu"
    with pytest.raises(ModelError, match="both true"):
        activation({"clip.use_silu": True, "clip.use_gelu": True})


def test_tiles_of_llava_are_not_passed_over_in_silence() -> None:
    said = dict(unread(file("mlp", vision__image_grid_pinpoints=[336, 672])))
    assert "not in tiles" in said["clip.vision.image_grid_pinpoints"]
    assert not dict(unread(file("granite4_vision", vision__image_grid_pinpoints=[336, 672])))


def test_the_table_is_of_kinds_that_are_run() -> None:
    assert {*ABSENT} <= {*IMAGE_KINDS, *SOUND_KINDS}
