"""E1: a GLM 4.5 with norms on q and k is exported without saying so, and transformers drops them."""

from __future__ import annotations

from .exports import exported


def test_norms_of_q_and_k_are_said(tmp_path):
    config, shapes = exported("glm4-moe", tmp_path)
    assert "model.layers.0.self_attn.q_norm.weight" in shapes
    assert config["use_qk_norm"] is True
