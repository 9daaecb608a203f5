"""The decoder graph: one interpreter of `archs.spec.Block` for all families.

What the tensors of a layer show is read from them: biases, q/k norms, fused projections, experts, norms after a part.
A layer with other insides than attention brings a module of its own and is recognised by its tensors, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from archs.hyper import LayerHyper
from quants import Tensor
from quants.errors import ModelError

from . import altup, ops
from .attention import attend
from .cache import KVCache
from .delta import gated_delta
from .experts import experts
from .matmul import gather, matmul, matmul_transposed
from .mla import latent_attention
from .per_layer import layer_input, layer_inputs
from .rope import apply_rope, rope_table
from .scoring import Logits
from .sparse import sparse_feed_forward
from .ssm import short_convolution, state_space

if TYPE_CHECKING:
    from .model import Model

Floats = NDArray[np.float32]

DAMAGED = "`gguftools validate` lists blocks that are no numbers; keys that scale may be wrong, too"


@dataclass(frozen=True)
class Layer:
    """The tensors of one layer (or of what stands around the layers) by their names without the prefix."""

    prefix: str
    tensors: Mapping[str, Tensor]
    _small: dict[str, Floats] = field(default_factory=dict, compare=False)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    @property
    def index(self) -> int:
        return int(self.prefix.split(".")[-2])

    def array(self, name: str) -> Floats | None:
        """A small tensor (norm, bias) in float32, decoded once; None where there is none."""
        if name not in self.tensors:
            return None
        if name not in self._small:
            self._small[name] = self.tensors[name].float32()
        return self._small[name]

    def need(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ModelError(f"the file has no tensor '{self.prefix}{name}', which its architecture needs")
        return self.tensors[name]


@dataclass
class Pass:
    """One run through the model: how many texts of how many tokens, what came before, tables shared by the layers."""

    model: Model
    texts: int
    length: int
    cache: KVCache | None
    _tables: dict[tuple[float, bool, int], tuple[Floats, Floats]] = field(default_factory=dict)
    seen: dict[int, tuple[Floats, Floats]] = field(default_factory=dict)  # keys and values that later layers share
    inputs: Floats | None = None  # of each layer apart, (tokens, layers, width)
    positions: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        """Positions of each token of one text; now, because layers that have run lengthen the cache."""
        seen = self.cache.length if self.cache else 0
        self.positions = np.arange(seen, seen + self.length, dtype=np.int64)

    def project(self, layer: Layer, name: str, x: Floats) -> Floats:
        """x @ W.T (+ bias) for the weight `name`.weight."""
        weight = layer.need(f"{name}.weight")
        if self.model.observe:
            self.model.observe(weight.name, x, 0, 1)
        y = matmul(x, weight)
        bias = layer.array(f"{name}.bias")
        return y if bias is None else np.add(y, bias, out=y)

    def norm(self, layer: Layer, name: str, x: Floats, eps: float = 0.0) -> Floats:
        """The norm `name` over the last axis; x itself where the layer has no such norm. eps: 0 for the model's."""
        block, eps = self.model.architecture.block, eps or self.model.hyper.eps
        weight = layer.array(f"{name}.weight")
        if weight is None:
            weight = layer.array(name)  # Falcon-H1's files have a norm without ".weight"
        if weight is None and block.norm != "layer_without_weights":
            return x
        if block.norm == "rms":
            return ops.rms_norm(x, weight, eps)
        return ops.layer_norm(x, weight, layer.array(f"{name}.bias"), eps)

    def finite(self, where: str, x: Floats) -> Floats:
        """x, which a layer or the embedding gave. Raises ModelError where it is not finite."""
        if not np.isfinite(x).all():
            raise ModelError(f"values are no longer finite from '{where.rstrip('.')}' on", hint=DAMAGED)
        return x

    def rope(self, own: LayerHyper) -> tuple[Floats, Floats]:
        """cos and sin of each token's position, computed once for all layers that rotate alike."""
        base, scaled, width = alike = own.rope_base, own.rope_scaled, own.rope_width
        if alike not in self._tables:
            model = self.model
            factors = self._frequency_factors() if scaled else None
            scaling = model.scaling if scaled else None
            cos, sin = rope_table(width, base, scaling, factors, self.positions)
            self._tables[alike] = (np.tile(cos, (self.texts, 1)), np.tile(sin, (self.texts, 1)))
        return self._tables[alike]

    def _frequency_factors(self) -> Floats | None:
        """Divisors of the rotary frequencies; longrope has two lists, for short texts and for long ones."""
        whole, scaling = self.model.whole, self.model.scaling
        if scaling is None or scaling.kind != "longrope":
            return whole.array("rope_freqs.weight")
        long = self.positions[-1] >= scaling.original_context
        return whole.array(f"rope_factors_{'long' if long else 'short'}.weight")


