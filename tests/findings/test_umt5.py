"""umT5 whose config unties a head that the checkpoint does not have: the head is the embedding, and scaled."""

from pathlib import Path

import pytest

from .forward import difference, names


@pytest.mark.parametrize("name", names("umt5"))
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    assert difference(name, tmp_path) < 1e-4
