"""Beam search: extend several beginnings of a text at once, and keep the likeliest.

Source: arXiv 1609.08144; transformers, generate with num_beams; vLLM, beam_search. As in transformers, the score of a
text is its log-probability divided by its number of generated tokens to the power of `length_penalty`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from quants.errors import ModelError, OptionError

from .arrays import Floats
from .generation import Generation, known_tokens
from .kv_cache import KVCache
from .sampling.logprobs import TokenLogprobs, token_logprobs
from .sampling.sampler import Sampler, State


@dataclass(frozen=True)
class BeamOptions:
    """width: number of beams. length_penalty: above 0 long texts are favoured, below it short ones. early_stopping: end
    as soon as `width` texts have ended, though others might still become better.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool = False


@dataclass(frozen=True)
class Beam:
    """A text, or the beginning of one. logprob: of all its tokens. ended: by an end-of-text token."""

    tokens: tuple[int, ...] = ()
    logprob: float = 0.0
    ended: bool = False
    state: State = field(default_factory=State)
    logprobs: tuple[TokenLogprobs, ...] = ()

    def score(self, length_penalty: float) -> float:
        """Return the score that texts are ordered by; higher is better."""
        return float(self.logprob / max(len(self.tokens), 1) ** length_penalty)


def beam_search(generation: Generation, options: BeamOptions) -> list[Beam]:
    """Return the best texts, the best first: as many as there are beams, or fewer if there are no more.

    generation: of the prompt, not started; its sampler gives biases, masks and grammar, and nothing is drawn. Raises
    OptionError if nothing limits the texts, and as `Generation` does.
    """
    max_tokens = generation.max_tokens if generation.max_tokens is not None else generation.room
    if max_tokens is None:
        raise OptionError("nothing says how long the text may be", "give max_tokens")
    sampler = greedy(generation.sampler)
    cache, logits = generation.read_prompt()
    running, caches, ended = [Beam(state=sampler.state)], [cache], list[Beam]()
    for step in range(max_tokens):
        chosen, done = _next(
            running, logits, sampler, options.width, known_tokens(generation.model, generation.tokenizer)
        )
        ended = sorted([*ended, *done], key=lambda each: -each.score(options.length_penalty))[: options.width]
        running = [beam for beam, _ in chosen]
        if not running or _is_done(running, ended, options):
            running = [] if len(ended) >= options.width else running
            break
        if step + 1 < max_tokens:
            caches = _caches(caches, [parent for _, parent in chosen])
            logits = _forward(generation, running, caches)
    return sorted([*ended, *running], key=lambda each: -each.score(options.length_penalty))[: options.width]


def greedy(sampler: Sampler) -> Sampler:
    """Return a sampler with the same masks, biases and grammar that leaves the model's probabilities unchanged."""
    other = sampler.fork()
    other.sampling = replace(sampler.sampling, samplers=(), mirostat=0, adaptive_target=-1.0)
    other.grammar_first = True
    for name in ("_quick", "_chain", "_adapts", "_remembers"):  # what was made of the other parameters
        other.__dict__.pop(name, None)
    return other


def _next(
    running: Sequence[Beam], logits: Floats, sampler: Sampler, width: int, vocabulary: int
) -> tuple[list[tuple[Beam, int]], list[Beam]]:
    """Return the beams that continue, each with the number of its parent, and the texts that end now."""
    sampling = sampler.sampling
    ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else sampler.end_ids)}
    kept = width * (1 + max(len(ends), 1))  # so that as many go on, whichever of them end
    candidates: list[tuple[float, int, int]] = []
    for number, (beam, row) in enumerate(zip(running, logits, strict=True)):
        distribution = sampler.probabilities(row[:vocabulary], beam.state)
        best = np.argsort(-distribution.p, kind="stable")[:kept]
        logs = beam.logprob + np.log(distribution.p[best])
        candidates += [
            (-log, number, token) for log, token in zip(logs.tolist(), distribution.ids[best].tolist(), strict=True)
        ]
    candidates.sort()
    going: list[tuple[Beam, int]] = []
    ended: list[Beam] = []
    for rank, (cost, number, token) in enumerate(candidates[:kept]):
        is_end = token in ends
        if len(going) == width or (is_end and rank >= width):
            continue
        parent = running[number]
        count = sampling.logprobs or 0
        beam = Beam(
            (*parent.tokens, token),
            -cost,
            is_end,
            sampler.after(parent.state, token),
            (*parent.logprobs, token_logprobs(logits[number][:vocabulary], token, count)),
        )
        if is_end:
            ended.append(beam)
        else:
            going.append((beam, number))
    return going, ended


def _is_done(running: Sequence[Beam], ended: Sequence[Beam], options: BeamOptions) -> bool:
    """Return whether no beam can improve the result, judged by the best one's present score, as in transformers."""
    if len(ended) < options.width:
        return False
    best = max(each.score(options.length_penalty) for each in running)
    return options.early_stopping or best <= ended[-1].score(options.length_penalty)


def _caches(caches: Sequence[KVCache], parents: Sequence[int]) -> list[KVCache]:
    """Return a cache for each beam: its parent's, or a copy if another beam has that."""
    left = list(parents)
    copies = []
    for parent in parents:
        left.remove(parent)
        copies.append(caches[parent].copy() if parent in left else caches[parent])
    return copies


def _forward(generation: Generation, running: Sequence[Beam], caches: Sequence[KVCache]) -> Floats:
    """Return the logits after each beam, (beams, vocabulary)."""
    model, tokens = generation.model, [[beam.tokens[-1]] for beam in running]
    if len(running) > 1 and model.runs_together:
        rows: list[Floats] = []
        for each in model.forward_together(tokens, caches):
            if isinstance(each, ModelError):
                raise each
            rows.append(each[-1:])
        return np.concatenate(rows)
    return np.concatenate([model.forward(one, cache)[-1:] for one, cache in zip(tokens, caches, strict=True)])