def embed(run: Pass, ids: NDArray[np.int64]) -> Floats:
    """Token (and position) embeddings: float32 (tokens, width)."""
    model, whole = run.model, run.model.whole
    x = gather(whole.need("token_embd.weight"), ids)
    if model.hyper.embedding_scale != 1:
        x *= np.float32(model.hyper.embedding_scale)
    run.inputs = layer_inputs(run, ids, x)
    if "token_embd_proj.weight" in whole:
        x = run.project(whole, "token_embd_proj", x)
    if "position_embd.weight" in whole:
        table = whole.tensors["position_embd.weight"]
        if run.positions[-1] >= table.shape[0]:
            raise ModelError(
                f"position {run.positions[-1]} is past the {table.shape[0]} that the model has embeddings for"
            )
        x += np.tile(gather(table, run.positions), (run.texts, 1))
    types = whole.array("token_types.weight")
    if types is not None:
        x += types[0]
    after_layers = model.architecture.block.output_norm == "token_embd_norm"
    return x if after_layers else _norm_if_there(run, whole, "token_embd_norm", x)


def decode(run: Pass, x: Floats) -> Floats:
    """Through all layers: float32 (tokens, width)."""
    if "altup_proj.weight" in run.model.whole:
        return altup.decode(run, x)
    for index, layer in enumerate(run.model.layers):
        x = _parallel(run, index, layer, x) if run.model.hyper.parallel else _sequential(run, index, layer, x)
        run.finite(layer.prefix, x)
    return x


def head(run: Pass, x: Floats) -> Logits | Floats:
    """Logits, not computed yet, of x (…, width); or the last hidden states where the model ends there."""
    model, whole = run.model, run.model.whole
    x = run.norm(whole, model.architecture.block.output_norm, x)
    if model.architecture.block.hidden_states:
        return x
    if "output_proj.weight" in whole:
        x = run.project(whole, "output_proj", x)
    name = "output" if "output.weight" in whole else "token_embd"
    weight, bias = whole.need(f"{name}.weight"), whole.array("output.bias")  # which a tied head may have, too
    scale = np.float32(model.hyper.logit_scale * (model.hyper.tied_logit_scale if name == "token_embd" else 1))
    if model.observe:
        model.observe(weight.name, x, 0, 1)

    def finish(logits: Floats, first: int) -> Floats:
        if bias is not None:
            logits += bias[first : first + logits.shape[1]]
        if scale != 1:
            logits *= scale
        return ops.softcap(logits, model.hyper.logit_softcap) if model.hyper.logit_softcap else logits

    return Logits(x, weight, finish)


