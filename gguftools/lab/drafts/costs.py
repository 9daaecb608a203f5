"""Costs of drafting and verifying a token relative to a token of the model alone: timed, or by bytes of weights."""

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import Doubles

from ...models.model import Model
from .figures import Costs

if TYPE_CHECKING:
    from runtime.model import RunningModel
    from runtime.sampling.sampler import Distribution, State
    from runtime.speculation.acceptance import Candidate, Uniform, Verdict
    from runtime.speculation.trees import DraftTree


BEFORE = 64  # tokens in the cache when a pass is timed
PASSES = (1, 2, 4, 8, 9, 16, 17, 24, 25, 32, 64)
"""Tokens of the passes that are timed; between them is a line. More than 8 are run by eights
(`runtime.products.gemv`).
"""
MIN_ROUNDS, MAX_ROUNDS, MAX_SECONDS = (3, 21, 10.0)  # rounds of timing everything, until so many seconds are over


class _FixedDrafter:
    """A drafter with a fixed draft, of which no token is accepted: times a cycle without its drafting."""

    reads_states = False
    layers: tuple[int, ...] = ()

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens

    def read(self, prompt: Sequence[int]) -> None:
        """Do nothing: the draft is fixed."""

    def propose(self, text: Sequence[int], max_tokens: int, state: "State") -> "DraftTree":
        from runtime.sampling.sampler import Distribution
        from runtime.speculation.acceptance import Candidate
        from runtime.speculation.trees import chain

        return chain(Candidate(each, Distribution(np.array([each]), np.ones(1))) for each in self.tokens[:max_tokens])

    def follow(self, states: NDArray[np.float32]) -> None:
        """Do nothing: the draft is fixed."""


def _reject_all(p: "Distribution", candidates: Sequence["Candidate"], uniform: "Uniform") -> "Verdict":
    from runtime.speculation.acceptance import verify

    return verify(p, candidates, uniform)._replace(candidate=None)


class _TargetTimer:
    """A model after some tokens, with all that `generate` does between passes; the top token is drawn."""

    def __init__(self, net: "RunningModel", ids: Sequence[int], before: int, sizes: Sequence[int]) -> None:
        """Fill the cache. ids: tokens in the cache, then those of the passes. sizes: of later passes."""
        from runtime.sampling.parameters import Sampling
        from runtime.sampling.sampler import Sampler
        from runtime.speculation.decoding import Speculation

        self.net, self.ids, self.before, self.cache = net, ids, before, net.new_cache()
        self.sampler = Sampler(Sampling(temperature=0))
        self.sampler.prime(ids[:before])
        drafter = _FixedDrafter(ids[before + 1 :])
        self.cycles = Speculation(net, self.sampler, drafter, max(sizes), net.vocabulary_size, _reject_all)
        self.cache.memory = max(sizes) + 1
        net.forward(ids[:before], self.cache, before - 1)
        self.token()
        for size in sizes:  # compiles kernels, or loads them
            self.cycle(size)

    def token(self) -> tuple[float, float]:
        """Return the seconds of one token without drafts, and those of its draw."""
        start = time.perf_counter()
        logits = self.net.forward(self.ids[self.before : self.before + 1], self.cache)
        drawing, state = time.perf_counter(), self.sampler.state
        self.sampler.draw(logits[-1])
        end = time.perf_counter()
        self.sampler.state = state
        self.cache.truncate(self.before)
        return end - start, end - drawing

    def cycle(self, size: int) -> float:
        """Return the seconds of a cycle whose pass has `size` tokens and which writes one."""
        start = time.perf_counter()
        self.cycles.cycle([*self.ids[: self.before + 1]], self.cache, size)
        seconds = time.perf_counter() - start
        self.cache.truncate(self.before)
        return seconds


class _DraftTimer:
    """A draft model after the same text."""

    def __init__(self, net: "RunningModel", ids: Sequence[int], before: int) -> None:
        from runtime.sampling.parameters import Sampling
        from runtime.sampling.sampler import Sampler
        from runtime.speculation.drafts import Drawing, ModelDrafter
        from runtime.speculation.parameters import Drafting

        self.sampler, self.ids, self.before = Sampler(Sampling(temperature=0)), ids, before
        self.drafter = ModelDrafter(net, Drawing(self.sampler, Drafting(), net.vocabulary_size))
        self.drafter.read(self._text(0))
        for size in (1, 2, 1):
            self.seconds(size)

    def seconds(self, size: int) -> float:
        """Return the seconds of drafting one token by a pass over 1 or 2 tokens; call it for 1 before 2."""
        start = time.perf_counter()
        self.drafter.propose(self._text(2 * size - 1), 1, self.sampler.state)
        return time.perf_counter() - start

    def _text(self, more: int) -> list[int]:
        """Return the text and some more tokens: of three, one has been read and one is new."""
        return list(self.ids[: self.before + more])


