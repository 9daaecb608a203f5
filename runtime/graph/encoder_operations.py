"""Operations of encoder-decoder models (T5), and of convolutions over frames (WavTokenizer's decoder)."""

from dataclasses import dataclass

from quants import Tensor
from quants.errors import ModelError

from ..layer import Layer
from .operations import Operation, Shape, Value, tensors_of


@dataclass(frozen=True, eq=False)
class RelativeBias(Operation):
    """A learned bias for each head and distance, added to scores: (heads, queries, keys).

    farthest: distances from here on share a bucket. x: the input of these tokens.
    """

    category = "attention"
    gives_rows = False
    reads = ("attn_rel_b.weight",)
    x: Value
    layer: Layer
    farthest: int
    causal: bool


@dataclass(frozen=True, eq=False)
class BiasedAttention(Operation):
    """softmax(q k + bias) v of heads, without a scale; if causal, with keys and values in the cache."""

    category = "attention"
    q: Value
    k: Value
    v: Value
    bias: Value | None
    layer: Layer
    causal: bool

    def shape(self) -> Shape:
        return (self.v.width,)


@dataclass(frozen=True, eq=False)
class CrossAttention(Operation):
    """Attention to the keys and values of the encoded text. place: among the decoder's layers. k, v: None in a graph
    that is run, where the cache has them.
    """

    category = "attention"
    q: Value
    place: int
    values: int
    k: Value | None = None
    v: Value | None = None

    def shape(self) -> Shape:
        return (self.values,)


@dataclass(frozen=True, eq=False)
class EmbedCodes(Operation):
    """Rows of the embedding table, one for each audio code."""

    outside: Layer

    def weights(self) -> tuple[Tensor, ...]:
        return tensors_of(self.outside, "token_embd.weight")

    def shape(self) -> Shape:
        return (self.outside.need("token_embd.weight").width,)


@dataclass(frozen=True, eq=False)
class FrameConvolution(Operation):
    """A convolution over neighbouring frames, of a kernel (out, channels, taps), or (each) of each channel
    separately.
    """

    category = "recurrence and convolution"
    reads = ("{role}.weight", "{role}.bias")
    x: Value
    layer: Layer
    role: str
    each: bool = False

    def shape(self) -> Shape:
        weight = self.layer.need(f"{self.role}.weight")
        if not self.each and weight.shape[1] != self.x.width:
            raise ModelError(f"{weight.name!r} reads {weight.shape[1]} channels, not {self.x.width}")
        return self.x.shape if self.each else (weight.shape[0],)


@dataclass(frozen=True, eq=False)
class FrameNorm(Operation):
    """Groups of channels normalized over all frames, before weights and biases."""

    category = "norms"
    reads = ("{role}.weight", "{role}.bias")
    x: Value
    layer: Layer
    role: str
    groups: int
    eps: float


@dataclass(frozen=True, eq=False)
class FrameAttention(Operation):
    """softmax(q k / sqrt(width)) v of one head over all frames."""

    category = "attention"
    q: Value
    k: Value
    v: Value
