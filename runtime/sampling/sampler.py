"""The sampler chain: probabilities of the next token by all samplers, a draw, and the state between draws.

The state is immutable: to roll back, restore an old one. Everything but the draw itself is a function of logits and
state; if a sampler throws a coin of its own (XTC), both branches are followed and weighted, so that probabilities are
exactly those of the draw. Order and samplers: llama.cpp, common_sampler.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quants.errors import OptionError

from ..arrays import Doubles, Floats, Ids
from ..kernels import fused_sampler
from . import adaptive
from .candidates import Candidates, candidates, checked, softmax
from .dry import Breakers, dry
from .mirostat import mirostat, mirostat_2, next_mu
from .parameters import Sampling
from .penalties import logit_bias, penalties
from .processors import Words, changes_logits, processed
from .temperature import HOTTEST, dynamic_temperature, likeliest, temperature
from .truncation import min_p, top_k, top_n_sigma, top_p, typical, xtc

KEEP_THE_LIKELIEST = ("top_n_sigma", "top_k", "top_p", "min_p")
LIKELIEST = "likeliest"  # a step of our own
BLOCK = 256  # tokens
MAX_QUICK = 256  # for more than this sorting is quicker


class Grammar(Protocol):
    """The interface of grammars."""

    def allowed(self, tokens: Sequence[int], size: int) -> NDArray[np.bool_]:
        """Return which of `size` tokens may come after these, which were generated."""


class Branch(NamedTuple):
    """One branch of the chain. p: the probability of this branch with each token. seen: values for the state."""

    ids: Ids
    p: Doubles
    seen: Doubles


@dataclass(frozen=True)
class Distribution:
    """Possible tokens with probabilities: ids and p (n,), p above 0 with the sum 1."""

    ids: Ids
    p: Doubles
    branches: tuple[Branch, ...] = field(repr=False, default=())

    def of(self, token: int) -> float:
        """Return a token's probability."""
        if 0 <= token < len(self.ids) and self.ids[token] == token:  # its place in the whole vocabulary
            return float(self.p[token])
        return float(self.p[self.ids == token].sum())

    def over(self, size: int) -> Doubles:
        """Return the probability of every token of a vocabulary: (size,)."""
        full = np.zeros(size)
        full[self.ids] = self.p
        return full


@dataclass(frozen=True)
class State:
    """The samplers' state.

    history: the latest tokens of prompt and text. whole, latest: all of the text, in blocks of BLOCK tokens and the
    rest, so that the next state is made as quickly after a million tokens. mu: mirostat's. The rest: adaptive-p's.
    """

    history: tuple[int, ...] = ()
    whole: tuple[tuple[int, ...], ...] = ()
    latest: tuple[int, ...] = ()
    mu: float = 0.0
    weighted_sum: float = 0.0
    total_weight: float = 1.0

    @property
    def generated(self) -> tuple[int, ...]:
        """Return all tokens of the text."""
        return (*chain.from_iterable(self.whole), *self.latest)

    @property
    def count(self) -> int:
        """Return how many tokens the text has."""
        return BLOCK * len(self.whole) + len(self.latest)

    def with_token(self, token: int, history: tuple[int, ...]) -> "State":
        """Return the state after another token of the text."""
        whole, latest = self.whole, (*self.latest, token)
        if len(latest) == BLOCK:
            whole, latest = (*whole, latest), ()
        return State(history, whole, latest, self.mu, self.weighted_sum, self.total_weight)