class _DraftTimings:
    """Timed cycles with a draft, as one model's weights evict the other's from the processor's caches.

    verify: seconds of the model's part of cycles after the draft's, by the size of its passes. first, two, next: of the
    draft's token after the model's pass, by a pass over one and over two tokens; and of a token after one of its own.
    One number each turn.
    """

    def __init__(self, target: _TargetTimer, draft: _DraftTimer, sizes: Sequence[int]) -> None:
        self.target, self.draft = target, draft
        self.verify: dict[int, list[float]] = {size: [] for size in sizes}
        self.first: list[float] = []
        self.two: list[float] = []
        self.next: list[float] = []

    def take(self) -> None:
        for size, seconds in self.verify.items():
            seconds.append(self.target.cycle(size))
            self.first.append(self.draft.seconds(1))
            self.next.append(self.draft.seconds(1))
            self.target.cycle(1)
            self.two.append(self.draft.seconds(2))

    def costs(self, one: float, drawn: float, longest: int) -> Costs:
        first, two, following = (median(each) for each in (self.first, self.two, self.next))
        verify = _passes(self.verify, one, longest) + (first - following) / one
        verify[0] = 1
        return Costs(following / one, np.maximum.accumulate(verify), max(0.0, two - first) / one, drawn)


def timed_costs(
    target: "RunningModel", drafts: Sequence["RunningModel"], text: Sequence[int], longest: int, before: int = BEFORE
) -> tuple[Costs, list[Costs]]:
    """Return the costs of passes without a draft's cost, and the costs of each draft; a token of the model alone is 1.

    text: token ids, at least one; before: how many are in the cache. Timed are parts of `generate`'s own loop at
    temperature 0, with all that it does between passes. All are timed in turn, and the median counts: the fastest pass
    of a few tokens is luck.
    """
    sizes = [size for size in PASSES if size <= longest] + [longest + 1]
    ids = [text[i % len(text)] for i in range(before + max(longest + 1, 3))]
    own = _TargetTimer(target, ids, before, sizes)
    turns = [_DraftTimings(own, _DraftTimer(draft, ids, before), sizes) for draft in drafts]
    pass_seconds: dict[int, list[float]] = {size: [] for size in sizes}
    tokens: list[tuple[float, float]] = []
    begin = time.perf_counter()
    for turn in range(MAX_ROUNDS):
        if turn >= MIN_ROUNDS and time.perf_counter() - begin > MAX_SECONDS:
            break
        for size, seconds in pass_seconds.items():
            own.token()
            tokens.append(own.token())
            own.cycle(size)
            seconds.append(own.cycle(size))
        for each in turns:
            each.take()
    one, draw = (median(each) for each in zip(*tokens, strict=True))
    verify = _passes(pass_seconds, one, longest)
    verify[0] = 1
    free = Costs(0.0, np.maximum.accumulate(verify), 0.0, draw / one)
    return free, [each.costs(one, free.drawn, longest) for each in turns]


def _passes(seconds: Mapping[int, Sequence[float]], one: float, longest: int) -> Doubles:
    """Return the cost of passes over 1, 2, … tokens, interpolated between the timed sizes."""
    timed = [median(each) / one for each in seconds.values()]
    passes: Doubles = np.maximum.accumulate(np.interp(np.arange(1, longest + 2), list(seconds), timed))
    return passes


def bytes_read(model: Model) -> float:
    """Return the bytes of weights read for one token: of experts the chosen share, of the embedding one row."""
    used, count = (model.metadata.get(f"{model.architecture}.expert_{name}") for name in ("used_count", "count"))
    share = float(used) / float(count) if used and count else 1.0
    tied = "output.weight" not in model.tensors
    total = 0.0
    for name, tensor in model.tensors.items():
        if name == "token_embd.weight" and not tied:
            continue
        total += tensor.nbytes * (share if "_exps." in name else 1.0)
    return total


def mtp_layer_bytes(model: Model) -> float:
    """Return the same for the MTP layer with the output matrix."""
    last = int(model.metadata.get(f"{model.architecture}.block_count", 0)) - 1
    layer = {name: tensor for name, tensor in model.tensors.items() if name.startswith(f"blk.{last}.")}
    head = next((each for name, each in layer.items() if "nextn.shared_head_head" in name), None)
    if head is None:
        tensors = model.tensors
        head = tensors.get("output.weight") or tensors["token_embd.weight"]
        layer["output.weight"] = head
    part = Model(model.metadata, {name: each for name, each in layer.items() if "embed_tokens" not in name})
    return bytes_read(part)
