"""The layers of a ViT, shared by all encoders; a file's tensors show which norms, biases and nets there are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from archs import schema
from quants import Tensor
from quants.errors import ModelError

from .. import ops
from ..arrays import Floats, Ids
from ..mixers.attention import AttentionOptions, attend
from ..products.matmul import matmul, matmul_experts

Rotation = Callable[[Floats], Floats]  # of q and k, (patches, heads, head width), in place


def encoder_key(metadata: Mapping[str, Any], name: str, otherwise: Any = None) -> Any:
    """Return a value of `clip.NAME`. Raises ModelError if it is missing without a default, or of another type."""
    value = metadata.get(f"clip.{name}", otherwise)
    if value is None:
        raise ModelError(f"the file has no clip.{name}, which this encoder needs")
    if f"clip.{name}" not in metadata:  # the default
        return value
    if (fault := schema.KEYS[f"clip.{name}"].wrong(value)) or (type(value) is int and value < 1):
        raise ModelError(f"clip.{name} {fault or f'is {value}; 1 or more is expected'}")
    return value


@contextmanager
def fitting() -> Iterator[None]:
    """Raise ModelError if a computation shows that a file's keys and tensors contradict each other."""
    try:
        yield
    except (IndexError, ValueError, ArithmeticError) as error:
        problem = f"the encoder's tensors and keys do not fit each other: {error}"
        raise ModelError(problem, "convert it again") from error


