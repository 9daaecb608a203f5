"""Measure KL divergence by bits per weight of the example model's layers: importance matrix, GPTQ, trellises.

    python -m benchmarks.kl_by_size --calibration TEXT --held TEXT [--output docs/kl-by-size.csv]

All weights of the layers are in one format; embeddings and output matrix stay in F16. So every file differs from the
others in the layers alone, and bits per weight are those of the format. Rows that the output has already are kept.
The figure of README.md is drawn from that file by docs/generate.py.
"""

import argparse
import csv
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from quants import format_named
from quants.dialects import readings

ROOT = Path(__file__).resolve().parent.parent
RECIPES = {
    "IQ2_XXS": "IQ2_XXS",
    "IQ2_XS": "IQ2_XS",
    "Q2_K": "Q2_K",
    "IQ3_XXS": "IQ3_XXS",
    "Q3_K": "Q3_K_S",
    "IQ4_XS": "IQ4_XS",
    "Q4_K": "Q4_K_S",
    "Q5_K": "Q5_K_S",
}
TRELLISES = ("IQ2_KT", "IQ3_KT", "IQ4_KT")
COLUMNS = ("method", "format", "bits_per_weight", "kl_mean", "kl_p99")


def call(*words: str | Path, module: str = "gguftools") -> str:
    done = subprocess.run([sys.executable, "-m", module, *map(str, words)], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{module} {' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


def files(work: Path, calibration: Path, known: set[tuple[str, str]]) -> Iterator[tuple[str, str, Path]]:
    """(method, format, file) of all files, each made when it is asked for."""
    source, matrix, out = work / "f16.gguf", work / "imatrix.gguf", work / "out.gguf"
    call("convert", ROOT / "examples" / "austen-4m", "-o", source, "--outtype", "f16")
    call("imatrix", source, "-f", calibration, "-o", matrix)
    for name in (*RECIPES, *TRELLISES):
        for method in ("trellis",) if name in TRELLISES else ("importance matrix", "GPTQ"):
            if (method, name) in known:
                continue
            if method == "trellis":
                call(source, matrix, name, out, module="benchmarks.trellis")
            else:
                gptq = ("--gptq", calibration) if method == "GPTQ" else ()
                call(
                    "quantize",
                    source,
                    RECIPES[name],
                    "-o",
                    out,
                    "--imatrix",
                    matrix,
                    "--overwrite",
                    *gptq,
                    "--tensor-type",
                    f"attn_|ffn_={name}",
                    "--output-tensor-type",
                    "F16",
                    "--token-embedding-type",
                    "F16",
                )
            yield method, name, out


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--held", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "kl-by-size.csv")
    given = parser.parse_args()
    if not given.output.exists():
        command = f"python -m benchmarks.kl_by_size --calibration {given.calibration.name} --held {given.held.name}"
        given.output.write_text(f"# {command}\n# {processor()}\n{','.join(COLUMNS)}\n", encoding="utf-8")
    lines = given.output.read_text(encoding="utf-8").splitlines()
    known = {(row["method"], row["format"]) for row in csv.DictReader(line for line in lines if line[0] != "#")}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for method, name, path in files(work, given.calibration.resolve(), known):
            text = given.held.resolve()
            measured = call("divergence", work / "f16.gguf", path, "-f", text, "--chunks", "16", "--json")
            kl = json.loads(measured)["files"][0]["kl_divergence"]
            bits = (readings()[name].format if name in TRELLISES else format_named(name)).bits_per_weight
            with given.output.open("a", encoding="utf-8") as out:
                out.write(f"{method},{name},{bits:.4g},{kl['mean']:.5f},{kl['p99']:.5f}\n")
            print(method, name, bits, kl["mean"], flush=True)


if __name__ == "__main__":
    main()
