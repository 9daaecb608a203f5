"""Whole checkpoints of the zoo, converted from their folders alone: files, logits, tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import zoo


@pytest.mark.parametrize("entry", zoo.entries())
def test_entry(entry: str, shared: Path, tmp_path: Path) -> None:
    found = zoo.examine(entry, tmp_path)
    assert not found.unexplained, found
    if (entry, "once") not in zoo.REASONS:
        assert found.once < zoo.CLOSE, found
        assert (found.cached or 0.0) < found.cached_bound, found


def test_reasons_are_still_needed(shared: Path, tmp_path: Path) -> None:
    for entry in {name for name, _ in zoo.REASONS}:
        (tmp_path / entry).mkdir()
        found = zoo.examine(entry, tmp_path / entry)
        assert found.files or found.once > zoo.TOLERANCE, f"{entry} is all right now: drop the reason"
