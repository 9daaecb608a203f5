"""Chains of samplers as llama.cpp computes them, by ctypes from llama-cpp-python (extra `verify`).

python -m tests.verify.sampling VOCABULARY.gguf... writes tests/data/sampling/chains.npz: random rows of logits, random
options, and the probabilities that llama.cpp's samplers leave, put together as common_sampler_init of b11434 does. Each
case is a text of four tokens: state goes from one row to the next with the token that llama.cpp drew. And, of the
vocabularies named, breakers.json: what DRY takes from which token after some texts, with some breakers.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..conftest import DATA

FILE = DATA / "sampling" / "chains.npz"
BREAKERS = DATA / "sampling" / "breakers.json"
CASES, STEPS, VOCABULARY = 250, 4, 256
FEW = 500
SCALE = 512  # logits are whole numbers divided by this, so that they are stored in 16 bits
CHAINS = [
    None,
    None,
    None,
    "k",
    "p",
    "m",
    "y",
    "s",
    "x",
    "t",
    "e",
    "d",
    "a",
    "edskypmxt",
    "tkp",
    "mpkt",
    "ypx",
    "sytm",
    "dekt",
    "xpt",
    "pya",
    "kma",
    "xa",
    "kk",
    "",
]


@dataclass
class Case:
    """options: for `Sampling`. prompt: tokens remembered before the first row. logits: (steps, vocabulary)."""

    options: dict[str, Any]
    prompt: list[int]
    logits: np.ndarray


def random_case(generator: np.random.Generator, chain: str | None, vocabulary: int = VOCABULARY) -> Case:
    def one_of(*values: Any) -> Any:
        return values[generator.integers(len(values))]

    def between(low: float, high: float) -> float:
        return float(np.round(generator.uniform(low, high), 3))

    options: dict[str, Any] = {
        "temperature": one_of(0.0, 0.8, between(0.2, 2)),
        "dynatemp_range": one_of(0.0, between(0.1, 1)),
        "dynatemp_exponent": one_of(1.0, between(0.5, 2)),
        "top_k": one_of(0, 40, int(generator.integers(1, vocabulary))),
        "top_p": one_of(0.95, between(0.05, 1)),
        "min_p": one_of(0.05, between(0, 0.5)),
        "typical_p": one_of(1.0, between(0.1, 1)),
        "top_n_sigma": one_of(-1.0, between(0.5, 3)),
        "xtc_probability": one_of(0.0, 1.0),
        "xtc_threshold": one_of(0.1, between(0, 0.3)),
        "min_keep": one_of(0, 0, int(generator.integers(1, 9))),
        "repeat_last_n": one_of(64, int(generator.integers(0, 12))),
        "repeat_penalty": one_of(1.0, between(1, 1.8)),
        "frequency_penalty": one_of(0.0, between(-1, 2)),
        "presence_penalty": one_of(0.0, between(-1, 2)),
        "dry_multiplier": one_of(0.0, between(0.2, 2)),
        "dry_base": one_of(1.75, between(1, 3)),
        "dry_allowed_length": one_of(2, int(generator.integers(0, 5))),
        "dry_penalty_last_n": one_of(64, int(generator.integers(1, 30))),
        "logit_bias": {int(token): between(-5, 5) for token in generator.integers(0, vocabulary, one_of(0, 0, 5))},
        "mirostat_tau": one_of(5.0, between(1, 8)),
        "mirostat_eta": one_of(0.1, between(0.05, 0.5)),
        "adaptive_target": one_of(-1.0, between(0, 1), between(0, 1)),
        "adaptive_decay": one_of(0.9, between(0, 0.99)),
    }
    if options["typical_p"] < 1:  # llama.cpp's entropy is NaN where a token is out, and the order then undefined
        options["top_n_sigma"] = -1.0
    if chain is None:
        options["mirostat"] = one_of(0, 1, 2)
    elif vocabulary <= FEW:
        options["samplers"] = chain
    else:  # otherwise llama.cpp's sums, which are float32, decide where a cut falls
        options |= {"samplers": "k" + chain, "top_k": int(generator.integers(1, FEW))}
    prompt = generator.integers(0, one_of(3, 8, vocabulary), generator.integers(0, 60)).tolist()
    # Of flat rows Mirostat 1 would keep more tokens than an int has numbers, of which llama.cpp makes one.
    spread = generator.uniform(0.5 if chain is not None else 2, 4)
    return Case(options, prompt, np.array([_row(generator, spread, vocabulary) for _ in range(STEPS)]))


def _row(generator: np.random.Generator, spread: float, vocabulary: int) -> np.ndarray:
    """Logits, no two of them equal, for of equal ones it is chance which are kept."""
    values = generator.normal(0, spread, 8 * vocabulary)
    values = np.unique((np.round(values * SCALE) / SCALE if vocabulary == VOCABULARY else values).astype(np.float32))
    return generator.permutation(values)[:vocabulary]


def random_cases(count: int, seed: int, vocabulary: int = VOCABULARY) -> Iterator[Case]:
    generator = np.random.default_rng(seed)
    for number in range(count):
        yield random_case(generator, CHAINS[number % len(CHAINS)], vocabulary)


def reference(case: Case, seed: int = 1) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Of each row the token that llama.cpp draws, and ids and probabilities of all that are left."""
    from llama_cpp import llama_cpp as llama

    vocabulary = case.logits.shape[1]
    chain = chain_of(case, vocabulary, seed)
    kind = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
    try:
        for token in case.prompt:
            llama.llama_sampler_accept(chain, token)
        steps = []
        for row in case.logits:
            data = np.zeros(vocabulary, kind)
            data["id"], data["logit"] = np.arange(vocabulary), row
            start = data.ctypes.data_as(llama.llama_token_data_p)
            array = llama.llama_token_data_array(start, vocabulary, -1, False)
            llama.llama_sampler_apply(chain, ctypes.byref(array))
            address = ctypes.cast(array.data, ctypes.c_void_p).value  # XTC moves it
            left = np.frombuffer(ctypes.string_at(address, array.size * kind.itemsize), kind)
            token = int(left["id"][array.selected])
            llama.llama_sampler_accept(chain, token)
            steps.append((token, left["id"].copy(), left["p"].copy()))
        return steps
    finally:
        llama.llama_sampler_free(chain)


