"""F1: Cohere2 MoE's dense layers at the start rotate though they see everything."""

from pathlib import Path

import pytest

from .forward import difference, names


@pytest.mark.parametrize("name", names("f1"))
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    assert difference(name, tmp_path) < 1e-4
