"""Record greedy texts of llama.cpp, and compare ours: python -m tests.verify.generation FILE PROMPT… [--n 256].

Needs llama-cpp-python (extra `verify`). FILE should be F32: of other types llama.cpp rounds the inputs of products.
Prints a line of JSON for each prompt: what `tests/data/generation` holds, and how many tokens of ours agree. Tokens
that end texts are barred, so that texts are long.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import llama_cpp as library
import numpy as np

import gguftools
from runtime.sampling.parameters import Sampling


def recorded(path: Path, prompts: list[str], n: int) -> list[dict[str, Any]]:
    """Greedy ids by llama.cpp, one thread, F32 caches; margin: the smallest lead of a token that was chosen."""
    library.llama_backend_init()
    options = library.llama_model_default_params()
    options.use_extra_bufts = False
    model = library.llama_model_load_from_file(str(path).encode(), options)
    vocabulary = library.llama_model_get_vocab(model)
    size = library.llama_vocab_n_tokens(vocabulary)
    ends = [token for token in range(size) if library.llama_vocab_is_eog(vocabulary, token)]
    settings = library.llama_context_default_params()
    settings.n_ctx = settings.n_batch = 1024
    settings.n_threads = settings.n_threads_batch = 1
    settings.type_k = settings.type_v = settings.flash_attn_type = 0
    found = []
    for prompt in prompts:
        context, text = library.llama_init_from_model(model, settings), prompt.encode()
        room = (library.llama_token * 1024)()
        ids = list(room[: library.llama_tokenize(vocabulary, text, len(text), room, 1024, True, True)])
        written: list[int] = []
        margin, read = np.inf, ids
        while len(written) < n:
            tokens = (library.llama_token * len(read))(*read)  # kept while the batch points to it
            assert library.llama_decode(context, library.llama_batch_get_one(tokens, len(read))) == 0
            logits = np.ctypeslib.as_array(library.llama_get_logits_ith(context, -1), shape=(size,)).copy()
            logits[ends] = -np.inf
            second, first = np.partition(logits, -2)[-2:]
            margin = min(margin, float(first - second))
            written.append(int(logits.argmax()))
            read = written[-1:]
        library.llama_free(context)
        found.append({"prompt": prompt, "prompt_ids": ids, "ids": written, "end_ids": ends, "margin": margin})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--n", type=int, default=256)
    options = parser.parse_args()
    model = gguftools.open(options.file)
    for each in recorded(options.file, options.prompts, options.n):
        ours = model.generate(each["prompt"], Sampling(temperature=0, ignore_eos=True), max_tokens=options.n)
        list(ours)
        same = sum(np.cumprod([a == b for a, b in zip(ours.tokens, each["ids"], strict=True)]))
        print(json.dumps(each | {"same": int(same)}), flush=True)


if __name__ == "__main__":
    main()
