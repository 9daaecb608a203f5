"""Models of the shapes of published ones whose weights take almost no memory: all layers read the same random bytes.

    model = synthetic_model("llama-3.1-8b")               # a gguftools.Model, 16 GB of F16 by its tensors
    model = synthetic_model("qwen3-32b", layers=3)
    model = synthetic_model("llama-3-70b", empty=True)     # for plans: matrices can't be read

The tokenizer is that of examples/austen-4m; ids above its own are padding. Weights are drawn from N(0, 1 / width), so
that values stay finite over any number of layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gguftools
from archs.metadata import Metadata
from quants import Tensor
from quants.format import format_named

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "austen-4m"
POOL = 1 << 24  # random numbers that all matrices are cut from
CONTROL = 3  # a token type
OWN_KEYS = ("general.", "tokenizer.")  # of the example, which every model here keeps


@dataclass(frozen=True)
class Shape:
    """Sizes of a published model. experts: how many, how many are used, their width. latent: of MLA's queries, keys."""

    architecture: str
    width: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    head_width: int = 128
    head_norms: bool = False
    experts: tuple[int, int, int] | None = None
    latent: tuple[int, int] | None = None
    dense_layers: int = 0


SHAPES = {
    "small": Shape("llama", 256, 768, 4, 4, 2, 2048, head_width=64),
    "small-experts": Shape("qwen3moe", 256, 512, 4, 4, 2, 2048, head_width=64, head_norms=True, experts=(16, 4, 256)),
    "llama-3.1-8b": Shape("llama", 4096, 14336, 32, 32, 8, 128256),
    "qwen3-32b": Shape("qwen3", 5120, 25600, 64, 64, 8, 151936, head_norms=True),
    "llama-3-70b": Shape("llama", 8192, 28672, 80, 64, 8, 128256),
    "qwen3-30b-a3b": Shape("qwen3moe", 2048, 6144, 48, 32, 4, 151936, head_norms=True, experts=(128, 8, 768)),
    "deepseek-v3-671b": Shape(
        "deepseek2", 7168, 18432, 61, 128, 1, 129280, experts=(256, 8, 2048), latent=(1536, 512), dense_layers=3
    ),
}


def synthetic_model(name: str, *, layers: int | None = None, empty: bool = False) -> gguftools.Model:
    """Return a model of a published one's shape. layers: fewer or more than it has. empty: no matrix can be read."""
    shape = SHAPES[name]
    count = shape.layers if layers is None else layers
    tensors = [_tensor("token_embd.weight", (shape.vocabulary, shape.width), empty)]
    for index in range(count):
        dense = index < min(shape.dense_layers, max(1, count - 1))
        own = {**_attention(shape), **_net(shape, dense)}
        tensors += [_tensor(f"blk.{index}.{role}", size, empty) for role, size in own.items()]
    tensors += [_tensor("output_norm.weight", (shape.width,), empty)]
    tensors += [_tensor("output.weight", (shape.vocabulary, shape.width), empty)]
    return gguftools.Model(_metadata(name, shape, count), {each.name: each for each in tensors})


def _attention(shape: Shape) -> dict[str, tuple[int, ...]]:
    width, heads, each = shape.width, shape.heads, shape.head_width
    if shape.latent is not None:
        query, key = shape.latent
        return {
            "attn_norm.weight": (width,),
            "attn_q_a.weight": (query, width),
            "attn_q_a_norm.weight": (query,),
            "attn_q_b.weight": (heads * 192, query),
            "attn_kv_a_mqa.weight": (key + 64, width),
            "attn_kv_a_norm.weight": (key,),
            "attn_k_b.weight": (heads, key, each),
            "attn_v_b.weight": (heads, each, key),
            "attn_output.weight": (width, heads * each),
        }
    norms = {"attn_q_norm.weight": (each,), "attn_k_norm.weight": (each,)} if shape.head_norms else {}
    return {
        "attn_norm.weight": (width,),
        "attn_q.weight": (heads * each, width),
        "attn_k.weight": (shape.kv_heads * each, width),
        "attn_v.weight": (shape.kv_heads * each, width),
        "attn_output.weight": (width, heads * each),
        **norms,
    }


