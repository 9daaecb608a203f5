"""How embedding models pool, as sentence-transformers' files say it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from archs.general import pooling_type
from quants.errors import ModelError


def folder_with(folder: Path, settings: dict[str, Any]) -> Path:
    modules = [
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, 1),
        ({"word_embedding_dimension": 1024, "pooling_mode_cls_token": True, "include_prompt": True}, 2),
        ({"pooling_mode_lasttoken": True, "pooling_mode_max_tokens": False}, 3),
        ({"pooling_mode": "lasttoken"}, 3),
    ],
)
def test_ways_of_pooling(settings: dict[str, Any], wanted: int, tmp_path: Path) -> None:
    assert pooling_type(folder_with(tmp_path, settings)) == wanted


@pytest.mark.parametrize("words", [("max",), ("cls", "mean")])
def test_others_are_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    names = {"max": "pooling_mode_max_tokens", "cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
    with pytest.raises(ModelError, match="another pooling mode"):
        pooling_type(folder_with(tmp_path, {names[word]: True for word in words}))


def test_no_file_says_nothing(tmp_path: Path) -> None:
    assert pooling_type(tmp_path) is None
