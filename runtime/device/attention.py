"""Scaled dot-product attention, some queries at a time: memory for scores is bounded, and sums are float32."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..arrays import Ids
from ..graph.placement import SCORES

ROWS = 512  # queries at a time, which need no scores for keys after the last one


@dataclass(frozen=True)
class Visible:
    """The keys that each query of a text sees: from `first` to before `last`, int64 (queries,); of an array and on the
    device.
    """

    first: Ids
    last: Ids
    on_device: tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Masked:
    """Which keys queries see, and what changes their scores.

    scale: of scores. softcap: bound by tanh, None for none. slopes: (heads,) of ALiBi's distance penalty, with
    positions (queries,). sinks: (heads,), logits that take part in the sum alone. bias: (texts or 1, heads or 1,
    queries, keys), added to scores.
    """

    visible: Visible
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
    queries = (q * seen.scale).reshape(texts, n, kv_heads, heads // kv_heads, -1).permute(0, 2, 3, 1, 4)
    keys, values = (each.reshape(texts, m, kv_heads, -1).transpose(1, 2).contiguous() for each in (k, v))
    out = q.new_empty((texts, n, heads, v.shape[2]))
    for of_texts, rows in _blocks(texts, n, heads * m):
        first = int(seen.visible.first[rows].min())
        columns = slice(first, max(first + 1, int(seen.visible.last[rows].max())))
        asked = queries[of_texts, :, :, rows]
        scores = asked.flatten(2, 3) @ keys[of_texts, :, columns].transpose(2, 3)
        scores = _changed(scores.unflatten(2, asked.shape[2:4]), seen, of_texts, rows, columns)
        mixed = _mixed(scores, values[of_texts, :, columns], seen.sinks)
        out[of_texts, rows] = mixed.permute(0, 3, 1, 2, 4).flatten(2, 3)
    return out.reshape(texts * n, heads, -1)


def _blocks(texts: int, n: int, scores: int) -> Iterator[tuple[slice, slice]]:
    """Yield texts and their queries that are computed together. scores: of a query."""
    rows = max(1, min(n, ROWS, SCORES // scores))
    together = max(1, SCORES // (scores * rows))
    for text in range(0, texts, together):
        for start in range(0, n, rows):
            yield slice(text, min(texts, text + together)), slice(start, min(n, start + rows))


def _changed(scores: torch.Tensor, seen: Masked, texts: slice, rows: slice, columns: slice) -> torch.Tensor:
    """Return scores (texts, kv heads, group, queries, keys), in place, with biases and caps, -inf for hidden keys."""
    kv_heads, group = scores.shape[1:3]
    at = torch.arange(columns.start, columns.stop, device=scores.device)
    if seen.bias is not None:
        bias = seen.bias[texts if len(seen.bias) > 1 else slice(None), :, rows, columns]
        scores += bias.unflatten(1, (kv_heads, group) if bias.shape[1] > 1 else (1, 1))
    if seen.slopes is not None and seen.positions is not None:
        distance = (at - seen.positions[rows, None]).abs().float()
        scores -= seen.slopes.reshape(kv_heads, group, 1, 1) * distance
    if seen.softcap:
        scores.div_(seen.softcap).tanh_().mul_(seen.softcap)
    visible = seen.visible
    if (visible.first[rows] > columns.start).any() or (visible.last[rows] < columns.stop).any():
        first, last = (each[rows, None] for each in visible.on_device)
        scores.masked_fill_((at < first) | (at >= last), -torch.inf)
    return scores


def _mixed(scores: torch.Tensor, values: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Return values (texts, kv heads, keys, width) mixed by the softmax of scores, which are overwritten."""
    top = scores.amax(dim=-1, keepdim=True)
    sink = None if sinks is None else sinks.reshape(*scores.shape[1:3], 1, 1)
    top = top if sink is None else torch.maximum(top, sink)
    top = torch.where(torch.isfinite(top), top, torch.zeros_like(top))  # no key is seen
    shares = scores.sub_(top).exp_()
    total = shares.sum(dim=-1, keepdim=True)
    total = total if sink is None else total + torch.exp(sink - top)
    mixed = (shares.flatten(2, 3) @ values).unflatten(2, shares.shape[2:4])
    return mixed / total.clamp(min=torch.finfo(torch.float32).tiny)
