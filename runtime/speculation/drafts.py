"""Sources of drafts: a smaller model, n-grams of the text, or readers of the model's states.

A drafter gets the whole text each time and derives the fate of its last draft from it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from quants.errors import ModelError, OptionError

from ..arrays import Floats
from ..model import RunningModel
from ..prefill import chunk_size
from ..sampling.sampler import Distribution, Sampler, State
from .acceptance import Candidate, drawn
from .parameters import MAX_BY_MODEL, Drafting
from .readers import Reader
from .trees import DraftTree, chain, comb

LONGEST, SHORTEST = 4, 2  # tokens that have to match an earlier place
FARTHEST = 32  # maximum length of a counted match


class Drafter(Protocol):
    """The interface of drafters.

    reads_states: whether `follow` is to be called with the model's states of each token: the last norm's output, or the
    inputs of these layers.
    """

    reads_states: bool
    layers: tuple[int, ...]

    def read(self, prompt: Sequence[int]) -> None:
        """Read the prompt, before generation; after `follow`, if states are read."""

    def propose(self, text: Sequence[int], max_tokens: int, state: State) -> DraftTree:
        """Return a draft of at most `max_tokens` tokens in depth; it may be empty.

        text: token ids of prompt and text. state: of the model's sampler.
        """

    def follow(self, states: Floats) -> None:
        """Read the model's states of the tokens added to its cache since, (tokens, width): all of the text but its last
        one.
        """


class LookupDrafter:
    """Prompt lookup: draft the tokens that followed the latest n-gram earlier in the text, without computation.

    The latest match of the last four tokens counts, else of three, else of two. Twice as many tokens are drafted as
    matched before it: accidental phrases are short, copies are not.

    Source: the idea of prompt lookup (github.com/apoorvumang/prompt-lookup-decoding).
    """

    reads_states = False
    layers: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # tokens → where the one after them is
        self._indexed = SHORTEST

    def read(self, prompt: Sequence[int]) -> None:
        for end in range(self._indexed, len(prompt)):
            for size in range(SHORTEST, min(LONGEST, end) + 1):
                self._after[tuple(prompt[end - size : end])] = end
        self._indexed = max(self._indexed, len(prompt))

    def propose(self, text: Sequence[int], max_tokens: int, state: State) -> DraftTree:
        self.read(text)
        for size in range(min(LONGEST, len(text)), SHORTEST - 1, -1):
            place = self._after.get(tuple(text[-size:]))
            if place is not None:
                return chain(map(Candidate, self._copied(text, place, max_tokens)))
        return DraftTree()

    def follow(self, states: Floats) -> None:
        """Ignore states."""

    def _copied(self, text: Sequence[int], place: int, max_tokens: int) -> list[int]:
        """Return tokens from a place on; at the text's end, continue with those just copied."""
        same = 1
        while same < min(FARTHEST, place) and text[place - 1 - same] == text[-1 - same]:
            same += 1
        apart = len(text) - place
        return [text[place + i % apart] for i in range(min(max_tokens, 2 * same))]


class Drawing:
    """Draws candidates as the model's sampler would, with random numbers of its own."""

    def __init__(self, sampler: Sampler, drafting: Drafting, vocabulary: int) -> None:
        """Set up draws. sampler: the model's. vocabulary: how many ids of the model are tokens."""
        self.sampler = sampler.fork()
        self.sampler.grammar = None  # the model's refuses what it must
        self.drafting, self.vocabulary, self.max_tokens = drafting, vocabulary, drafting.max_tokens or MAX_BY_MODEL

    def candidates(self, logits: Floats, state: State) -> list[Candidate]:
        """Return candidates for one place: logits (vocabulary of the draft,); none if it is not sure enough.

        Whether it is sure must not depend on the draw, or the candidate's distribution would be unknown.
        """
        logits = logits[: self.vocabulary]
        if len(logits) < self.vocabulary:
            logits = np.pad(logits, (0, self.vocabulary - len(logits)), constant_values=-np.inf)
        if logits.max() == -np.inf:  # a selector chose among ids that are no tokens
            return []
        if self.drafting.min_p > 0:
            sureness = 1 / np.exp(logits - logits.max(), dtype=np.float64).sum()
            if sureness < self.drafting.min_p:
                return []
        if self.sampler.sampling.temperature <= 0 and self.drafting.children > 1:
            likeliest = np.argsort(-logits, kind="stable")[: self.drafting.children]
            return [Candidate(int(token)) for token in likeliest]
        try:
            q = self.sampler.probabilities(logits, state)
        except OptionError:  # biases ban all of the draft's tokens; if they ban all tokens, the model reports it
            return []
        candidates: list[Candidate] = []
        while True:
            candidates.append(Candidate(drawn(q, self.sampler.random.random()), q))
            left = q.ids != candidates[-1].token
            if len(candidates) == self.drafting.children or not left.any():
                return candidates
            q = Distribution(q.ids[left], q.p[left] / q.p[left].sum())

    def after(self, state: State, candidate: Candidate) -> State:
        """Return the state after the first of a place's candidates."""
        return self.sampler.after(state, candidate.token, candidate.q)


