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
    """How the model computes: what its decoder layers consist of, and what comes before the first and after the last.

    mixer, net, arrangement: the parts of each layer (see `archs.layer_types`). By default nets are experts where the
        model has any, except in the leading dense layers.
    norm: the type of all norms; norms without weights are OLMo's and Talkie's.
    ffn_norm, attn_post_norm, ffn_post_norm, output_norm: the GGUF names of the norms before the feed-forward net, after
        attention, after the feed-forward net ("post_ffw_norm" applies, too), and after the last layer.
    rope: which dimensions of a head rotate as a pair: "adjacent" (2j, 2j+1; llama.cpp's NORM) or "halves" (j, j + d/2;
        NEOX).
    alibi: ALiBi instead of RoPE, where `attention.max_alibi_bias` is above 0.
    activation: of the feed-forward net. gated: the net has a gate projection, as SwiGLU. length_of_both: the file's
        `feed_forward_length` counts the rows of gate and up projection together.
    head_norm_epsilon: the epsilon of q and k norms that are layer norms with weights for each head.
    suppressed_ids: the range of token ids that are never sampled.
    last_tokens: the head has rows only for the last tokens of the vocabulary; the others are never sampled.
    parallel: attention and net read the same input, and both outputs are added to it; a text is the metadata key that
        decides. parallel_without: the norm that parallel layers lack: a file with it has sequential layers.
    window_period: with a sliding window, one layer of each period has full attention (0: none has), unless the file
        lists the layers. is_global_layer: which one, from the period and the layer's number.
    rope_layers: with a sliding window, which layers have RoPE, unless the file has `attention.rope_pattern`.
    rope_period: one layer of each period has no RoPE (0: all layers have it), unless the file has a key for it.
    scales_windowed_rope: `rope.scaling.*` also applies to layers with a sliding window.
    sections_rotate_halves: files with `rope.dimension_sections` use "halves", whatever `rope` is.
    interleaved_sections: with `rope.dimension_sections`, pairs belong to time, height and width alternately.
    images_in_windows: only layers with a sliding window see all tokens of an image at once.
    qkv_steps: what is done to q, k and v before attention, in this order: "clamp" (to `attention.clamp_kqv`), "gates"
        (q has rows for a gate after those of each head; its sigmoid multiplies the head's output), "norm" (q and k,
        where the layer has such norms), "norm_values" (v, without weights), "norm_without_weights" (q and k, where
        `LayerHParams.qk_l2_norm`), "rope".
    scoring: the router's function from logits to weights, unless the file has `expert_gating_func`.
        normalize_experts: the chosen weights are rescaled to sum to one, unless the file has `expert_weights_norm`.
    indexer_rope: as `rope`, in the indexer of sparse attention. indexer_rotates: which values of its heads rotate.
        indexer_eps: the epsilon of its key norm; 0: the model's.
    router_reads: the router's input: the net's, or the layer's.
    embedding_scale: "sqrt_width" (Gemma) applies where the file has no `embedding_scale`. scaled_images: embeddings of
        images and sounds are scaled, too.
    logit_scale: whether logits are multiplied or divided by the file's `logit_scale`.
    causal: False in encoders, whose tokens see each other; their window counts both sides together.
    convolutions: the layers are convolutions over the frames of a sound, see `runtime.audio_codec`.
    hidden_states: the model's output is the last hidden states, not logits.
    attention_gate, delta_gate: the activation of the gates of attention and of delta nets.
    clamps_gate_first: limits of gated units (`swiglu_clamp_…`) apply before the activation, not after it.
    post_norm_eps: the epsilon of the norms after attention and nets; 0: the model's.
    normed_embedding: a norm without weights follows the embedding. embedding_skip: each layer adds the embedding times
        `layer_output_scale` to its output.

    Functions for computations of a single family:
    hparams_hook: takes the keys and the hyperparameters, and returns the family's hyperparameters.
    query_scale: takes the hyperparameters, the positions (tokens,) and whether the layer rotates; returns the factors
        of queries, float32 (tokens,), or None for 1.
    alibi_terms: takes the heads' slopes, the number of keys and the factor of q·k; returns what is added to scores,
        float32 (heads, keys). Usually slope times distance.
    weigh_expert: takes an expert's net, inputs and weights (tokens, 1); returns its output (tokens, width).
    add_shared_expert: takes the outputs of routed and shared experts; returns their sum.
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
    """A model family: its checkpoints, their conversion to GGUF, and how the runtime computes with it (`block`).

    name: GGUF's `general.architecture`. hf_classes: values of `architectures` in config.json.
    vocab: vocabulary types, tried in this order (see `archs.vocab`).
    vocab_keys: defaults of `tokenizer.ggml.…` keys (without that prefix) that the tokenizer's files lack; a token id
        may be given as the token's text. vocab_user_defined: tokens of "plain_bpe" that are user-defined, though the
        tokenizer's files call them special.
    extra_tokens: names of the control tokens for the embedding's rows after the tokenizer's vocabulary.
    metadata: GGUF key without "NAME." → a config key ("a|b.c": the first one present), or a function of the config.
        Keys "tokenizer.…" are written as they are, and override the tokenizer's files.
    absent: defaults of keys that a file lacks, where they differ from the schema's "absent": a constant, "=KEY" for
        another key's value, or an `archs.hparams.file_keys.Derived`. If a config lacks a key that `metadata` copies and
        that has a default here, the conversion writes the value that means "none".
    unread: keys of such files that have no effect.
    defaults: the model type's defaults of config keys; a function of the config where they depend on other keys (then
        null counts as absent). "model_type" is needed if it is not the first class without its suffix, in lower case;
        derived architectures with other classes do not inherit it.
    tensors: source name → target. Source names have no prefix ("model.", "transformer.", …) and no ".weight" or
        ".bias", which are kept; {i} is the layer, a second {e} the expert. Names passed to `derive` with a leading "."
        belong to a layer, see `in_layers`. If two rules have the same GGUF name, an export uses the later one.
    layers: the part of source names before the layer's number. stored_layers: how many layers a checkpoint has, if some
        run several times.
    ignored: globs of source names without content: buffers, masks. generated: tensors computed from the config.
    float32: globs of GGUF names that this family keeps in float32, in addition to the common ones.
    layers_vary: layers have different tensors (hybrid models, leading dense layers).
    keys: the types of config keys that differ from `archs.hparams.config_keys`.
    refused: config keys with a value, or a test of the value, that files of this family cannot express.
    wrappers: multimodal classes whose text model is of this family, unless their config names another type; derived
        architectures with other classes do not inherit them.
    wrappers_refused: multimodal classes whose text model computes differently from the text model alone.
    variant: a function that returns the architecture to use instead for some configs of these classes. by_variant: this
        architecture is reached only through `variant` of another one. of_keys: a test of a file's
        `archs.hparams.file_keys.Keys` that selects this architecture among those of the same name.
    config_of_tensors: returns the config of a checkpoint without config.json; None for other models.
    prepare: changes a checkpoint's config and tensors before the rules apply.
    rope_parameters: transformers reads rotary settings only as `rope_parameters`, or has other defaults for them: one
        for all layers, or one by layer type.
    prefixes: prefixes of tensor names in published checkpoints; an export writes the first.
    activation: the config keys that name the activation; "" if the model type has only one.
    eager_attention: False if transformers' eager attention differs from the model's default one.
    draft: a draft model that reads hidden states of its target, without which it is neither converted nor run.

    For the export to a checkpoint:
    flags_from_tensors: config key → a glob of GGUF names; true if the file has such a tensor.
    part: transformers has no class for the text model alone: it is exported only together with its encoders.
    token_ids: the config key for the ids of all special tokens; "" for none.
    config_from_gguf: returns config keys that are not plain copies of GGUF keys; ... removes a key that the family's
        configs lack.
    prepare_export: the inverse of `prepare`: tensors by the names in checkpoints.
    derived_keys: config keys that `prepare` derives from tensors; an export does not write them.
    legacy_names: source names of older checkpoints that an export does not write, even if their rule is the later one;
        may be a function of the file's tensors.
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
