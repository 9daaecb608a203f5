"""Tiny models of a few tokens, and the distribution of the texts that they write."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import pytest

from quants import from_array
from runtime.arrays import Floats, Ids
from runtime.kv_cache import KVCache
from runtime.model import RunningModel
from runtime.sampling.parameters import Sampling
from runtime.sampling.sampler import Sampler, State
from runtime.speculation.acceptance import Candidate
from runtime.speculation.decoding import Speculation
from runtime.speculation.drafts import Drawing

WORDS, WIDTH, INNER = 6, 32, 48
KEYS = {
    "embedding_length": WIDTH,
    "block_count": 1,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "context_length": 64,
}
SHAPES = {
    "token_embd": (WORDS, WIDTH),
    "output": (WORDS, WIDTH),
    "blk.0.attn_q": (WIDTH, WIDTH),
    "blk.0.attn_k": (16, WIDTH),
    "blk.0.attn_v": (16, WIDTH),
    "blk.0.attn_output": (WIDTH, WIDTH),
    "blk.0.ffn_gate": (INNER, WIDTH),
    "blk.0.ffn_up": (INNER, WIDTH),
    "blk.0.ffn_down": (WIDTH, INNER),
}
PROMPT = (1, 4, 2, 1, 4)


def toy(seed: int, noise: float = 0.0, words: int = WORDS, kind: type[RunningModel] = RunningModel) -> RunningModel:
    """A model that says a few words. noise: how far it is from the one without, 1 for all that it holds."""
    drawn, other = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    tensors = {}
    for name, shape in SHAPES.items():
        values = drawn.standard_normal(shape) + noise * other.standard_normal(shape)
        scale = 2.0 if name in ("token_embd", "output") else 1.5
        values = (values * scale / np.sqrt(shape[1])).astype(np.float32)
        tensors[f"{name}.weight"] = from_array(f"{name}.weight", values[:words] if shape[0] == WORDS else values)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        tensors[f"{name}.weight"] = from_array(f"{name}.weight", np.ones(WIDTH, np.float32))
    keys = {f"llama.{key}": value for key, value in KEYS.items()}
    return kind({"general.architecture": "llama", **keys}, tensors, threads=1)


def texts_of(model: RunningModel, sampling: Sampling, length: int, words: int = WORDS) -> np.ndarray:
    """The probability of each text of so many tokens behind the prompt, by plain sampling: (words,) * length."""
    p = np.zeros((words,) * length)
    for text in product(range(words), repeat=length):
        sampler, odds = primed(sampling), 1.0
        for place, token in enumerate(text):
            logits = known(model, (*PROMPT, *text[:place]))
            distribution = sampler.probabilities(logits)
            odds *= distribution.of(token)
            if odds == 0:
                break
            sampler.accept(token, distribution)
        p[text] = odds
    return p


def known(model: RunningModel, text: tuple[int, ...]) -> np.ndarray:
    """Logits (words,) behind a text."""
    if isinstance(model, Remembering):
        return model.lazy_forward(text, Text()).array[-1]
    return model.forward(text, first=len(text) - 1)[-1]


class Text(KVCache):
    """In place of keys and values: the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    @property
    def length(self) -> int:
        return len(self.seen)

    def truncate(self, length: int) -> None:
        del self.seen[length:]

    def keep_rows(self, length: int, rows: Ids) -> None:
        self.seen[length:] = [self.seen[length + row] for row in rows]


@dataclass(frozen=True)
class Rows:
    """In place of logits that are not computed yet; x: numbers that stand for states."""

    array: np.ndarray
    x: np.ndarray

    @property
    def states(self) -> np.ndarray:
        return self.x

    def float32(self) -> np.ndarray:
        return self.array[-len(self.x) :]


