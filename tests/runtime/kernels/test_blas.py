"""What is said where the environment holds BLAS back."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import llvmlite.binding
import pytest

from runtime.kernels import blas

ROOT = Path(__file__).resolve().parents[3]
LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
REAL = """
import json, numpy
from runtime.kernels import blas
print(json.dumps([[library.internal_api, getattr(library, "architecture", None)] for library in blas.libraries()]))
print(json.dumps(blas.hindrance(2)))
"""


@pytest.fixture
def environment(monkeypatch):
    """Set what BLAS is found, what the processor can do, and variables; call to get what is said for four threads."""
    for name in (*LIMITS, "OPENBLAS_CORETYPE"):
        monkeypatch.delenv(name, raising=False)

    def said(kernel, *features, api="openblas", layer="pthreads", threads=4, **variables):
        library = SimpleNamespace(internal_api=api, architecture=kernel, threading_layer=layer, num_threads=threads)
        monkeypatch.setattr(blas, "_loaded", lambda: (library,))
        monkeypatch.setattr(blas, "libraries", lambda: () if layer == "openmp" else (library,))
        monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: dict.fromkeys(features, True))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return blas.hindrance(4)

    return said


ALL = ("avx", "avx2", "avx512f")


@pytest.mark.parametrize(
    ("kernel", "features", "used", "able"),
    [
        ("Haswell", ALL, "AVX2", "AVX-512"),
        ("Zen", ALL, "AVX2", "AVX-512"),
        ("Sandybridge", ALL, "AVX", "AVX-512"),
        ("Prescott", ALL[:2], "SSE", "AVX2"),
        ("Nehalem", ALL[:1], "SSE", "AVX"),
    ],
)
def test_an_older_kernel_than_the_processor(environment, kernel, features, used, able):
    text = f"OpenBLAS multiplies matrices with {used} (for {kernel}), though the processor has {able}: "
    assert environment(kernel, *features) == text + "a newer numpy may know it"
    assert environment(kernel, *features, OPENBLAS_CORETYPE="x") == text + "unset OPENBLAS_CORETYPE=x"


@pytest.mark.parametrize(
    ("kernel", "features"),
    [
        ("SkylakeX", ALL),
        ("Cooperlake", ALL),
        ("SapphireRapids", ALL),
        ("Haswell", ALL[:2]),
        ("Zen", ALL[:2]),
        ("Sandybridge", ALL[:1]),
        ("Nehalem", ()),
        ("neoversev1", ("neon",)),
        (None, ALL),
    ],
)
def test_nothing_holds_it_back(environment, kernel, features):
    assert environment(kernel, *features, OPENBLAS_CORETYPE=kernel or "") is None


def test_other_libraries_choose_for_themselves(environment):
    assert environment("Haswell", *ALL, api="mkl") is None


def test_threads_count_where_they_are_left_to_blas(environment):
    """Elsewhere ours share the work, each with a product of its own."""
    assert environment("SkylakeX", *ALL, threads=1, OPENBLAS_NUM_THREADS="1") is None
    assert environment("SkylakeX", *ALL, threads=4, layer="openmp", OMP_NUM_THREADS="4") is None
    found = environment("SkylakeX", *ALL, threads=1, layer="openmp", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    assert found == "BLAS multiplies matrices with 1 of 4 threads: unset OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1"


@pytest.mark.parametrize("variables", [{}, {"OPENBLAS_CORETYPE": "Nehalem"}, {"OPENBLAS_NUM_THREADS": "1"}])
def test_of_this_process(variables):
    """By the library that is there: something is said exactly where it reports older kernels."""
    kept = {name: value for name, value in os.environ.items() if name not in (*LIMITS, "OPENBLAS_CORETYPE")}
    run = subprocess.run(
        [sys.executable, "-c", REAL], cwd=ROOT, env=kept | variables, capture_output=True, text=True, check=True
    )
    libraries, found = map(json.loads, run.stdout.splitlines())
    features = llvmlite.binding.get_host_cpu_features()
    older = [
        kernel
        for api, kernel in libraries
        if api == "openblas" and blas.LEVEL_OF.get(str(kernel).lower()) == "SSE" and features.get("avx")
    ]
    if older:
        assert f"(for {older[0]})" in found
        assert found.endswith("unset OPENBLAS_CORETYPE=Nehalem")
    elif variables:
        assert found is None or "a newer numpy" in found
