"""How fast each block format encodes and decodes on one thread, beside ggml's own functions in the same run.

    python benchmarks/formats.py                  # every format we have; million values per second of CPU time
    python benchmarks/formats.py Q4_K Q6_K --rows 512
    python benchmarks/formats.py --json
    python benchmarks/formats.py --scaling        # two threads beside one: how many times the values in the same time
    python benchmarks/formats.py --compile        # seconds that compiling each encoder takes, without a cache
    python benchmarks/formats.py --tables         # milliseconds to make the search tables of the IQ formats

The reference is libggml-base of the package llama-cpp-python (the extra `verify`), called through ctypes and left out
where that is not installed. Calls alternate, ours and theirs, and the best of each counts: other work on the machine
disturbs both alike. Bytes are compared, too.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import quants
from quants.format import formats
from quants.kernels.neighbours import neighbours

WIDTH = 4096
GRIDS = {"IQ2_XXS": 2, "IQ2_XS": 2, "IQ2_S": 1, "IQ3_XXS": 2, "IQ3_S": 3, "IQ1_S": 3}  # distances that encoders look at
ToFloat = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class TypeTraits(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("block_size", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("block_bytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ToFloat),
    ]


def reference() -> Any:
    """ggml's library, or None where the package is absent."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return None
    library = ctypes.CDLL(str(Path(spec.origin).parent / "lib" / "libggml-base.so"))
    library.ggml_get_type_traits.restype = ctypes.POINTER(TypeTraits)
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_void_p,
    ]
    return library


def reference_encode(library: Any, form: quants.Format, rows: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    raw = np.empty((len(rows), form.row_bytes(rows.shape[1])), np.uint8)
    pointer = None if weights is None else weights.ctypes.data
    library.ggml_quantize_chunk(form.ggml_type, rows.ctypes.data, raw.ctypes.data, 0, *rows.shape, pointer)
    return raw


def reference_decode(library: Any, form: quants.Format, raw: np.ndarray, width: int) -> np.ndarray:
    values = np.empty((len(raw), width), np.float32)
    library.ggml_get_type_traits(form.ggml_type).contents.to_float(raw.ctypes.data, values.ctypes.data, values.size)
    return values


def race(works: list[Callable[[], np.ndarray]], seconds: float) -> tuple[list[float], bool]:
    """CPU seconds of the best call of each, taken in turn, and whether all gave the same bytes."""
    results = [work() for work in works]
    same = all(np.array_equal(results[0].view(np.uint8), other.view(np.uint8)) for other in results)
    best, end = [float("inf")] * len(works), time.perf_counter() + seconds
    while time.perf_counter() < end or float("inf") in best:
        for i, work in enumerate(works):
            start = time.thread_time()
            work()
            best[i] = min(best[i], time.thread_time() - start)
    return best, same


def measure(name: str, count: int, seconds: float, library: Any) -> list[dict[str, Any]]:
    form = quants.format_named(name)
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((count, WIDTH)) * 0.02).astype(np.float32)
    weights = (rng.chisquare(1, WIDTH) + 1e-3).astype(np.float32)
    raw = quants.encode(name, rows, weights)
    jobs: dict[str, list[Callable[[], np.ndarray]]] = {}
    for job, importance in (("encode", None), ("encode weighted", weights)):
        if form.needs_importance if importance is None else not form.uses_importance:
            continue
        jobs[job] = [lambda importance=importance: quants.encode(name, rows, importance)]
        if library:
            jobs[job].append(lambda importance=importance: reference_encode(library, form, rows, importance))
    jobs["decode"] = [lambda: quants.decode(name, raw)]
    if library:
        jobs["decode"].append(lambda: reference_decode(library, form, raw, WIDTH))
    found = []
    for job, works in jobs.items():
        best, same = race(works, seconds)
        speeds = [rows.size / b / 1e6 for b in best]
        found.append({"format": name, "job": job, "ours": speeds[0], "reference": speeds[1] if library else None})
        if not same:
            raise SystemExit(f"{name}: {job} does not give the reference's bytes")
    return found


def jobs_of(name: str) -> list[str]:
    form = quants.format_named(name)
    return [*([] if form.needs_importance else ["encode"]), *(["encode weighted"] if form.uses_importance else [])]


def scaling(name: str, job: str, count: int, seconds: float) -> float:
    """How many times the values that two threads encode in the time in which one does, in wall time; a median."""
    rng = np.random.default_rng(0)
    rows = [(rng.standard_normal((count, WIDTH)) * 0.02).astype(np.float32) for _ in range(2)]
    weights = (rng.chisquare(1, WIDTH) + 1e-3).astype(np.float32) if "weighted" in job else None
    quants.encode(name, rows[0], weights)  # compiles
    start = time.perf_counter()
    quants.encode(name, rows[0], weights)
    calls = max(1, int(seconds / 8 / (time.perf_counter() - start)))

    def work(thread: int) -> None:
        for _ in range(calls):
            quants.encode(name, rows[thread], weights)

    def wall(threads: int) -> float:
        with ThreadPoolExecutor(threads) as pool:
            begin = time.perf_counter()
            list(pool.map(work, range(threads)))
            return time.perf_counter() - begin

    return median(2 * wall(1) / wall(2) for _ in range(5))


def compile_seconds(name: str, job: str) -> float:
    """Of an encoder, in a process of its own without a cache; numba itself is loaded before."""
    script = (
        "import time, numba; from quants.compilation import Codec; import quants.kernels.lanes\n"
        "numba.njit(lambda x: x + 1)(1); start = time.perf_counter()\n"
        f"Codec({name!r}, {'weighted' if 'weighted' in job else 'encode'!r}).run()\n"
        "print(time.perf_counter() - start)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
    return float(done.stdout)


def show_tables() -> None:
    neighbours("IQ3_XXS", GRIDS["IQ3_XXS"])  # compiles
    neighbours.cache_clear()
    for name, distances in GRIDS.items():
        start = time.perf_counter()
        neighbours(name, distances)
        print(f"| {name} | {1e3 * (time.perf_counter() - start):.1f} ms |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    known = [form.name for form in formats().values() if form.has_codec]
    written = [name for name in known if name in ("F16", "BF16") or formats()[name].is_quantized]
    parser.add_argument("formats", nargs="*", type=str.upper, default=written)
    parser.add_argument("--rows", type=int, default=64, help=f"rows of {WIDTH} values (default: 64)")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure (default: 0.5)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tables", action="store_true")
    options = parser.parse_args()
    if options.tables:
        show_tables()
        return
    if options.scaling or options.compile:
        for name in options.formats:
            for job in jobs_of(name):
                figures = [f"{scaling(name, job, 4 * options.rows, options.seconds):.2f} x"] if options.scaling else []
                figures += [f"{compile_seconds(name, job):.2f} s"] if options.compile else []
                print(f"| {name} | {job} | {' | '.join(figures)} |", flush=True)
        return
    library = reference()
    found = []
    if not options.json:
        print("| format | | ours, M values/s | reference | ratio |\n|---|---|---|---|---|")
    for name in options.formats:
        for line in measure(name, options.rows, options.seconds, library):
            found.append(line)
            if not options.json:
                theirs = line["reference"]
                other = f"{theirs:.4g} | {line['ours'] / theirs:.1f}" if theirs else "|"
                print(f"| {name} | {line['job']} | {line['ours']:.4g} | {other} |", flush=True)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
