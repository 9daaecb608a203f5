"""Activations and gated units, as `runtime.ops` has them: new tensors."""

from collections.abc import Callable

import torch
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "relu2": lambda x: torch.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "tanh": torch.tanh,
    "exp": torch.exp,
}
QUICK = 1.702  # of the quick gelu: x sigmoid(1.702 x)


def xielu(x: torch.Tensor, alpha_n: float, alpha_p: float, beta: float, eps: float) -> torch.Tensor:
    """Return the trained activation of Apertus; the alphas as stored, softplus is applied to them here."""
    positive, negative = functional.softplus(torch.tensor([alpha_p, alpha_n], dtype=torch.float32)).tolist()
    below = (torch.expm1(torch.clamp(x, max=eps)) - x) * (beta + negative)
    return torch.where(x > 0, positive * x * x, below) + beta * x


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return cap * tanh(x / cap)."""
    return cap * torch.tanh(x / cap)


def situ(gate: torch.Tensor, up: torch.Tensor, bound: float, linear_bound: float) -> torch.Tensor:
    """Return Kimi K3's unit, sigmoid(gate) * gate * up, of which tanh keeps gate and up within bounds."""
    up = softcap(up, linear_bound) if linear_bound > 0 else up
    return torch.sigmoid(gate) * softcap(gate, bound) * up


def gated(name: str, gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """Return activation(gate) * up; "swiglu_oai" is GPT-OSS's unit, both clamped to `limit`."""
    if name == "swiglu_oai":
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate * torch.sigmoid(QUICK * gate) * (up + 1)
    return ACTIVATIONS[name](gate) * up


def gated_of_clamped(name: str, gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """Return activation(gate, at most `limit`) times up, between -limit and limit."""
    return ACTIVATIONS[name](gate.clamp(max=limit)) * up.clamp(-limit, limit)


def gated_within(name: str, gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """Return activation(gate), at most `limit`, times up, between -limit and limit."""
    return ACTIVATIONS[name](gate).clamp(max=limit) * up.clamp(-limit, limit)
