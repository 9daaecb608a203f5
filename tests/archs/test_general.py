"""What a model card says of a file's general keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from archs.general import general
from quants.errors import ModelError


def card(folder: Path, text: str) -> Path:
    (folder / "README.md").write_text(f"---\n{text}\n---\n")
    return folder


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("model_name: 3", "general.name", "3"),
        ("model_name: 1.5", "general.name", "1.5"),
        ("author: 2024-01-02", "general.author", "2024-01-02"),
        ("license: 3", "general.license", "3"),
        ("license: true", "general.license", "true"),
        ("model_name: plain", "general.name", "plain"),
    ],
)
def test_a_text_that_yaml_takes_for_something_else(tmp_path: Path, text: str, key: str, value: str):
    assert general(card(tmp_path, text), "llama", [])[key] == value


def test_what_is_no_text_names_the_card(tmp_path: Path):
    with pytest.raises(ModelError, match=r"README.md is no model card: general.name is \{'a': 1\}") as caught:
        general(card(tmp_path, "model_name: {a: 1}"), "llama", [])
    assert caught.value.hint == "mend or remove it"
