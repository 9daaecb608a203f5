"""Step 3.5 and 3.7: windows in most layers, with more heads and a rotary base of their own; in the others half of each
head rotates. A sigmoid gate for each head. Experts in one tensor, with a shared one; the gated units of some layers are
clamped. Norm weights are stored minus one. MTP layers after the last.

Reference: transformers `models/step3p7/`; published configs have a list for whatever differs by layer.
"""

import math
from collections.abc import Iterable

import numpy as np

from archs.config import ReadConfig, rope_scaling
from archs.experts import FUSED_EXPERTS, SHARED, always
from archs.families.llama import HALVES
from archs.hparams.config_keys import BASE, LAYER_TYPE
from archs.hparams.file_keys import Keys, with_experts, with_window
from archs.hparams.model_hparams import HParams
from archs.layer_types import EXPERTS_OR_DENSE
from archs.spec import Config, ConfigKeys, GgufKeys, TensorMap, Tensors, in_layers
from archs.tensor_maps import MTP_KEYS, MTP_TENSORS, gated_net
from archs.transforms import add_one
from archs.typed_json import Either, ListOf
from quants import Tensor, from_array
from quants.errors import ModelError

HEADS = ("attention.head_count", "attention.head_count_kv")
KEYS_OF_PREPARE = ("heads", "kv_heads", "full_base")
SAVED = (".mlp.gate", ".mlp.gate.e_score_correction_bias", ".shared_head.head")  # names that transformers writes

KEYS = {"rope_theta": Either((BASE, ListOf(BASE))), "layer_types": ListOf(LAYER_TYPE)}


def prepare(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return lists with an item a layer, MTP layers included if tensors have such."""
    first, configured = config["num_hidden_layers"], config.get("num_nextn_predict_layers") or 0
    mtp_layers = sum(any(f"layers.{first + i}." in name for name in tensors) for i in range(configured))
    layer_types = list(config.get("layer_types") or ["full_attention"] * first)
    layer_types = (layer_types + list(config.get("mtp_layer_types") or []) + ["full_attention"] * configured)[
        : first + mtp_layers
    ]
    windowed = [layer_type == "sliding_attention" for layer_type in layer_types]
    full, local = (windowed.index(each) if each in windowed else None for each in (False, True))
    other = config.get("attention_other_setting") or {}
    more = config.get("num_sliding_attention_heads") or other.get("num_attention_heads")
    groups = config["num_key_value_heads"]
    shares, bases = config.get("partial_rotary_factors"), config.get("rope_theta")
    if not shares or config.get("rope_local_base_freq") is not None:  # as transformers saves them
        whole, part = config.get("partial_rotary_factor", 1.0), config.get("partial_rotary_factor_local", 1.0)
        shares = [part if each else whole for each in windowed]
    if shares[: first + mtp_layers] != [1.0 if each else 0.5 for each in windowed]:
        raise ModelError("config.json lets other parts of heads rotate than half in full layers, all in windowed ones")
    if isinstance(bases, list):
        if len(bases) <= max(full or 0, local or 0):
            raise ModelError(f'config.json: "rope_theta" has {len(bases)} entries; one a layer was expected')
        config = {**config, "rope_local_base_freq": bases[local or 0]}
    prepared = {
        **config,
        "full_base": bases[full or 0] if isinstance(bases, list) else bases,
        "num_nextn_predict_layers": mtp_layers,
        "layer_types": layer_types,
        "partial_rotary_factor": 0.5,
        "heads": [more if more and each else config["num_attention_heads"] for each in windowed],
        "kv_heads": [other.get("num_attention_groups", groups) if each else groups for each in windowed],
        **{key: limits(config, key, first + mtp_layers) for key in ("swiglu_limits", "swiglu_limits_shared")},
    }
    bare = {name.replace(".transformer.shared_head", ".shared_head"): tensor for name, tensor in tensors.items()}
    return ReadConfig(prepared), bare


def published(config: Config, tensors: Tensors) -> Tensors:
    called = {name: name.replace(".shared_head", ".transformer.shared_head") for name in tensors}
    return {new: tensors[name].renamed(new) for name, new in called.items()}


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return lists with an item a layer, as published. Raises ModelError if layers of a type differ in heads."""
    mtp_layers, count = keys.get("nextn_predict_layers"), keys["block_count"]
    windowed = keys["attention.sliding_window_pattern"]
    heads, groups = (value if isinstance(value := keys[key], list) else [value] * count for key in HEADS)
    full, local = (
        {(heads[i], groups[i]) for i in range(count) if windowed[i] == is_windowed} for is_windowed in (False, True)
    )
    if len(full) > 1 or len(local) > 1:
        raise ModelError("its layers of one type have several numbers of heads; a config has one for each type")
    usual, other = max(full or local), max(local or full)
    with_experts = [str(i) for i in range(count - mtp_layers) if f"blk.{i}.ffn_gate_inp.weight" in tensors]
    scale = keys.get("attention.scale")
    dense = keys["leading_dense_block_count"] if "leading_dense_block_count" in keys else count  # noqa: SIM401
    return {
        "num_attention_heads": usual[0],
        "num_attention_groups": usual[1],
        "num_key_value_heads": ...,
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": other[0],
            "num_attention_groups": other[1],
            "head_dim": keys["attention.key_length"],
        },
        "query_pre_attn_scalar": round(1 / scale**2, 3) if scale else ...,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in windowed],
        "partial_rotary_factors": [1.0 if each else 0.5 for each in windowed],
        "partial_rotary_factor": 0.5,
        "rope_theta": [keys["rope.freq_base_swa" if each else "rope.freq_base"] for each in windowed],
        "moe_num_experts": keys["expert_count"],
        "moe_top_k": keys["expert_used_count"],
        "n_routed_experts": ...,
        "num_experts_per_tok": ...,
        "moe_every_n_layer": 1,
        "moe_layers_enum": ",".join(with_experts) or str(dense),
        "use_moe_router_bias": any(name.endswith("exp_probs_b.bias") for name in tensors),
        "moe_router_activation": "sigmoid",
        "norm_expert_weight": True,
        "use_head_wise_attn_gate": True,
        "zero_centered": True,
        "num_nextn_predict_layers": mtp_layers,
        "heads": heads,
        "kv_heads": groups,
    }


