"""F3: the convolution of Qwen3-Next and Qwen3.5 has the config's activation, too."""

from pathlib import Path

import pytest

from .forward import difference, names


@pytest.mark.parametrize("name", names("f3"))
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    assert difference(name, tmp_path) < 1e-4
