"""The description of a model family: plain data that the converter and the runtime both read.

A family module declares one or more `Architecture` values. `metadata` and `tensors` describe how a Hugging Face
checkpoint becomes GGUF; `block` describes how the runtime computes with the result. Whatever a file's tensors or
metadata show by themselves (biases, q/k norms, experts, softcaps, scales) is read from there and not repeated here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quants import Tensor

from .layer_types import EXPERTS, Declared
from .typed_json import FieldType

Config = Mapping[str, Any]  # config.json after `archs.config.normalized`
ConfigKeys = dict[str, Any]  # of a config.json made from a file
Tensors = Mapping[str, Tensor]
Floats = NDArray[np.float32]
Index = NDArray[np.intp]
Positions = NDArray[np.int64]
Transform = Callable[[Tensor, Config], Tensor]  # lazy: reads row ranges of the result from row ranges of the source
Computed = Callable[[Config], Any]  # a metadata value; None leaves the key out

Norm = Literal["rms", "layer", "layer_without_weights", "rms_without_weights"]
Rope = Literal["none", "adjacent", "halves"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu", "swiglu_oai", "situ"]
Step = Literal["clamp", "gates", "norm", "norm_values", "norm_without_weights", "rope"]
Scoring = Literal["softmax", "softmax_of_top", "sigmoid", "sparsemixer", "sqrt_softplus"]


class GgufKeys:
    """A file's keys without "NAME.", with numbers as JSON has them: `keys["block_count"]` is the file's own.

    It has the interface of `archs.hparams.file_keys.Keys`. meaning: the default of an absent key.
    """

    def __init__(self, own: Mapping[str, Any], meaning: Callable[[str], Any] = lambda key: None) -> None:
        self._own, self._meaning = own, meaning

    def __getitem__(self, key: str) -> Any:
        return self._own[key]

    def __contains__(self, key: object) -> bool:
        return key in self._own

    def stored(self, key: str) -> Any:
        """Return the file's own value; None if it has none."""
        return self._own.get(key)

    def get(self, key: str) -> Any:
        """Return the file's value, or the default of an absent key; None for nothing."""
        return self._own[key] if key in self._own else self._meaning(key)


def unchanged(tensor: Tensor, config: Config) -> Tensor:
    """Return the tensor unchanged."""
    return tensor


@dataclass(frozen=True)
class TensorMap:
    """The target of a source tensor: `name` with {i} (layer), and the transform on the way.

    name may depend on the config; "" drops the tensor. stack: the source pattern's second number counts experts (or
    heads); they are stacked into one tensor, experts first.
    """

    name: str | Callable[[Config], str]
    transform: Transform = unchanged
    stack: bool = False


@dataclass(frozen=True)
class PerLayerScalars:
    """A tensor with one number a layer that becomes an item of the metadata array `key`. shape: of the tensor."""

    key: str
    shape: tuple[int, ...] = (1,)


Target = str | TensorMap | tuple[TensorMap, ...] | PerLayerScalars | None


def in_layers(targets: Mapping[str, Target], at: str = "layers") -> dict[str, Target]:
    """Return a layer's tensors by full names: `targets` lack "layers.{i}" (at: its replacement) and "blk.{i}."."""

    def placed(to: TensorMap) -> TensorMap:
        name = to.name
        if isinstance(name, str):
            return replace(to, name=f"blk.{{i}}.{name}")
        return replace(to, name=lambda config: (own := name(config)) and f"blk.{{i}}.{own}")

    def full(target: Target) -> Target:
        if isinstance(target, str):
            return f"blk.{{i}}.{target}"
        if isinstance(target, tuple):
            return tuple(placed(each) for each in target)
        return placed(target) if isinstance(target, TensorMap) else target

    return {f"{at}.{{i}}.{name.removeprefix('.')}": full(target) for name, target in targets.items()}


def _by_full_names(targets: Mapping[str, Target], at: str) -> dict[str, Target]:
    full: dict[str, Target] = {}
    for name, target in targets.items():
        full |= in_layers({name: target}, at) if name.startswith(".") else {name: target}
    return full


