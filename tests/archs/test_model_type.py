"""What transformers makes of configs that are rebuilt."""

from __future__ import annotations

import pytest

from archs.model_type import filled_in, own_keys, with_types
from quants.errors import ModelError


def test_numbers_have_the_types_that_are_wanted():
    config = {"model_type": "gemma2", "query_pre_attn_scalar": 24.0, "rms_norm_eps": 1.0, "unknown": 2.0}
    typed = with_types(config)
    assert {key: type(value) for key, value in typed.items()} == {
        "model_type": str, "query_pre_attn_scalar": int, "rms_norm_eps": float, "unknown": float
    }
    assert typed == config


def test_what_is_not_there_is_filled_in():
    found = filled_in({"model_type": "glm4_moe", "hidden_size": 64})
    assert found is not None
    assert (found["hidden_size"], found["use_qk_norm"]) == (64, False)


def test_given_settings_are_not_changed():
    config = {"model_type": "olmo3", "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}}
    filled_in(config)
    assert list(config["rope_parameters"]) == ["full_attention"]


def test_unknown_model_types_are_taken_as_they_are():
    assert filled_in({"model_type": "none-such"}) is None
    assert with_types({"model_type": "none-such", "n": 2.0}) == {"model_type": "none-such", "n": 2.0}
    assert own_keys("none-such") == set()


def test_refused_configs_are_refused_in_one_line():
    with pytest.raises(ModelError, match="transformers refuses") as caught:
        filled_in({"model_type": "gemma2", "query_pre_attn_scalar": "many"})
    assert "\n" not in str(caught.value)
