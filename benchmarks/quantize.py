"""Quantizing whole files: ours and the reference's, in turn in one run. For single formats: benchmarks/formats.py.

    python -m benchmarks.quantize MODEL-f16.gguf … [--recipes Q4_K_M Q8_0] [--rounds 3] [--threads 2]
    python -m benchmarks.quantize --synthetic 4          # makes a checkpoint of 4 GB first

Every run is a process of its own: wall time, CPU time and peak memory are the operating system's figures. The reference
is llama_model_quantize of the package llama-cpp-python (the extra `verify`). Outputs are compared tensor by tensor.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

import gguftools
from gguftools.quantization.recipes import recipe_named

from .memory import measured, synthetic

REFERENCE = """
import ctypes, sys
import llama_cpp
source, target, file_type, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
llama_cpp.llama_backend_init()
silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
options = llama_cpp.llama_model_quantize_default_params()
options.ftype, options.nthread = file_type, threads
sys.exit(llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(options)))
"""


def same_tensors(ours: Path, theirs: Path) -> bool:
    a, b = gguftools.open(ours).tensors, gguftools.open(theirs).tensors
    return set(a) == set(b) and all(
        a[name].format == b[name].format and np.array_equal(a[name].raw(), b[name].raw()) for name in a
    )


def compare(source: Path, recipe: str, threads: int, rounds: int, work: Path) -> None:
    ours, theirs = work / "ours.gguf", work / "theirs.gguf"
    number = recipe_named(recipe).file_type
    mine = [sys.executable, "-m", "gguftools", "quantize", str(source), recipe, "-o", str(ours), "-j", str(threads)]
    their = [sys.executable, "-c", REFERENCE, str(source), str(theirs), str(number), str(threads)]
    measured(mine)  # compiles kernels, fills the page cache
    figures = [(measured(mine), measured(their)) for _ in range(rounds)]
    equal = "same bytes" if same_tensors(ours, theirs) else "BYTES DIFFER"
    columns = []
    for side, who in enumerate(("ours", "reference")):
        wall, cpu, peak = (median(run[side][i] for run in figures) for i in range(3))
        columns.append(f"{who} {wall:6.2f} s {cpu:6.2f} CPU-s {peak:6.0f} MB")
    ratio = median(their[0] / mine[0] for mine, their in figures)
    print(f"{source.name:28s} {recipe:8s} {threads} threads   {'   '.join(columns)}   ratio {ratio:5.2f}   {equal}")
    ours.unlink()
    theirs.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--recipes", nargs="+", default=["Q4_K_M", "Q8_0"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, os.cpu_count() or 1])
    parser.add_argument("--synthetic", type=float, metavar="GB")
    parser.add_argument("--work", type=Path, help="where outputs go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        work = Path(folder)
        models = list(options.models)
        if options.synthetic:
            synthetic(work / "model", options.synthetic)
            models.append(Path(gguftools.convert(work / "model", work / "synthetic-f16.gguf", "f16").outputs[0].file))
        for model in models:
            for recipe in options.recipes:
                for threads in options.threads:
                    compare(model, recipe, threads, options.rounds, work)


if __name__ == "__main__":
    main()
