"""Changes of logits before the sampler chain: the caller's functions, the repetition penalty, banned tokens and words.

Source: vLLM, SamplingParams: logits_processors, repetition_penalty, allowed_token_ids, bad_words.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from quants.errors import OptionError
from quants.spelling import quote

from ..arrays import Floats, Ids
from .parameters import LogitsProcessor, Sampling

Words = Sequence[tuple[int, ...]]  # token sequences that may not be completed


def changes_logits(sampling: Sampling, words: Words) -> bool:
    """Return whether any of these is set."""
    return bool(
        words
        or sampling.logits_processors
        or sampling.allowed_token_ids is not None
        or sampling.repetition_penalty != 1
    )


def processed(
    logits: Floats, sampling: Sampling, words: Words, prompt: Sequence[int], generated: Sequence[int]
) -> Floats:
    """Return the logits that the chain samples from; what is barred is minus infinity.

    The caller's functions come first, so that they see the model's own logits and can't undo what is barred.
    Raises OptionError for a function that returns no logits, and for tokens outside the vocabulary.
    """
    logits = logits.copy()
    for each in sampling.logits_processors:
        logits = _call(each, prompt, generated, logits)
    if sampling.repetition_penalty != 1:
        _penalize_repetition(logits, np.unique(np.array([*prompt, *generated], np.int64)), sampling.repetition_penalty)
    if sampling.allowed_token_ids is not None:
        logits = _only_allowed(logits, sampling.allowed_token_ids)
    for word in words:
        if word[-1] < len(logits) and tuple(generated[len(generated) - len(word) + 1 :]) == word[:-1]:
            logits[word[-1]] = -np.inf
    return logits


def bad_word_tokens(words: Sequence[str], encode: Callable[[str], Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the token sequences of words: as they begin a text, and as they follow a space where that is other tokens.

    As in vLLM, the form after a space counts only where it has as many tokens and begins with another one.
    """
    sequences: list[tuple[int, ...]] = []
    for word in words:
        plain, spaced = tuple(encode(word)), tuple(encode(f" {word.lstrip()}"))
        if plain:
            sequences.append(plain)
        if spaced and (not plain or (len(spaced) == len(plain) and spaced[0] != plain[0])):
            sequences.append(spaced)
    return sequences


def _call(function: LogitsProcessor, prompt: Sequence[int], generated: Sequence[int], logits: Floats) -> Floats:
    given: tuple[Any, ...] = (list(generated), logits)
    with suppress(ValueError):  # of a builtin without a signature
        given = (list(prompt), *given) if len(inspect.signature(function).parameters) == 3 else given
    made = np.asarray(function(*given))
    if made.shape != logits.shape or not np.issubdtype(made.dtype, np.number):
        raise OptionError(
            f"{quote(getattr(function, '__name__', str(function)))} of logits_processors returned an array of "
            f"{made.dtype} {made.shape}: logits of the shape {logits.shape} are needed"
        )
    return made.astype(np.float32)


def _penalize_repetition(logits: Floats, tokens: Ids, penalty: float) -> None:
    tokens = tokens[(tokens >= 0) & (tokens < len(logits))]
    values = logits[tokens]
    with np.errstate(over="ignore"):  # which the caller finds
        logits[tokens] = np.where(values > 0, values / np.float32(penalty), values * np.float32(penalty))


def _only_allowed(logits: Floats, tokens: Sequence[int]) -> Floats:
    if max(tokens) >= len(logits):
        raise OptionError(f"allowed_token_ids has the token {max(tokens)}, but the vocabulary has {len(logits)} tokens")
    kept = np.full_like(logits, -np.inf)
    kept[[*tokens]] = logits[[*tokens]]
    return kept
