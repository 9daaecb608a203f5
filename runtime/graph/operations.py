"""The operations of models: plain data, no arithmetic.

Each operation has values as inputs, the layer whose tensors it reads with the names of these, and attributes. `shape`
gives the shape of a token's result and raises ModelError for tensors that do not fit. Executors decide how an operation
is computed (see `runtime.graph.text`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from archs.hparams.model_hparams import LayerHParams
from quants import Tensor
from quants.errors import ModelError

from ..arrays import Floats
from ..layer import Layer

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """The result of a node. number: of the node. shape: of a token; rows: of "all" tokens, of those "kept" for the
    head, or "some" if it may not be computed: operations without input give nothing.
    """

    number: int
    shape: Shape
    rows: str = "all"

    @property
    def width(self) -> int:
        """Return the numbers of a token."""
        return _product(self.shape)


def _product(shape: Shape) -> int:
    total = 1
    for each in shape:
        total *= each
    return total


@dataclass(frozen=True, eq=False)
class Operation:
    """category: the line of a profile that counts it. overwrites: the input whose memory the result may take. is_view:
    the result shares memory with the input x. gives_rows: the result is numbers of each token. rows_given: which rows
    the result has, "" for those of the first input. reads: tensors of the layer that it reads, if they exist.
    """

    category: ClassVar[str] = "sums and scales"
    overwrites: ClassVar[str] = ""
    is_view: ClassVar[bool] = False
    gives_rows: ClassVar[bool] = True
    rows_given: ClassVar[str] = ""
    reads: ClassVar[tuple[str, ...]] = ()

    def inputs(self) -> Iterator[Value]:
        """Return the values that it reads, in the order of its fields."""
        for each in fields(self):
            value = getattr(self, each.name)
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, Value):
                    yield one

    def weights(self) -> tuple[Tensor, ...]:
        """Return the tensors that it reads, to show or check."""
        layer, role = (getattr(self, name, None) for name in ("layer", "role"))
        return tensors_of(layer, *(name.format(role=role) for name in self.reads)) if layer is not None else ()

    def shape(self) -> Shape:
        """Return the shape of a token's result. Raises ModelError for tensors of other shapes than its inputs have."""
        return next(self.inputs()).shape


def tensors_of(layer: Layer, *roles: str) -> tuple[Tensor, ...]:
    """Return those of these tensors that the layer has."""
    return tuple(layer.tensors[role] for role in roles if role in layer)


# Inputs


@dataclass(frozen=True, eq=False)
class Input(Operation):
    """The graph's input: hidden states of tokens. size: of a token's."""

    size: Shape

    def shape(self) -> Shape:
        return self.size


@dataclass(frozen=True, eq=False)
class KeepRows(Operation):
    """Rows of the tokens whose logits are needed; llama.cpp's get_rows of `inp_out_ids`."""

    is_view = True
    rows_given = "kept"
    x: Value


# Products


@dataclass(frozen=True, eq=False)
class Linear(Operation):
    """y = W x (* scale + bias), with active adapters, and separate weights for image tokens."""

    category = "products"
    x: Value
    layer: Layer
    role: str
    split: Shape = ()  # heads and their width (-1: the rest), if the result is split

    def weights(self) -> tuple[Tensor, ...]:
        return tensors_of(self.layer, *(f"{self.role}.{each}" for each in ("weight", "scale", "bias")))

    def shape(self) -> Shape:
        weight = self.layer.need(f"{self.role}.weight")
        rows = weight.rows
        if weight.width != self.x.width:
            raise ModelError(
                f"{weight.name!r} has rows of {weight.width}; what it is multiplied with has {self.x.width} values"
            )
        if not self.split:
            return (rows,)
        heads, width = self.split[0], self.split[1] if self.split[1] >= 0 else rows // max(1, self.split[0])
        if heads * width != rows:
            raise ModelError(f"{weight.name!r} has {rows} rows, which are not {heads} heads")
        return heads, width


