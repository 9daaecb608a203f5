"""Tokens per second of perplexity: ours beside the reference's library, on the same file, in one run.

    python benchmarks/perplexity.py MODEL.gguf … -f TEXT [--chunks 8] [--threads 2] [--rounds 2]

Needs llama-cpp-python (extra `verify`) for the reference's column. Both evaluate the same windows of 512 tokens, score
their second half and use the same number of threads; loading and compiling are not counted. Rounds take turns.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from pathlib import Path

import numpy as np

from gguftools.files.gguf_reader import open_gguf
from runtime.matmul import set_threads
from runtime.model import Model
from runtime.perplexity import perplexity

N_CTX, BATCH = 512, 4


class Reference:
    """The reference's library, evaluating as its perplexity tool does: several windows in a batch of 2048 tokens."""

    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp as lib

        self.lib = lib
        lib.llama_backend_init()
        self.quiet = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self.quiet, None)
        self.model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
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


def measure(tokens, forward, chunks, bos):
    start = time.perf_counter()
    result = perplexity(tokens, forward, N_CTX, bos=bos, chunks=chunks, batch=BATCH)
    return result, result.tokens / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("-f", "--file", type=Path, required=True)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    set_threads(options.threads)
    text = options.file.read_bytes()
    print(f"{'file':28} {'perplexity':>22} {'tokens/s':>19} {'ratio':>7} {'compile s':>10}")
    for path in options.models:
        reference = Reference(path, options.threads)
        tokens = reference.tokenize(text)
        ours = Model(*contents(path))
        start = time.perf_counter()
        ours.forward(np.array([tokens[:N_CTX]] * 2), first=N_CTX // 2)
        first_run = time.perf_counter() - start
        rounds = []
        for _ in range(options.rounds):
            theirs = measure(tokens, reference.forward, options.chunks, reference.bos)
            mine = measure(tokens, lambda ids, first: ours.forward(ids, first=first), options.chunks, reference.bos)
            rounds.append((theirs, mine))
        (their, _), (my, _) = rounds[0]
        speeds = [max(each[which][1] for each in rounds) for which in (0, 1)]
        compiling = max(0.0, first_run - 2 * N_CTX / speeds[1])
        print(
            f"{path.name:28} {their.perplexity:10.4f} {my.perplexity:10.4f} {speeds[0]:10.0f} {speeds[1]:8.0f} "
            f"{speeds[1] / speeds[0]:7.2f} {compiling:10.1f}"
        )


def contents(path: Path):
    """Metadata and tensors of a file."""
    opened = open_gguf(path)
    return opened.metadata, opened.tensors


if __name__ == "__main__":
    main()
