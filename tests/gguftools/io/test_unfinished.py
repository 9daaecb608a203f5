"""Lists of what is done of a file: whose they are."""

from __future__ import annotations

import os

import pytest

from gguftools.io import unfinished
from quants.errors import FileError


def test_a_list_that_ends_while_it_is_looked_at_is_no_ones(tmp_path, monkeypatch):
    path, target = tmp_path / "out.merging.json", tmp_path / "out"
    other, lines = unfinished.claim(path, {"shards": []}, "shards", target)
    assert lines == []
    real = unfinished.lock

    def lock(fd):
        got = real(fd)
        if not got and path.exists():  # the other run ends just now
            path.unlink()
            os.close(other)
        return got

    monkeypatch.setattr(unfinished, "lock", lock)
    with pytest.raises(FileError, match="another run is writing"):
        unfinished.claim(path, {}, "shards", target)
