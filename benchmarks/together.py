"""Tokens per second of several texts together: ours beside the reference's, on the same file, in one run.

    python -m benchmarks.together MODEL.gguf … [--texts 1 2 4 8] [--tokens 64] [--prompt 16] [--threads 2] [--rounds 3]
        [--batched-bench PATH]

Each row is a file and a number of texts, which each have a prompt of a few tokens and get as many tokens, one of each
per pass; speeds are of all of them. `alone` is one text after another: the speed of one text. CPU is processor time of
ours per token, which other programs disturb less. The reference is its program llama-batched-bench, with -npl.
Loading and compiling are not counted. Rounds take turns, the best of each counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path

import gguftools
from runtime.model import RunningModel


def our_speed(model: RunningModel, texts: int, options: argparse.Namespace) -> tuple[float, float]:
    """Tokens a second of so many texts, and milliseconds of processor time for each token."""
    caches = [model.new_cache("f32", options.prompt + options.tokens) for _ in range(texts)]
    for i, cache in enumerate(caches):
        model.forward([(7 * i + j) % model.vocabulary_size for j in range(options.prompt)], cache)
    start, processor = time.perf_counter(), time.process_time()
    for step in range(options.tokens):
        tokens = [[(step + 11 * i) % model.vocabulary_size] for i in range(texts)]
        for logits in model.forward_together(tokens, caches):
            if isinstance(logits, Exception):
                raise logits
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    return texts * options.tokens / seconds, 1000 * processor / (texts * options.tokens)


def reference_speeds(options: argparse.Namespace, path: Path) -> dict[int, float]:
    """The same of the reference by number of texts."""
    room = max(options.texts) * (options.prompt + options.tokens)
    words = [
        options.batched_bench,
        "-m",
        path,
        "-t",
        options.threads,
        "-tb",
        options.threads,
        "-c",
        room,
        "-npp",
        options.prompt,
        "-ntg",
        options.tokens,
        "-npl",
        ",".join(map(str, options.texts)),
        "--output-format",
        "jsonl",
    ]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {int(row["pl"]): float(row["speed_tg"]) for row in rows}


def measure(path: Path, options: argparse.Namespace) -> None:
    """Print a file's rows."""
    model = gguftools.load(gguftools.open(path), threads=options.threads)
    ours, processor, theirs = (dict.fromkeys(options.texts, start) for start in (0.0, float("inf"), 0.0))
    our_speed(model, 2, argparse.Namespace(prompt=2, tokens=2))  # what is compiled is so before anything counts
    for _ in range(options.rounds):
        for texts in options.texts:
            speed, spent = our_speed(model, texts, options)
            ours[texts], processor[texts] = max(ours[texts], speed), min(processor[texts], spent)
        if options.batched_bench:
            for texts, speed in reference_speeds(options, path).items():
                theirs[texts] = max(theirs[texts], speed)
    alone = ours[min(options.texts)]
    for texts in options.texts:
        speeds = f"{ours[texts]:10.1f} {ours[texts] / alone:7.2f} {processor[texts]:8.2f}"
        beside = f"{theirs[texts]:10.1f} {ours[texts] / theirs[texts]:7.2f}" if theirs[texts] else ""
        print(f"{path.name:28} {texts:5} {speeds} {beside}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=16, help="tokens that are there before")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batched-bench", help="the reference's program; without it, ours alone")
    options = parser.parse_args()
    print(f"{'file':28} {'texts':>5} {'ours':>10} {'× alone':>7} {'CPU ms':>8} {'reference':>10} {'×':>7}")
    for path in options.models:
        measure(path, options)


if __name__ == "__main__":
    main()
