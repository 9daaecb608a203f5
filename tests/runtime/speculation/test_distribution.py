"""Texts written with drafts are distributed as those written without, through the whole loop."""

from functools import cache

import numpy as np
import pytest

from runtime.kv_cache import KVCache
from runtime.model import RunningModel
from runtime.sampling.parameters import Sampling
from runtime.sampling.sampler import Sampler
from runtime.speculation.acceptance import Candidate, acceptance_rate
from runtime.speculation.decoding import Speculation, speculation_of
from runtime.speculation.drafts import Drawing, ModelDrafter
from runtime.speculation.parameters import Drafting
from runtime.speculation.trees import DraftTree

from .toys import PROMPT, WORDS, Remembering, known, primed, read, texts_of, too_unlikely, toy, write

PLAIN = Sampling(temperature=1.0, samplers=("temperature",))
CUT = Sampling(temperature=1.3, samplers=("top_k", "temperature"), top_k=4)
PENALTIES = Sampling(temperature=1.0, samplers=("penalties", "temperature"), repeat_penalty=1.4, presence_penalty=0.3)
SURPRISE = Sampling(temperature=1.0, mirostat=2, mirostat_tau=2.0)
COIN = Sampling(temperature=1.2, samplers=("xtc", "temperature"), xtc_probability=0.5)
LENGTH = 3


class BranchingDrafter(ModelDrafter):
    """A tree of two candidates, each of which two follow on."""

    def propose(self, text, most, state):
        first = super().propose(text, 1, state)
        candidates, parents = list(first.candidates), list(first.parents)
        for place, each in enumerate(first.candidates):
            after = self.drawing.sampler.after(state, each.token, each.q)
            second = super().propose([*text, each.token], 1, after)
            candidates += second.candidates
            parents += [place] * len(second)
        return DraftTree(tuple(candidates), tuple(parents))


class SureDrafter(ModelDrafter):
    """The two likeliest tokens, no chance in them."""

    def propose(self, text, most, state):
        super().propose(text, 1, state)
        order = np.argsort(-known(self.model, tuple(text)))
        return DraftTree((Candidate(int(order[0])), Candidate(int(order[1]))), (-1, -1))


def drafted(kind: str, model: RunningModel, drafts: RunningModel, sampler: Sampler) -> Speculation:
    if kind == "lookup":
        return speculation_of(model, sampler, "lookup", WORDS, Drafting(4))
    if kind in ("branching", "sure"):
        drafter = (BranchingDrafter if kind == "branching" else SureDrafter)(
            drafts, Drawing(sampler, Drafting(2, children=2), WORDS)
        )
        return Speculation(model, sampler, drafter, 2, WORDS)
    drafting = {"chain": Drafting(3), "tree": Drafting(2, children=3), "unsure": Drafting(3, min_p=0.5)}[kind]
    return speculation_of(model, sampler, drafts, WORDS, drafting)


def count(kind: str, model: RunningModel, drafts: RunningModel, sampling: Sampling, draws: int, seen: KVCache):
    """How often each text came, and what became of drafts."""
    sampler = primed(sampling)
    speculation, start = drafted(kind, model, drafts, sampler), sampler.state
    counts = np.zeros((WORDS,) * LENGTH, np.int64)
    for _ in range(draws):
        sampler.state = start
        seen.truncate(len(PROMPT) - 1)
        if kind == "lookup":
            counts_before, speculation = speculation.counts, drafted(kind, model, drafts, sampler)
            speculation.counts = counts_before
        counts[write(speculation, seen, LENGTH)] += 1
    return counts, speculation.counts


METHODS = [
    ("chain", 0.3, PLAIN),
    ("chain", 0.3, CUT),
    ("chain", 30.0, PLAIN),
    ("chain", 0.3, PENALTIES),
    ("chain", 0.3, SURPRISE),
    ("chain", 0.3, COIN),
    ("unsure", 0.3, PLAIN),
    ("lookup", 0.3, PLAIN),
    ("tree", 0.3, PLAIN),
    ("tree", 30.0, CUT),
    ("branching", 0.3, PLAIN),
    ("sure", 0.3, PLAIN),
]
NAMES = [
    "model",
    "top-k and temperature",
    "bad draft",
    "penalties",
    "mirostat",
    "xtc",
    "min-p",
    "lookup",
    "candidates",
    "candidates of a bad draft",
    "branches",
    "likeliest",
]


@cache
def remembering(noise: float) -> RunningModel:
    return toy(3, noise, kind=Remembering)


def agrees(kind: str, noise: float, sampling: Sampling, draws: int) -> None:
    model, drafts = remembering(0), remembering(noise)
    counts, became = count(kind, model, drafts, sampling, draws, read(model, PROMPT[:-1], 0))
    assert too_unlikely(counts, texts_of(model, sampling, LENGTH) * draws) < 4.5
    assert 0 < became.accepted < became.drafted


@pytest.mark.parametrize(("kind", "noise", "sampling"), METHODS, ids=NAMES)
def test_texts_are_distributed_as_without_a_draft(kind: str, noise: float, sampling: Sampling):
    agrees(kind, noise, sampling, 200)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "noise", "sampling"), METHODS, ids=NAMES)
def test_very_many_texts_are_distributed_as_without_a_draft(kind: str, noise: float, sampling: Sampling):
    agrees(kind, noise, sampling, 200_000)


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_texts_of_a_model_with_a_cache_are(kind: str):
    model, drafts = toy(3), toy(3, 0.3)
    counts, _ = count(kind, model, drafts, PLAIN, 100, read(model, PROMPT[:-1], 0))
    assert too_unlikely(counts, texts_of(model, PLAIN, LENGTH) * 100) < 4.5


def test_as_many_stand_as_the_distributions_overlap():
    model, drafts = remembering(0), remembering(0.3)
    sampler, draws = primed(PLAIN), 1000
    speculation, start, seen = drafted("chain", model, drafts, sampler), sampler.state, read(model, PROMPT[:-1], 0)
    for _ in range(draws):
        sampler.state = start
        seen.truncate(len(PROMPT) - 1)
        speculation.cycle(PROMPT, seen, 2)
    stood = speculation.counts.accepted
    p, q = (sampler.probabilities(known(each, PROMPT), start) for each in (model, drafts))
    rate = acceptance_rate(p, q)
    assert abs(stood / draws - rate) < 4 * np.sqrt(rate * (1 - rate) / draws)
