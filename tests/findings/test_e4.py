"""E4: how much wider a Mamba layer is inside is exported as 2.0, which transformers refuses."""

from __future__ import annotations

import pytest

from .exports import exported


@pytest.mark.parametrize(
    ("entry", "key"), [("mamba2", "expand"), ("jamba", "mamba_expand"), ("granite-hybrid", "mamba_expand")]
)
def test_widening_is_whole(entry, key, tmp_path):
    config, _ = exported(entry, tmp_path)
    assert (config[key], type(config[key])) == (2, int)