def _sequential(run: Pass, index: int, layer: Layer, x: Floats) -> Floats:
    block, scale = run.model.architecture.block, np.float32(run.model.hyper.residual_scale)
    if not mixes(layer):
        return _added(x, feed_forward(run, layer, run.norm(layer, "attn_norm", x), x), scale)
    mixed = mix(run, index, layer, run.norm(layer, "attn_norm", x))
    if block.ffn_norm != "post_attention_norm":
        mixed = _norm_if_there(run, layer, "post_attention_norm", mixed)
    x = _norm_if_there(run, layer, "attn_output_norm", _added(x, mixed, scale))
    if not feeds_forward(layer):
        return x
    fed = feed_forward(run, layer, run.norm(layer, block.ffn_norm, x), x)
    fed = _norm_if_there(run, layer, "post_ffw_norm", fed)
    x = _norm_if_there(run, layer, "layer_output_norm", _added(x, fed, scale))
    if "inp_gate.weight" in layer:
        x = x + layer_input(run, index, layer, x)
    factor = layer.array("layer_output_scale.weight")
    return x if factor is None else np.multiply(x, factor, out=x)


def _parallel(run: Pass, index: int, layer: Layer, x: Floats) -> Floats:
    """Attention and feed-forward net beside each other; each may have a norm of its own."""
    first = run.norm(layer, "attn_norm", x)
    second = run.norm(layer, "attn_norm_2", x) if "attn_norm_2.weight" in layer else first
    third = run.norm(layer, "ffn_norm", x) if "ffn_norm.weight" in layer else first
    mixed = attention(run, index, layer, second)
    return _added(_added(x, mixed, np.float32(1)), feed_forward(run, layer, third, x), np.float32(1))


def _added(x: Floats, part: Floats, scale: np.float32) -> Floats:
    if scale != 1:
        part *= scale
    return np.add(x, part, out=part)


def _norm_if_there(run: Pass, layer: Layer, name: str, x: Floats) -> Floats:
    return run.norm(layer, name, x) if f"{name}.weight" in layer else x


def mixes(layer: Layer) -> bool:
    """Whether the layer looks at other tokens; in some hybrids a layer does this or the feed-forward net, not both."""
    return any(f"{name}.weight" in layer for name in ("attn_output", "ssm_out", "shortconv.in_proj"))


def feeds_forward(layer: Layer) -> bool:
    return any(f"{name}.weight" in layer for name in ("ffn_up", "ffn_up_exps", "ffn_gate_inp"))


def mix(run: Pass, index: int, layer: Layer, x: Floats) -> Floats:
    """What the layer takes from other tokens, by the tensors it has: float32 (tokens, width)."""
    if "attn_kv_a_mqa.weight" in layer:
        return latent_attention(run, index, layer, x)
    if "shortconv.in_proj.weight" in layer:
        return short_convolution(run, index, layer, x)
    if "ssm_ba.weight" in layer or "ssm_beta.weight" in layer:
        return gated_delta(run, index, layer, x)
    if "ssm_in.weight" not in layer:
        return attention(run, index, layer, x)
    mixed = state_space(run, index, layer, x)
    return np.add(mixed, attention(run, index, layer, x), out=mixed) if "attn_output.weight" in layer else mixed


