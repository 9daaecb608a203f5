"""Hints for names that are no paths."""

from pathlib import Path

import pytest

from gguftools.io.naming import hint_for_absent


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hf:/org/model", "`gguftools fetch ORG/MODEL` brings it here; convert, quantize and release read"),
        ("hf.co/org/model", "`gguftools fetch ORG/MODEL`"),
        ("https://huggingface.co/org/model", "`gguftools convert hf://org/model` reads it"),
        ("https://huggingface.co/org/model/tree/v2", "hf://org/model@v2"),
        ("-", "/dev/stdin"),
    ],
)
def test_what_a_name_could_mean(name: str, words: str) -> None:
    assert words in (hint_for_absent(name) or "")


def test_a_path_that_is_only_missing(tmp_path: Path) -> None:
    assert "hf://" not in (hint_for_absent(tmp_path / "model.gguf") or "")