class Sampler:
    """Samples tokens.

    end_ids: tokens that end a text by the vocabulary. suppressed: tokens that the model's file bars. breakers: of DRY,
    from `breakers_of`. grammar: what may be written; as llama.cpp does, a token is drawn without it, and where it
    refuses that token, another with it; grammar_first: always with it. bad_words: token sequences that may not be
    completed, from `bad_word_tokens`.

    `state` may be saved and restored; `random` is not part of it, so that draws after a roll-back do not depend on
    those before.
    """

    def __init__(
        self,
        sampling: Sampling | None = None,
        *,
        end_ids: Iterable[int] = (),
        suppressed: Iterable[int] = (),
        breakers: Breakers | None = None,
        grammar: Grammar | None = None,
        grammar_first: bool = False,
        bad_words: Words = (),
    ) -> None:
        self.sampling = sampling or Sampling()
        self.end_ids = frozenset(end_ids)
        self.breakers = breakers or {}
        self.grammar = grammar
        self.grammar_first = grammar_first
        self.bad_words = bad_words
        self._prompt: tuple[int, ...] = ()
        self.random = np.random.default_rng(self.sampling.chosen_seed)
        self._biases = dict(self.sampling.logit_bias) | dict.fromkeys(suppressed, -np.inf)
        if self.sampling.ignore_eos:
            self._biases |= dict.fromkeys(self.end_ids, -np.inf)
        self.state = self._start()

    def prime(self, tokens: Iterable[int]) -> None:
        """Remember tokens of a prompt, which penalties count as llama.cpp does."""
        given = tuple(tokens)
        self._prompt = (*self._prompt, *given)
        self.state = replace(self.state, history=self._kept((*self.state.history, *given)))

    def probabilities(self, logits: Floats, state: State | None = None) -> Distribution:
        """Return the distribution of the next token after all samplers; nothing is changed.

        logits: (vocabulary,), float32; minus infinity bans a token. state: other than the sampler's. Raises ModelError
        for NaN or infinity, OptionError if options leave no token, or bias one past the vocabulary.
        """
        state = self.state if state is None else state
        if self._quick is not None and state.count >= self.sampling.min_tokens:
            distribution = self._of_the_likeliest(np.ascontiguousarray(logits, np.float32), *self._quick)
            if distribution is not None:
                return distribution
        of = candidates(logits)
        self._check_biases(len(of))
        if self._processes:
            logits = processed(of.logits, self.sampling, self.bad_words, self._prompt, state.generated)
            of = checked(
                of.with_logits(logits, ordered=False),
                "repetition_penalty, bad_words, allowed_token_ids or logits_processors",
            )
        if self.grammar is None:
            return _joined(self._branches(of, state))
        allowed = self.grammar.allowed(state.generated, len(of))
        within = of.with_logits(np.where(allowed, of.logits, np.float32(-np.inf)), ordered=False)
        if self.grammar_first:
            return _joined(self._branches(within, state))
        drawn = [_only(branch, allowed) for branch in self._branches(of, state)]
        refused = 1 - sum(float(branch.p.sum()) for branch in drawn)
        if refused > 1e-12:  # less is rounding
            drawn += self._branches(within, state, refused)
        return _joined(drawn)

    def draw(self, logits: Floats) -> int:
        """Sample the next token and remember it. Raises as `probabilities` does."""
        if self._quick is not None and self.state.count >= self.sampling.min_tokens:
            token = self._quickly(np.ascontiguousarray(logits, np.float32), *self._quick)
            if token >= 0:
                self.accept(token)
                return token
        distribution = self.probabilities(logits)
        token = self.choose(distribution)
        self.accept(token, distribution)
        return token

    def choose(self, distribution: Distribution) -> int:
        """Return a token sampled by its probability, without remembering it."""
        sums = distribution.p.cumsum()
        place = int(sums.searchsorted(self.random.random() * sums[-1]))
        return int(distribution.ids[min(place, len(sums) - 1)])

    def accept(self, token: int, distribution: Distribution | None = None) -> None:
        """Remember a token as generated.

        distribution: what it was drawn from, for mirostat and adaptive-p; without it they stay as they are.
        """
        self.state = self.after(self.state, token, distribution)

    def after(self, state: State, token: int, distribution: Distribution | None = None) -> State:
        """Return the state after a token was generated."""
        state = state.with_token(token, self._kept((*state.history, token)))
        if distribution is None or not self._remembers:
            return state
        seen = self._seen(token, distribution)
        if seen is None:
            return state
        own = self.sampling
        if own.mirostat:
            return replace(state, mu=next_mu(state.mu, seen, own.mirostat_tau, own.mirostat_eta))
        mean = adaptive.next_mean(seen, own.adaptive_decay, state.weighted_sum, state.total_weight)
        return replace(state, weighted_sum=mean[0], total_weight=mean[1])

    def ends(self, token: int) -> bool:
        """Return whether a text ends with this token."""
        return token in self.sampling.stop_token_ids or (token in self.end_ids and not self.sampling.ignore_eos)

    def fork(self, seed: int | None = None) -> "Sampler":
        """Return another sampler in the same state, with draws of its own. seed: of these; None: derived from ours."""
        other = copy(self)
        other.random = self.random.spawn(1)[0] if seed is None else np.random.default_rng(seed)
        return other

    def reset(self, seed: int | None = None) -> None:
        """Forget everything. seed: of another text's draws; None for the one of `sampling`."""
        self.state, self._prompt = self._start(), ()
        self.random = np.random.default_rng(self.sampling.chosen_seed if seed is None else seed)

    def _start(self) -> State:
        own = self.sampling
        weighted_sum, total_weight = adaptive.start(own.adaptive_target, own.adaptive_decay)
        return State(mu=2 * own.mirostat_tau, weighted_sum=weighted_sum, total_weight=total_weight)

    def _kept(self, history: tuple[int, ...]) -> tuple[int, ...]:
        window = max(self.sampling.repeat_last_n, self.sampling.dry_penalty_last_n)
        return history[max(len(history) - window, 0) :]

    @cached_property
    def _quick(self) -> tuple[int, Ids, Doubles] | None:
        """Return the fast path: how many likeliest tokens a draw needs, and its steps, if `kernels.fused_sampler`
        supports them all.
        """
        own, names = self.sampling, self._chain
        if own.mirostat or self._adapts or self.grammar is not None or self._processes:
            return None
        if names == (LIKELIEST,):
            return 1, np.empty(0, np.int64), np.empty(0)
        steps: dict[str, tuple[int, float]] = {
            "top_k": (fused_sampler.TOP_K, own.top_k),
            "top_p": (fused_sampler.TOP_P, own.top_p),
            "min_p": (fused_sampler.MIN_P, own.min_p),
        }
        if own.temperature > 0 and own.dynatemp_range <= 0:
            steps["temperature"] = fused_sampler.TEMPERATURE, min(own.temperature, HOTTEST)
        if names[:1] != ("top_k",) or own.top_k > MAX_QUICK or not set(names) <= set(steps):
            return None
        taken = [steps[name] for name in names[1:]]
        return own.top_k, np.array([step for step, _ in taken], np.int64), np.array([n for _, n in taken], np.float64)

    def _quickly(self, logits: Floats, count: int, steps: Ids, numbers: Doubles) -> int:
        """Return a token as `choose` draws it from the chain's probabilities; -1 to fall back to the chain."""
        if count == 1 and (best := self._best(logits)) >= 0:
            self.random.random()
            return best
        room = np.empty(count, np.int64), np.empty(count, np.float32), np.empty(count)
        keep = self.sampling.min_keep
        return int(fused_sampler.draw(self._biased(logits), steps, numbers, keep, self.random.random(), *room))

    def _of_the_likeliest(self, logits: Floats, count: int, steps: Ids, numbers: Doubles) -> Distribution | None:
        """Return the chain's probabilities; None to fall back to the chain."""
        if count == 1 and (best := self._best(logits)) >= 0:
            return Distribution(np.array([best]), np.ones(1))
        ids, values, p = np.empty(count, np.int64), np.empty(count, np.float32), np.empty(count)
        left = fused_sampler.probabilities(self._biased(logits), steps, numbers, self.sampling.min_keep, ids, values, p)
        return Distribution(ids[:left], p[:left]) if left > 0 else None

    def _best(self, logits: Floats) -> int:
        """Return the first of the most likely tokens; -1 if a bias may change it, or a logit is not finite."""
        best = int(logits.argmax()) if len(logits) else -1
        if self._biases:
            self._check_biases(len(logits))
            if best in self._biases or not self._lowers:
                return -1
        return best if best >= 0 and math.isfinite(logits[best]) else -1

    def _biased(self, logits: Floats) -> Floats:
        if not self._biases:
            return logits
        self._check_biases(len(logits))
        logits, (tokens, biases) = logits.copy(), self._bias_arrays
        logits[tokens] += biases
        return logits

    @cached_property
    def _lowers(self) -> bool:
        """Return whether no bias raises a logit."""
        return max(self._biases.values(), default=0.0) <= 0

    @cached_property
    def _bias_arrays(self) -> tuple[Ids, Floats]:
        return np.array([*self._biases], np.int64), np.array([*self._biases.values()], np.float32)

    @cached_property
    def _chain(self) -> tuple[str, ...]:
        """Return the active samplers, in their order.

        If only the likeliest token is needed, samplers that keep it can skip the others.
        """
        own = self.sampling
        numbers = own.repeat_penalty, own.frequency_penalty, own.presence_penalty
        off = {
            "penalties": not own.repeat_last_n or numbers == (1, 0, 0),
            "dry": own.dry_multiplier <= 0,
            "top_n_sigma": own.top_n_sigma <= 0,
            "top_k": own.top_k <= 0,
            "typ_p": own.typical_p >= 1,
            "top_p": own.top_p >= 1,
            "min_p": own.min_p <= 0,
            "xtc": own.xtc_probability <= 0,
            "adaptive_p": True,
        }
        steps = tuple(name for name in own.samplers if not off.get(name))
        if own.temperature == 0 and own.dynatemp_range <= 0 and "temperature" in steps and not self._adapts:
            before = [name for name in steps[: steps.index("temperature")] if name not in KEEP_THE_LIKELIEST]
            if set(before) <= {"penalties", "dry"}:
                return (*before, LIKELIEST)
        return steps

    @cached_property
    def _adapts(self) -> bool:
        return "adaptive_p" in self.sampling.samplers and self.sampling.adaptive_target >= 0

    @cached_property
    def _remembers(self) -> bool:
        return bool(self.sampling.mirostat) or self._adapts

    @cached_property
    def _processes(self) -> bool:
        return changes_logits(self.sampling, self.bad_words)

    def _check_biases(self, size: int) -> None:
        if self._biases and max(self._biases) >= size:
            raise OptionError(f"token {max(self._biases)} has a bias, but the vocabulary has {size} tokens")

    def _branches(self, of: Candidates, state: State, weight: float = 1.0) -> list[Branch]:
        """Return every branch of the chain; `weight` is divided among them."""
        biases = self._biases
        if state.count < self.sampling.min_tokens:
            barred = (*self.end_ids, *self.sampling.stop_token_ids)
            biases = biases | dict.fromkeys((token for token in barred if token < len(of)), -np.inf)
        if biases or self.grammar is not None:
            of = checked(logit_bias(of, biases), "biases" if self.grammar is None else "biases and grammar")
        if self.sampling.mirostat:
            return [self._mirostat(of, state, weight)]
        return [self._last(of, state, share) for of, share in self._ways(of, self._chain, state, weight)]

    def _ways(
        self, of: Candidates, names: Sequence[str], state: State, weight: float
    ) -> Iterator[tuple[Candidates, float]]:
        """Yield candidates after a chain of samplers, one branch for each outcome of XTC's coin."""
        for place, name in enumerate(names):
            if name != "xtc":
                of = self._step(name, of, state)
                continue
            odds = self.sampling.xtc_probability
            left = xtc(of, self.sampling.xtc_threshold, self.sampling.min_keep) if odds > 0 else of
            if left is not of:
                yield from self._ways(left, names[place + 1 :], state, weight * odds)
                weight *= 1 - odds
                if weight == 0:
                    return
        yield of, weight

    def _step(self, name: str, of: Candidates, state: State) -> Candidates:
        own = self.sampling
        match name:
            case "penalties":
                history = self._latest(state, own.repeat_last_n)
                numbers = own.repeat_penalty, own.frequency_penalty, own.presence_penalty
                return checked(penalties(of, history, *numbers), "penalties")
            case "likeliest":
                return likeliest(of)
            case "dry":
                history = self._latest(state, own.dry_penalty_last_n)
                allowed = own.dry_allowed_length
                return checked(dry(of, history, own.dry_multiplier, own.dry_base, allowed, self.breakers), "DRY")
            case "top_n_sigma":
                return top_n_sigma(of, own.top_n_sigma)
            case "top_k":
                return top_k(of, own.top_k)
            case "typ_p":
                return typical(of, own.typical_p, own.min_keep)
            case "top_p":
                return top_p(of, own.top_p, own.min_keep)
            case "min_p":
                return min_p(of, own.min_p, own.min_keep)
            case "temperature":
                return dynamic_temperature(of, own.temperature, own.dynatemp_range, own.dynatemp_exponent)
        raise OptionError(f"no sampler is called {name!r}")

    def _latest(self, state: State, count: int) -> Ids:
        return np.array(state.history[max(len(state.history) - count, 0) :], np.int64)

    def _mirostat(self, of: Candidates, state: State, weight: float) -> Branch:
        size = len(of)
        of = temperature(of, self.sampling.temperature)
        of = mirostat(of, state.mu, size) if self.sampling.mirostat == 1 else mirostat_2(of, state.mu)
        return _branch(of, weight)

    def _last(self, of: Candidates, state: State, weight: float) -> Branch:
        if not self._adapts:
            return _branch(of, weight)
        p = softmax(of.logits)
        target = adaptive.aim(self.sampling.adaptive_target, state.weighted_sum, state.total_weight)
        return Branch(of.ids, weight * softmax(adaptive.adaptive_p(of, p, target).logits), p)

    def _seen(self, token: int, distribution: Distribution) -> float | None:
        """Return the sampler's record of a token that it drew; None if it could not have been drawn."""
        ways = [
            (float(branch.p[place]), float(branch.seen[place]))
            for branch in distribution.branches
            for place in np.flatnonzero(branch.ids == token)
        ]
        ways = [way for way in ways if way[0] > 0]
        if len(ways) < 2:
            return ways[0][1] if ways else None
        weights = np.array([weight for weight, _ in ways])
        return ways[int(self.random.choice(len(ways), p=weights / weights.sum()))][1]


def _branch(of: Candidates, weight: float) -> Branch:
    p = softmax(of.logits)
    return Branch(of.ids, p if weight == 1 else weight * p, p)


def _only(branch: Branch, allowed: NDArray[np.bool_]) -> Branch:
    return branch._replace(p=np.where(allowed[branch.ids], branch.p, 0.0))


def _joined(branches: Sequence[Branch]) -> Distribution:
    """Return the sum of all branches, without tokens of probability 0."""
    if len(branches) == 1:
        ids, p = branches[0].ids, branches[0].p
    else:
        p = np.zeros(max(int(branch.ids.max()) for branch in branches) + 1)
        for branch in branches:
            p[branch.ids] += branch.p
        ids = np.arange(len(p))
    possible = p > 0
    if np.count_nonzero(possible) < len(p):
        ids, p = ids[possible], p[possible]
    return Distribution(ids, p / np.add.reduce(p), tuple(branches))
