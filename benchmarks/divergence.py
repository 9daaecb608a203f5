"""Tokens per second of `divergence` beside `llama-perplexity --kl-divergence`: the same base file, text and threads.

    python benchmarks/divergence.py BASE.gguf MODEL.gguf … -f TEXT --reference PATH/llama-perplexity [--chunks 16]

The reference writes the base's logits once; both programs read them, in turn. Whole programs are measured, with
loading and, the first time, compiling: the best of the rounds counts. Behind that the processor's seconds.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

N_CTX = 512


def seconds(words: Sequence[str | Path]) -> tuple[float, float]:
    """Of a program: by the clock, and of all its threads."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return end - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("-f", "--file", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True, help="llama-perplexity")
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    tokens, threads = options.chunks * N_CTX, str(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        logits = Path(folder) / "base.kld"
        theirs = [options.reference, "-t", threads, "-c", str(N_CTX), "--chunks", str(options.chunks)]
        seconds([*theirs, "-m", options.base, "-f", options.file, "--kl-divergence-base", logits])
        print(f"{'file':28} {'llama-perplexity':>17} {'gguftools':>12} {'ratio':>6} {'CPU s':>14} {'ratio':>6}")
        for model in options.models:
            calls: list[list[str | Path]] = [
                [*theirs, "-m", model, "--kl-divergence", "--kl-divergence-base", logits],
                [sys.executable, "-m", "gguftools", "divergence", logits, model, "-j", threads],
            ]
            found = [[seconds(call) for call in calls] for _ in range(options.rounds)]
            (one, one_cpu), (two, two_cpu) = (tuple(map(min, zip(*of, strict=True))) for of in zip(*found, strict=True))
            print(
                f"{model.name:28} {tokens / one:13.0f} t/s {tokens / two:8.0f} t/s {one / two:6.2f}"
                f" {one_cpu:6.1f} / {two_cpu:5.1f} {one_cpu / two_cpu:6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
