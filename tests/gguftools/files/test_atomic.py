"""The gate's lists of what is done: whose they are."""

from __future__ import annotations

import os

import pytest

from gguftools.files import atomic
from quants.errors import FileError


def test_a_list_that_ends_while_it_is_looked_at_is_no_ones(tmp_path, monkeypatch):
    path, target = tmp_path / "out.merging.json", tmp_path / "out"
    other, lines = atomic.claim(path, {"shards": []}, "shards", target)
    assert lines == []
    real = atomic.lock

    def lock(fd):
        got = real(fd)
        if not got and path.exists():  # the other run ends just now
            path.unlink()
            os.close(other)
        return got

    monkeypatch.setattr(atomic, "lock", lock)
    with pytest.raises(FileError, match="another run is writing"):
        atomic.claim(path, {}, "shards", target)
