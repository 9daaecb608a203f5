"""A model larger than the memory and the disk that a run may have goes from store to store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ....conftest import ROOT


def peak_memory(pid: int) -> int:
    """Bytes; 0 once it has ended. What `wait4` says counts the memory of the process that started it, too."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="reads the peak of memory from /proc")
@pytest.mark.parametrize(
    ("count", "size"), [(2, 32), pytest.param(4, 1024, marks=pytest.mark.slow)], ids=["64 MB", "4 GB"]
)
def test_memory_and_disk_stay_small(s3, tmp_path, count, size):
    most_disk, most_memory, ended = 0, 0, threading.Event()

    def watch() -> None:
        nonlocal most_disk, most_memory
        while not ended.wait(0.1):
            most_memory = max(most_memory, peak_memory(process.pid))
            files = [path for path in tmp_path.rglob("*") if path.is_file()]
            most_disk = max(most_disk, sum(path.stat().st_blocks * 512 for path in files))

    source, target = f"s3://synthetic/{count}-of-{size}.gguf", f"s3://sink/{count}-{size}.gguf"
    line = [sys.executable, "-m", "gguftools", "quantize", source, "Q4_K_M", "-o", target]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(line, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.stderr is not None
    said = process.stderr.read()
    process.wait()
    process.stderr.close()
    ended.set()
    watcher.join()
    assert process.returncode == 0, said
    sent = sum(entry[4] for entry in s3.log if entry[0] == "PUT" and entry[1].startswith("/sink/"))
    values = count * (size << 20) // 2
    assert values * 4.5 / 8 <= sent < values * 6.6 / 8 + 1_000_000
    assert 100_000_000 < most_memory < 1_500_000_000
    assert most_disk < 200_000_000
    print(
        f"{values * 2 / 1e9:.2f} GB in, {sent / 1e9:.2f} GB out, {most_memory / 1e9:.2f} GB of memory at most, "
        f"{most_disk / 1e6:.1f} MB of disk"
    )
