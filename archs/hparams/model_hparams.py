"""Hyperparameters of a model, read from its metadata once: widths, heads, windows, scales."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quants.errors import ModelError

from ..experts import GATING
from ..rope import parts_rotate_apart
from ..spec import ACTIVATIONS, Activation, Architecture, Floats, LayerSpec, Positions, Rope, Scoring, last_of_period
from .config_keys import MAX_LAYERS
from .file_keys import Keys


@dataclass(frozen=True)
class LayerHParams:
    """Hyperparameters that may differ by layer; widths are of one head.

    window: keys at this distance or more are hidden (None: none). chunk: keys in other chunks of this many tokens are
    hidden. rotates: has RoPE. rope_scaled: with the model's rope scaling. attention_scale: the factor of q·k.
    kv_source_layer: the layer whose keys and values this one uses (None: its own). qk_l2_norm: q and k are normalized
    without weights. sparsity: gates below mean + sparsity * standard deviation are 0. stored: the number of the layer
    in the file that has its tensors (None: its own). ends_loop: the output norm follows it, before all layers run
    again. net_limit, experts_limit: clamps of gated units in dense nets and shared experts, and in routed experts; 0:
    none.
    """

    heads: int
    kv_heads: int
    window: int | None
    rotates: bool
    rope_base: float
    rope_scaled: bool
    key_width: int
    value_width: int
    rope_width: int
    attention_scale: float
    kv_source_layer: int | None = None
    chunk: int | None = None
    qk_l2_norm: bool = False
    sparsity: float | None = None
    stored: int | None = None
    ends_loop: bool = False
    experts_used: int = 0
    net_limit: float = 0.0
    experts_limit: float = 0.0


@dataclass(frozen=True)
class HParams:
    """Hyperparameters of the whole model; softcaps and clamp are None if unused.

    eps: of the norms. rope: always "halves" if positions have several parts. rope_sections: the number of pairs that
    time, row and column of a position rotate; empty in other models. value_scale: a factor of attention's output.
    temperature_scale, temperature_length: queries grow by the first with the logarithm of how often the second fits
    into the position (Llama 4). alibi: the largest exponent of ALiBi's slopes; 0 without ALiBi. xielu: alpha_n,
    alpha_p, beta and eps of each layer's trained activation. situ: the bounds of that unit (see `runtime.ops`).
    post_norm: norms follow attention and net instead of preceding them. loops: how many times all layers run; the
    file has them once.
    """

    width: int
    context: int
    eps: float
    rope: Rope
    rope_sections: tuple[int, ...]
    attention_softcap: float | None
    logit_softcap: float | None
    clamp: float | None
    value_scale: float
    temperature_scale: float
    temperature_length: int
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    tied_logit_scale: float
    activation: Activation
    parallel: bool
    alibi: float
    xielu: tuple[tuple[float, ...], ...]
    activation_limit: float
    situ: tuple[float, float]
    experts_scale: float
    normalize_experts: bool
    scoring: Scoring
    expert_groups: int
    expert_groups_used: int
    router_jitter: float
    router_softcap: float | None
    post_norm: bool
    loops: int
    layers: tuple[LayerHParams, ...]

    def with_layers(self, changes: Callable[[int, LayerHParams], Mapping[str, Any]]) -> "HParams":
        """Return the hyperparameters with changes of layers: by a layer's index and its fields' names."""
        return replace(self, layers=tuple(replace(own, **changes(i, own)) for i, own in enumerate(self.layers)))


def read_hparams(architecture: Architecture, metadata: Mapping[str, Any], tensors: Collection[str] = ()) -> HParams:
    """Return a model's hyperparameters. tensors: the names of the file's, where they decide.

    Raises ModelError if a required key is missing. Values are those that the schema allows.
    """
    keys, block = Keys.of(architecture, metadata), architecture.block
    width = int(keys.need("embedding_length"))
    # Phi-3.5-MoE keeps the epsilon of its layer norms under the key of RMS norms.
    prefixes = ("rms_", "") if block.norm.startswith("rms") else ("", "rms_")
    own, other = (f"attention.layer_norm_{each}epsilon" for each in prefixes)
    embedding_scale, logit_scale = keys.get("embedding_scale"), float(keys.get("logit_scale"))
    if embedding_scale is None:
        embedding_scale = float(np.float64(width) ** 0.5) if block.embedding_scale == "sqrt_width" else 1.0
    activation = ACTIVATIONS[named] if (named := keys.get("hidden_activation")) else block.activation
    coefficients = ("alpha_n", "alpha_p", "beta", "eps") if activation == "xielu" else ()
    xielu = [Keys("xielu", metadata).need(key) for key in coefficients]
    normalize = keys.get("expert_weights_norm")
    scorings: dict[int, Any] = {number: name for name, number in GATING.items()}
    sections = tuple(map(int, keys.get("rope.dimension_sections")))
    numbers = HParams(
        width=width,
        context=int(keys.get("context_length")),
        eps=float(keys.need(other if keys.get(own) is None and keys.get(other) is not None else own)),
        rope="halves" if block.sections_rotate_halves and parts_rotate_apart(sections) else block.rope,
        rope_sections=sections if any(part > 0 for part in sections) else (),
        attention_softcap=_positive(keys.get("attn_logit_softcapping")),
        logit_softcap=_positive(keys.get("final_logit_softcapping")),
        clamp=_positive(keys.get("attention.clamp_kqv")),
        value_scale=float(keys.get("attention.value_scale")),
        temperature_scale=float(keys.get("attention.temperature_scale")),
        temperature_length=int(keys.get("attention.temperature_length")),
        embedding_scale=float(embedding_scale),
        residual_scale=float(keys.get("residual_scale")),
        tied_logit_scale=float(keys.get("tied_logit_scale")),
        logit_scale=1 / logit_scale if block.logit_scale == "divide" else logit_scale,
        activation=activation,
        activation_limit=float(keys.get("swiglu_limit")),
        situ=(float(keys.get("activation.situ_beta")), float(keys.get("activation.situ_linear_beta"))),
        parallel=_parallel(keys, block, tensors),
        alibi=_alibi(keys, block),
        xielu=tuple(tuple(map(float, of_layer)) for of_layer in zip(*xielu, strict=True)),
        experts_scale=float(keys.get("expert_weights_scale")) or 1.0,
        normalize_experts=block.normalize_experts if normalize is None else bool(normalize),
        scoring=scorings.get(keys.get("expert_gating_func"), block.scoring),
        expert_groups=int(keys.get("expert_group_count")),
        expert_groups_used=int(keys.get("expert_group_used_count")),
        router_jitter=float(keys.get("expert_router_jitter")),
        router_softcap=_positive(keys.get("router_logit_softcapping")),
        post_norm=bool(keys.get("swin_norm")),
        loops=int(keys.get("num_loops")),
        layers=_rounds(keys, tuple(_layer(keys, block, i) for i in range(keys.layer_count))),
    )
    return block.hparams_hook(keys, numbers) if block.hparams_hook else numbers


def growing_queries(hparams: HParams, positions: Positions, rotated: bool = True) -> Floats | None:
    """Return 1 + scale * ln(1 + ⌊position / length⌋), float32 (tokens,), in all layers; None where nothing grows."""
    if not hparams.temperature_scale:
        return None
    steps = np.floor(positions / hparams.temperature_length)
    return (1 + hparams.temperature_scale * np.log1p(steps)).astype(np.float32)


def stored_layers(keys: Keys) -> int:
    """Return how many of the layers the file stores: fewer where some run more than once."""
    stack = keys.get("hrm.layers_per_stack")
    return keys.layer_count if stack is None else 2 * int(stack)


def _rounds(keys: Keys, layers: tuple[LayerHParams, ...]) -> tuple[LayerHParams, ...]:
    """Return the layers as often as they run. Raises ModelError for more than any model has."""
    loops, norms = int(keys.get("num_loops")), not keys.get("skip_loop_final_norm")
    if loops * len(layers) > MAX_LAYERS:
        raise ModelError(f"'{keys.architecture}.num_loops' is {loops}: {loops * len(layers)} layers would run")
    layers = tuple(replace(layer, stored=i) for i, layer in enumerate(layers)) if loops > 1 else layers
    again = (*layers[:-1], replace(layers[-1], ends_loop=norms)) if layers else ()
    return (*again * (loops - 1), *layers)


def _layer(keys: Keys, block: LayerSpec, i: int) -> LayerHParams:
    windowed, window = _windowed(keys, block, i), int(keys.get("attention.sliding_window"))
    whole_width, heads = int(keys.get("attention.key_length") or 0), int(keys.of_layer("attention.head_count", i))
    scale, sparsity = keys.of_layer("attention.scale", i), keys.of_layer("activation_sparsity_scale", i)
    suffix = "_swa" if windowed else ""

    def width(key: str) -> int:
        return int(keys.get(key + suffix) or 0)

    return LayerHParams(
        heads=heads,
        kv_heads=int(keys.of_layer("attention.head_count_kv", i)),
        # the windows of encoders count both sides and not the token itself
        window=(window if block.causal else window // 2 + 1) if windowed else None,
        rotates=block.rope != "none" and not _alibi(keys, block) and _rotates(keys, block, i, windowed),
        rope_base=float(keys.get(f"rope.freq_base{suffix}")),
        rope_scaled=block.scales_windowed_rope or not windowed,
        key_width=width("attention.key_length"),
        value_width=width("attention.value_length"),
        rope_width=width("rope.dimension_count"),
        attention_scale=float(scale or (whole_width**-0.5 if whole_width else 1.0)),
        kv_source_layer=_kv_source_layer(keys, block, i),
        sparsity=float(sparsity) if sparsity is not None and sparsity > -np.inf else None,
        net_limit=float(keys.of_layer("swiglu_clamp_shexp", i)),
        experts_limit=float(keys.of_layer("swiglu_clamp_exp", i)),
        experts_used=int(keys.of_layer("expert_used_count", i)),
    )


def _rotates(keys: Keys, block: LayerSpec, layer: int, windowed: bool) -> bool:
    """Return whether a layer of a model with rope rotates: by an array of the file, or by the family's rule."""
    rotating = keys.get("attention.rope_pattern")  # the other key is ours, named as in SmolLM3's config
    rotating = keys.get("no_rope_layers") if rotating is None else rotating
    if rotating is not None:
        return bool(rotating[layer])
    if block.rope_layers == "windowed" and keys.get("attention.sliding_window"):
        return windowed
    return not block.rope_period or not last_of_period(block.rope_period, layer)