@dataclass(frozen=True, eq=False)
class ExpertLinear(Operation):
    """y = W x of one matrix of a stacked weight (experts, rows, width)."""

    category = "products"
    reads = ("{role}.weight",)
    x: Value
    layer: Layer
    role: str
    number: int

    def shape(self) -> Shape:
        weight = self.layer.need(f"{self.role}.weight")
        if len(weight.shape) != 3 or weight.width != self.x.width or self.number >= weight.shape[0]:
            raise ModelError(
                f"{weight.name!r} has shape {weight.shape}; number {self.number} reads {self.x.width} values"
            )
        return (weight.shape[1],)


@dataclass(frozen=True, eq=False)
class Adapted(Operation):
    """A part of a fused product with the additions of that part's adapters. x: the product's input."""

    category = "products"
    overwrites = "part"
    reads = ("{role}.lora_a", "{role}.lora_b")
    part: Value
    x: Value
    layer: Layer
    role: str


@dataclass(frozen=True, eq=False)
class Norm(Operation):
    """RMS norm x / sqrt(mean(x²) + eps) * w, or layer norm (Ba et al. 2016), over the last axis.

    eps: 0 for the model's. Source: Zhang and Sennrich 2019.
    """

    category = "norms"
    reads = ("{role}.weight", "{role}", "{role}.bias")
    x: Value
    layer: Layer
    role: str
    eps: float = 0.0

    def shape(self) -> Shape:
        for weight in self.weights():
            if weight.shape[-1] != self.x.shape[-1]:
                raise ModelError(f"{weight.name!r} has {weight.shape[-1]} values; {self.x.shape[-1]} are normed")
        return self.x.shape


@dataclass(frozen=True, eq=False)
class PlainNorm(Operation):
    """RMS norm without weights over the last axis."""

    category = "norms"
    x: Value
    eps: float


@dataclass(frozen=True, eq=False)
class HeadNorm(Operation):
    """Norm of queries or keys (heads, width): weights shared by heads, separate for each head, or over all heads
    together.
    """

    category = "norms"
    reads = ("{role}.weight", "{role}.bias")
    x: Value
    layer: Layer
    role: str

    def shape(self) -> Shape:
        weight, heads = self.layer.need(f"{self.role}.weight"), self.x.shape
        if weight.shape not in (heads[1:], heads, (heads[0], 1), (_product(heads),)):
            raise ModelError(f"{weight.name!r} has shape {weight.shape}; heads to be normed are {heads}")
        return heads


# Element by element


@dataclass(frozen=True, eq=False)
class Add(Operation):
    """x + scale * part."""

    overwrites = "part"
    x: Value
    part: Value
    scale: float = 1.0

    def shape(self) -> Shape:
        if self.x.shape != self.part.shape or self.x.rows != self.part.rows:
            raise ModelError(f"values of {self.part.shape} are added to {self.x.shape}")
        return self.x.shape


@dataclass(frozen=True, eq=False)
class Scale(Operation):
    """x * factor."""

    overwrites = "x"
    x: Value
    factor: float


@dataclass(frozen=True, eq=False)
class ScaleBy(Operation):
    """x times a tensor of the layer: a number for each value, or for each head of x. is_absolute: by magnitudes."""

    overwrites = "x"
    reads = ("{role}",)
    x: Value
    layer: Layer
    role: str
    is_absolute: bool = False

    def shape(self) -> Shape:
        count = _product(self.layer.need(self.role).shape)
        if count not in (self.x.width, self.x.shape[0]):
            raise ModelError(f"{self.role!r} has {count} values; {self.x.shape} are multiplied")
        return self.x.shape


@dataclass(frozen=True, eq=False)
class AddWeight(Operation):
    """x plus a tensor of the layer."""

    overwrites = "x"
    reads = ("{role}",)
    x: Value
    layer: Layer
    role: str

    def shape(self) -> Shape:
        if _product(self.layer.need(self.role).shape) != self.x.width:
            raise ModelError(f"{self.role!r} is added to {self.x.width} values")
        return self.x.shape