def attention(run: Pass, index: int, layer: Layer, x: Floats) -> Floats:
    """Self-attention of one layer, with its output projection: float32 (tokens, width)."""
    model, hyper, block = run.model, run.model.hyper, run.model.architecture.block
    own = hyper.layers[index]
    if own.kv_source_layer is not None:
        return _with_shared_keys(run, index, layer, x)
    q, k, v = queries_keys_values(run, index, layer, x)
    gate = None
    for step in block.qkv_steps:
        if step == "clamp" and hyper.clamp:
            q, k, v = (np.clip(part, -hyper.clamp, hyper.clamp, out=part) for part in (q, k, v))
        elif step == "gates":
            q, gate = (np.ascontiguousarray(half) for half in np.split(q, 2, axis=2))
        elif step == "norm":
            q, k = _head_norm(run, layer, "attn_q_norm", q), _head_norm(run, layer, "attn_k_norm", k)
        elif step == "norm_values":
            v = ops.rms_norm(v, None, hyper.eps)
        elif step == "norm_without_weights" and own.qk_l2_norm:
            q, k = ops.rms_norm(q, None, hyper.eps), ops.rms_norm(k, None, hyper.eps)
        elif step == "rope" and own.rotates:
            cos, sin = run.rope(own)
            apply_rope(q, cos, sin, hyper.rope)
            apply_rope(k, cos, sin, hyper.rope)
    warmth = temperature(run, own.rotates)
    if warmth is not None:
        q *= warmth[:, None, None]
    if run.cache is not None:
        k, v = run.cache.append(index, k, v)
    if any(other.kv_source_layer == index for other in hyper.layers):
        run.seen[index] = k, v
    mixed = attend(
        q, k, v, q_positions=run.positions, scale=own.attention_scale, window=own.window,
        softcap=hyper.attention_softcap, causal=block.causal, sinks=layer.array("attn_sinks.weight"),
        sequences=run.texts, chunk=own.chunk, **distance_penalties(model, own, run.length, len(k) // run.texts),
    )  # fmt: skip
    if "attn_gate.weight" in layer:
        gate = run.project(layer, "attn_gate", x)
    if gate is not None:
        mixed *= ops.sigmoid(gate.reshape(mixed.shape))
    return run.project(layer, "attn_output", mixed)


def _with_shared_keys(run: Pass, index: int, layer: Layer, x: Floats) -> Floats:
    """Self-attention of a layer that looks at the keys and values of an earlier one."""
    hyper, own = run.model.hyper, run.model.hyper.layers[index]
    q = run.project(layer, "attn_q", x).reshape(len(x), own.heads, own.key_width)
    q = _head_norm(run, layer, "attn_q_norm", q)
    if own.rotates:
        apply_rope(q, *run.rope(own), hyper.rope)
    k, v = run.seen[own.kv_source_layer or 0]
    mixed = attend(
        q, k, v, q_positions=run.positions, scale=own.attention_scale, window=own.window,
        softcap=hyper.attention_softcap, sequences=run.texts,
    )  # fmt: skip
    return run.project(layer, "attn_output", mixed)


def temperature(run: Pass, rotated: bool) -> Floats | None:
    """What each token's queries are multiplied by, float32 (tokens,); None where that is one."""
    query_scale = run.model.architecture.block.query_scale
    factors = query_scale(run.model.hyper, run.positions, rotated) if query_scale else None
    return None if factors is None else np.tile(factors, run.texts)


def queries_keys_values(run: Pass, index: int, layer: Layer, x: Floats) -> tuple[Floats, Floats, Floats]:
    """(tokens, heads, head width) each, from one fused projection or three."""
    own = run.model.hyper.layers[index]
    widths = (own.heads * own.key_width, own.kv_heads * own.key_width, own.kv_heads * own.value_width)
    if "attn_qkv.weight" in layer:
        parts = np.split(run.project(layer, "attn_qkv", x), np.cumsum(widths)[:-1], axis=1)
    else:
        names = ("attn_q", "attn_k", "attn_v") if "attn_v.weight" in layer else ("attn_q", "attn_k")
        parts = [run.project(layer, name, x) for name in names]
        parts += [parts[1].copy()] * (3 - len(parts))  # keys that are values as well
    heads = (own.heads, own.kv_heads, own.kv_heads)
    q, k, v = (np.ascontiguousarray(p).reshape(len(x), n, -1) for p, n in zip(parts, heads, strict=True))
    return q, k, v


def _head_norm(run: Pass, layer: Layer, name: str, x: Floats) -> Floats:
    """The norm of q or k: the same weights for every head, weights for each, or one norm over all heads together."""
    weight = layer.array(f"{name}.weight")
    if weight is None:
        return x
    if weight.shape == x.shape[2:]:
        return run.norm(layer, name, x)
    if weight.ndim == 1:
        return run.norm(layer, name, x.reshape(len(x), -1)).reshape(x.shape)
    block, eps = run.model.architecture.block, run.model.hyper.eps
    normed = ops.rms_norm(x, None, eps) if block.norm == "rms" else ops.layer_norm(x, None, None, eps)
    return np.multiply(normed, weight, out=normed)


def alibi_slopes(model: Model, heads: int) -> Floats | None:
    """The slope of each head's distance penalty (Press et al. 2021), float32 (heads,); None without ALiBi."""
    largest = model.hyper.alibi
    if not largest:
        return None
    power = 1 << (heads.bit_length() - 1)
    steps = np.arange(1, power + 1) / power
    between = (2 * np.arange(heads - power) + 1) / (2 * power)
    return np.exp2(-largest * np.concatenate([steps, between])).astype(np.float32)


def distance_penalties(model: Model, own: LayerHyper, queries: int, keys: int) -> dict[str, Floats]:
    """ALiBi as arguments of `attend`; none without it."""
    slopes, alibi_terms = alibi_slopes(model, own.heads), model.architecture.block.alibi_terms
    if slopes is None:
        return {}
    if alibi_terms is None:
        return {"alibi": slopes}
    terms = alibi_terms(slopes, keys, own.attention_scale)
    return {"bias": np.broadcast_to(terms[:, None], (own.heads, queries, keys))}


def feed_forward(run: Pass, layer: Layer, x: Floats, residual: Floats) -> Floats:
    """The feed-forward net of one layer, dense, of experts or sparse: float32 (tokens, width).

    residual: what x is the norm of.
    """
    if "post_ffw_norm_1.weight" in layer:
        one = run.norm(layer, "post_ffw_norm_1", dense(run, layer, x, ""))
        if "ffn_gate_inp.weight" not in layer:
            return one
        other = experts(run, layer, run.norm(layer, "pre_ffw_norm_2", residual), residual)
        return np.add(one, run.norm(layer, "post_ffw_norm_2", other), out=one)
    if "ffn_gate_inp.weight" in layer:
        return experts(run, layer, x)
    if run.model.sparsity is not None:
        return sparse_feed_forward(run, layer, x, residual, run.model.sparsity)
    return dense(run, layer, x, "")


def dense(run: Pass, layer: Layer, x: Floats, kind: str) -> Floats:
    """down(activation(gate x) * up x); kind: "" or "_shexp" (a shared expert)."""
    up = run.project(layer, f"ffn_up{kind}", x)
    activation = run.model.hyper.activation
    if activation == "xielu":
        return run.project(layer, f"ffn_down{kind}", ops.xielu(up, *run.model.hyper.xielu[layer.index]))
    if not run.model.architecture.block.gated:
        return _down(run, layer, kind, ops.activated(activation, up))
    if f"ffn_gate{kind}.weight" in layer:
        gate = run.project(layer, f"ffn_gate{kind}", x)
    else:  # one fused projection, the gate first
        gate, up = (np.ascontiguousarray(half) for half in np.split(up, 2, axis=1))
    most = run.model.hyper.layers[layer.index].sparsity
    if most is not None:  # only what stands out passes
        gate = ops.relu(gate - (gate.mean(axis=1, keepdims=True) + gate.std(axis=1, keepdims=True) * np.float32(most)))
    return _down(run, layer, kind, ops.gated(activation, gate, up, run.model.hyper.activation_limit))


def _down(run: Pass, layer: Layer, kind: str, hidden: Floats) -> Floats:
    """The down projection; PowerInfer's files have it by neuron (`ffn_down_t`)."""
    if "ffn_down_t.weight" not in layer:
        return run.project(layer, f"ffn_down{kind}", hidden)
    result = matmul_transposed(hidden, layer.need("ffn_down_t.weight"))
    bias = layer.array("ffn_down_t.bias")
    return result if bias is None else np.add(result, bias, out=result)
