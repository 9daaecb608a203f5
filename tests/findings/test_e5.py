"""E5: Gemma 2's `query_pre_attn_scalar` is exported as 24.0, which transformers refuses."""

from __future__ import annotations

from .exports import exported


def test_scalar_is_whole(tmp_path):
    config, _ = exported("gemma2-scalar", tmp_path)
    assert (config["query_pre_attn_scalar"], type(config["query_pre_attn_scalar"])) == (24, int)
