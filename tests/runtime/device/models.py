"""Small models with random weights, for tests of streaming."""

from __future__ import annotations

from typing import Any

import numpy as np

from quants import Tensor
from quants.format import format_named
from quants.tensor import from_array
from runtime.model import RunningModel

VOCABULARY = 64


def model(
    layers: int = 4, width: int = 32, net: int = 48, experts: int = 0, seed: int = 0, empty: bool = False
) -> RunningModel:
    """Return a Llama model, or a Mixtral one of which two experts are used. empty: all matrices of layers are zeros,
    which take no memory.
    """
    made = np.random.default_rng(seed)
    tensors: dict[str, Tensor] = {}

    def add(name: str, *shape: int) -> None:
        if empty and len(shape) > 1 and name.startswith("blk."):
            tensors[name] = _zeros(name, shape)
            return
        values = made.standard_normal(shape, dtype=np.float32) * np.float32(shape[-1] ** -0.5)
        tensors[name] = from_array(name, values if len(shape) > 1 else values + np.float32(1))

    add("token_embd.weight", VOCABULARY, width)
    add("output.weight", VOCABULARY, width)
    add("output_norm.weight", width)
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", width)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", width, width)
        stacked, suffix = ((experts,), "_exps") if experts else ((), "")
        if experts:
            add(f"blk.{layer}.ffn_gate_inp.weight", experts, width)
        add(f"blk.{layer}.ffn_gate{suffix}.weight", *stacked, net, width)
        add(f"blk.{layer}.ffn_up{suffix}.weight", *stacked, net, width)
        add(f"blk.{layer}.ffn_down{suffix}.weight", *stacked, width, net)
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.context_length": 4096,
        "llama.embedding_length": width,
        "llama.feed_forward_length": net,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": width // 4,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": VOCABULARY,
    }
    if experts:
        metadata |= {"llama.expert_count": experts, "llama.expert_used_count": 2}
    return RunningModel(metadata, tensors, threads=1, precision="exact")


def _zeros(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return a weight whose zeros are made when they are read."""

    def read(start: int, stop: int) -> Any:
        return np.zeros((stop - start, 4 * shape[-1]), np.uint8)

    return Tensor(name, shape, format_named("F32"), read)


def texts(count: int = 5, windows: int = 2, length: int = 16, seed: int = 1) -> list[Any]:
    """Return batches of token ids, (windows, length)."""
    return [*np.random.default_rng(seed).integers(0, VOCABULARY, (count, windows, length))]
