"""Log-probabilities of the model itself, before any sampler. Source: vLLM, logprobs (raw_logprobs)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import Doubles, Floats, Ids
from .candidates import candidates, largest


@dataclass(frozen=True)
class TokenLogprobs:
    """A token's log-probability and its rank, 1 for the likeliest; the same of the n likeliest."""

    token: int
    logprob: float
    rank: int
    ids: Ids
    logprobs: Doubles

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; a token of probability 0 has the log-probability None."""
        top = zip(self.ids.tolist(), map(_finite, self.logprobs.tolist()), strict=True)
        return {
            "token": self.token,
            "logprob": _finite(self.logprob),
            "rank": self.rank,
            "top": [{"token": token, "logprob": value} for token, value in top],
        }


def token_logprobs(logits: Floats, token: int, count: int) -> TokenLogprobs:
    """Return the log-probabilities of a token, and of the `count` likeliest.

    logits: (vocabulary,). Raises ModelError if one is NaN or infinite.
    """
    logits = candidates(logits).logits
    best = np.float64(logits.max())
    total = best + np.log(np.exp(logits.astype(np.float64) - best).sum())
    top = largest(logits, count).astype(np.int64) if count else np.zeros(0, np.int64)
    rank = 1 + int((logits > logits[token]).sum())
    return TokenLogprobs(token, float(logits[token] - total), rank, top, logits[top].astype(np.float64) - total)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