def chain_of(case: Case, vocabulary: int, seed: int) -> Any:
    from llama_cpp import llama_cpp as llama

    from runtime.sampling.parameters import Sampling

    own = Sampling(**case.options)
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    biases = (llama.llama_logit_bias * max(len(own.logit_bias), 1))()
    for place, (token, bias) in enumerate(own.logit_bias.items()):
        biases[place] = llama.llama_logit_bias(token, bias)
    made = [llama.llama_sampler_init_logit_bias(vocabulary, len(own.logit_bias), biases)]
    if own.mirostat:
        made.append(llama.llama_sampler_init_temp(own.temperature))
        numbers = seed, own.mirostat_tau, own.mirostat_eta
        made.append(
            llama.llama_sampler_init_mirostat(vocabulary, *numbers, 100)
            if own.mirostat == 1
            else llama.llama_sampler_init_mirostat_v2(*numbers)
        )
    else:
        makers = {
            "penalties": lambda: llama.llama_sampler_init_penalties(
                vocabulary, own.repeat_last_n, own.repeat_penalty, own.frequency_penalty, own.presence_penalty
            ),
            "dry": lambda: llama.llama_sampler_init_dry(
                None, own.dry_multiplier, own.dry_base, own.dry_allowed_length, own.dry_penalty_last_n, None, 0
            ),
            "top_n_sigma": lambda: llama.llama_sampler_init_top_n_sigma(own.top_n_sigma),
            "top_k": lambda: llama.llama_sampler_init_top_k(own.top_k),
            "typ_p": lambda: llama.llama_sampler_init_typical(own.typical_p, own.min_keep),
            "top_p": lambda: llama.llama_sampler_init_top_p(own.top_p, own.min_keep),
            "min_p": lambda: llama.llama_sampler_init_min_p(own.min_p, own.min_keep),
            "xtc": lambda: llama.llama_sampler_init_xtc(own.xtc_probability, own.xtc_threshold, own.min_keep, seed),
            "temperature": lambda: llama.llama_sampler_init_temp_ext(
                own.temperature, own.dynatemp_range, own.dynatemp_exponent
            ),
        }
        made += [makers[name]() for name in own.samplers if name != "adaptive_p"]
        if "adaptive_p" in own.samplers:
            made.append(llama.llama_sampler_init_adaptive_p(own.adaptive_target, own.adaptive_decay, seed))
        else:
            made.append(llama.llama_sampler_init_dist(seed))
    for sampler in made:
        llama.llama_sampler_chain_add(chain, sampler)
    return chain