class Remembering(RunningModel):
    """Computes what stands behind a text once: for very many draws."""

    @cached_property
    def numbers(self) -> dict[Any, int]:
        """What a state is of → the number that stands for it."""
        return {}

    @cached_property
    def numbered(self) -> list[Any]:
        return []

    @cached_property
    def behind(self) -> dict[Any, tuple[np.ndarray, np.ndarray]]:
        """Of a text, or of all that the layer that reads ahead was given: logits, and what the model made of it."""
        return {}

    def new_cache(self, *arguments: Any) -> Text:
        return Text()

    def forward(self, tokens: Any, cache: Any = None, first: int = 0) -> np.ndarray:
        if cache is None:
            return super().forward(tokens, None, first)
        return self.lazy_forward(tokens, cache).array[first:]

    def forward_with_states(self, tokens: Any, layers: Any, cache: Any, parents: Any = None) -> Any:
        run = self.lazy_forward(tokens, cache, parents)
        return run.float32(), run.states

    def lazy_forward(self, tokens: Any, cache: Any = None, parents: Any = None) -> Any:
        paths: list[tuple[int, ...]] = []
        for place, token in enumerate(tokens):
            parent = place - 1 if parents is None else parents[place]
            paths.append(((*paths[parent],) if parent >= 0 else (*cache.seen,)) + (int(token),))
        for path in paths:
            if path not in self.behind:
                run = self.lazy_logits(path)
                self.behind[path] = run.float32()[-1], run.x[-1]
        cache.seen += [int(token) for token in tokens]
        return self.rows(paths)

    def mtp_forward(self, hidden: Any, following: Any, cache: Any) -> Any:
        keys = []
        for number, token in zip(hidden[:, 0], following, strict=True):
            cache.seen.append((self.numbered[number], token))
            keys.append(("ahead", *cache.seen))
        for key in keys:
            if key not in self.behind:
                states = np.stack([self.behind[of][1] for of, _ in key[1:]])
                run = super().mtp_forward(states, [token for _, token in key[1:]], KVCache())
                self.behind[key] = run.float32()[-1], run.x[-1]
        return self.rows(keys)

    def rows(self, keys: Sequence[Any]) -> Rows:
        for key in keys:
            if key not in self.numbers:
                self.numbers[key] = len(self.numbered)
                self.numbered.append(key)
        numbers = [self.numbers[key] for key in keys]
        return Rows(np.array([self.behind[key][0] for key in keys]), np.array(numbers)[:, None])


def primed(sampling: Sampling) -> Sampler:
    sampler = Sampler(sampling)
    sampler.prime(PROMPT)
    return sampler


def write(speculation: Speculation, cache: KVCache, length: int, more: int = 3) -> tuple[int, ...]:
    """A text of so many tokens behind the prompt, which is in the cache but for its last token."""
    text: list[int] = list(PROMPT)
    while len(text) < len(PROMPT) + length:
        for token, state, _ in speculation.cycle(text, cache, more + 1):
            text.append(token)
            speculation.sampler.state = state
    return tuple(text[len(PROMPT) : len(PROMPT) + length])


def read(model: RunningModel, tokens: Sequence[int], memory: int) -> KVCache:
    cache = model.new_cache()
    cache.memory = memory
    model.forward(tokens, cache)
    return cache


def too_unlikely(counts: np.ndarray, expected: np.ndarray) -> float:
    """How unlikely Pearson's statistic is, as deviations of a normal one; rare texts are counted together."""
    from scipy.stats import chi2, norm  # here, because it takes a second to import

    counts, expected = counts.reshape(-1), expected.reshape(-1)
    assert counts[expected == 0].sum() == 0
    rare = expected < 8
    pairs = [*zip(counts[~rare], expected[~rare], strict=True)]
    if expected[rare].sum() > 0:
        pairs.append((counts[rare].sum(), expected[rare].sum()))
    statistic = sum((count - wanted) ** 2 / wanted for count, wanted in pairs)
    return float(norm.isf(chi2.sf(statistic, len(pairs) - 1)))


def logits_asked(drawing: Drawing, monkeypatch: pytest.MonkeyPatch) -> list[Floats]:
    """The logits that candidates are drawn from, from now on."""
    asked: list[Floats] = []
    candidates = drawing.candidates

    def noted(logits: Floats, state: State) -> list[Candidate]:
        asked.append(logits)
        return candidates(logits, state)

    monkeypatch.setattr(drawing, "candidates", noted)
    return asked
