"""Simulate speculative decoding on prompts cut from texts, with the loop of `generate`."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from .report import Simulation

if TYPE_CHECKING:
    from runtime.evaluation.windows import Window
    from runtime.model import RunningModel
    from runtime.sampling.sampler import Distribution
    from runtime.speculation.acceptance import Candidate, Uniform, Verdict
    from runtime.speculation.decoding import Speculation

PROMPTS = 4  # minimum, if there are enough windows
MIN_WRITTEN = 32  # tokens after each prompt


@dataclass(frozen=True)
class Setting:
    """The model and draft. vocabulary: tokens of the model's. context: tokens that a draft can attend to. end_ids:
    tokens that end a text.
    """

    net: "RunningModel"
    by: "RunningModel | Literal['lookup', 'mtp']"
    vocabulary: int
    context: int | None
    end_ids: frozenset[int]
    temperature: float
    draft_length: int
    seed: int


class RecordingRule:
    """The acceptance rule, which records the chance of each verified token and whether it was accepted."""

    def __init__(self) -> None:
        self.chances: list[float] = []
        self.stood: list[bool] = []

    def __call__(self, p: "Distribution", candidates: "Sequence[Candidate]", uniform: "Uniform") -> "Verdict":
        from runtime.speculation.acceptance import acceptance_rate, verify

        verdict = verify(p, candidates, uniform)
        for each in candidates:  # a chain has one at most
            self.chances.append(p.of(each.token) if each.q is None else acceptance_rate(p, each.q))
            self.stood.append(verdict.candidate is not None)
        return verdict


@dataclass(frozen=True)
class Prompts:
    """Token ids of beginnings of texts, and how many tokens to generate after each."""

    texts: list[list[int]]
    tokens: int


def prompts_of(windows: Sequence[Sequence["Window"]], n_ctx: int, tokens: int) -> Prompts:
    """Return beginnings of windows of each text in turn, a quarter as long as a window.

    tokens: to generate in all; fewer if there are not enough windows.
    """
    length = max(1, n_ctx // 4)
    room = n_ctx - length
    wanted = max(PROMPTS, len(windows), -(-tokens // room))
    wanted = max(1, min(wanted, tokens // MIN_WRITTEN))
    prompts: list[list[int]] = []
    for turn in range(max(map(len, windows), default=0)):
        for text in windows:
            if turn < len(text) and len(prompts) < wanted:
                prompts.append([int(token) for token in text[turn].inputs[:length]])
    return Prompts(prompts, min(room, -(-tokens // max(1, len(prompts)))))


def simulate(setting: Setting, prompts: Prompts, done: Callable[[], None]) -> tuple[Simulation | None, list["Window"]]:
    """Generate with cycles after each prompt; return the figures, and the generated texts as windows to measure on.

    The figures are None if no cycle was run. Raises ModelError as `Model.forward` does.
    """
    from runtime.speculation.decoding import Counts

    decided, lengths, written = RecordingRule(), [], []
    counts = Counts()
    for number, prompt in enumerate(prompts.texts):
        speculation = _speculation(setting, number, decided)
        speculation.counts = counts
        text = list(prompt)
        lengths += list(_cycles(speculation, text, prompts.tokens))
        if len(text) > len(prompt) + 1:
            written.append(_window(text, len(prompt)))
        done()
    if not lengths:
        return None, []
    cycle_tokens, chances = np.array(lengths), np.array(decided.chances)
    decisions = max(1, len(chances))
    return Simulation(
        setting.draft_length,
        len(prompts.texts),
        int(cycle_tokens.sum()),
        len(cycle_tokens),
        counts.drafted,
        counts.accepted,
        float(cycle_tokens.mean()),
        float(cycle_tokens.std()) / math.sqrt(max(1, len(cycle_tokens) - 1)),
        None,
        sum(decided.stood) / decisions,
        float(chances.sum()) / decisions,
        math.sqrt(float((chances * (1 - chances)).sum())) / decisions,
        [
            accepted / drafted
            for accepted, drafted in zip(counts.accepted_per_position, counts.drafted_per_position, strict=True)
        ],
    ), written


def _speculation(setting: Setting, number: int, decided: RecordingRule) -> "Speculation":
    from runtime.sampling.parameters import Sampling
    from runtime.sampling.sampler import Sampler
    from runtime.speculation.decoding import speculation_of
    from runtime.speculation.parameters import Drafting

    seed = (setting.seed + number) % 2**32
    plain = Sampling(temperature=setting.temperature, samplers=("temperature",), seed=seed)
    sampler = Sampler(plain, end_ids=setting.end_ids)
    speculation = speculation_of(
        setting.net, sampler, setting.by, setting.vocabulary, Drafting(setting.draft_length), setting.context
    )
    speculation.rule = decided
    return speculation


def _cycles(speculation: "Speculation", text: list[int], tokens: int) -> Iterator[int]:
    """Generate at least `tokens` tokens after a text, until the model ends it; yield the tokens of each cycle."""
    from runtime.prefill import Prefill, PrefillOptions

    sampler, drafter = speculation.sampler, speculation.drafter
    prefill = Prefill(
        speculation.model,
        text,
        PrefillOptions(
            more=tokens + speculation.max_tokens,
            back=speculation.max_tokens,
            keep_states=drafter.reads_states,
            layers=drafter.layers,
        ),
    )
    cache, logits, _ = prefill.read()
    if drafter.reads_states:
        drafter.follow(prefill.states)
    sampler.prime(text)
    end = len(text) + tokens
    text.append(sampler.draw(logits[-1, : speculation.vocabulary]))
    while len(text) < end and not sampler.ends(text[-1]):
        accepted = speculation.cycle(text, cache, speculation.max_tokens + 1)
        text += [each.token for each in accepted]
        sampler.state = accepted[-1].state
        yield len(accepted)


def _window(text: list[int], begin: int) -> "Window":
    """Return a window whose tokens after the first generated one are scored."""
    from runtime.evaluation.windows import Window

    ids = np.array(text, np.int64)
    scored = np.arange(begin, len(ids) - 1)
    return Window(ids, scored, ids[scored + 1])
