"""F4: Qwen3-VL MoE always rescales the chosen experts' weights; it has no key for that."""

from pathlib import Path

import pytest

from .forward import difference, names


@pytest.mark.parametrize("name", names("f4"))
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    assert difference(name, tmp_path) < 1e-4
