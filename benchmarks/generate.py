"""Tokens per second, one after another: ours beside the reference's, on the same file, in one run.

    python -m benchmarks.generate MODEL.gguf … [--tokens 128] [--prompt 512] [--at 0] [--threads 2] [--rounds 3]
        [--llama-bench PATH] [--no-repack]

Each row is a file and a way. `bare` is the runtime alone, as `llama-bench -n 128`: from an empty cache (or, with
--at N, from one of N tokens), each token by itself, its logits computed, the next one whichever. `generate` is what
`gguftools generate` does: the prompt is read (prefill), then sampling by the default chain, and text, are in the time
of each token. `greedy` is the same with --temp 0, `q8_0` with --cache-type q8_0. `bare f16` keeps keys and values in
float16, as llama-bench does.

The reference's columns are llama-bench where its path is given, with or without its flash attention, whichever is
faster; and else its library (llama-cpp-python, extra `verify`). Its tokens come behind as many as ours: --at of them
beside `bare`, the prompt beside the others.
Loading and compiling are not counted. Rounds take turns, the best of each counts. The last columns say how many bytes
of the file pass by a second, beside what copying memory reads with as many threads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import threading
import time
from pathlib import Path

import numpy as np

import gguftools
from runtime.kv_cache import CacheType, KVCache
from runtime.model import RunningModel
from runtime.sampling.parameters import Sampling

from .perplexity import Reference

WAYS: dict[str, tuple[float | None, CacheType]] = {
    "bare": (None, "f32"),
    "bare f16": (None, "f16"),
    "generate": (0.8, "f32"),
    "greedy": (0.0, "f32"),
    "q8_0": (0.8, "q8_0"),
}


def reference_speed(reference: Reference, tokens: int, at: int) -> float:
    """Tokens a second of `llama_decode`, a token at a time behind so many."""
    lib, memory = reference.lib, reference.lib.llama_get_memory(reference.context)
    lib.llama_memory_clear(memory, True)
    batch = lib.llama_batch_init(1, 0, 1)
    batch.n_tokens, batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 1, 0, True
    for position in range(at + tokens):
        if position == at:
            start = time.perf_counter()
        batch.token[0], batch.pos[0] = position % reference.vocabulary, position
        assert lib.llama_decode(reference.context, batch) == 0
        lib.llama_get_logits(reference.context)
        lib.llama_synchronize(reference.context)
    seconds = time.perf_counter() - start
    lib.llama_batch_free(batch)
    return tokens / seconds


def llama_bench(options: argparse.Namespace, path: Path, at: int) -> tuple[float, float]:
    """Tokens a second of the reference's prefill, of an empty cache, and decode, behind so many, by its own program."""
    words = [
        options.llama_bench,
        "-m",
        path,
        "-t",
        options.threads,
        "-r",
        1,
        "-o",
        "json",
        "-fa",
        "0,1",
        "--repack",
        int(not options.no_repack),
    ]
    best = [0.0, 0.0]
    for more in (["-p", options.prompt, "-n", 0], ["-p", 0, "-n", options.tokens, "-d", at]):
        done = subprocess.run(list(map(str, words + more)), capture_output=True, text=True, check=True)
        for each in json.loads(done.stdout):
            place = bool(each["n_gen"])
            best[place] = max(best[place], each["avg_ts"])
    return best[0], best[1]


def cache_at(model: RunningModel, tokens: int, kind: CacheType) -> KVCache:
    """A cache of so many tokens, whichever."""
    cache = model.new_cache(kind, tokens + 256)
    for start in range(0, tokens, 512):
        count = min(512, tokens - start)
        model.forward(np.arange(start, start + count) % model.vocabulary_size, cache, count - 1)
    return cache


def our_speed(model: RunningModel, cache: KVCache, tokens: int) -> float:
    seen, start = cache.length, time.perf_counter()
    for position in range(tokens):
        model.forward([position % model.vocabulary_size], cache)
    seconds = time.perf_counter() - start
    if cache.truncates:  # what recurrent layers have seen they cannot forget
        cache.truncate(seen)
    return tokens / seconds


def speeds_of_generate(
    opened: gguftools.Model, options: argparse.Namespace, temperature: float, kind: CacheType
) -> tuple[float, float]:
    """Tokens a second of prefill and decode, as `generate` reports them."""
    count = max(options.prompt, options.at)
    prompt = np.random.default_rng(0).integers(0, opened.tokenizer.vocab_size, count).tolist()
    sampling = Sampling(temperature=temperature, seed=1, ignore_eos=True)
    generation = opened.generate(
        prompt,
        sampling,
        max_tokens=options.tokens,
        context=count + options.tokens,
        cache_type=kind,
        threads=options.threads,
    )
    for _ in generation:
        pass
    return generation.prefill_speed, generation.decode_speed


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


def measure(path: Path, options: argparse.Namespace) -> None:
    """Print a file's rows."""
    opened = gguftools.open(path)
    model = gguftools.load(opened, threads=options.threads)
    caches = {kind: cache_at(model, options.at, kind) for temperature, kind in WAYS.values() if temperature is None}
    reference = None if options.llama_bench else Reference(path, options.threads, not options.no_repack)
    for temperature, kind in WAYS.values():  # what is compiled is so before anything counts
        if temperature is not None:
            few = argparse.Namespace(**vars(options) | {"prompt": 20, "at": 0, "tokens": 3})
            speeds_of_generate(opened, few, temperature, kind)
    depths = sorted({options.at, max(options.prompt, options.at)})
    theirs, best = dict.fromkeys(depths, (0.0, 0.0)), dict.fromkeys(WAYS, (0.0, 0.0))
    for _ in range(options.rounds):
        for at in depths:
            if reference:
                found = 0.0, reference_speed(reference, options.tokens, at)
            else:
                found = llama_bench(options, path, at)
            theirs[at] = max(theirs[at][0], found[0]), max(theirs[at][1], found[1])
        for way, (temperature, kind) in WAYS.items():
            if temperature is None:
                ours = 0.0, our_speed(model, caches[kind], options.tokens)
            else:
                ours = speeds_of_generate(opened, options, temperature, kind)
            best[way] = max(best[way][0], ours[0]), max(best[way][1], ours[1])
    copying, size = copy_speed(options.threads) / 1e9, sum(tensor.nbytes for tensor in opened.tensors.values()) / 1e9
    for way, (prefill, decode) in best.items():
        reading, speaking = theirs[depths[-1] if prefill else options.at]
        passed = f"{reading:10.1f} {prefill:10.1f}" if prefill else f"{'':21}"
        speeds = f"{speaking:10.1f} {decode:10.1f} {decode / speaking:7.2f} {decode * size:7.1f} {copying:8.1f}"
        print(f"{path.name:28} {way:9} {passed} {speeds}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=512, help="tokens that generate reads first")
    parser.add_argument("--at", type=int, default=0, help="tokens that are there before: 8192 for a long context")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-bench", help="the reference's program; without it, its library from Python")
    parser.add_argument("--no-repack", action="store_true", help="the reference's repacked weights crash on some CPUs")
    options = parser.parse_args()
    if options.at and not options.llama_bench:
        parser.error("--at needs --llama-bench: the library's context here is of 2048 tokens")
    speeds = f"{'prefill':>10} {'ours':>10} {'decode':>10} {'ours':>10} {'×':>7}"
    print(f"{'file':28} {'way':9} {speeds} {'GB/s':>7} {'copying':>8}")
    for path in options.models:
        measure(path, options)


if __name__ == "__main__":
    main()
