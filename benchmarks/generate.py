"""Tokens per second, one after another: ours beside the reference's library, on the same file, in one run.

    python -m benchmarks.generate MODEL.gguf … [--tokens 128] [--threads 2] [--rounds 3] [--no-repack]

Needs llama-cpp-python (extra `verify`) for the reference's column. As `llama-bench -n 128`: from an empty cache, each
token by itself, its logits computed, the next one whichever. Loading and compiling are not counted. Rounds take turns,
the best of each counts. The last columns say how many bytes of the file pass by a second, beside what copying memory
reads with as many threads.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

import numpy as np

import gguftools
from runtime.model import Model

from .perplexity import Reference


def reference_speed(reference: Reference, tokens: int) -> float:
    """Tokens a second of `llama_decode`, a token at a time."""
    lib, memory = reference.lib, reference.lib.llama_get_memory(reference.context)
    lib.llama_memory_clear(memory, True)
    batch = lib.llama_batch_init(1, 0, 1)
    batch.n_tokens, batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 1, 0, True
    start = time.perf_counter()
    for position in range(tokens):
        batch.token[0], batch.pos[0] = position % reference.vocabulary, position
        assert lib.llama_decode(reference.context, batch) == 0
        lib.llama_get_logits(reference.context)
        lib.llama_synchronize(reference.context)
    seconds = time.perf_counter() - start
    lib.llama_batch_free(batch)
    return tokens / seconds


def our_speed(model: Model, tokens: int) -> float:
    cache = model.new_cache()
    start = time.perf_counter()
    for position in range(tokens):
        model.forward([position % model.vocabulary_size], cache)
    return tokens / (time.perf_counter() - start)


def copy_speed(threads: int) -> float:
    """Bytes a second that copying reads."""
    sources = [np.ones(1 << 28, np.uint8) for _ in range(threads)]
    targets = [np.empty_like(source) for source in sources]
    best = 0.0
    for _ in range(3):
        workers = [threading.Thread(target=np.copyto, args=pair) for pair in zip(targets, sources, strict=True)]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, threads * (1 << 28) / (time.perf_counter() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-repack", action="store_true", help="the reference's repacked weights crash on some CPUs")
    options = parser.parse_args()
    print(f"{'file':28} {'reference':>10} {'ours':>10} {'ratio':>7} {'GB/s':>7} {'copying':>8}")
    for path in options.models:
        reference = Reference(path, options.threads, not options.no_repack)
        opened = gguftools.open(path)
        model = Model(opened.metadata, opened.tensors, threads=options.threads)
        model.forward([1], model.new_cache())
        theirs = ours = 0.0
        for _ in range(options.rounds):
            theirs = max(theirs, reference_speed(reference, options.tokens))
            ours = max(ours, our_speed(model, options.tokens))
        passing = ours * sum(tensor.nbytes for tensor in opened.tensors.values()) / 1e9
        copying = copy_speed(options.threads) / 1e9
        speeds = f"{theirs:10.1f} {ours:10.1f} {ours / theirs:7.2f} {passing:7.1f} {copying:8.1f}"
        print(f"{path.name:28} {speeds}", flush=True)


if __name__ == "__main__":
    main()
