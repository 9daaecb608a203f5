"""Encoders give in llama.cpp's runtime what they give here, in files of every type (see `tests.verify.clip`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..archs.checkpoints import recorded
from .clip import OURS, ROUNDED, STOPS, compared, compiled

# Folders of llama.cpp's source, and of its libraries.
SOURCE, LIBRARIES = (os.environ.get(f"GGUFTOOLS_LLAMA_CPP{part}", "") for part in ("", "_LIBRARIES"))
CLOSE = {"F32": 0.008, "F16": 0.008, "Q8_0": 0.1, "Q4_K_M": 0.15}  # activations and convolutions are in float16 there

pytestmark = [
    pytest.mark.verify,
    pytest.mark.skipif(not SOURCE or not LIBRARIES, reason="set GGUFTOOLS_LLAMA_CPP and GGUFTOOLS_LLAMA_CPP_LIBRARIES"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(Path(SOURCE), Path(LIBRARIES), tmp_path_factory.mktemp("clip"))


@pytest.mark.parametrize("name", sorted({*recorded("size"), *recorded("frames")}))
def test_embeddings_are_those_of_llama_cpp(program, name):
    every = list(compared(program, name))
    found = [each for each in every if each.problem != OURS and not (each.problem and each.kind in STOPS)]
    if not found:
        pytest.skip(f"{every[0].kind}: {STOPS.get(every[0].kind, OURS)}")
    for each in found:
        if each.kind in ROUNDED and each.outtype != "F32":
            continue
        assert not each.problem, each
        assert each.difference < CLOSE[each.outtype], each