def save(cases: list[Case]) -> None:
    steps = [step for case in cases for step in reference(case)]
    described = [{"options": case.options, "prompt": case.prompt} for case in cases]
    np.savez_compressed(
        FILE,
        cases=np.frombuffer(json.dumps(described).encode(), np.uint8),
        logits=np.array([np.round(case.logits * SCALE) for case in cases]).astype(np.int16),
        tokens=np.array([token for token, _, _ in steps], np.int16),
        counts=np.array([len(ids) for _, ids, _ in steps], np.int16),
        ids=np.concatenate([ids for _, ids, _ in steps]).astype(np.uint8),
        p=np.concatenate([p for _, _, p in steps]),
    )


def saved() -> Iterator[tuple[Case, list[tuple[int, np.ndarray, np.ndarray]]]]:
    with np.load(FILE) as file:
        described = json.loads(file["cases"].tobytes())
        logits, tokens, ends = file["logits"], file["tokens"], np.cumsum(file["counts"])
        ids, p = np.split(file["ids"], ends[:-1]), np.split(file["p"], ends[:-1])
    for number, (each, rows) in enumerate(zip(described, logits, strict=True)):
        biases = {int(token): bias for token, bias in each["options"]["logit_bias"].items()}
        case = Case(each["options"] | {"logit_bias": biases}, each["prompt"], (rows / SCALE).astype(np.float32))
        places = range(number * len(rows), (number + 1) * len(rows))
        yield case, [(int(tokens[place]), ids[place].astype(np.int64), p[place]) for place in places]


TEXTS = (
    "The cat sat on the mat. Then the cat sat on the",
    "He said: go on, go on!\nHe said: go on, go on!\nHe said",
    '* one *two* "three" * one *two* "three" * one',
    "end of the road, END OF the road, end of the road, end of",
    "今天。天气。很好。今天。天气。很",
    "a---b---a---b---a---b-",
)
STOPS = ([], ["\n", ":", '"', "*"], ["sat on"], ["END OF", "--"], ["。"], ["the", "go on!"])


def save_breakers(path: Path) -> list[dict[str, Any]]:
    """Of each text and breakers the tokens, and what DRY takes from the logit of which."""
    from llama_cpp import llama_cpp as llama

    options = llama.llama_model_default_params()
    options.vocab_only = True
    model = llama.llama_model_load_from_file(str(path).encode(), options)
    vocabulary = llama.llama_model_get_vocab(model)
    size = llama.llama_vocab_n_tokens(vocabulary)
    kind = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
    found = []
    for text in TEXTS:
        tokens = (llama.llama_token * 200)()
        raw = text.encode()
        history = tokens[: llama.llama_tokenize(vocabulary, raw, len(raw), tokens, 200, False, False)]
        for breakers in STOPS:
            texts = (ctypes.c_char_p * len(breakers))(*[each.encode() for each in breakers])
            sampler = llama.llama_sampler_init_dry(vocabulary, 1.0, 1.75, 2, 64, texts, len(breakers))
            for token in history:
                llama.llama_sampler_accept(sampler, token)
            data = np.zeros(size, kind)
            data["id"] = np.arange(size)
            array = llama.llama_token_data_array(data.ctypes.data_as(llama.llama_token_data_p), size, -1, False)
            llama.llama_sampler_apply(sampler, ctypes.byref(array))
            llama.llama_sampler_free(sampler)
            less = {int(token): float(-data["logit"][token]) for token in np.flatnonzero(data["logit"])}
            found.append({"vocabulary": path.stem, "history": history, "breakers": breakers, "less": less})
    llama.llama_model_free(model)
    return found


if __name__ == "__main__":
    save(list(random_cases(CASES, seed=0)))
    lines = [json.dumps(case, ensure_ascii=False) for path in sys.argv[1:] for case in save_breakers(Path(path))]
    BREAKERS.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
