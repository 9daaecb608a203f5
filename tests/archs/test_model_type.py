"""What transformers makes of configs that are rebuilt."""

from __future__ import annotations

import pytest

from archs import model_type
from archs.model_type import filled_in, own_keys, part_types, stored_keys, table, with_types
from quants.errors import ModelError
from tests.verify.model_types import recorded


def test_numbers_have_the_types_that_are_wanted():
    config = {"model_type": "gemma2", "query_pre_attn_scalar": 24.0, "rms_norm_eps": 1.0, "unknown": 2.0}
    typed = with_types(config)
    assert {key: type(value) for key, value in typed.items()} == {
        "model_type": str,
        "query_pre_attn_scalar": int,
        "rms_norm_eps": float,
        "unknown": float,
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


def test_what_is_written_does_not_ask_the_installed_transformers(monkeypatch: pytest.MonkeyPatch):
    def unavailable(model_type: str) -> None:
        raise AssertionError(f"transformers was asked for {model_type!r}")

    monkeypatch.setattr(model_type, "_config_class", unavailable)
    assert own_keys("exaone") >= {"hidden_act", "activation_function"}
    assert stored_keys("exaone").isdisjoint({"activation_function"})
    assert part_types("llava")["vision_config"] == ""
    assert part_types("gemma3") == {"text_config": "gemma3_text", "vision_config": ""}
    assert with_types({"model_type": "gemma2", "query_pre_attn_scalar": 24.0})["query_pre_attn_scalar"] == 24


def test_the_recorded_table_is_that_of_the_installed_transformers():
    installed, ours = recorded(), table()
    if installed["transformers"] != ours["transformers"]:
        news = ", ".join(sorted({*installed["types"]} ^ {*ours["types"]})) or "none"
        pytest.skip(
            f"the table is of transformers {ours['transformers']}, installed is {installed['transformers']}; "
            f"model types of one alone: {news}; `make model-types` records it again"
        )
    assert installed == ours