def _net(shape: Shape, dense: bool) -> dict[str, tuple[int, ...]]:
    width, norm = shape.width, {"ffn_norm.weight": (shape.width,)}
    if shape.experts is None or dense:
        return {**norm, **_gated("", (), shape.ffn, width)}
    count, _, inner = shape.experts
    routed = {"ffn_gate_inp.weight": (count, width), **_gated("_exps", (count,), inner, width)}
    if shape.latent is None:
        return norm | routed
    return norm | routed | {"exp_probs_b.bias": (count,)} | _gated("_shexp", (), inner, width)


def _gated(suffix: str, count: tuple[int, ...], inner: int, width: int) -> dict[str, tuple[int, ...]]:
    rows = {f"ffn_{part}{suffix}.weight": (*count, inner, width) for part in ("gate", "up")}
    return {**rows, f"ffn_down{suffix}.weight": (*count, width, inner)}


def _metadata(name: str, shape: Shape, layers: int) -> Metadata:
    example = gguftools.open(EXAMPLE).metadata
    metadata = Metadata({key: example.value(key) for key in example if key.startswith(OWN_KEYS)})
    tokens, types = (list(example[f"tokenizer.ggml.{key}"]) for key in ("tokens", "token_type"))
    more = range(shape.vocabulary - len(tokens))
    metadata["tokenizer.ggml.tokens"] = tokens + [f"<padding {i}>" for i in more]
    metadata["tokenizer.ggml.token_type"] = [*map(int, types), *(CONTROL for _ in more)]
    metadata["general.architecture"], metadata["general.name"] = shape.architecture, name
    for key, value in _numbers(shape, layers).items():
        metadata[f"{shape.architecture}.{key}"] = value
    return metadata


def _numbers(shape: Shape, layers: int) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "block_count": layers,
        "context_length": 8192,
        "embedding_length": shape.width,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.key_length": shape.head_width,
        "attention.value_length": shape.head_width,
        "rope.freq_base": 500000.0,
        "rope.dimension_count": shape.head_width,
        "vocab_size": shape.vocabulary,
    }
    if shape.experts is not None:
        count, used, inner = shape.experts
        numbers |= {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": inner}
    if shape.latent is not None:
        query, key = shape.latent
        numbers |= {
            "attention.q_lora_rank": query,
            "attention.kv_lora_rank": key,
            "attention.key_length": key + 64,
            "attention.value_length": key,
            "attention.key_length_mla": 192,
            "attention.value_length_mla": shape.head_width,
            "rope.dimension_count": 64,
            "leading_dense_block_count": min(shape.dense_layers, max(1, layers - 1)),
            "expert_group_count": 8,
            "expert_group_used_count": 4,
            "expert_gating_func": 2,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
        }
    return numbers


def _tensor(name: str, shape: tuple[int, ...], empty: bool) -> Tensor:
    """Return a vector of ones (zeros if a bias), or a matrix of random F16 numbers."""
    if len(shape) == 1:
        values = np.zeros(shape, "<f4") if name.endswith("bias") else np.ones(shape, "<f4")
        return Tensor(name, shape, format_named("F32"), lambda start, stop: values[None].view(np.uint8).reshape(1, -1))
    router = name.endswith("ffn_gate_inp.weight")
    return Tensor(name, shape, format_named("F32" if router else "F16"), _no_rows if empty else _rows(shape, router))


def _no_rows(start: int, stop: int) -> NDArray[np.uint8]:
    raise AssertionError("a plan reads no matrix")


def _rows(shape: tuple[int, ...], wide: bool) -> Any:
    width = shape[-1]

    def rows(start: int, stop: int) -> NDArray[np.uint8]:
        pool = _pool(width, wide)
        period = len(pool) // width
        first = start % period
        if first + stop - start <= period:
            return pool[first * width : (first + stop - start) * width].view(np.uint8).reshape(stop - start, -1)
        at = np.arange(start, stop) % period
        return np.ascontiguousarray(pool[: period * width].reshape(period, width)[at]).view(np.uint8)

    return rows


@cache
def _pool(width: int, wide: bool) -> NDArray[Any]:
    """Return random numbers of a matrix of this width: float16, or float32."""
    drawn = np.random.default_rng(width).standard_normal(POOL, dtype=np.float32) / np.float32(np.sqrt(width))
    return drawn if wide else drawn.astype(np.float16)
