"""What a model is: plain data that the converter and the runtime both read.

A family file declares one or more `Architecture` values. Its `metadata` and `tensors` say how a Hugging Face checkpoint
becomes GGUF; its `block` says how the runtime computes with the result. Everything that a file's tensors or metadata
show by themselves (biases, q/k norms, experts, softcaps, scales) is read from there and not repeated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from quants import Tensor

from .typed_json import Kind

Config = Mapping[str, Any]  # config.json after `archs.config.normalized`
Transform = Callable[[Tensor, Config], Tensor]  # lazy: answers row ranges of the result from row ranges of the source
Computed = Callable[[Config], Any]  # a metadata value; None leaves the key out

Arranged = Callable[[Config, Mapping[str, Tensor]], tuple[Config, Mapping[str, Tensor]]]
Restored = Callable[[Mapping[str, Any], Mapping[str, Tensor]], Mapping[str, Any]]

Norm = Literal["rms", "layer"]
Rope = Literal["none", "adjacent", "halves"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu", "swiglu_oai"]
RopeLayers = Literal["all", "windowed", "windowed or dense"]
Temperature = Literal["none", "all", "unrotated"]
Scoring = Literal["softmax", "softmax_of_top", "sigmoid", "sparsemixer"]


@dataclass(frozen=True)
class Map:
    """Where a source tensor goes: `name` with {i} (layer), and what is done to it on the way.

    name may depend on the config; "" means that the file has no place for it. stack: the source pattern's second
    number counts experts (or heads); they are stacked into one tensor in front.
    """

    name: str | Callable[[Config], str]
    transform: Transform | None = None
    stack: bool = False


@dataclass(frozen=True)
class Numbers:
    """A tensor of one number a layer that becomes an entry of the metadata array `key`. shape: of the tensor."""

    key: str
    shape: tuple[int, ...] = (1,)


Target = str | Map | tuple[Map, ...] | Numbers | None


@dataclass(frozen=True)
class Block:
    """How one decoder layer computes, and what stands before the first and after the last.

    norm: RMS norm or layer norm; norm_weights: False where the norm has none at all (OLMo).
    ffn_norm: the name of the norm before the feed-forward net.
    output_norm: the name of the norm after the last layer.
    rope: which pairs rotate: "adjacent" (2j, 2j+1) or "halves" (j, j + d/2). rope_key: the name of a metadata key that
        is false in files without rope.
    alibi: distance penalties instead of rotation; the name of a metadata key where the file decides. alibi_scaled:
        they are scaled like q·k, and their terms are counted from the text's start in bfloat16, as Falcon does.
    activation: of the feed-forward net; gated: it multiplies a second projection.
    parallel: attention and feed-forward net read the same input and are added to it together; the name of a metadata
        key where the file decides (parallel if it has no such key).
    window_period: with a sliding window, every layer but each `window_period`-th is windowed (0: all layers are),
        unless the file says so itself; windows_last: the layer without is each period's first.
    scale_windowed: the rope scaling holds for windowed layers too.
    chunks: tokens see only those of their own chunk of so many (Llama 4) in layers with rope, unless the file has
        `attention.chunk_length` or a window of 0; 0: there are no chunks.
    rope_period: every `rope_period`-th layer has no rope (0: all have it), unless the file has `no_rope_layers`.
    rope_layers: with a sliding window, which layers have rope, unless the file has `attention.rope_pattern`: all, the
        windowed ones, or those and the dense ones before the first with experts.
    qk_norm_after_rope: q and k are normalised after they are rotated. clamp_normed: where q, k and v are clamped, that
        is after the norms.
    scaled_by_width: scores are divided by the square root of a head's width, unless the file has `attention.scale`.
    value_norm: values are normalised too, without weights.
    norms_without_weights: after rotation q and k are normalised without weights, unless the model has so many experts
        (the file's `attention.normed` wins); 0: they are not.
    query_gates: each head's rows of q are followed by as many for a gate, whose sigmoid multiplies what the head gives.
    temperature: whose queries grow with the logarithm of their position: those of all layers (Ministral 3, which counts
        positions from zero), or of those without rope (Llama 4, from one).
    scoring: how the router turns logits into weights (the file's `expert_gating_func` wins); normalize_experts: chosen
        weights are rescaled to sum to one (the file's `expert_weights_norm` wins). normalize_softmax: False where the
        file's word holds for sigmoids only (transformers' DeepSeek V2 does not read `norm_topk_prob`).
    weighted_inputs: experts' weights multiply what goes into them, not what comes out.
    experts_averaged: the mean of what routed and shared experts give, not the sum.
    embedding_scale: "sqrt_width" (Gemma) where the file has no `embedding_scale`.
    logit_scale: whether the file's `logit_scale` multiplies or divides the logits.
    causal: tokens see those before them only; False in encoders, where a window counts both sides together.
    hidden_states: the result are the last hidden states, not logits.
    """

    norm: Norm = "rms"
    norm_weights: bool = True
    ffn_norm: str = "ffn_norm"
    output_norm: str = "output_norm"
    rope: Rope = "adjacent"
    rope_key: str = ""
    alibi: bool | str = False
    alibi_scaled: bool = False
    activation: Activation = "silu"
    gated: bool = True
    parallel: bool | str = False
    window_period: int = 0
    windows_last: bool = False
    scale_windowed: bool = True
    chunks: int = 0
    rope_period: int = 0
    rope_layers: RopeLayers = "all"
    qk_norm_after_rope: bool = False
    clamp_normed: bool = False
    scaled_by_width: bool = True
    value_norm: bool = False
    norms_without_weights: int = 0
    query_gates: bool = False
    temperature: Temperature = "none"
    scoring: Scoring = "softmax"
    normalize_experts: bool = False
    normalize_softmax: bool = True
    weighted_inputs: bool = False
    experts_averaged: bool = False
    embedding_scale: Literal["one", "sqrt_width"] = "one"
    logit_scale: Literal["multiply", "divide"] = "multiply"
    causal: bool = True
    hidden_states: bool = False


@dataclass(frozen=True)
class Architecture:
    """One model family: which checkpoints it takes, how they become GGUF, how the result runs.

    name: GGUF's `general.architecture`. hf_classes: entries of config.json's `architectures`.
    vocab: vocabulary kinds, tried in this order ("sentencepiece", "bpe", "wordpiece", "unigram", "fairseq").
    vocab_keys: keys of the vocabulary that the family sets where the tokenizer's files don't say, without
        "tokenizer.ggml."; an id may be given as the token's text.
    metadata: GGUF key without "NAME." → a config key ("a|b.c": the first that is there), or a function of the config.
    defaults: what the model type means by a key that config.json omits; a function of the config where the default
        depends on others (then null means absent too).
    tensors: source name → target. Source names are written without wrapper prefixes ("model.", "transformer.", …) and
        without ".weight" / ".bias", which carry over; {i} is the layer, a second {e} the expert.
    ignored: source names (globs) that hold nothing: buffers, masks. generated: tensors made from the config alone.
    float32: globs of GGUF names that this family keeps in float32 beyond the common ones.
    layers_vary: layers differ in what tensors they have (hybrids, leading dense layers).
    keys: what config keys hold, where it is something else than `archs.config_keys` says.
    refused: config keys with the value (or a test of it) that stands for a variant which files of this family cannot
        express.
    variant: the architecture that configs of these classes mean instead, where they do. by_variant: this one is found
        so alone; its classes are another's.
    arranged: what is done to a checkpoint's config and tensors before anything else, where names depend on both.
    switches: config keys that are true where a file has such a tensor (a glob), for its way back to a checkpoint.
    restored: config keys that follow from a file otherwise than by the keys copied from them, for its way back to a
        checkpoint: a function of the file's keys without "NAME." and its tensors.
    published: `arranged` undone: the tensors by the names that checkpoints have.
    rope_parameters: transformers reads rotary settings only in its newest spelling, or means other ones by none: for
        all layers or by their kind.
    other_spellings: source names that some versions of a checkpoint have and an export does not write (of two rules for
        one GGUF name it writes the later); a function of the file's tensors where they decide.
    prefixes: wrappers that published checkpoints put before tensor names.
    activation: the config keys that name the activation; "" where the model type has just one.
    """

    name: str
    hf_classes: tuple[str, ...]
    vocab: tuple[str, ...] = ("bpe",)
    vocab_keys: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str | Computed | None] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Target] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    generated: tuple[Callable[[Config], Iterable[Tensor]], ...] = ()
    float32: tuple[str, ...] = ()
    layers_vary: bool = False
    keys: Mapping[str, Kind] = field(default_factory=dict)
    refused: Mapping[str, Any] = field(default_factory=dict)
    variant: Callable[[Config], Architecture | None] | None = None
    by_variant: bool = False
    arranged: Arranged | None = None
    switches: Mapping[str, str] = field(default_factory=dict)
    restored: Restored | None = None
    published: Callable[[Config, Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None
    rope_parameters: Literal["", "one", "by kind"] = ""
    other_spellings: tuple[str, ...] | Callable[[Mapping[str, Tensor]], tuple[str, ...]] = ()
    prefixes: tuple[str, ...] = ("model", "transformer", "language_model", "text_model")
    activation: str = "hidden_activation|hidden_act|activation_function"
    block: Block = Block()

    def but(self, **changes: Any) -> Architecture:
        """This architecture with differences: mappings are merged (None removes an entry), the rest replaced."""
        for name in ("metadata", "defaults", "tensors"):
            if name in changes:
                merged = {**getattr(self, name), **changes[name]}
                changes[name] = {key: value for key, value in merged.items() if value is not None}
        return replace(self, **changes)


ACTIVATIONS: dict[str, Activation] = {
    # Hugging Face's names
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_accurate": "gelu_tanh", "gelu_python_tanh": "gelu_tanh",
    "gelu_python": "gelu", "relu": "relu", "relu2": "relu2", "xielu": "xielu",
}  # fmt: skip

COMMON: dict[str, str | Computed | None] = {
    # What every family writes when its config has it, in the reference's order.
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
