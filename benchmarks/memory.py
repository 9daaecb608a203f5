"""Peak memory and wall time of `convert` and `quantize` on a synthetic checkpoint of any size.

    python -m benchmarks.memory [--gigabytes 4] [--work FOLDER]

The bound we promise: 1 GB plus twice the largest row block. Needs the shared material (GGUFTOOLS_SHARED).
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARED = Path(os.environ.get("GGUFTOOLS_SHARED", Path(__file__).resolve().parent.parent.parent / "shared"))
BYTES_OF_A_LAYER = 94.4e6  # at the widths below, in bfloat16
STEPS = (("convert", "bf16"), ("convert", "Q8_0"), ("convert", "Q4_K_M"), ("quantize", "Q4_K_M"))


def measured(command: list[str]) -> tuple[float, float]:
    """Run a command: seconds, and peak memory in GB (mapped file pages that are resident count)."""
    script = (
        "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, check=True)
    return time.perf_counter() - start, int(done.stdout.split()[-1]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--work", type=Path, default=None, help="where the files go (three times the size)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        run(Path(work), options.gigabytes)


def synthetic(folder: Path, gigabytes: float) -> int:
    """Write a Llama checkpoint of about that size with random weights: its bytes."""
    layers = max(1, round((gigabytes * 1e9 - 0.26e9) / BYTES_OF_A_LAYER))
    tool = [sys.executable, str(SHARED / "tools" / "synthetic_checkpoint.py"), str(folder), "--shard-gb", "1"]
    subprocess.run([*tool, "--hidden", "2048", "--ffn", "5632", "--layers", str(layers)], check=True)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def run(work: Path, gigabytes: float) -> None:
    size = synthetic(work / "model", gigabytes)
    print(f"checkpoint of {size / 1e9:.2f} GB; this program alone needs {own_memory():.2f} GB")
    source = {"convert": work / "model", "quantize": work / "bf16.gguf"}
    for command, outtype in STEPS:
        target = work / (f"{outtype}.gguf" if command == "convert" else "quantized.gguf")
        arguments = [str(source[command]), *([] if command == "convert" else [outtype]), "-o", str(target)]
        arguments += ["--outtype", outtype] if command == "convert" else []
        seconds, peak = measured([sys.executable, "-m", "gguftools", command, *arguments])
        print(f"{command:9s} {outtype:7s} {seconds:6.1f} s   {size / 1e6 / seconds:6.0f} MB/s   peak {peak:.2f} GB")
        if (command, outtype) != ("convert", "bf16"):
            target.unlink()


def own_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
