"""Files of very many keys or tensors are shown and split in about the time of listing them."""

from __future__ import annotations

import resource
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ...command_line import run


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def write(path: Path, keys: int, tensors: int) -> None:
    """A file of little else than a header."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, tensors, keys + 1)]
    parts += [string("general.architecture"), struct.pack("<I", 8), string("llama")]
    parts += [string(f"own.key_{i}") + struct.pack("<II", 4, i) for i in range(keys)]
    parts += [string(f"blk.{i}.some.weight") + struct.pack("<IQIQ", 1, 8, 0, 32 * i) for i in range(tensors)]
    header = b"".join(parts)
    path.write_bytes(header + bytes(-len(header) % 32) + bytes(32 * tensors))


def processor_time(work: Callable[[], None]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime


@pytest.mark.parametrize(
    ("keys", "tensors", "slow"),
    [
        (20_000, 1, ("show",)),  # 10 s of laying out a table, where listing the same as JSON takes 1
        (1, 30_000, ("split", "--dry-run")),  # time that grew with the number of shards times that of tensors
    ],
    ids=["many keys", "many tensors"],
)
def test_takes_no_multiple_of_the_time_of_listing(keys: int, tensors: int, slow: tuple[str, ...], tmp_path: Path):
    write(tmp_path / "m.gguf", keys, tensors)

    def call(*words: str) -> None:
        assert run(*words, "m.gguf", cwd=tmp_path, counted=True).returncode == 0

    assert processor_time(lambda: call(*slow)) < 4 * processor_time(lambda: call("show", "--json"))
