"""E8: the width of OPT 350m's embedding is not exported, so its shapes don't fit."""

from __future__ import annotations

from .exports import exported


def test_width_of_the_embedding_is_said(tmp_path):
    config, shapes = exported("opt-350m", tmp_path)
    width = shapes["model.decoder.embed_tokens.weight"][1]
    assert width < config["hidden_size"]
    assert config["word_embed_proj_dim"] == width
