"""Changing one metadata value of a large file: time and bytes written, beside the `gguf` package in the same run.

    python -m benchmarks.metadata [--gigabytes 4] [--work FOLDER]

The bound we promise: 0.3 s in all, and a few KB written, whatever the size of the file. The file has a vocabulary of
128,000 tokens with as many merges, and tensors of zeros that take no space; the reference writes all of a new file.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from archs.metadata import Metadata, ValueType
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.gguf.writer import TensorInfo, plan_file
from quants import format_named

VOCABULARY = 128_000
WIDTH = 4096
SECONDS, BYTES = 0.3, 64_000  # what we promise


def create(path: Path, gigabytes: float, reserve: int = 16_384) -> None:
    """A file of about that size whose tensors are holes."""
    metadata = Metadata()
    for key, value in {"architecture": "llama", "name": "old", "file_type": 1}.items():
        metadata[f"general.{key}"] = value
    for key, number in {"block_count": 32, "context_length": 8192, "embedding_length": WIDTH}.items():
        metadata[f"llama.{key}"] = number
    metadata["llama.attention.head_count"] = 32
    metadata["tokenizer.ggml.model"] = "gpt2"
    metadata["tokenizer.ggml.tokens"] = [f"token{i}" for i in range(VOCABULARY)]
    metadata.set("tokenizer.ggml.token_type", [1] * VOCABULARY, ValueType.ARRAY, ValueType.INT32)
    metadata["tokenizer.ggml.merges"] = [f"to ken{i}" for i in range(VOCABULARY)]
    infos = [TensorInfo("token_embd.weight", (VOCABULARY, WIDTH), format_named("F16"))]
    left = gigabytes * 1e9 - infos[0].nbytes
    for i in range(max(1, round(left / (2 * WIDTH * WIDTH)))):
        infos.append(TensorInfo(f"blk.{i % 32}.w{i // 32}.weight", (WIDTH, WIDTH), format_named("F16")))
    layout = plan_file(metadata, infos, reserve=reserve)
    with path.open("wb") as file:
        file.write(layout.header)
        file.truncate(layout.total)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # large pages, of which each counts as written


def measured(command: list[str]) -> tuple[float, float, int, int]:
    """Run a command: seconds, seconds of processor time, bytes given to write calls, bytes that went to the disk."""
    script = (
        "import resource, subprocess, sys, time\n"
        "def io(): return dict(line.split(': ') for line in open('/proc/self/io').read().splitlines())\n"
        "before, start = io(), time.perf_counter()\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "seconds, after = time.perf_counter() - start, io()\n"  # children that have ended are counted
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "written = (int(after[key]) - int(before[key]) for key in ('wchar', 'write_bytes'))\n"
        "print(seconds, used.ru_utime + used.ru_stime, *written)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, check=True)
    seconds, used, written, disk = done.stdout.split()
    return float(seconds), float(used), int(written), int(disk)


def best(runs: list[tuple[float, float, int, int]]) -> tuple[float, float, int, int]:
    """The least time, and the most that was written."""
    seconds, used, written, disk = zip(*runs, strict=True)
    return min(seconds), min(used), max(written), max(disk)


def show(what: str, figures: tuple[float, float, int, int]) -> None:
    seconds, used, written, disk = figures
    print(f"{what:38s} {seconds:7.3f} s (processor {used:6.3f}) {written:15,d} bytes written {disk:15,d} to the disk")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--work", type=Path, default=None, help="where the files go (the size, once)")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    ours = [sys.executable, "-m", "gguftools", "set-metadata"]
    theirs = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--general-name"]
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        path, copy = Path(work) / "model.gguf", Path(work) / "copy.gguf"
        create(path, options.gigabytes)
        print(f"{path.stat().st_size / 1e9:.2f} GB, header of {open_gguf(path).data_offset / 1e6:.1f} MB")
        measured([*ours, str(path), "general.name=warm"])
        names = [f"general.name=name number {i}{'.' * (i % 3)}" for i in range(options.runs)]
        in_place = best([measured([*ours, str(path), name]) for name in names])
        show("gguftools set-metadata, in place", in_place)
        show("gguftools set-metadata -o NEW", measured([*ours, str(path), "general.name=copied", "-o", str(copy)]))
        copy.unlink()
        os.sync()  # what was written before is not for the reference to wait for
        show("gguf_new_metadata of the gguf package", measured([*theirs, "new name", "--force", str(path), str(copy)]))
        assert open_gguf(path).metadata["general.name"] == names[-1].partition("=")[2]
    kept = in_place[0] < SECONDS and in_place[2] < BYTES
    print(f"promised: less than {SECONDS} s and {BYTES:,} bytes: {'kept' if kept else 'NOT kept'}")
    return 0 if kept else 1


if __name__ == "__main__":
    started = time.perf_counter()
    code = main()
    print(f"{time.perf_counter() - started:.0f} s")
    sys.exit(code)