def limits(config: Config, key: str, count: int) -> list[float] | None:
    """Return limits, 0 for none. Raises ModelError for other values than numbers."""
    given = config.get(key)
    if given is None:
        return None
    if wrong := [each for each in given if each is not None and not isinstance(each, (int, float))]:
        raise ModelError(f'config.json: "{key}" has {wrong[0]!r}; numbers were expected')
    return [float(each or 0) for each in [*given, *[0.0] * count][:count]]


def factors(config: Config) -> Iterable[Tensor]:
    """Yield the divisors of full layers by llama3's rule, with ones for pairs that only rotate in windowed layers."""
    if rope_scaling(config, "rope_type") != "llama3":
        return
    width = config["head_dim"]
    exponents = np.arange(0, width // 2, 2, dtype=np.float32) / np.float32(width // 2)
    powers = np.power(float(config["full_base"]), exponents.astype(np.float64)).astype(np.float32)
    wavelengths = 2 * math.pi / (np.float32(1) / powers).astype(np.float64)
    factor, low, high, trained = (
        float(rope_scaling(config, key) or usual)
        for key, usual in (
            ("factor", 8),
            ("low_freq_factor", 1),
            ("high_freq_factor", 4),
            ("original_max_position_embeddings", 8192),
        )
    )
    smooth = (trained / wavelengths - low) / (high - low)
    stretched = np.where(wavelengths > trained / low, factor, 1 / ((1 - smooth) / factor + smooth))
    divisors = np.where(wavelengths < trained / high, 1.0, stretched)
    ones = np.ones(width // 2 - len(divisors))
    yield from_array("rope_freqs.weight", np.concatenate((divisors, ones)).astype(np.float32))


def first_with_experts(config: Config) -> int:
    if net_types := config.get("mlp_layer_types"):
        return [*net_types, "sparse"].index("sparse")
    listed = config.get("moe_layers_enum")
    return min((int(each) for each in str(listed).split(",") if each.strip()), default=0) if listed else 3


def hparams_hook(keys: Keys, usual: HParams) -> HParams:
    """Rotate half of each head in layers without a window."""
    return usual.with_layers(lambda i, own: {} if own.window else {"rope_width": own.rope_width // 2})


STEP35 = HALVES.derive(
    name="step35",
    hf_classes=("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"),
    keys=KEYS,
    prepare=prepare,
    prepare_export=published,
    derived_keys=(*KEYS_OF_PREPARE, "partial_rotary_factor", "rope_local_base_freq"),
    config_from_gguf=config_from_gguf,
    activation="",
    legacy_names=tuple(in_layers(dict.fromkeys((*FUSED_EXPERTS, *SHARED, *SAVED)))),
    metadata={
        **MTP_KEYS,
        "rope.freq_base": "full_base",
        "context_length": "max_position_embeddings|max_seq_len",
        "attention.head_count": "heads",
        "attention.head_count_kv": "kv_heads",
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: [each[0] == "s" for each in config["layer_types"]],
        "attention.scale": lambda config: (
            scalar**-0.5 if (scalar := config.get("query_pre_attn_scalar")) not in (None, config["head_dim"]) else None
        ),
        "expert_count": "moe_num_experts|n_routed_experts",
        "expert_used_count": "moe_top_k|num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_gating_func": always("sigmoid"),
        "expert_shared_feed_forward_length": "share_expert_dim",
        "expert_weights_scale": "moe_router_scaling_factor",
        "expert_weights_norm": "norm_expert_weight",
        "leading_dense_block_count": first_with_experts,
        "moe_every_n_layers": lambda config: config.get("moe_every_n_layer", 1),
        "swiglu_clamp_exp": "swiglu_limits",
        "swiglu_clamp_shexp": "swiglu_limits_shared",
    },
    defaults={
        "model_type": "step3p5",
        "intermediate_size": 11_264,
        "num_hidden_layers": 45,
        "num_attention_heads": 64,
        "num_key_value_heads": lambda config: config.get("num_attention_groups", 8),
        "head_dim": 128,
        "max_position_embeddings": 128_000,
        "rms_norm_eps": 1e-5,
        "moe_intermediate_size": 1280,
        "n_routed_experts": lambda config: config.get("moe_num_experts", 288),
        "num_experts_per_tok": lambda config: config.get("moe_top_k", 8),
        "share_expert_dim": 1280,
        "moe_router_scaling_factor": 1.0,
        "vocab_size": 128_815,
    },
    tensors={
        ".input_layernorm": TensorMap("attn_norm", add_one),
        ".post_attention_layernorm": TensorMap("ffn_norm", add_one),
        ".self_attn.q_norm": TensorMap("attn_q_norm", add_one),
        ".self_attn.k_norm": TensorMap("attn_k_norm", add_one),
        ".self_attn.g_proj": "attn_gate",
        "norm": TensorMap("output_norm", add_one),
        **gated_net("moe", "_exps"),
        **gated_net("share_expert", "_shexp"),
        **SHARED,
        **FUSED_EXPERTS,
        ".moe.gate": "ffn_gate_inp",
        ".moe.router_bias": "exp_probs_b.bias",
        ".mlp.gate": "ffn_gate_inp",
        ".mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
        **MTP_TENSORS,
        ".enorm": TensorMap("nextn.enorm", add_one),
        ".hnorm": TensorMap("nextn.hnorm", add_one),
        ".shared_head.norm": TensorMap("nextn.shared_head_norm", add_one),
        ".shared_head.output": "nextn.shared_head_head",
    },
    absent={"expert_weights_norm": with_experts(False), "rope.freq_base_swa": with_window(10_000.0)},
    refused={"norm_expert_weight": False},
    generated=(factors,),
    layers_vary=True,
    block={
        "net": EXPERTS_OR_DENSE,
        "scoring": "sigmoid",
        "normalize_experts": True,
        "scales_windowed_rope": False,
        "hparams_hook": hparams_hook,
    },
)
