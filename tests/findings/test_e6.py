"""E6: Mellum's rotary settings are exported for all layers together, where transformers wants them by kind."""

from __future__ import annotations

from .exports import exported


def test_rotary_settings_are_by_kind_of_layer(tmp_path):
    config, _ = exported("mellum", tmp_path)
    assert config["rope_parameters"] == {
        "full_attention": {
            "rope_type": "yarn", "rope_theta": 500_000.0, "factor": 4.0, "original_max_position_embeddings": 64,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }  # fmt: skip
