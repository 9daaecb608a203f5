"""Drawing a token from a large vocabulary, beside llama.cpp's samplers.

    python -m benchmarks.sampling [--vocabulary 262144] [--rows 20]

CPU time of one draw on one thread, in milliseconds, the median over random rows. llama.cpp's samplers are called by
ctypes (llama-cpp-python), in turn with ours; copying a row into its array of candidates counts, as it does in its own
loop.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from statistics import median
from typing import Any

import numpy as np

from runtime.sampling.parameters import Sampling
from runtime.sampling.sampler import Sampler
from tests.verify.sampling import Case, chain_of

CHAINS: dict[str, dict[str, Any]] = {
    "default": {},
    "default, penalties and DRY": {"repeat_penalty": 1.1, "dry_multiplier": 0.8},
    "temperature 0": {"temperature": 0.0},
    "temperature alone": {"samplers": "t"},
    "top-p alone": {"samplers": "p"},
    "min-p alone": {"samplers": "m"},
    "typical alone": {"samplers": "y", "typical_p": 0.9},
    "top-n-σ alone": {"samplers": "s", "top_n_sigma": 1.0},
    "mirostat 1": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2},
    "min-p, adaptive-p": {"samplers": "ma", "adaptive_target": 0.3},
}


def times(options: dict[str, Any], rows: np.ndarray, prompt: list[int]) -> tuple[float, float]:
    from llama_cpp import llama_cpp as llama

    size = rows.shape[1]
    sampler = Sampler(Sampling(seed=1, **options))
    sampler.prime(prompt)
    chain = chain_of(Case({"logit_bias": {}} | options, prompt, rows), size, 1)
    for token in prompt:
        llama.llama_sampler_accept(chain, token)
    kind = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
    data, ids = np.zeros(size, kind), np.arange(size)
    ours, theirs = [], []
    for row in rows:
        start = time.thread_time()
        sampler.draw(row)
        ours.append(time.thread_time() - start)
        start = time.thread_time()
        data["id"], data["logit"], data["p"] = ids, row, 0
        array = llama.llama_token_data_array(data.ctypes.data_as(llama.llama_token_data_p), size, -1, False)
        llama.llama_sampler_apply(chain, ctypes.byref(array))
        theirs.append(time.thread_time() - start)
    llama.llama_sampler_free(chain)
    return 1e3 * median(ours), 1e3 * median(theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=262_144)
    parser.add_argument("--rows", type=int, default=20)
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    # As flat as no model's are: hundreds to tens of thousands of tokens are left by a cut of the whole vocabulary.
    rows = (3 * generator.standard_normal((arguments.rows, arguments.vocabulary))).astype(np.float32)
    prompt = generator.integers(0, 50, 3000).tolist()
    print("| chain | ms | llama.cpp |\n|---|---|---|")
    for name, options in CHAINS.items():
        ours, theirs = times(options, rows, prompt)
        print(f"| {name} | {ours:.2f} | {theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
