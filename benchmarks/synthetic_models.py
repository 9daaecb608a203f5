"""Models of the shapes of published ones whose weights take almost no memory: all layers read the same random bytes.

    model = synthetic_model("llama-3.1-8b")               # a gguftools.Model, 16 GB of F16 by its tensors
    model = synthetic_model("qwen3-32b", layers=3)
    model = synthetic_model("llama-3-70b", empty=True)     # for plans: matrices can't be read

The tokenizer is that of examples/austen-4m; ids above its own are padding. Weights are drawn from N(0, 1 / width), so
that values stay finite over any number of layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
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
UNUSED = 5  # a token type
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


def synthetic_model(
    name: str, *, layers: int | None = None, format: str = "F16", empty: bool = False
) -> gguftools.Model:
    """Return a model of a published one's shape.

    layers: fewer or more than it has. format: of matrices. empty: no matrix can be read.
    """
    shape, made = SHAPES[name], partial(_tensor, format=format, empty=empty)
    count = shape.layers if layers is None else layers
    tensors = [made("token_embd.weight", (shape.vocabulary, shape.width))]
    for index in range(count):
        dense = index < min(shape.dense_layers, max(1, count - 1))
        own = {**_attention(shape), **_net(shape, dense)}
        tensors += [made(f"blk.{index}.{role}", size) for role, size in own.items()]
    tensors += [made("output_norm.weight", (shape.width,))]
    tensors += [made("output.weight", (shape.vocabulary, shape.width))]
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
    metadata["tokenizer.ggml.token_type"] = [*map(int, types), *(UNUSED for _ in more)]
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


def _tensor(name: str, shape: tuple[int, ...], format: str, empty: bool) -> Tensor:
    """Return a vector of ones (zeros if a bias), or a matrix of random numbers; routers are float32."""
    if len(shape) == 1:
        values = np.zeros(shape, "<f4") if name.endswith("bias") else np.ones(shape, "<f4")
        return Tensor(name, shape, format_named("F32"), lambda start, stop: values.view(np.uint8).reshape(1, -1))
    format = "F32" if name.endswith("ffn_gate_inp.weight") else format
    return Tensor(name, shape, format_named(format), _no_rows if empty else partial(_rows, shape[-1], format))


def _no_rows(start: int, stop: int) -> NDArray[np.uint8]:
    raise AssertionError("a plan reads no matrix")


def _rows(width: int, format: str, start: int, stop: int) -> NDArray[np.uint8]:
    pool = _pool(width, format)
    first, count = start % len(pool), stop - start
    if first + count <= len(pool):
        return pool[first : first + count]
    whole, rest = divmod(first + count - len(pool), len(pool))
    return np.concatenate([pool[first:], *[pool] * whole, pool[:rest]])


@cache
def _pool(width: int, format: str) -> NDArray[np.uint8]:
    """Return stored rows of random numbers of this width."""
    drawn = np.random.default_rng(width).standard_normal((POOL // width, width), np.float32) / np.float32(width**0.5)
    return format_named(format).encode(drawn)