@dataclass(frozen=True, eq=False)
class Offset(Operation):
    """x + number."""

    overwrites = "x"
    x: Value
    number: float


@dataclass(frozen=True, eq=False)
class Multiply(Operation):
    """x * y."""

    overwrites = "x"
    x: Value
    y: Value

    def shape(self) -> Shape:
        if self.x.shape != self.y.shape or self.x.rows != self.y.rows:
            raise ModelError(f"values of {self.y.shape} are multiplied with {self.x.shape}")
        return self.x.shape


@dataclass(frozen=True, eq=False)
class Reshape(Operation):
    """The same values of a token in another shape: heads, or all in a row."""

    is_view = True
    x: Value
    size: Shape

    def shape(self) -> Shape:
        if _product(self.size) != self.x.width:
            raise ModelError(f"{self.x.shape} values are taken as {self.size}")
        return self.size


@dataclass(frozen=True, eq=False)
class Columns(Operation):
    """Columns start … stop of the last axis. shape of the result: (stop - start,), or heads of `split`."""

    category = "attention"
    x: Value
    start: int
    stop: int
    split: Shape = ()

    def shape(self) -> Shape:
        if self.stop > self.x.shape[-1]:
            raise ModelError(f"columns {self.start} to {self.stop} of {self.x.shape[-1]}")
        return self.split or (*self.x.shape[:-1], self.stop - self.start)


@dataclass(frozen=True, eq=False)
class Clamp(Operation):
    """x within -limit … limit, or low … limit."""

    overwrites = "x"
    x: Value
    limit: float
    low: float | None = None


@dataclass(frozen=True, eq=False)
class Activate(Operation):
    """activation(x); "sigmoid", "softplus", "tanh" and "exp" are among them."""

    category = "activations"
    overwrites = "x"
    x: Value
    activation: str
    parameters: tuple[float, ...] = ()  # of xIELU


@dataclass(frozen=True, eq=False)
class Gated(Operation):
    """activation(gate) * up. limit: clamp of both, 0 for none; clamps_gate_first: before the activation.

    Source: Shazeer 2020, "GLU Variants Improve Transformer".
    """

    category = "activations"
    overwrites = "gate"
    gate: Value
    up: Value
    activation: str
    limit: float = 0.0
    clamps_gate_first: bool = False
    clamps_both: bool = False  # `limit` clamps gate and up of any activation; else only that of "swiglu_oai"
    bounds: tuple[float, float] = (0.0, 0.0)  # of "situ"

    def shape(self) -> Shape:
        if self.gate.shape != self.up.shape:
            raise ModelError(f"a gate of {self.gate.shape} values multiplies {self.up.shape}")
        return self.gate.shape


@dataclass(frozen=True, eq=False)
class SparseGate(Operation):
    """relu(x - (mean + deviations * std)): only outliers pass (Gemma 3n)."""

    category = "activations"
    x: Value
    deviations: float


@dataclass(frozen=True, eq=False)
class ScaleByGate(Operation):
    """x times the sigmoid (or softplus) of a gate: one for each value, or one for each head."""

    category = "activations"
    overwrites = "x"
    x: Value
    gate: Value
    function: str = "sigmoid"

    def shape(self) -> Shape:
        if self.x.width % max(1, self.gate.width):
            raise ModelError(f"a gate of {self.gate.width} values for {self.x.width}")
        return self.x.shape


# Attention


@dataclass(frozen=True, eq=False)
class Rope(Operation):
    """Rotary embedding of heads (Su et al. 2021), by the layer's base, width and scaling."""

    category = "rotation"
    overwrites = "x"
    x: Value
    own: LayerHParams

    def shape(self) -> Shape:
        if self.own.rope_width > self.x.shape[-1]:
            raise ModelError(f"{self.own.rope_width} values are rotated of heads that are {self.x.shape[-1]} wide")
        return self.x.shape


@dataclass(frozen=True, eq=False)
class ScaleQueries(Operation):
    """Queries times a factor that grows with the position, by the family's `query_scale`."""

    overwrites = "x"
    x: Value
    rotated: bool


