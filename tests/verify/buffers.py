"""Record the sizes of the buffers that llama.cpp (b11434) makes, for models of tests/wide_models.py and small ones.

    python -m tests.verify.buffers SOURCE LIBRARIES     write tests/data/buffers.json

SOURCE is llama.cpp's, LIBRARIES the folder with its libllama.so. Files hold keys and shapes; nothing is allocated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests import absent_keys, wide_models
from tests.conftest import DATA

RECORD = DATA / "buffers.json"
TYPES = {"F16": 1, "Q8_0": 8}
CONTEXTS = (512, 4096, 32768)
# Context, type of caches, sequences, outputs of a step (0: all tokens), one cache for all, layers on a device.
Case = tuple[int, str, int, int, int, int]
WIDE: list[Case] = [(ctx, kind, 1, rows, 0, 0) for ctx in CONTEXTS for kind in TYPES for rows in (0, 1)]
WIDE += [(4096, "F16", 1, 1, 0, 1000), (32768, "F16", 1, 1, 0, 3)]
SMALL: list[Case] = [(2048, "F16", 1, 0, 0, 0), (4096, "F16", 4, 4, 0, 0), (4096, "F16", 4, 4, 1, 0)]


def compiled(source: Path, libraries: Path, folder: Path) -> Path:
    """The program of buffers.cpp, with llama.cpp's RPC."""
    program, rpc = folder / "buffers", source / "ggml/src/ggml-rpc"
    include = [f"-I{source / part}" for part in ("include", "ggml/include", "ggml/src", "src")]
    sources = [str(Path(__file__).with_suffix(".cpp")), str(rpc / "ggml-rpc.cpp"), str(rpc / "transport.cpp")]
    linked = [f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}"]
    subprocess.run(["c++", "-O1", "-std=c++17", "-w", *include, *sources, "-o", program, *linked], check=True)
    return program


def recorded(program: Path, file: Path, cases: list[Case]) -> list[Any]:
    """What llama.cpp makes of each case: bytes of weights, caches and compute buffers by buffer; None if it refuses."""
    lines = [f"{file} {ctx} {TYPES[kind]} {' '.join(map(str, others))}" for ctx, kind, *others in cases]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    done = subprocess.run(
        [program], input="\n".join(lines) + "\n", capture_output=True, text=True, env=environment, check=True
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for case, answer in zip(cases, answers, strict=True):
        if "error" in answer:
            print(file.stem, case, answer["error"], file=sys.stderr)
    return [None if "error" in answer else answer for answer in answers]


def main() -> None:
    source, libraries = map(Path, sys.argv[1:3])
    record: dict[str, Any] = {"cases": WIDE, "small_cases": SMALL, "wide": {}, "small": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = compiled(source, libraries, folder)
        for made, models, cases in (("wide", wide_models.MODELS, WIDE), ("small", absent_keys.descriptions(), SMALL)):
            for model in models:
                file = folder / f"{model}.gguf"
                metadata, tensors = wide_models.model(model)
                wide_models.write(file, metadata, tensors)
                record[made][model] = recorded(program, file, cases)
                file.unlink()
    lines = [f'"{key}": {json.dumps(record[key])}' for key in ("cases", "small_cases")]
    for key in ("wide", "small"):
        rows = (f'"{model}": {json.dumps(found)}' for model, found in record[key].items())
        lines.append(f'"{key}": {{\n' + ",\n".join(rows) + "\n}")
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
