"""Compute how likely drafted tokens are accepted at each scored position of texts: one pass of the model and its
drafts.

At each position the distributions of the model and of a draft follow the same tokens of the text. A token drawn from
the draft's distribution is accepted with the probability sum of min(p, q), at each temperature. Prompt lookup proposes
one token, which is accepted with its p.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quants.errors import ModelError
from runtime.arrays import Doubles, Floats, Ids

if TYPE_CHECKING:
    from runtime.evaluation.divergence import LazyForward, RunningLogits
    from runtime.evaluation.windows import Window
    from runtime.head import LazyLogits
    from runtime.model import RunningModel
    from runtime.speculation.assistants import Assistant
    from runtime.speculation.blocks import BlockWriter
    from runtime.speculation.readers import Reader

Flags = NDArray[np.bool_]

LOGITS_AT_ONCE = 1 << 23  # of one model: 33 MB; each temperature needs its own
MIN_PLACES = 16  # at a time, however large the vocabulary
MAX_LOOKUP = 64  # maximum tokens of a prompt-lookup draft

Progress = Callable[[int, int, float], None]  # windows done, of how many, mean acceptance of the first draft so far


@dataclass
class Acceptance:
    """The acceptance of one draft; lists have an entry for each window, of n positions.

    stands: float64 (n, temperatures), the chance that a token drafted there is accepted. agree: (n,), whether the top
    tokens are the same. For lookup, stands is 0 where nothing is drafted, and the other lists are the input of
    `figures.lookup_chances`: drafted, matched (n,), own, missed (n, temperatures). problem: why the draft was not
    measured to the end.
    """

    stands: list[Doubles] = field(default_factory=list)
    agree: list[Flags] = field(default_factory=list)
    drafted: list[Ids] = field(default_factory=list)
    matched: list[Ids] = field(default_factory=list)
    own: list[Doubles] = field(default_factory=list)
    missed: list[Doubles] = field(default_factory=list)
    problem: str | None = None


class DraftLogits(Protocol):
    """A draft's logits at scored positions start … stop - 1 of a window: float32 (n, vocabulary)."""

    def logits(self, window: int, start: int, stop: int) -> Floats: ...


