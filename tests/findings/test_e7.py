"""E7: of an EXAONE 4 without windows the kinds of layers are not exported; transformers then divides by zero."""

from __future__ import annotations

from .exports import exported


def test_kinds_of_layers_are_said(tmp_path):
    config, _ = exported("exaone4-global", tmp_path)
    assert config["layer_types"] == ["full_attention"] * config["num_hidden_layers"]