@dataclass(frozen=True, eq=False)
class Attention(Operation):
    """softmax(scale q·k + penalties) v of each head over the tokens in the cache, including these.

    q (heads, width), k (kv heads, width), v (kv heads, value width). x: their input, for observers. chosen: an
    indexer's selected keys. Source: Vaswani et al. 2017; Ainslie et al. 2023 for groups.
    """

    category = "attention"
    reads = ("attn_sinks.weight",)
    q: Value
    k: Value
    v: Value
    x: Value
    layer: Layer
    own: LayerHParams
    chosen: Value | None = None

    def shape(self) -> Shape:
        (heads, width), (groups, key_width), (values, value_width) = self.q.shape, self.k.shape, self.v.shape
        if groups != values or width != key_width or not groups or heads % groups:
            raise ModelError(
                f"queries {self.q.shape}, keys {self.k.shape} and values {self.v.shape} of {self.layer.prefix}* do "
                "not fit each other"
            )
        return (heads * value_width,)


@dataclass(frozen=True, eq=False)
class SharedAttention(Operation):
    """Attention of queries to the keys and values of an earlier layer (Gemma 3n and 4)."""

    category = "attention"
    q: Value
    own: LayerHParams

    def shape(self) -> Shape:
        return (self.own.heads * self.own.value_width,)


@dataclass(frozen=True, eq=False)
class PerHead(Operation):
    """Each head times its own matrix, of a weight (heads, out, width): (heads, out)."""

    category = "products"
    reads = ("{role}.weight",)
    x: Value
    layer: Layer
    role: str

    def shape(self) -> Shape:
        weight = self.layer.need(f"{self.role}.weight")
        if len(weight.shape) != 3 or (weight.shape[0], weight.shape[2]) != self.x.shape:
            raise ModelError(f"{weight.name!r} has shape {weight.shape}; heads to be multiplied are {self.x.shape}")
        return weight.shape[:2]


@dataclass(frozen=True, eq=False)
class Concat(Operation):
    """x and y concatenated in the last axis; a single head of y is repeated for all heads of x."""

    category = "attention"
    x: Value
    y: Value

    def shape(self) -> Shape:
        *heads, width = self.x.shape
        if self.y.shape[:-1] not in (tuple(heads), (1,)):
            raise ModelError(f"heads {self.y.shape} are put next to {self.x.shape}")
        return (*heads, width + self.y.shape[-1])


@dataclass(frozen=True, eq=False)
class LatentAttention(Operation):
    """Attention of heads to one narrow key for each token, whose first part is also the value: (heads, latent).

    q (heads, latent + rotated). k: the cached values (`CacheKeys`): the latent and the rotated key, one for all heads.
    chosen: the selected keys of the layer's indexer; layers without one reuse the last selection. Source: DeepSeek V2's
    report (arXiv 2405.04434), section 2.1.
    """

    category = "attention"
    reads = ("attn_sinks.weight",)
    q: Value
    k: Value
    layer: Layer
    latent: int
    chosen: Value | None = None

    def shape(self) -> Shape:
        if self.k.shape != (1, self.q.shape[1]):
            raise ModelError(f"queries {self.q.shape} and keys {self.k.shape} do not fit each other")
        return self.q.shape[0], self.latent


@dataclass(frozen=True, eq=False)
class WidenedAttention(Operation):
    """Attention of heads with keys and values made from one latent: (heads * value width)."""

    category = "attention"
    q: Value
    k: Value
    v: Value
    layer: Layer

    def shape(self) -> Shape:
        if self.q.shape != self.k.shape or self.k.shape[0] != self.v.shape[0]:
            shapes = f"queries {self.q.shape}, keys {self.k.shape}, values {self.v.shape}"
            raise ModelError(f"{shapes} do not fit each other")
        return (self.v.shape[0] * self.v.shape[1],)


# Feed-forward nets