def _kv_source_layer(keys: Keys, block: LayerSpec, layer: int) -> int | None:
    """Return the source layer of a layer that shares keys and values: the last own one before them of its type,
    windowed or not.
    """
    first = keys.layer_count - int(keys.get("attention.shared_kv_layers"))
    if layer < first:
        return None
    windowed = _windowed(keys, block, layer)
    source = next((i for i in reversed(range(first)) if _windowed(keys, block, i) == windowed), None)
    if source is None:
        raise ModelError(f"layer {layer} shares keys and values, but none of the first {first} layers is of its type")
    return source


def _windowed(keys: Keys, block: LayerSpec, layer: int) -> bool:
    if not keys.get("attention.sliding_window"):
        return False
    listed: Any = keys.get("attention.sliding_window_pattern")
    pattern: Any = block.window_period if listed is None else listed
    return bool(
        pattern[layer] if hasattr(pattern, "__len__") else not pattern or not block.is_global_layer(pattern, layer)
    )


def _parallel(keys: Keys, block: LayerSpec, tensors: Collection[str]) -> bool:
    if block.parallel_without and tensors:
        return f"blk.0.{block.parallel_without}.weight" not in tensors
    return bool(keys.get(block.parallel)) if isinstance(block.parallel, str) else block.parallel


def _alibi(keys: Keys, block: LayerSpec) -> float:
    """Return the largest exponent of the distance penalties; 0 without ALiBi."""
    return float(keys.get("attention.max_alibi_bias")) if block.alibi else 0.0


def _positive(value: Any) -> float | None:
    return float(value) if value else None