@dataclass(frozen=True)
class Weights:
    """Tensors by name. Raises ModelError for a required one that is missing."""

    tensors: Mapping[str, Tensor]
    threads: int = 1
    vectors: dict[str, Floats] = field(default_factory=dict)

    def need(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ModelError(f"the file has no tensor {name!r}")
        return self.tensors[name]

    def values(self, name: str) -> Floats:
        """Return all values of a small tensor, read once."""
        if name not in self.vectors:
            self.vectors[name] = self.need(name).float32()
        return self.vectors[name]

    def vector(self, name: str) -> Floats | None:
        return self.values(name).reshape(-1) if name in self.tensors else None

    def project(self, name: str, x: Floats) -> Floats:
        """Return x @ W.T + b."""
        product = matmul(x, self.need(f"{name}.weight"), threads=self.threads)
        bias = self.vector(f"{name}.bias")
        return product if bias is None else np.add(product, bias, out=product)

    def limited(self, name: str, x: Floats) -> Floats:
        """Return `project` with limits of inputs and outputs, if the file has any (Gemma 4)."""
        for_in, for_out = (
            [self.vector(f"{name}.{side}_{end}") for end in ("min", "max")] for side in ("input", "output")
        )
        if for_in[0] is not None and for_in[1] is not None:
            x = np.clip(x, for_in[0], for_in[1])
        product = self.project(name, x)
        if for_out[0] is not None and for_out[1] is not None:
            np.clip(product, for_out[0], for_out[1], out=product)
        return product

    def norm(self, name: str, x: Floats, eps: float, norm_type: str) -> Floats:
        """Return a layer norm, or an RMS norm (norm_type "rms"); x itself if the file has no such norm."""
        weight, bias = self.vector(f"{name}.weight"), self.vector(f"{name}.bias")
        if weight is None:
            return x
        if norm_type == "rms":
            return ops.rms_norm(x, weight, eps, self.threads)
        return ops.layer_norm(x, weight, bias, eps, self.threads)

    def net(self, first: str, second: str, x: Floats) -> Floats:
        """Return two matrices with a gelu between them."""
        return self.project(second, ops.activated("gelu", self.project(first, x), self.threads))

    def gated(self, activation: str, gate: Floats, up: Floats, limit: float | None) -> Floats:
        """Return activation(gate) * up, in `gate`; limit: of both inputs."""
        if limit is not None:
            return ops.gated_of_clamped(activation, gate, up, limit, self.threads)
        return np.multiply(self.activated(activation, gate), up, out=gate)

    def activated(self, name: str, x: Floats) -> Floats:
        return ops.gelu_quick(x, threads=self.threads) if name == "gelu_quick" else ops.activated(name, x, self.threads)


@dataclass(frozen=True)
class Vit:
    """The settings of an encoder's layers.

    activation: of the nets, "gelu_quick" also. norm: "layer" or "rms". rotate: function on q and k. windows: by layer
    the patches that attend to each other, each patch in one of them; None: all do. part: prefix of tensor names, "v" or
    "a"; blocks: what follows it. progress(layers done, of how many). outputs: called with each layer's, (patches,
    width). scale: of scores; None for one over the root of a head's width. causal_from: patches from this one on are
    causal, the ones before attend only to each other. norm_values: values of each head have an RMS norm without
    weights. kv_heads: of keys and values, None for as many. post_norm: norms come after attention and net, before the
    residual is added. limit: of inputs of gated nets. experts_used: how many of a layer's experts a patch goes through.
    reach: in layers with windows, the maximum distance between patches that attend to each other.
    """

    heads: int
    count: int
    eps: float
    activation: str
    norm: str = "layer"
    rotate: Rotation | None = None
    windows: Callable[[int], Sequence[Ids] | None] = lambda layer: None
    part: str = "v"
    progress: Callable[[int, int], None] | None = None
    outputs: Callable[[int, Floats], None] | None = None
    scale: float | None = None
    norm_values: bool = False
    kv_heads: int | None = None
    causal_from: int | None = None
    post_norm: bool = False
    limit: float | None = None
    experts_used: int = 1
    reach: int | None = None
    blocks: str = "blk"

    def run(self, weights: Weights, x: Floats, first: int = 0, stop: int | None = None) -> Floats:
        """Return the output of the layers, or of some of them, float32 (patches, width)."""
        for i in range(first, self.count if stop is None else stop):
            if self.progress is not None:
                self.progress(i, self.count)
            x = self._layer(weights, f"{self.part}.{self.blocks}.{i}.", x, self.windows(i))
            if self.outputs is not None:
                self.outputs(i, x)
        return x

    def _layer(self, weights: Weights, at: str, x: Floats, windows: Sequence[Ids] | None) -> Floats:
        if self.post_norm:
            mixed = weights.project(f"{at}attn_out", self.attention(weights, at, x, windows))
            x = x + weights.norm(f"{at}ln1", mixed, self.eps, self.norm)
            return x + weights.norm(f"{at}ln2", self._net(weights, at, x), self.eps, self.norm)
        mixed = self.attention(weights, at, weights.norm(f"{at}ln1", x, self.eps, self.norm), windows)
        mixed = weights.limited(f"{at}attn_out", mixed)
        before_net = "attn_post_norm"  # Llama 4's name of what others call ln2
        if f"{at}ln2.weight" in weights.tensors:
            mixed, before_net = weights.norm(f"{at}attn_post_norm", mixed, self.eps, self.norm), "ln2"
        x = x + _scaled(weights, f"{at}ls1.weight", mixed)
        inner = self._net(weights, at, weights.norm(f"{at}{before_net}", x, self.eps, self.norm))
        inner = weights.norm(f"{at}ffn_post_norm", inner, self.eps, self.norm)
        return x + _scaled(weights, f"{at}ls2.weight", inner)

    def attention(self, weights: Weights, at: str, x: Floats, windows: Sequence[Ids] | None) -> Floats:
        """Return attention's output for x (patches, width), before its output matrix."""
        kv_heads = self.kv_heads or self.heads
        if f"{at}attn_qkv.weight" in weights.tensors:
            fused = weights.project(f"{at}attn_qkv", x)
            width = fused.shape[1] // (self.heads + 2 * kv_heads)
            parts = np.split(fused, [self.heads * width, (self.heads + kv_heads) * width], axis=1)
        else:
            parts = [weights.limited(f"{at}attn_{name}", x) for name in "qkv"]
        for i, name in enumerate("qk"):
            parts[i] = self._head_norm(weights, f"{at}attn_{name}_norm", parts[i])
        counts = (self.heads, kv_heads, kv_heads)
        q, k, v = (np.ascontiguousarray(part.reshape(len(x), n, -1)) for part, n in zip(parts, counts, strict=True))
        if self.rotate is not None:
            q, k = self.rotate(q), self.rotate(k)
        if self.norm_values:
            v = ops.rms_norm(v, None, self.eps, weights.threads)
        scale = q.shape[2] ** -0.5 if self.scale is None else self.scale
        window = None if windows is None or self.reach is None else self.reach + 1
        sinks = weights.vector(f"{at}attn_sinks")
        if windows is not None and sinks is not None:
            q, k = _drawn_to_first(q, k, sinks / np.float32(scale))
        if self.causal_from is not None:
            places = np.arange(len(x))
            options = AttentionOptions(keys_after=np.maximum(self.causal_from - 1 - places, 0), window=window)
            return attend(q, k, v, places, scale, options, threads=weights.threads)
        out = np.empty((len(x), self.heads * v.shape[2]), np.float32)
        for seen in windows or [np.arange(len(x))]:
            options = AttentionOptions(causal=False, window=window)
            out[seen] = attend(q[seen], k[seen], v[seen], np.arange(len(seen)), scale, options, threads=weights.threads)
        return out

    def _head_norm(self, weights: Weights, name: str, x: Floats) -> Floats:
        """Return the norm of q or k: the same weights for every head, or one norm over all heads together."""
        weight = weights.vector(f"{name}.weight")
        if weight is None or len(weight) == x.shape[1]:
            return weights.norm(name, x, self.eps, "rms")
        return weights.norm(name, np.ascontiguousarray(x).reshape(-1, len(weight)), self.eps, "rms").reshape(x.shape)

    def _net(self, weights: Weights, at: str, x: Floats) -> Floats:
        if f"{at}ffn_gate_inp.weight" in weights.tensors:
            return self._experts(weights, at, x)
        up = weights.limited(f"{at}ffn_up", x)
        if f"{at}ffn_gate.weight" in weights.tensors:
            gate = weights.limited(f"{at}ffn_gate", x)
            return weights.limited(f"{at}ffn_down", weights.gated(self.activation, gate, up, self.limit))
        return weights.limited(f"{at}ffn_down", weights.activated(self.activation, up))

    def _experts(self, weights: Weights, at: str, x: Floats) -> Floats:
        """Return the sum of the outputs of each patch's best experts, weighted by the normalized sigmoids of its
        scores.
        """
        scores = ops.sigmoid(weights.project(f"{at}ffn_gate_inp", x), threads=weights.threads)
        bias = weights.vector(f"{at}exp_probs_b.weight")
        wanted = -scores if bias is None else -(scores + bias)
        chosen = np.argsort(wanted, axis=1, kind="stable")[:, : self.experts_used]
        shares = np.take_along_axis(scores, chosen, axis=1)
        shares /= shares.sum(axis=1, keepdims=True)
        out = np.zeros_like(x)

        def product(name: str, values: Floats) -> Floats:
            return matmul_experts(values, weights.need(f"{at}ffn_{name}_exps.weight"), expert, threads=weights.threads)

        for expert in range(scores.shape[1]):
            patches, places = np.nonzero(chosen == expert)
            if len(patches):
                gate, up = product("gate", x[patches]), product("up", x[patches])
                made = product("down", weights.gated(self.activation, gate, up, self.limit))
                out[patches] += made * shares[patches, places, None]
        return out


def _drawn_to_first(q: Floats, k: Floats, more: Floats) -> tuple[Floats, Floats]:
    """Return q and k (patches, heads, width), one wider, which adds `more` to each head's scores of the first patch."""
    drawn = np.broadcast_to(more[:, None], (*q.shape[:2], 1))
    first = np.zeros((*k.shape[:2], 1), np.float32)
    first[0] = 1
    return np.concatenate([q, drawn], axis=2), np.concatenate([k, first], axis=2)


def _scaled(weights: Weights, name: str, x: Floats) -> Floats:
    scale = weights.vector(name)
    return x if scale is None else np.multiply(x, scale, out=x)