@dataclass(frozen=True, eq=False)
class DownByNeuron(Operation):
    """y = x W of a weight that has a row for each neuron (PowerInfer)."""

    category = "products"
    reads = ("ffn_down_t.weight", "ffn_down_t.bias")
    x: Value
    layer: Layer

    def shape(self) -> Shape:
        weight = self.layer.need("ffn_down_t.weight")
        if weight.rows != self.x.width:
            raise ModelError(f"{weight.name!r} has {weight.rows} neurons; there are {self.x.width}")
        return (weight.width,)


@dataclass(frozen=True, eq=False)
class PredictedNet(Operation):
    """down(relu(gate x) * up x) over the neurons that the file's predictor selects for the residual stream."""

    category = "products"
    x: Value
    residual: Value
    layer: Layer

    def weights(self) -> tuple[Tensor, ...]:
        roles = ("fc1", "fc2", "ffn_up", "ffn_gate", "ffn_down_t")
        return tensors_of(self.layer, *(f"{role}.weight" for role in roles))


@dataclass(frozen=True, eq=False)
class Routing(Operation):
    """A step from a router's input to the experts chosen for each token, and their weights."""

    category = "experts: routing and sums"
    x: Value


@dataclass(frozen=True, eq=False)
class PlainLinear(Routing):
    """y = W x + bias of a few rows, in float32 whatever the precision: a router, whose choice must not depend on
    rounding.
    """

    reads = ("{role}.weight", "{role}.bias")
    layer: Layer
    role: str

    def shape(self) -> Shape:
        weight = self.layer.need(f"{self.role}.weight")
        if weight.shape[-1] != self.x.width:
            raise ModelError(f"{weight.name!r} has rows of {weight.shape[-1]}; a router reads {self.x.width} values")
        return (_product(weight.shape[:-1]),)


@dataclass(frozen=True, eq=False)
class Softcap(Routing):
    """cap * tanh(x / cap)."""

    overwrites = "x"
    cap: float


@dataclass(frozen=True, eq=False)
class Probabilities(Routing):
    """Scores of experts by their logits: "softmax", "sigmoid" or "sqrt_softplus"."""

    scoring: str


@dataclass(frozen=True, eq=False)
class BestGroups(Routing):
    """Scores with -inf outside each token's best groups of neighbours, ranked by their best, or (pairs) best two.

    Source: DeepSeek V2 and V3.
    """

    groups: int
    used: int
    pairs: bool


@dataclass(frozen=True, eq=False)
class TopExperts(Routing):
    """The numbers of the experts with the best scores. size: of groups that share an expert, whose number is given."""

    gives_rows = False
    used: int
    size: int = 1

    def shape(self) -> Shape:
        return (min(self.used, self.x.width),)


@dataclass(frozen=True, eq=False)
class ExpertsOfTokens(Routing):
    """The experts that a table lists for a token's id, independent of x (DeepSeek V4's first layers)."""

    gives_rows = False
    reads = ("ffn_gate_tid2eid.weight",)
    layer: Layer
    used: int

    def shape(self) -> Shape:
        return (self.used,)


@dataclass(frozen=True, eq=False)
class SparseMixer(Routing):
    """The best expert by its logit, then the best of the others; their numbers, or (gives_weights) the softmax of each
    over those left whose logit is relatively near (Liu et al. 2024, "GRIN").
    """

    gives_rows = False
    used: int
    jitter: float
    gives_weights: bool = False

    def shape(self) -> Shape:
        return (self.used,)


@dataclass(frozen=True, eq=False)
class ExpertWeights(Routing):
    """The scores x of the chosen experts."""

    chosen: Value

    def shape(self) -> Shape:
        return self.chosen.shape


@dataclass(frozen=True, eq=False)
class NormalizeWeights(Routing):
    """x / sum(x)."""

    overwrites = "x"


@dataclass(frozen=True, eq=False)
class ScaleByExpert(Routing):
    """Weights x times a number of each chosen expert."""

    overwrites = "x"
    reads = ("ffn_down_exps.scale",)
    chosen: Value
    layer: Layer


