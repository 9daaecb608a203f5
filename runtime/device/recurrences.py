"""Recurrences over texts in pieces of many tokens, as products of matrices.

Arrays are float32: values (texts, tokens, heads, width), states (texts, heads, size, width). A piece needs the decay of
a state from one of its tokens to a later one: the exponential of a sum of logarithms that are at most zero, so that
nothing overflows. Each sum is taken over the tokens in between alone: differences of long sums lose small ones.

Source: Dao and Gu 2024, "Transformers are SSMs"; Yang et al. 2024, "Parallelizing Linear Transformers with the Delta
Rule over Sequence Length".
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

PIECE = 64  # tokens with one decay for each head
SHORT_PIECE = 16  # tokens with a decay for each channel: there are (tokens, tokens, channels) of them
SMALLEST = -200.0  # logarithm of a decay: e^-200 is 0 in float32
NUMBERS = 1 << 24  # of a piece's states of channels: 67 MB

Result = tuple[torch.Tensor, torch.Tensor]  # outputs like the values, and the last state


class Decays(NamedTuple):
    """Decays of a state within a piece, of the channels (or 1) of its keys.

    first: from the state before the piece to after each token, (texts, heads, tokens, channels). last: from each token
    to the end. whole: of the piece, (texts, heads, channels, 1). between: from token s to after token t, (texts, heads,
    t, s, channels), 0 where t comes before s.
    """

    first: torch.Tensor
    last: torch.Tensor
    whole: torch.Tensor
    between: torch.Tensor

    @classmethod
    def of(cls, logs: torch.Tensor) -> "Decays":
        """Return decays by their logarithms (texts, heads, tokens, channels)."""
        at = torch.arange(logs.shape[2], device=logs.device)
        earlier, later = at[:, None] >= at, at[:, None] > at
        after = logs[:, :, :, None] * later[:, :, None]  # of token r, where it comes after s
        before, rest = earlier.to(logs.dtype), later.T.to(logs.dtype)
        sums = (before @ after.flatten(3)).unflatten(3, after.shape[3:])
        between = torch.exp(sums).masked_fill(~earlier[:, :, None], 0.0)
        first, last = torch.exp(before @ logs), torch.exp(rest @ logs)
        return cls(first, last, first[:, :, -1, :, None], between)

    def before(self) -> "Decays":
        """Return the decays up to before token t, for recurrences that read the state before they change it."""
        first = torch.cat((torch.ones_like(self.first[:, :, :1]), self.first[:, :, :-1]), dim=2)
        between = torch.cat((torch.zeros_like(self.between[:, :, :1]), self.between[:, :, :-1]), dim=2)
        return self._replace(first=first, between=between)

    def scores(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Return the sums of q of token t times the decayed k of token s, (texts, heads, t, s)."""
        if self.between.shape[4] == 1:
            return (q @ k.transpose(2, 3)) * self.between[..., 0]
        return ((self.between * k[:, :, None]) @ q[..., None])[..., 0]

    def after(self, state: torch.Tensor, *added: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the state after the piece, to which keys times values are added."""
        for k, v in added:
            new = (k * self.last).transpose(2, 3) @ v
            state = new + state * self.whole if added[0][0] is k else state + new
        return state


def pieces(size: int, *inputs: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield at most `size` tokens of arrays (texts, tokens, heads, …): (texts, heads, tokens, …)."""
    turned = [x.transpose(1, 2).contiguous() for x in inputs]
    for start in range(0, inputs[0].shape[1], size):
        yield tuple(x[:, :, start : start + size] for x in turned)


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """Return outputs of pieces (texts, heads, tokens, width) as (texts, tokens, heads, width)."""
    return torch.cat(parts, dim=2).transpose(1, 2)


def logarithms(decay: torch.Tensor) -> torch.Tensor:
    """Return the logarithms of decays between 0 and 1, all of them finite."""
    return torch.log(decay).clamp(min=SMALLEST)


def scan_heads(x: torch.Tensor, logs: torch.Tensor, b: torch.Tensor, c: torch.Tensor, state: torch.Tensor) -> Result:
    """Return h = e^log h + b x, y = c h of each head (Mamba 2, lightning attention).

    logs: (texts, tokens, heads). b, c: (texts, tokens, heads, size).
    """
    parts = []
    for x_, logs_, b_, c_ in pieces(PIECE, x, logs.clamp(min=SMALLEST), b, c):
        decays = Decays.of(logs_[..., None])
        parts.append(decays.scores(c_, b_) @ x_ + (c_ @ state) * decays.first)
        state = decays.after(state, (b_, x_))
    return joined(parts), state


def delta_rule(
    v: torch.Tensor, q: torch.Tensor, k: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> Result:
    """Return h = decay h, h = h + beta k (v - k h), y = q h of each head.

    q, k: (texts, tokens, heads, size). decay: like k, or 1 wide. beta: (texts, tokens, heads).
    """
    parts, size = [], PIECE if decay.shape[3] == 1 else SHORT_PIECE
    for v_, q_, k_, logs, beta_ in pieces(size, v, q, k, logarithms(decay), beta[..., None]):
        decays = Decays.of(logs)
        wanted = (v_ - (k_ * decays.first) @ state) * beta_
        errors = solved(decays.scores(k_, k_) * beta_, wanted)
        parts.append(decays.scores(q_, k_) @ errors + (q_ * decays.first) @ state)
        state = decays.after(state, (k_, errors))
    return joined(parts), state


def solved(below: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return x with x + below x = wanted; of `below` only what is below the diagonal is read."""
    return torch.linalg.solve_triangular(below, wanted, upper=False, unitriangular=True)


def wkv(v: torch.Tensor, r: torch.Tensor, k: torch.Tensor, w: torch.Tensor, state: torch.Tensor) -> Result:
    """Return y = r h, h = w h + k v of each head (RWKV 6). r, k, w: (texts, tokens, heads, size)."""
    parts = []
    for v_, r_, k_, logs in pieces(SHORT_PIECE, v, r, k, logarithms(w)):
        decays = Decays.of(logs).before()
        parts.append(decays.scores(r_, k_) @ v_ + (r_ * decays.first) @ state)
        state = decays.after(state, (k_, v_))
    return joined(parts), state


def wkv7(
    v: torch.Tensor,
    r: torch.Tensor,
    w: torch.Tensor,
    k: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    state: torch.Tensor,
) -> Result:
    """Return h = w h + b (a h) + k v, y = r h of each head (RWKV 7). r, w, k, a, b: (texts, tokens, heads, size)."""
    parts = []
    for v_, r_, logs, k_, a_, b_ in pieces(SHORT_PIECE, v, r, logarithms(w), k, a, b):
        decays = Decays.of(logs)
        before = decays.before()
        known = before.scores(a_, k_) @ v_ + (a_ * before.first) @ state
        answers = solved(-before.scores(a_, b_), known)
        y = decays.scores(r_, k_) @ v_ + decays.scores(r_, b_) @ answers
        parts.append(y + (r_ * decays.first) @ state)
        state = decays.after(state, (k_, v_), (b_, answers))
    return joined(parts), state


def scan_channels(
    x: torch.Tensor, dt: torch.Tensor, b: torch.Tensor, c: torch.Tensor, a: torch.Tensor, state: torch.Tensor
) -> Result:
    """Return h = e^(a dt) h + dt x b, y = c h with a state of each channel (Mamba).

    x, dt: (texts, tokens, channels). b, c: (texts, tokens, size). a: (size, channels). state: (texts, size, channels).
    There is no form with few large products: only what each token adds to the states is computed together.
    """
    parts, size = [], max(1, NUMBERS // state.numel())
    for start in range(0, x.shape[1], size):
        x_, dt_, b_, c_ = (each[:, start : start + size].transpose(0, 1) for each in (x, dt, b, c))
        decays = torch.exp(dt_[:, :, None] * a)
        states = (dt_ * x_)[:, :, None] * b_[..., None]
        for token, decay in zip(states, decays, strict=True):
            state = token.addcmul_(state, decay)
        parts.append((c_[:, :, None] @ states)[:, :, 0])
    return torch.cat(parts).transpose(0, 1), state
