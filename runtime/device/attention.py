"""Scaled dot-product attention, some queries at a time: memory for scores is bounded, and sums are float32."""

from dataclasses import dataclass

import torch

from .activations import softcap as capped

SCORES = 1 << 26  # at a time: 268 MB


@dataclass(frozen=True)
class Masked:
    """Which keys queries see, and what changes their scores.

    first, last: int64 (queries,), the keys that each query of a text sees. scale: of scores. softcap: bound by tanh,
    None for none. slopes: (heads,) of ALiBi's distance penalty, with positions (queries,). sinks: (heads,), logits that
    take part in the sum alone. bias: (texts or 1, heads or 1, queries, keys), added to scores.
    """

    first: torch.Tensor
    last: torch.Tensor
    scale: float
    softcap: float | None = None
    slopes: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    bias: torch.Tensor | None = None


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, texts: int, seen: Masked) -> torch.Tensor:
    """Return softmax(scale q·k) v of every head: (n, heads, value width).

    q (n, heads, width), k (m, kv heads, width), v (m, kv heads, value width): of `texts` equally long texts, one after
    the other. Heads share key-value heads in equal groups of neighbours.
    """
    heads, kv_heads, n, m = q.shape[1], k.shape[1], len(q) // texts, len(k) // texts
    group = heads // kv_heads
    queries = q.reshape(texts, n, kv_heads, group, -1).permute(0, 2, 3, 1, 4) * seen.scale
    keys = k.reshape(texts, m, kv_heads, -1).permute(0, 2, 3, 1)
    values = v.reshape(texts, m, kv_heads, -1).permute(0, 2, 1, 3)
    step = max(1, min(n, SCORES // max(1, heads * m)))
    together = max(1, SCORES // max(1, heads * m * step))
    out = q.new_empty((texts, n, heads, v.shape[2]))
    for text in range(0, texts, together):
        of_texts = slice(text, text + together)
        for start in range(0, n, step):
            rows = slice(start, min(n, start + step))
            asked = queries[of_texts, :, :, rows]
            scores = asked.flatten(2, 3) @ keys[of_texts]
            scores = _changed(scores.reshape(*asked.shape[:4], m), seen, of_texts, rows)
            mixed = _mixed(scores, values[of_texts], seen.sinks)
            out[of_texts, rows] = mixed.permute(0, 3, 1, 2, 4).flatten(2, 3)
    return out.reshape(texts * n, heads, -1)


def _changed(scores: torch.Tensor, seen: Masked, texts: slice, rows: slice) -> torch.Tensor:
    """Return scores (texts, kv heads, group, queries, keys) with biases and caps, -inf where keys are hidden."""
    kv_heads, group, m = scores.shape[1], scores.shape[2], scores.shape[4]
    at = torch.arange(m, device=scores.device)
    if seen.bias is not None:
        bias = seen.bias[texts if len(seen.bias) > 1 else slice(None), :, rows]
        shape = (kv_heads, group) if bias.shape[1] > 1 else (1, 1)
        scores = scores + bias.reshape(len(bias), *shape, *bias.shape[2:])
    if seen.slopes is not None and seen.positions is not None:
        distance = (at - seen.positions[rows, None]).abs().float()
        scores = scores - seen.slopes.reshape(kv_heads, group, 1, 1) * distance
    if seen.softcap:
        scores = capped(scores, seen.softcap)
    hidden = (at < seen.first[rows, None]) | (at >= seen.last[rows, None])
    return scores.masked_fill(hidden, -torch.inf)


def _mixed(scores: torch.Tensor, values: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Return values (texts, kv heads, keys, width) mixed by the softmax of scores."""
    top = scores.amax(dim=-1, keepdim=True)
    sink = None if sinks is None else sinks.reshape(*scores.shape[1:3], 1, 1)
    top = top if sink is None else torch.maximum(top, sink)
    top = torch.where(torch.isfinite(top), top, torch.zeros_like(top))  # no key is seen
    shares = torch.exp(scores - top)
    total = shares.sum(dim=-1, keepdim=True)
    total = total if sink is None else total + torch.exp(sink - top)
    mixed = shares.flatten(2, 3) @ values
    return mixed.reshape(*shares.shape[:4], -1) / total.clamp(min=torch.finfo(torch.float32).tiny)