@dataclass(frozen=True, eq=False)
class Experts(Routing):
    """The weighted sum of the outputs of each token's chosen experts for x. suffix: "exps" in the names of their
    tensors.

    Source: Shazeer et al. 2017.
    """

    chosen: Value
    weighted: Value
    layer: Layer
    suffix: str = "exps"

    def weights(self) -> tuple[Tensor, ...]:
        names = (f"ffn_{part}_{self.suffix}" for part in ("gate_up", "gate", "up", "down"))
        return tensors_of(self.layer, *(f"{name}.{each}" for name in names for each in ("weight", "bias")))


@dataclass(frozen=True, eq=False)
class Combine(Operation):
    """The combined output of routed experts and a shared one, by the family's function."""

    category = "experts: routing and sums"
    overwrites = "routed"
    routed: Value
    shared: Value
    function: Callable[[Floats, Floats], Floats]


@dataclass(frozen=True, eq=False)
class LayerInput(Operation):
    """The layer's own embedding of each token of x (Gemma 3n and 4)."""

    x: Value
    layer: Layer

    def shape(self) -> Shape:
        return (self.layer.need("inp_gate.weight").rows,)


@dataclass(frozen=True, eq=False)
class ScaleAndSkip(Operation):
    """x + embedding * the layer's output scale, if the family adds the embedding; else x times that scale."""

    overwrites = "x"
    reads = ("layer_output_scale.weight",)
    x: Value
    layer: Layer


# Several streams of hidden states, and layers with separate parts


@dataclass(frozen=True, eq=False)
class Several(Operation):
    """A step on hidden states with several rows of the model's width for each token. size: of the result."""

    x: Value
    layer: Layer
    size: int

    def weights(self) -> tuple[Tensor, ...]:
        prefixes = ("hc_", "attn_res", "ffn_res")
        return tuple(each for role, each in self.layer.tensors.items() if role.startswith(prefixes))

    def shape(self) -> Shape:
        return (self.size,)


class AddNgrams(Several):
    """The streams with n-gram embeddings added (Qwen4 Exp)."""


class BeginHrmCycles(Several):
    """The states of two stacks of layers before the first one (HRM)."""


class ReadState(Several):
    """The state of the running stack."""


@dataclass(frozen=True, eq=False)
class ReadResiduals(Several):
    """A weighted mean of the hidden states and of what earlier layers left (Kimi K3)."""

    role: str = ""


class LeaveResidual(Several):
    """The hidden states stored for later layers, where a block of layers begins."""


@dataclass(frozen=True, eq=False)
class AddHidden(Several):
    """x with the output of a layer's part added to the hidden states."""

    given: Value | None = None


@dataclass(frozen=True, eq=False)
class NextState(Several):
    """The next layer's input from this one's output and the idle stack's state (HRM)."""

    given: Value | None = None


# Before the layers and after them


@dataclass(frozen=True, eq=False)
class Embed(Operation):
    """Rows of the embedding table, scaled, with positions and norms where the family has them (see `embedding`)."""

    outside: Layer
    size: Shape
    scale: float

    def weights(self) -> tuple[Tensor, ...]:
        roles = ("token_embd", "token_embd_proj", "position_embd", "token_types", "token_embd_norm")
        return tensors_of(self.outside, *(f"{role}.{each}" for role in roles for each in ("weight", "bias")))

    def shape(self) -> Shape:
        return self.size


@dataclass(frozen=True, eq=False)
class Logits(Operation):
    """softcap(scale (W x + bias)) of the vocabulary, W being the embedding table where heads are tied.

    softcap: cap * tanh(x / cap), None for nothing (Gemma 2).
    """

    category = "vocabulary"
    x: Value
    outside: Layer
    tied: bool
    scale: float
    softcap: float | None

    def weights(self) -> tuple[Tensor, ...]:
        return tensors_of(self.outside, f"{'token_embd' if self.tied else 'output'}.weight", "output.bias")

    def shape(self) -> Shape:
        weight = self.weights()[0]
        if weight.width != self.x.width:
            raise ModelError(f"{weight.name!r} has rows of {weight.width}; the head reads {self.x.width} values")
        return (weight.rows,)
