"""Recurrences in pieces give what they give token by token in float64: with strong decays, none, and states before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.device
TEXTS, HEADS, SIZE, WIDTH = 2, 3, 20, 12
CLOSE = 1e-5  # of the outputs' standard deviation
LENGTHS = (1, 5, 16, 17, 64, 65, 150)
DECAYS = ("mild", "strong", "none", "all", "mixed")


def drawn(*shape: int) -> Any:
    import torch

    return torch.randn(TEXTS, *shape)


def decays_of(kind: str, *shape: int) -> Any:
    import torch

    each = {"mild": -0.05, "strong": -30.0, "none": 0.0, "all": -1e4}
    if kind != "mixed":
        return torch.exp(each[kind] * torch.rand(TEXTS, *shape))
    chosen = torch.randint(4, (TEXTS, *shape))
    factors = torch.tensor(list(each.values()))
    return torch.exp(factors[chosen] * torch.rand(TEXTS, *shape))


def unit(x: Any) -> Any:
    return x / x.norm(dim=-1, keepdim=True)


def outer(k: Any, v: Any) -> Any:
    return k[..., None] * v[:, :, None]


def read(h: Any, q: Any) -> Any:
    return (h * q[..., None]).sum(dim=2)


def scan_heads(h: Any, x: Any, logs: Any, b: Any, c: Any) -> Any:
    h = h * logs.exp()[..., None, None] + outer(b, x)
    return h, read(h, c)


def delta(h: Any, v: Any, q: Any, k: Any, decay: Any, beta: Any) -> Any:
    h = h * decay[..., None]
    h = h + outer(k, (v - read(h, k)) * beta[..., None])
    return h, read(h, q)


def wkv(h: Any, v: Any, r: Any, k: Any, w: Any) -> Any:
    return h * w[..., None] + outer(k, v), read(h, r)


def wkv7(h: Any, v: Any, r: Any, w: Any, k: Any, a: Any, b: Any) -> Any:
    h = h * w[..., None] + outer(k, v) + outer(b, read(h, a))
    return h, read(h, r)


def inputs_of(name: str, length: int, decays: str) -> tuple[Any, ...]:
    import torch

    v, q, k = drawn(length, HEADS, WIDTH), drawn(length, HEADS, SIZE), unit(drawn(length, HEADS, SIZE) + 0.5)
    by_channel = decays_of(decays, length, HEADS, SIZE)
    if name == "scan_heads":
        return v, decays_of(decays, length, HEADS).log(), k, q
    if name.startswith("delta"):
        decay = by_channel if name == "delta by channel" else by_channel[..., :1]
        return v, q, k, decay, torch.sigmoid(drawn(length, HEADS))
    if name == "wkv":
        return v, q, k, by_channel
    rate = torch.sigmoid(drawn(length, HEADS, SIZE))
    return v, q, by_channel.clamp(min=0.5), drawn(length, HEADS, SIZE), -k, k * rate


STEPS: dict[str, Callable[..., Any]] = {
    "scan_heads": scan_heads,
    "delta_rule": delta,
    "delta by channel": delta,
    "wkv": wkv,
    "wkv7": wkv7,
}


def by_token(step: Callable[..., Any], inputs: tuple[Any, ...], state: Any) -> tuple[Any, Any]:
    import torch

    out, state = [], state.double()
    for token in range(inputs[0].shape[1]):
        state, y = step(state, *(x[:, token].double() for x in inputs))
        out.append(y)
    return torch.stack(out, dim=1), state


@pytest.mark.parametrize("decays", DECAYS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", STEPS)
def test_a_recurrence_of_heads(name: str, length: int, decays: str) -> None:
    import torch

    from runtime.device import recurrences

    torch.manual_seed(length)
    inputs, state = inputs_of(name, length, decays), drawn(HEADS, SIZE, WIDTH)
    function = recurrences.delta_rule if name.startswith("delta") else getattr(recurrences, name)
    y, after = function(*inputs, state)
    wanted, wanted_after = by_token(STEPS[name], inputs, state)
    assert y.shape == inputs[0].shape
    assert_close(y, wanted)
    assert_close(after, wanted_after)


@pytest.mark.parametrize("pieces", [1, 7, 1000])
@pytest.mark.parametrize("length", [1, 6, 40])
def test_a_recurrence_of_channels(length: int, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from runtime.device import recurrences

    torch.manual_seed(length)
    channels = 24
    x, dt = drawn(length, channels), torch.nn.functional.softplus(drawn(length, channels))
    b, c, a = drawn(length, SIZE), drawn(length, SIZE), -torch.rand(SIZE, channels) * 8
    state = drawn(SIZE, channels)
    monkeypatch.setattr(recurrences, "NUMBERS", pieces * state.numel())

    def step(h: Any, x: Any, dt: Any, b: Any, c: Any) -> Any:
        h = h * torch.exp(dt[:, None] * a.double()) + (dt * x)[:, None] * b[..., None]
        return h, (h * c[..., None]).sum(dim=1)

    given = state.clone()
    y, after = recurrences.scan_channels(x, dt, b, c, a, state)
    wanted, wanted_after = by_token(step, (x, dt, b, c), state)
    assert_close(y, wanted)
    assert_close(after, wanted_after)
    assert torch.equal(state, given)


def assert_close(ours: Any, wanted: Any) -> None:
    assert ours.isfinite().all()
    assert (ours - wanted).abs().max() < CLOSE * wanted.std()