@dataclass(frozen=True)
class AcceptanceRun:
    """A model and its drafts on windows.

    size: tokens of the model's vocabulary; rows of its matrix beyond them are never drawn. drafts: by name; tokens
    beyond a draft's own matrix have probability 0. lookup: the name of the prompt lookup, None for none.
    """

    windows: Sequence["Window"]
    size: int
    target: "RunningLogits"
    drafts: Mapping[str, DraftLogits]
    lookup: str | None
    temperatures: Sequence[float]
    threads: int

    def run(self, progress: Progress | None = None) -> dict[str, Acceptance]:
        """Return the acceptance of each draft by name.

        Raises ModelError if the model's own logits are not finite; a draft's are its problem.
        """
        names = [*self.drafts, *([] if self.lookup is None else [self.lookup])]
        results = {name: Acceptance() for name in names}
        first = results[names[0]]
        for number, window in enumerate(self.windows):
            self._window(number, window, results)
            if progress is not None:
                progress(number + 1, len(self.windows), _mean(first.stands))
        return results

    def _window(self, number: int, window: "Window", results: Mapping[str, Acceptance]) -> None:
        from runtime.kernels.threads import spans

        count = len(window.scored)
        for each in results.values():
            each.stands.append(np.zeros((count, len(self.temperatures))))
            each.agree.append(np.zeros(count, np.bool_))
        lookup = None if self.lookup is None else _LookupScores(window, results[self.lookup], len(self.temperatures))
        step = max(MIN_PLACES, LOGITS_AT_ONCE // self.size)
        for start, stop in spans(count, step):
            logits = np.ascontiguousarray(self.target.logits(number, start, stop)[:, : self.size])
            check_finite(logits, f"logits of window {number + 1}")
            likeliest = logits.argmax(axis=1)
            rows: dict[str, Floats] = {}
            for name, draft in self.drafts.items():
                if results[name].problem is None:
                    try:
                        rows[name] = self._of_draft(draft, number, start, stop)
                    except ModelError as error:
                        results[name].problem = str(error)
            for i, temperature in enumerate(self.temperatures):
                of = TemperedLogits(logits, temperature, self.threads)
                for name, own in rows.items():
                    results[name].stands[-1][start:stop, i] = of.overlap(own)
                if lookup is not None:
                    lookup.take(of, i, start, stop)
            for name, own in rows.items():
                results[name].agree[-1][start:stop] = own.argmax(axis=1) == likeliest
            if lookup is not None:
                lookup.acceptance.agree[-1][start:stop] = lookup.first[start:stop] == likeliest

    def _of_draft(self, draft: DraftLogits, number: int, start: int, stop: int) -> Floats:
        """Return a draft's logits over the model's vocabulary. Raises ModelError."""
        logits = draft.logits(number, start, stop)[:, : self.size]
        check_finite(logits, f"logits of window {number + 1}")
        if logits.shape[1] < self.size:
            logits = np.pad(logits, ((0, 0), (0, self.size - logits.shape[1])), constant_values=-np.inf)
        return np.ascontiguousarray(logits)


class TemperedLogits:
    """A model's distributions at a temperature, from logits (n, vocabulary). 0: the top token is certain."""

    def __init__(self, logits: Floats, temperature: float, threads: int = 1) -> None:
        from runtime.evaluation.divergence import row_figures

        self.temperature, self.threads = temperature, threads
        self.likeliest = logits.argmax(axis=1)
        self.logits = logits
        if temperature > 0:
            self.logits = logits if temperature == 1 else logits / np.float32(temperature)
            self.rows = row_figures(self.logits, np.zeros(len(logits), np.int64), threads)

    def overlap(self, logits: Floats) -> Doubles:
        """Return the sum of min(p, q) of each row, q being the other model's distribution at this temperature: (n,)."""
        from runtime.evaluation.divergence import VARIATION, compare

        other = TemperedLogits(logits, self.temperature, self.threads)
        if self.temperature == 0:
            return np.where(other.likeliest == self.likeliest, 1.0, 0.0)
        overlap: Doubles = 1 - compare(self.rows, other.rows, self.threads)[:, VARIATION]
        return overlap.clip(0, 1)

    def probability(self, rows: Ids, tokens: Ids) -> Doubles:
        """Return the probability of each token in its row, (n,); 0 for the token -1."""
        if self.temperature == 0:
            return np.where(tokens == self.likeliest[rows], 1.0, 0.0)
        own = self.logits[rows, np.maximum(tokens, 0)].astype(np.float64)
        return np.where(tokens >= 0, np.exp(own - self.rows.z[rows]), 0.0)


class _LookupScores:
    """Prompt lookup in a window, with the model's probabilities. first: the first drafted token of each position."""

    def __init__(self, window: "Window", acceptance: Acceptance, temperatures: int) -> None:
        drafts = lookup_drafts(window)
        self.window, self.acceptance = window, acceptance
        self.first = np.array([each.tokens[0] if each.tokens else -1 for each in drafts], np.int64)
        acceptance.drafted.append(np.array([len(each.tokens) for each in drafts], np.int64))
        acceptance.matched.append(np.array([each.matched for each in drafts], np.int64))
        for values in (acceptance.own, acceptance.missed):
            values.append(np.zeros((len(drafts), temperatures)))
        index = {place: i for i, place in enumerate(window.scored.tolist())}
        wrong = [
            (index.get(place + each.matched, -1), i, each.tokens[each.matched])
            for i, (place, each) in enumerate(zip(window.scored.tolist(), drafts, strict=True))
            if each.matched < len(each.tokens)
        ]  # position of the model's prediction, the draft's position, the token
        self._wrong = np.array(wrong, np.int64).reshape(-1, 3)

    def take(self, of: TemperedLogits, i: int, start: int, stop: int) -> None:
        """Record the model's probabilities at positions start … stop - 1, at temperature number i."""
        acceptance, rows = self.acceptance, np.arange(stop - start)
        acceptance.stands[-1][start:stop, i] = of.probability(rows, self.first[start:stop])
        acceptance.own[-1][start:stop, i] = of.probability(rows, self.window.targets[start:stop])
        place, draft, token = self._wrong[(self._wrong[:, 0] >= start) & (self._wrong[:, 0] < stop)].T
        acceptance.missed[-1][draft, i] = of.probability(place - start, token)


class LookupDraft(NamedTuple):
    """A draft from the text. matched: how many of its tokens, from the first on, are those that follow."""

    tokens: list[int]
    matched: int


def lookup_drafts(window: "Window") -> list[LookupDraft]:
    """Return the prompt-lookup draft at each scored position of a window."""
    from runtime.sampling.sampler import State
    from runtime.speculation.drafts import LookupDrafter

    text = window.inputs.tolist()
    if int(window.scored[-1]) + 1 == len(text):
        text.append(int(window.targets[-1]))
    drafter, state, lookups = LookupDrafter(), State(), []
    for place in window.scored.tolist():
        draft = drafter.propose(text[: place + 1], MAX_LOOKUP, state).tokens
        following = text[place + 1 : place + 1 + len(draft)]
        same = [mine == its for mine, its in zip(draft, following, strict=False)]
        lookups.append(LookupDraft(draft, same.index(False) if False in same else len(same)))
    return lookups


def check_finite(logits: Floats, what: str) -> None:
    """Raise ModelError if logits are not finite; minus infinity excludes a token."""
    largest = logits.max()
    if not np.isfinite(largest):
        raise ModelError(f"{what} are not finite: its weights are damaged")


def draft_forward(net: "RunningModel") -> "LazyForward":
    """Return a draft's forward function; tokens that it does not know become token 0, as in drafting."""

    def forward(ids: Ids, first: int) -> "LazyLogits":
        return net.lazy_logits(np.where(ids < net.vocabulary_size, ids, 0), first)

    return forward


class SharedStates:
    """The layers of a model, run once for itself and for readers of its states: forward functions for `RunningLogits`.

    Use `own` for the model's logits and `of` for a reader's, which must be asked for the same windows afterwards.
    """

    def __init__(self, net: "RunningModel", readers: Iterable["Reader | BlockWriter"]) -> None:
        self.net, self.layers = net, tuple(sorted({layer for each in readers for layer in each.layers}))
        self._last: tuple[Ids, Floats, Floats | None] | None = None

    def own(self, ids: Ids, first: int) -> "LazyLogits":
        self._last = None
        if self.layers:
            states, inputs = self.net.forward_with_inputs(ids, self.layers)
            self._last = ids, states.states, inputs
        else:
            states = self.net.lazy_logits(ids, 0)
            self._last = ids, states.states, None
        return replace(states, x=states.x[:, first:])

    def of(self, reader: "Reader") -> "LazyForward":
        """Return a reader's forward function: it predicts from the previous position's state and the token at
        `first`.
        """

        def forward(ids: Ids, first: int) -> "LazyLogits":
            if self._last is None or not np.array_equal(self._last[0], ids):
                self.own(ids, first)
            assert self._last is not None
            if isinstance(reader, OwnLayer):
                logits = self.net.mtp_logits(ids, self._last[1])
                return replace(logits, x=logits.x[:, first - 1 :])
            states = self._last[1] if not reader.layers else self._of_layers(reader.layers)
            read = [
                reader.read(reader.begin(np.ascontiguousarray(rows[:-1])), text[1:].tolist(), None)[0]
                for rows, text in zip(states, ids, strict=True)
            ]
            return replace(read[0], x=np.stack([each.x[first - 1 :] for each in read]))

        from runtime.speculation.readers import OwnLayer

        return forward

    def inputs(self, ids: Ids, layers: Sequence[int]) -> Floats:
        """Return the inputs of layers for a window's tokens, (tokens, width of all)."""
        last = None if self._last is None else self._last[0]
        if last is None or last.shape[1] != len(ids) or not (last == ids).all(axis=1).any():
            self.own(ids[None], 0)
        assert self._last is not None
        inputs: Floats = self._of_layers(layers)[int((self._last[0] == ids).all(axis=1).argmax())]
        return inputs

    def _of_layers(self, layers: Sequence[int]) -> Floats:
        assert self._last is not None
        assert self._last[2] is not None
        every = self._last[2].reshape(*self._last[2].shape[:-1], len(self.layers), -1)
        wanted = every[..., [self.layers.index(layer) for layer in layers], :]
        return wanted.reshape(*wanted.shape[:-2], -1)


class BlockLogits:
    """The logits of a block-writing draft (DFlash) for the first token of a block, at each scored position."""

    def __init__(self, shared: SharedStates, writer: "BlockWriter", windows: Sequence["Window"], drafted: int) -> None:
        """Prepare the draft. drafted: tokens of a block, all of which see each other."""
        self.shared, self.writer, self.windows = shared, writer, windows
        self.drafted = min(drafted, writer.max_tokens)
        self._of: tuple[int, Floats] | None = None  # a window, and the states of its first drafted tokens

    def logits(self, window: int, start: int, stop: int) -> Floats:
        if self._of is None or self._of[0] != window:
            self._of = window, self._firsts(self.windows[window])
        written = self.writer.written(np.ascontiguousarray(self._of[1][start:stop]))
        last = self.windows[window].inputs[self.windows[window].scored[start:stop]].tolist()
        return np.stack([self.writer.logits(written, i, token) for i, token in enumerate(last)])

    def _firsts(self, window: "Window") -> Floats:
        """Return the states from the last position to the first, so that the cache only has to be truncated."""
        from runtime.kv_cache import KVCache

        cache, firsts = KVCache(), list[Floats]()
        self.writer.keep(self.shared.inputs(window.inputs, self.writer.layers), cache)
        for place in window.scored[::-1].tolist():
            cache.truncate(place)
            firsts.append(self.writer.block(int(window.inputs[place]), self.drafted, cache)[0])
        return np.stack(firsts[::-1])


def assistant_forward(assistant: "Assistant") -> "LazyForward":
    """Return an assistant's forward function, which attends to the keys of all earlier tokens."""

    def forward(ids: Ids, first: int) -> "LazyLogits":
        logits: list[LazyLogits] = []
        for text in ids:
            cache = assistant.model.new_cache()
            cache.memory = len(text)  # keep all tokens
            states = assistant.model.lazy_forward(text.tolist(), cache).x
            steps: list[LazyLogits] = []
            for place in range(len(text) - 1, first - 1, -1):
                cache.truncate(place)
                steps.append(assistant.read(int(text[place]), states[place - 1 : place], place, cache)[0])
            logits.append(replace(steps[0], x=np.concatenate([each.x for each in steps[::-1]])))
        return replace(logits[0], x=np.stack([each.x for each in logits]))

    return forward


def _mean(stands: Sequence[Doubles]) -> float:
    """Return the mean over all positions, at the last temperature."""
    count = sum(len(each) for each in stands)
    return float(sum(each[:, -1].sum() for each in stands) / count) if count else 0.0
