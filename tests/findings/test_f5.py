"""F5: GPT-NeoX's own names of rotary settings; the common ones mean nothing to it."""

from pathlib import Path

import pytest

from .forward import difference, names


@pytest.mark.parametrize("name", names("f5"))
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    assert difference(name, tmp_path) < 1e-4
