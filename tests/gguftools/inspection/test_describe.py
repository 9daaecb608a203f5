"""The summary of a file, also of one whose keys hold what they should not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguftools.inspection.describe import summary
from gguftools.models.model import open

from ..tiny_models import metadata_of, write_model


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"tokens": ["a", "b"], "model": "gpt2", "pre": "qwen2"}, "2 tokens, gpt2 (qwen2)"),
        ({"tokens": ["a"]}, "1 tokens, ?"),
        ({"tokens": ["a"], "model": 7, "pre": np.zeros(3, bool).tolist()}, "1 tokens, ?"),
        ({"tokens": 3, "model": "gpt2"}, None),
        ({}, None),
    ],
)
def test_the_vocabulary(keys: dict[str, Any], wanted: str | None, tmp_path: Path) -> None:
    metadata = metadata_of({"general.architecture": "llama"} | {f"tokenizer.ggml.{k}": v for k, v in keys.items()})
    path = write_model(tmp_path / "model.gguf", metadata, {"a": [1.0]})
    assert summary(open(path)).get("vocabulary") == wanted
