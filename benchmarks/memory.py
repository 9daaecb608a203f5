"""Peak memory and wall time of `convert` and `quantize` on a synthetic checkpoint of any size.

    python -m benchmarks.memory [--gigabytes 4] [--work FOLDER]

The bound we promise: 1 GB plus twice the largest row block. Needs the shared material (GGUFTOOLS_SHARED).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

SHARED = Path(os.environ.get("GGUFTOOLS_SHARED", Path(__file__).resolve().parent.parent.parent / "shared"))
BYTES_OF_A_LAYER = 94.4e6  # at the widths below, in bfloat16
STEPS = (("convert", "bf16"), ("convert", "Q8_0"), ("convert", "Q4_K_M"), ("quantize", "Q4_K_M"))
MEASURE = """
import json, os, resource, subprocess, sys, time
start = time.perf_counter()
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3, code]))
"""


def measured(command: list[str]) -> tuple[float, float, float]:
    """Seconds, CPU seconds and peak MB of a command."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *command], capture_output=True, text=True, check=True)
    wall, cpu, peak, code = json.loads(done.stdout)
    if code:
        raise SystemExit(f"{' '.join(command[:4])} … failed with {code}")
    return wall, cpu, peak


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
        seconds, _, peak = measured([sys.executable, "-m", "gguftools", command, *arguments])
        rate = size / 1e6 / seconds
        print(f"{command:9s} {outtype:7s} {seconds:6.1f} s   {rate:6.0f} MB/s   peak {peak / 1e3:.2f} GB")
        if (command, outtype) != ("convert", "bf16"):
            target.unlink()


def own_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
