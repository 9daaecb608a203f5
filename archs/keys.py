"""The keys of models: which type each is stored as, and which values mean something; one table for all readers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .experts import GATING
from .metadata import Value, ValueType
from .spec import ACTIVATIONS

U32, I32, F32, BOOL, STRING = (
    ValueType.UINT32, ValueType.INT32, ValueType.FLOAT32, ValueType.BOOL, ValueType.STRING
)  # fmt: skip
INTEGER_ARRAYS = (U32, I32)  # llama.cpp reads lists of integers of either type
FLOATS = (F32, ValueType.FLOAT64)
MOST = {U32: (1 << 32) - 1, I32: (1 << 31) - 1}
ITEMS = {U32: "iu", I32: "iu", F32: "f", BOOL: "b"}  # numpy's kinds of the items of arrays


@dataclass(frozen=True)
class Rule:
    """Of one key. least: the smallest value. array: always one. per_layer: may be an array with an item for each layer.

    shaping: tensors have the shapes they have because of it. flags: items of its array may be true or false instead.
    infinite: it may be. choices: all values that mean something.
    """

    type: ValueType
    least: float | None = None
    array: bool = False
    per_layer: bool = False
    shaping: bool = False
    flags: bool = False
    infinite: bool = False
    choices: tuple[str | int, ...] = ()

    def allows(self, value: Value) -> bool:
        """Whether the value has the very type that programs read the key as."""
        if value.type is not ValueType.ARRAY:
            return not self.array and value.type is self.type
        if not self.array and not self.per_layer:
            return False
        both = self.type in INTEGER_ARRAYS and value.element in INTEGER_ARRAYS
        return value.element is self.type or both or (self.flags and value.element is BOOL)

    def wrong(self, data: Any) -> str | None:
        """What is wrong with plain data that the key holds: "is 0; 1 or more is expected". None: nothing.

        Integers of any width are integers, and may stand for floats.
        """
        if not isinstance(data, (int, float, str, bytes, np.generic)):
            return self._wrong_items(data) if self.array or self.per_layer else f"is a list; {self} is expected"
        if self.array or not self._is_kind(data):
            return f"is {data!r}; {'a list' if self.array else self} is expected"
        if isinstance(data, (str, bytes)):
            return self._wrong_choice(data)
        data = data.item() if isinstance(data, np.generic) else data
        if isinstance(data, float) and (math.isnan(data) or (math.isinf(data) and not self.infinite)):
            return f"is {data}; a finite number is expected"
        if self.least is not None and data < self.least:
            return f"is {data}; {'more than 0' if self.least == TINY else f'{self.least} or more'} is expected"
        if data > MOST.get(self.type, math.inf):
            return f"is {data}; at most {MOST[self.type]} is expected"
        return self._wrong_choice(data)

    def _wrong_choice(self, data: object) -> str | None:
        known = ", ".join(map(str, self.choices))
        return f"is {data!r}; known are {known}" if self.choices and data not in self.choices else None

    def _is_kind(self, data: object) -> bool:
        if self.type is STRING:
            return isinstance(data, str)
        if self.type is BOOL:
            return isinstance(data, (bool, np.bool_, int))
        whole = isinstance(data, (int, np.integer)) and not isinstance(data, bool)
        return whole or (self.type is F32 and isinstance(data, (float, np.floating)))

    def _wrong_items(self, data: Any) -> str | None:
        if self.type is STRING:
            return None  # lists of texts are decoded only when asked for
        items = np.asarray(data) if isinstance(data, (list, tuple, np.ndarray)) else np.empty(0, object)
        kinds = ITEMS[self.type] + ("iu" if self.type in (F32, BOOL) else "b" if self.flags else "")
        if items.ndim != 1 or (items.size and items.dtype.kind not in kinds):
            return f"has items of another kind; {self} is expected"
        if items.dtype.kind == "f" and (np.isnan(items).any() or not (self.infinite or np.isfinite(items).all())):
            return "has items that are not finite"
        if self.least is not None and items.size and items.min() < 0:
            return f"has the item {items.min()}; 0 or more is expected"
        if items.size and items.max() > MOST.get(self.type, math.inf):
            return f"has the item {items.max()}; at most {MOST[self.type]} is expected"
        return None

    def __str__(self) -> str:
        """What is expected, in words."""
        each = {STRING: "a text", BOOL: "true or false", F32: "a number"}.get(self.type, "a whole number")
        return f"a list of {each.partition(' ')[2]}s" if self.array else each


TINY = 1e-30
TEXT, FLAG, NUMBER, COUNT = Rule(STRING), Rule(BOOL), Rule(F32), Rule(U32, 0)
POSITIVE, NO_LESS = Rule(F32, TINY), Rule(F32, 0)
SIZE = Rule(U32, 1, shaping=True)
LAYER_SIZE = Rule(U32, 0, per_layer=True, shaping=True)
LAYER_FLAGS = Rule(BOOL, 0, array=True, per_layer=True, flags=True)
STRINGS = Rule(STRING, array=True)

MODEL: dict[str, Rule] = {
    "context_length": Rule(U32, 1),
    "block_count": SIZE, "embedding_length": SIZE, "vocab_size": SIZE, "attention.key_length": SIZE,
    "attention.value_length": SIZE, "attention.key_length_mla": SIZE, "attention.value_length_mla": SIZE,
    "attention.key_length_swa": SIZE, "attention.value_length_swa": SIZE, "decoder_block_count": SIZE,
    "attention.head_count": Rule(U32, 1, per_layer=True, shaping=True), "attention.head_count_kv": LAYER_SIZE,
    "feed_forward_length": LAYER_SIZE,
    **dict.fromkeys(
        ("expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_count", "expert_shared_count",
         "leading_dense_block_count", "nextn_predict_layers", "attention.q_lora_rank", "attention.kv_lora_rank",
         "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count",
         "shortconv.l_cache", "moe_latent_size", "embedding_length_per_layer_input", "altup.num_inputs"),
        Rule(U32, 0, shaping=True)),
    **dict.fromkeys(
        ("expert_used_count", "expert_group_count", "expert_group_used_count", "interleave_moe_layer_step",
         "attention.sliding_window", "attention.relative_buckets_count", "attention.shared_kv_layers",
         "attention.chunk_length", "altup.active_idx", "decoder_start_token_id", "full_attention_interval",
         "n_deepstack_layers", "rope.dimension_count", "rope.dimension_count_swa",
         "rope.scaling.original_context_length"), COUNT),
    **dict.fromkeys(("attention.relative_max_distance", "attention.temperature_length"), Rule(U32, 1)),
    **dict.fromkeys(
        ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "attention.group_norm_epsilon",
         "attention.latent_norm_epsilon", "ssm.dt_b_c_rms_epsilon", "rope.freq_base", "rope.freq_base_swa",
         "rope.scaling.dynamic_factor", "swiglu_limit"), POSITIVE),
    **dict.fromkeys(
        ("attention.clamp_kqv", "attention.max_alibi_bias", "attn_logit_softcapping", "router_logit_softcapping",
         "final_logit_softcapping", "expert_router_jitter", "ssm.time_step_min"), NO_LESS),
    **dict.fromkeys(
        ("attention.output_scale", "logit_scale", "tied_logit_scale", "expert_weights_scale", "residual_scale",
         "embedding_scale", "attention.temperature_scale", "rope.scaling.factor", "rope.scaling.attn_factor",
         "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor",
         "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"), NUMBER),
    **dict.fromkeys(
        ("use_parallel_residual", "attention.causal", "attention.normed", "expert_weights_norm",
         "rope.scaling.finetuned", "rope.scaling.yarn_truncate", "ssm.dt_b_c_rms", "ssm.norm_before_gate",
         "swin_norm"), FLAG),
    **dict.fromkeys(("attention.recurrent_layers", "attention.rope_pattern"), LAYER_FLAGS),
    "no_rope_layers": Rule(I32, 0, array=True, per_layer=True, flags=True),
    "attention.sliding_window_pattern": Rule(U32, 0, per_layer=True, flags=True),
    "attention.scale": Rule(F32, per_layer=True), "tensor_data_layout": TEXT,
    "activation_sparsity_scale": Rule(F32, array=True, per_layer=True, infinite=True),
    "ssm.time_step_max": Rule(F32, 0, infinite=True),
    "expert_gating_func": Rule(U32, choices=(0, *GATING.values())),
    "hidden_activation": Rule(STRING, choices=tuple(ACTIVATIONS)),
    "rope.scaling.type": Rule(STRING, choices=("none", "linear", "yarn", "longrope")),
    "rope.dimension_sections": Rule(I32, 0, array=True),
    "pooling_type": COUNT, "classifier.pooling_type": COUNT, "classifier.output_labels": STRINGS,
}  # fmt: skip
ELSEWHERE = {  # keys without the architecture in front
    **{f"xielu.{each}": Rule(F32, array=True, per_layer=True) for each in ("alpha_n", "alpha_p", "beta", "eps")},
    "powerinfer.sparse_threshold": NUMBER,
}