def last_of_period(period: int, layer: int) -> bool:
    """Return whether a layer is the last of its period."""
    return (layer + 1) % period == 0


def first_of_period(period: int, layer: int) -> bool:
    """Return whether a layer is the first of its period."""
    return layer % period == 0


def weigh_output(net: Callable[[Floats], Floats], x: Floats, weights: Floats) -> Floats:
    """Return an expert's output times its weights (tokens, 1)."""
    return net(x) * weights


def weigh_input(net: Callable[[Floats], Floats], x: Floats, weights: Floats) -> Floats:
    """Return an expert's output for its inputs times their weights (tokens, 1)."""
    return net(x * weights)


def add(routed: Floats, shared: Floats) -> Floats:
    """Return the sum of the outputs of routed and shared experts."""
    return np.add(routed, shared, out=routed)


@dataclass(frozen=True)
class ScaledSum:
    """The factor times the sum of the outputs of routed and shared experts."""

    factor: float

    def __call__(self, routed: Floats, shared: Floats) -> Floats:
        np.add(routed, shared, out=routed)
        routed *= np.float32(self.factor)
        return routed


def sum_factor(function: Callable[[Floats, Floats], Floats]) -> float | None:
    """Return the factor of the sum of routed and shared experts; None for a function that computes something else."""
    if isinstance(function, ScaledSum):
        return function.factor
    return 1.0 if function is add else None