class ModelDrafter:
    """A smaller model of the same vocabulary, with a cache of its own."""

    reads_states = False
    layers: tuple[int, ...] = ()

    def __init__(self, model: RunningModel, drawing: Drawing, context: int | None = None) -> None:
        """Set up a draft model. context: its context length. Raises OptionError for a model that cannot continue
        texts.
        """
        if model.encoder_decoder is not None or not model.architecture.block.causal:
            raise OptionError(f"a model of {model.architecture.name} can't draft: it does not go on with texts")
        self.model, self.drawing, self.context = model, drawing, context
        self.cache = model.new_cache()
        self.cache.memory = drawing.max_tokens
        self._seen: list[int] = []  # tokens in the cache
        self._known = 0  # how many of them were the text's, and not drafted

    def read(self, prompt: Sequence[int]) -> None:
        if self.context is None or len(prompt) < self.context:
            self._run(prompt)
            self._known = len(prompt)

    def propose(self, text: Sequence[int], max_tokens: int, state: State) -> DraftTree:
        max_tokens = max_tokens if self.context is None else min(max_tokens, self.context - len(text))
        if max_tokens < 1:
            return DraftTree()
        max_same = min(len(self._seen), len(text) - 1)
        same = min(self._known, max_same)
        same = same if self._seen[:same] == list(text[:same]) else 0
        while same < max_same and self._seen[same] == text[same]:
            same += 1
        self.cache.truncate(same)
        del self._seen[same:]
        logits, self._known = self._run(text[same:]), len(text)
        places: list[list[Candidate]] = []
        while candidates := self.drawing.candidates(logits, state):
            places.append(candidates)
            if len(places) == max_tokens:
                break
            state = self.drawing.after(state, candidates[0])
            logits = self._run([candidates[0].token])
        return comb(places)

    def follow(self, states: Floats) -> None:
        """Ignore states."""

    def _run(self, tokens: Sequence[int]) -> Floats:
        """Return logits (vocabulary,) after the last of these tokens."""
        ids = [token if token < self.model.vocabulary_size else 0 for token in tokens]  # 0: unknown to the draft model
        size = chunk_size(self.model, len(ids))
        try:
            for start in range(0, len(ids), size):
                piece = ids[start : start + size]
                logits = self.model.forward(piece, self.cache, len(piece) - 1)
        except ModelError as error:
            raise ModelError(f"the draft can't be run: {error}", error.hint) from error
        self._seen += tokens
        last: Floats = logits[-1]
        return last


class StatesDrafter:
    """Drafter that reads the model's states, and its own for later tokens."""

    reads_states = True

    def __init__(self, reader: Reader, drawing: Drawing) -> None:
        self.reader, self.drawing, self.layers = reader, drawing, reader.layers
        self.cache = reader.model.new_cache()
        self.cache.memory = drawing.max_tokens
        self._states: list[Floats] = []  # of tokens that it has not read
        self._known = 0  # tokens that it has read, and that were not drafted

    def read(self, prompt: Sequence[int]) -> None:
        states = np.concatenate(self._states)  # the token after the last is not known yet
        if len(prompt) > 1:
            self.reader.read(states[:-1], prompt[1:], self.cache)
        self._states, self._known = [states[-1:]], len(prompt) - 1

    def propose(self, text: Sequence[int], max_tokens: int, state: State) -> DraftTree:
        self.cache.truncate(self._known)
        states = np.concatenate(self._states)
        following = text[len(text) - len(states) :]
        self._states, self._known = [], self._known + len(states)
        places: list[list[Candidate]] = []
        while True:
            ahead, made = self.reader.read(states, following, self.cache)
            candidates = self.drawing.candidates(replace(ahead, x=ahead.x[-1:]).float32()[0], state)
            if not candidates:
                break
            places.append(candidates)
            if len(places) >= max_tokens:
                break
            state = self.drawing.after(state, candidates[0])
            states, following = made[-1:], [candidates[0].token]
        return comb(places)

    def follow(self, states: Floats) -> None:
        self._states.append(self.reader.begin(states))
