"""Tokens per second of perplexity: ours beside the reference's library, on the same file, in one run.

    python benchmarks/perplexity.py MODEL.gguf … -f TEXT [--chunks 8] [--threads 2] [--rounds 2] [--no-repack]

Needs llama-cpp-python (extra `verify`) for the reference's column. Both evaluate the same windows of 512 tokens, score
their second half and use the same number of threads; loading and compiling are not counted. Rounds take turns, the
best of each counts. The last columns set the multiplications of our products beside what the processor reaches with
sgemm and with 16-bit integers, as many threads each with factors of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import gguftools
from gguftools.measurement.perplexity import perplexity
from quants import from_array
from runtime.evaluation.perplexity import perplexities, windows
from runtime.kernels import int16
from runtime.kernels.blas import one_thread
from runtime.products import integer_product

N_CTX, BATCH = 512, 4


class Reference:
    """The reference's library, evaluating as its perplexity tool does: several windows in a batch of 2048 tokens."""

    def __init__(self, path: Path, threads: int, repack: bool) -> None:
        import llama_cpp as lib

        self.lib = lib
        lib.llama_backend_init()
        self.quiet = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self.quiet, None)
        loading = lib.llama_model_default_params()
        loading.use_extra_bufts = repack
        self.model = lib.llama_model_load_from_file(str(path).encode(), loading)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = BATCH * N_CTX, BATCH * N_CTX, N_CTX, BATCH
        params.n_threads = params.n_threads_batch = threads
        self.context = lib.llama_init_from_model(self.model, params)
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.vocabulary = lib.llama_vocab_n_tokens(self.vocab)
        self.bos = lib.llama_vocab_bos(self.vocab) if lib.llama_vocab_get_add_bos(self.vocab) else None

    def tokenize(self, text: bytes) -> list[int]:
        ids = (self.lib.llama_token * (len(text) + 8))()
        count = self.lib.llama_tokenize(self.vocab, text, len(text), ids, len(ids), True, False)
        return list(ids[:count])

    def forward(self, ids: np.ndarray, first: int):
        """Logits of each window (windows, n_ctx) from position `first` on."""
        lib = self.lib
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        batch = lib.llama_batch_init(ids.size, 0, 1)
        batch.n_tokens = ids.size
        for i, (sequence, position) in enumerate(np.ndindex(ids.shape)):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(ids[sequence, position]), position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, position >= first
        assert lib.llama_decode(self.context, batch) == 0
        lib.llama_batch_free(batch)
        count = (ids.shape[1] - first) * ids.shape[0]
        logits = ctypes.cast(lib.llama_get_logits(self.context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(logits, (count, self.vocabulary)).reshape(len(ids), -1, self.vocabulary)


def products_of(path: Path) -> float:
    """Multiplications and additions of products with weights, a token of a window of which half is scored."""
    tensors = gguftools.open(path).tensors
    output = tensors.get("output.weight") or tensors["token_embd.weight"]
    layers = sum(tensor.size for name, tensor in tensors.items() if name.startswith("blk.") and len(tensor.shape) == 2)
    return 2 * layers + output.size


def at_once(work: Callable[[], object], threads: int) -> float:
    """Seconds of `work` by so many threads, the best of five."""
    seconds = []
    with ThreadPoolExecutor(threads) as pool, one_thread():
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(lambda _: work(), range(threads)))
            seconds.append(time.perf_counter() - start)
    return min(seconds)


def peaks(threads: int, n: int = 1536) -> tuple[float, float]:
    """Operations a second of sgemm and of products in 16-bit integers, 0 where the processor has none."""
    x, w = (np.random.default_rng(0).standard_normal((n, n)).astype(np.float32) for _ in range(2))
    ops = threads * 2 * n**3
    floats = ops / at_once(lambda: np.matmul(x, w.T), threads)
    if not int16.available():
        return floats, 0.0
    packed, weight = integer_product.packed(x, 1), from_array("w", w)
    return floats, ops / at_once(lambda: integer_product.multiply(packed, weight, 0, n, np.empty_like(x), 1), threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("-f", "--file", type=Path, required=True)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-repack", action="store_true", help="the reference's repacked weights crash on some CPUs")
    options = parser.parse_args()
    text = options.file.read_bytes()
    floats, integers = peaks(options.threads)
    print(f"sgemm {floats / 1e9:.0f} GFLOP/s, 16-bit integers {integers / 1e9:.0f}, {options.threads} threads")
    print(
        f"{'file':28} {'perplexity':>21} {'tokens/s':>21} {'ratio':>7} {'compiling':>10} {'GFLOP/s':>8} {'of sgemm':>9}"
        f" {'of int16':>9}"
    )
    for path in options.models:
        reference = Reference(path, options.threads, not options.no_repack)
        tokens = reference.tokenize(text)
        their_speed = our_speed = compiling = 0.0
        for _ in range(options.rounds):
            start = time.perf_counter()
            theirs, _ = perplexities(
                [tokens],
                reference.forward,
                [windows(len(tokens), N_CTX, chunks=options.chunks)],
                bos=reference.bos,
                batch=BATCH,
                threads=options.threads,
            )
            their_speed = max(their_speed, theirs.tokens / (time.perf_counter() - start))
            ours = perplexity(path, options.file, n_ctx=N_CTX, chunks=options.chunks, threads=options.threads)
            our_speed, compiling = max(our_speed, ours.tokens_per_second), max(compiling, ours.compile_seconds)
        speed = our_speed * products_of(path)
        print(
            f"{path.name:28} {theirs.perplexity:10.4f} {ours.perplexity:10.4f} {their_speed:10.0f} {our_speed:10.0f} "
            f"{our_speed / their_speed:7.2f} {compiling:8.1f} s {speed / 1e9:8.0f} {speed / floats:9.2f}"
            f" {speed / integers if integers else 0:9.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
