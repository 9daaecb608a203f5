"""F2: a window as long as the context, or longer, still hides what is further away in longer texts."""

from pathlib import Path

import pytest

from .forward import difference, names


@pytest.mark.parametrize("name", names("f2"))
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    assert difference(name, tmp_path) < 1e-4
