"""Converting a synthetic checkpoint, beside copying its bytes, in turn in one run.

    python -m benchmarks.convert [--gigabytes 4] [--small] [--rounds 3] [--work FOLDER]

Wall time and peak memory of whole processes. `cp` leaves its copy in the page cache, while a conversion's result is on
the disk when it ends, so `cp` is also timed with a sync of the copy. --small: the 349M model of facts and figures, for
which the reference's converter took 4.6 / 4.9 / 5.1 s to f16 / bf16 / q8_0, with a peak of 0.54 … 0.61 GB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from .memory import SHARED, synthetic
from .quantize import measured


def copied(folder: Path, target: Path) -> str:
    """A shell command that copies the weights of a checkpoint into one file."""
    return f"cat {' '.join(map(str, sorted(folder.glob('*.safetensors'))))} > {target}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--outtypes", nargs="+", default=["f16", "bf16", "q8_0", "Q4_K_M"])
    parser.add_argument("--work", type=Path, help="where files go (three times the size)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        model, target = Path(work) / "model", Path(work) / "out.gguf"
        if options.small:
            tool = [sys.executable, str(SHARED / "tools" / "synthetic_checkpoint.py"), str(model)]
            subprocess.run(tool, check=True)
        else:
            synthetic(model, options.gigabytes)
        size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
        print(f"checkpoint of {size / 1e9:.2f} GB")
        commands = {
            "cp": ["sh", "-c", copied(model, target)],
            "cp, synced": ["sh", "-c", f"{copied(model, target)} && sync {target}"],
        } | {
            outtype: [sys.executable, "-m", "gguftools", "convert", str(model), "-o", str(target), "--outtype", outtype]
            for outtype in options.outtypes
        }
        for command in commands.values():  # once uncounted: page cache, compiled kernels
            measured(command)
        runs = [{name: measured(command) for name, command in commands.items()} for _ in range(options.rounds)]
        for name in commands:
            wall, cpu, peak = (median(run[name][i] for run in runs) for i in range(3))
            ratio = median(run[name][0] / run["cp, synced"][0] for run in runs)
            print(f"{name:12s} {wall:6.2f} s   {cpu:6.2f} CPU-s   peak {peak:5.0f} MB   {ratio:.2f} x cp, synced")


if __name__ == "__main__":
    main()