@dataclass(frozen=True)
class LayerSpec:
    """How one decoder layer computes, and what stands before the first and after the last.

    mixer, net, arrangement: what each layer is made of (see `archs.layer_types`). Nets are of experts, unless it is
        said otherwise, in models that have any, behind the leading dense layers.
    norm: RMS norm or layer norm, which may have no weights at all (OLMo, Talkie).
    ffn_norm: the name of the norm before the feed-forward net.
    attn_post_norm, ffn_post_norm: the names of the norms of what attention and the feed-forward net give (of the latter
        beside "post_ffw_norm").
    output_norm: the name of the norm after the last layer.
    rope: which pairs rotate: "adjacent" (2j, 2j+1) or "halves" (j, j + d/2).
    alibi: distance penalties instead of rotation, where `attention.max_alibi_bias` is above 0.
    activation: of the feed-forward net; gated: it multiplies a second projection. length_of_both: the file's
        `feed_forward_length` counts the rows of both projections.
    head_norm_epsilon: where norms of q and k with weights for each head are layer norms, theirs.
    suppressed_ids: the ids, from … to, of tokens that are not written, in a vocabulary that goes on behind them.
    last_tokens: the head has rows for the last tokens of the vocabulary alone; the others are not written.
    parallel: attention and feed-forward net read the same input and are added to it together; the name of a metadata
        key where the file decides. parallel_without: the norm that parallel layers lack; where the file has it, its
        layers are not parallel, whatever its key says.
    window_period: with a sliding window, one layer of each period has none (0: all layers have it), unless the file
        says so itself; is_global_layer: which one, by period and layer.
    rope_layers: with a sliding window, which layers have rope, unless the file has `attention.rope_pattern`.
    rope_period: one layer of each period has no rope (0: none is without), unless the file has such a key.
    scales_windowed_rope: layers with a window rotate as `rope.scaling.*` says, too.
    sections_rotate_halves: halves rotate, whatever `rope` is, where the file has `rope.dimension_sections`.
    interleaved_sections: where the file has `rope.dimension_sections`, time, row and column turn pairs by turns.
    images_in_windows: only layers with a window see all of an image's tokens at once.
    qkv_steps: what happens to q, k and v before they meet, in this order: "clamp" (to `attention.clamp_kqv`), "gates"
        (each head's rows of q are followed by as many for a gate, whose sigmoid multiplies what the head gives), "norm"
        (of q and k, where the layer has such norms), "norm_values" and "norm_without_weights" (of v; of q and k, where
        `LayerHParams.qk_l2_norm`), "rope".
    scoring: how the router turns logits into weights (the file's `expert_gating_func` wins); normalize_experts: chosen
        weights are rescaled to sum to one (the file's `expert_weights_norm` wins).
    indexer_rope: which pairs rotate in the indexer of sparse attention; indexer_rotates: the first values of a head, or
        the last; indexer_eps: of the norm of its keys, 0 for the model's.
    router_reads: what a router of experts reads: the net's input, or what the layer was given.
    embedding_scale: "sqrt_width" (Gemma) where the file has no `embedding_scale`. scaled_images: what stands for
        images and sounds is multiplied by it, too.
    logit_scale: whether the file's `logit_scale` multiplies or divides the logits.
    causal: tokens see those before them only; False in encoders, where a window counts both sides together.
    convolutions: the layers are convolutions over a whole sound's frames, see `runtime.audio_codec`.
    hidden_states: the result are the last hidden states, not logits.
    attention_gate: what a gate goes through before it multiplies what attention gives; delta_gate: what a delta net
        gives.
    clamps_gate_first: limits of gated units (`swiglu_clamp_…`) hold before the activation, not behind it.
    post_norm_eps: of the norms behind attention and nets; 0 for the model's.
    normed_embedding: embeddings go through a norm without weights. embedding_skip: a layer adds the embedding, times
        its `layer_output_scale`, to what it gives.

    What only one family computes is a function of its own:
    hparams_hook: the model's hyperparameters, from a file's keys and what they are for other families.
    query_scale: what queries are multiplied by, float32 (tokens,) or None for 1, from the model's numbers, positions
        (tokens,) and whether the layer rotates.
    alibi_terms: what is added to the scores of each head and key, float32 (heads, keys), from the heads' slopes, the
        keys' number and the factor of q·k; usually slope times distance.
    weigh_expert: what an expert gives, (tokens, width), from its net, its inputs and weights (tokens, 1).
    add_shared_expert: what routed experts and shared ones give together, from what each of them gives.
    """

    mixer: Declared = "attention"
    net: Declared = EXPERTS
    arrangement: Declared = "sequential"
    norm: Norm = "rms"
    ffn_norm: str = "ffn_norm"
    attn_post_norm: str = "post_attention_norm"
    ffn_post_norm: str = "post_ffw_norm"
    output_norm: str = "output_norm"
    rope: Rope = "adjacent"
    alibi: bool = False
    activation: Activation = "silu"
    gated: bool = True
    length_of_both: bool = False
    head_norm_epsilon: float = 0.0
    suppressed_ids: tuple[int, int] = (0, 0)
    last_tokens: bool = False
    parallel: bool | str = False
    parallel_without: str = ""
    window_period: int = 0
    is_global_layer: Callable[[int, int], bool] = last_of_period
    rope_layers: Literal["all", "windowed"] = "all"
    rope_period: int = 0
    scales_windowed_rope: bool = True
    sections_rotate_halves: bool = True
    interleaved_sections: bool = False
    images_in_windows: bool = False
    qkv_steps: tuple[Step, ...] = ("clamp", "norm", "rope")
    scoring: Scoring = "softmax"
    normalize_experts: bool = False
    indexer_rope: Rope = "halves"
    indexer_rotates: Literal["first", "last"] = "first"
    indexer_eps: float = 1e-6
    router_reads: Literal["net_input", "layer_input"] = "net_input"
    embedding_scale: Literal["one", "sqrt_width"] = "one"
    scaled_images: bool = False
    logit_scale: Literal["multiply", "divide"] = "multiply"
    causal: bool = True
    convolutions: bool = False
    hidden_states: bool = False
    attention_gate: Literal["sigmoid", "softplus"] = "sigmoid"
    delta_gate: Literal["silu", "sigmoid"] = "silu"
    post_norm_eps: float = 0.0
    normed_embedding: bool = False
    embedding_skip: bool = False
    clamps_gate_first: bool = False
    hparams_hook: Callable[[Any, Any], Any] | None = None  # of archs.hparams.model_hparams, which imports this module
    query_scale: Callable[[Any, Positions, bool], Floats | None] | None = None
    alibi_terms: Callable[[Floats, int, float], Floats] | None = None
    weigh_expert: Callable[[Callable[[Floats], Floats], Floats, Floats], Floats] = weigh_output
    add_shared_expert: Callable[[Floats, Floats], Floats] = add


