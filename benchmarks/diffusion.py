"""Quantizing image models: whole files, and the encoders of others on the same rows.

    python -m benchmarks.diffusion WORK [--ggml libggml-base.so] [--threads 2] [--double 4 --single 4]

A sparse file of 24 GB is planned; one of some blocks with random weights is quantized. Every run is a process of its
own: wall time, CPU time and peak memory are the operating system's figures. llama.cpp's llama-quantize does not read
image models, so its encoders are called one by one (`ggml_quantize_chunk`), on one thread, as are those of gguf-py in
numpy, which encodes no K and no IQ format.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quants import format_named

from .diffusion_models import HIDDEN, flux_shapes, write
from .memory import measured

Floats = NDArray[np.float32]
RECIPES = ("Q4_K_M", "Q8_0", "Q4_0", "Q6_K", "IQ4_XS")
FORMATS = ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ4_XS")
OF_NUMPY = ("Q8_0", "Q4_0")  # that gguf-py encodes
ROWS, SECONDS = 512, 1.0


def plan(work: Path) -> None:
    """Time a dry run on all of Flux.1 dev."""
    source = work / "flux-sparse.safetensors"
    write(source, flux_shapes())
    command = [sys.executable, "-m", "gguftools", "quantize", str(source), "Q4_K_M", "--dry-run"]
    wall, cpu, peak = measured(command)
    print(f"plan {source.stat().st_size / 1e9:.1f} GB: {wall:.2f} s, {cpu:.2f} CPU-s, {peak:.0f} MB")
    source.unlink()


def quantize(work: Path, double: int, single: int, threads: int) -> None:
    """Time whole runs on some blocks of the real width."""
    source, target = work / "flux-part.safetensors", work / "flux-part.gguf"
    shapes = flux_shapes(double, single)
    write(source, shapes, random=True)
    values, size = sum(int(np.prod(shape)) for shape in shapes.values()), source.stat().st_size
    print(f"{double} + {single} blocks: {values / 1e9:.2f} G weights, {size / 1e9:.2f} GB")
    base = [sys.executable, "-m", "gguftools", "quantize", str(source)]
    for extra in [*([recipe] for recipe in RECIPES), ["--target-bpw", "4.5"]]:
        command = [*base, *extra, "-o", str(target), "-j", str(threads), "--overwrite"]
        measured(command)  # compiles kernels
        wall, cpu, peak = measured(command)
        rates = f"{size / wall / 1e9:.2f} GB/s, {values / wall / 1e6:.0f} M weights/s"
        print(f"{' '.join(extra):16s} {wall:6.2f} s {cpu:6.2f} CPU-s {peak:5.0f} MB   {rates}")
    for path in work.glob("flux-part*"):
        path.unlink()


def rate(encode: Callable[[], object], values: int) -> float:
    """Return M values per second of CPU time of this thread."""
    encode()
    started, runs = time.thread_time(), 0
    while time.thread_time() - started < SECONDS:
        encode()
        runs += 1
    return values * runs / (time.thread_time() - started) / 1e6


def encoders(ggml: Path | None) -> None:
    """Compare encoders on rows of random weights, in float32."""
    rows = np.random.default_rng(0).standard_normal((ROWS, HIDDEN), np.float32) * np.float32(0.02)
    library = None if ggml is None else ctypes.CDLL(str(ggml))
    print(f"\n{'format':8s} {'ours':>8s} {'ggml':>8s} {'gguf-py':>8s}   M weights/s, one thread")
    for name in FORMATS:
        form = format_named(name)
        figures = [rate(lambda form=form: form.encode(rows), rows.size)]
        figures.append(rate(_of_ggml(library, form, rows), rows.size) if library else float("nan"))
        figures.append(_of_numpy(name, rows) if name in OF_NUMPY else float("nan"))
        print(f"{name:8s} " + " ".join(f"{each:8.1f}" if each == each else f"{'-':>8s}" for each in figures))


def _of_ggml(library: ctypes.CDLL, form: object, rows: Floats) -> Callable[[], object]:
    encode = library.ggml_quantize_chunk
    encode.restype = ctypes.c_size_t
    encode.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    number, out = form.ggml_type, np.empty((len(rows), form.row_bytes(rows.shape[1])), np.uint8)

    def run() -> None:
        encode(number, rows.ctypes.data, out.ctypes.data, 0, len(rows), rows.shape[1], None)

    run()
    assert np.array_equal(out, form.encode(rows)), f"{form.name}: bytes differ"
    return run


def _of_numpy(name: str, rows: Floats) -> float:
    from gguf import GGMLQuantizationType, quants

    return rate(lambda: quants.quantize(rows, GGMLQuantizationType[name]), rows.size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--ggml", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--double", type=int, default=4)
    parser.add_argument("--single", type=int, default=4)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    plan(given.work)
    quantize(given.work, given.double, given.single, given.threads)
    encoders(given.ggml)


if __name__ == "__main__":
    main()