@dataclass(frozen=True)
class Architecture:
    """One model family: which checkpoints it takes, how they become GGUF, how the result runs.

    name: GGUF's `general.architecture`. hf_classes: entries of config.json's `architectures`.
    vocab: vocabulary kinds, tried in this order (see `archs.vocab`).
    vocab_keys: keys of the vocabulary that the family sets where the tokenizer's files don't say, without
        "tokenizer.ggml."; an id may be given as the token's text. vocab_user_defined: tokens of BPE of plain text that
        are not control tokens, though the tokenizer's files call them special.
    extra_tokens: what control tokens are called that have the table's last rows, behind the tokenizer's.
    metadata: GGUF key without "NAME." → a config key ("a|b.c": the first that is there), or a function of the config.
        Keys "tokenizer.…" are as they are and win over what the tokenizer's files say.
    absent: what a file means that lacks a key of `metadata`, or another one, where that differs from the schema's
        "absent": a constant, "=KEY" for what another key says, or an `archs.hparams.file_keys.Derived`. A rule of
        `metadata` that copies a config key writes what says "none" where a config has none and an absent key would mean
        something.
    unread: keys that such files have and that mean nothing there.
    defaults: what the model type means by a key that config.json omits; a function of the config where the default
        depends on others (then null means absent too). "model_type" where it is not the first class in lower case
        without what it is used for; architectures derived for other classes don't inherit it.
    tensors: source name → target. Source names are written without wrapper prefixes ("model.", "transformer.", …) and
        without ".weight" / ".bias", which carry over; {i} is the layer, a second {e} the expert. What is given to
        `derive` with a "." in front stands in a layer, see `in_layers`. An export uses the later of two rules for one
        GGUF name.
    layers: what stands before a layer's number in source names. stored_layers: how many a checkpoint has, where some
        run more than once.
    ignored: source names (globs) that hold nothing: buffers, masks. generated: tensors made from the config alone.
    float32: globs of GGUF names that this family keeps in float32 beyond the common ones.
    layers_vary: layers differ in what tensors they have (hybrids, leading dense layers).
    keys: what config keys hold, where it is something else than `archs.hparams.config_keys` says.
    refused: config keys with the value (or a test of it) that stands for a variant which files of this family cannot
        express.
    wrappers: classes of models for images or sounds whose text part is such a model, where their config does not
        say of another type; architectures derived for other classes don't inherit them.
    wrappers_refused: classes of wrappers in which the text model computes otherwise than alone.
    variant: the architecture that configs of these classes mean instead, where they do. by_variant: this one is found
        so alone; its classes are another's. of_keys: it computes files with such `archs.hparams.file_keys.Keys`.
    config_of_tensors: the config of checkpoints that are published without one; None for those of other models.
    prepare: what is done to a checkpoint's config and tensors before anything else, where names depend on both.
    rope_parameters: transformers reads rotary settings only in its newest spelling, or means other ones by none: for
        all layers or by their kind.
    prefixes: wrappers that published checkpoints put before tensor names; the first is what an export writes.
    activation: the config keys that name the activation; "" where the model type has just one.
    eager_attention: False where transformers' eager attention is not what the model computes by default.
    draft: it reads what another model's layers make of the text, and neither is converted nor runs without that.

    For the export to a checkpoint:
    flags_from_tensors: config keys that are true where a file has such a tensor (a glob).
    part: no class stands for it without the encoders beside it: it is written with them alone.
    token_ids: the config key under which the class wants every token's id; "" where it wants none.
    config_from_gguf: config keys that follow from a file otherwise than by the keys copied from them; ... for keys that
        the family's configs do not have.
    prepare_export: the inverse of `prepare`: the tensors by the names that checkpoints have.
    derived_keys: config keys that `prepare` makes of tensors, which an export makes too but does not write.
    legacy_names: source names that some versions of a checkpoint have and an export does not write, though their rule
        is the later one for a GGUF name, in all layers or in one; a function of the file's tensors where they decide.
    """

    name: str
    hf_classes: tuple[str, ...]
    vocab: tuple[str, ...] = ("bpe",)
    vocab_keys: Mapping[str, Any] = field(default_factory=dict)
    vocab_user_defined: tuple[str, ...] = ()
    extra_tokens: Callable[[Config], Sequence[str]] | None = None
    metadata: Mapping[str, str | Computed | None] = field(default_factory=dict)
    absent: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Target] = field(default_factory=dict)
    layers: str = "layers"
    stored_layers: Computed | None = None
    ignored: tuple[str, ...] = ()
    generated: tuple[Callable[[Config], Iterable[Tensor]], ...] = ()
    float32: tuple[str, ...] = ()
    layers_vary: bool = False
    keys: Mapping[str, FieldType] = field(default_factory=dict)
    refused: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    wrappers_refused: tuple[str, ...] = ()
    variant: "Callable[[Config], Architecture | None] | None" = None
    by_variant: bool = False
    of_keys: Callable[[Any], bool] | None = None
    config_of_tensors: Callable[[Tensors], Mapping[str, Any] | None] | None = None
    prepare: Callable[[Config, Tensors], tuple[Config, Tensors]] | None = None
    rope_parameters: Literal["", "one", "by type"] = ""
    prefixes: tuple[str, ...] = ("model", "transformer", "language_model", "text_model", "thinker", "llm")
    activation: str = "hidden_activation|hidden_act|activation_function"
    eager_attention: bool = True
    draft: bool = False
    flags_from_tensors: Mapping[str, str] = field(default_factory=dict)
    config_from_gguf: Callable[[GgufKeys, Tensors], ConfigKeys] | None = None
    token_ids: str = ""
    prepare_export: Callable[[Config, Tensors], Tensors] | None = None
    derived_keys: tuple[str, ...] = ()
    part: bool = False
    legacy_names: tuple[str, ...] | Callable[[Tensors], tuple[str, ...]] = ()
    block: LayerSpec = LayerSpec()

    def derive(self, **changes: Any) -> "Architecture":
        """Return this architecture with changes: mappings are merged (None removes an entry), and so is the block,
        whose fields are given as a mapping; the rest is replaced.
        """
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        if "hf_classes" in changes:
            own["wrappers"] = ()
            own["defaults"] = {key: value for key, value in self.defaults.items() if key != "model_type"}
        for name, change in changes.items():
            if name == "tensors":
                change = _by_full_names(change, changes.get("layers", self.layers))
            if isinstance(change, Mapping):
                before = vars(self.block) if name == "block" else own.get(name, {})
                merged = {key: value for key, value in {**before, **change}.items() if value is not None}
                change = LayerSpec(**merged) if name == "block" else merged
            own[name] = change
        return Architecture(**own)


ACTIVATIONS: dict[str, Activation] = {
    # Hugging Face's names
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
}

COMMON: dict[str, str | Computed | None] = {
    # Keys that every family writes when its config has them, in llama.cpp's order.
    "block_count": "num_hidden_layers|n_layers|n_layer|num_layers",
    "context_length": "max_position_embeddings|n_ctx|n_positions|max_seq_len|max_sequence_length|model_max_length",
    "embedding_length": "hidden_size|n_embd|dim|d_model",
    "feed_forward_length": "intermediate_size|n_inner|ffn_dim|hidden_dim",
    "attention.head_count": "num_attention_heads|n_head|n_heads",
    "attention.head_count_kv": "num_key_value_heads|n_kv_heads",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps|norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps|layer_norm_epsilon|norm_epsilon",
    "expert_count": "num_local_experts|num_experts|n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
}

BASE = Architecture("", (), metadata=COMMON)  # the base of all families
