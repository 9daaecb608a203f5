"""Nemotron and Minitron: layer norms whose weights are stored minus one, squared ReLU, partly rotating heads.

Nemotron-H and Nemotron 3: each layer is Mamba-2, attention without positions, or a feed-forward net (dense or of
experts), by a pattern; transformers never lets a time step fall below `time_step_min` (llama.cpp drops that). Though
nothing rotates, q and k rows are re-ordered, as llama.cpp does. Models with experts have a GGUF name of their own.
Their two MTP layers (`mtp.…`: attention, experts) are one in the file, as llama.cpp writes it. Nemotron-H Puzzle: each
layer of experts has its own width and its own number of experts in use (`block_configs`); its MTP head is left out, as
in llama.cpp. Reference: transformers `models/nemotron/`, `models/nemotron_h/`.
"""

import re

from archs.config import changed, head_dim, other_than
from archs.experts import ROUTING
from archs.families.llama import HALVES
from archs.families.mamba import MAMBA2, UNBOUNDED
from archs.hparams.config_keys import SOME
from archs.layer_types import Keys, where_wide
from archs.rope import rotated_width, scaling_type
from archs.spec import COMMON, Architecture, Computed, Config, ConfigKeys, GgufKeys, Target, TensorMap, Tensors
from archs.tensor_maps import MTP_TENSORS, as_it_is, kv_heads_where, step_limits
from archs.transforms import add_one, interleave_rope
from archs.typed_json import Fields, ListOf, Text
from quants import Tensor
from quants.errors import ModelError


def norm(source: str, name: str) -> dict[str, Target]:
    return {f"{source}.weight": TensorMap(f"{name}.weight", add_one), f"{source}.bias": f"{name}.bias", source: None}


NEMOTRON = HALVES.derive(
    name="nemotron",
    hf_classes=("NemotronForCausalLM", "NemotronModel"),
    vocab=("sentencepiece", "bpe"),
    vocab_keys={"padding_token_id": 0, "unknown_token_id": 1},
    metadata={
        "attention.layer_norm_epsilon": "norm_eps",
        "rope.dimension_count": rotated_width,
        "rope.scaling.type": scaling_type,
        "vocab_size": "vocab_size",
    },
    defaults={
        "hidden_size": 6144,
        "intermediate_size": 24_576,
        "num_attention_heads": 48,
        "head_dim": head_dim,
        "max_position_embeddings": 4096,
        "rms_norm_eps": None,
        "norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "vocab_size": 256_000,
    },
    tensors={
        **norm(".input_layernorm", "attn_norm"),
        **norm(".post_attention_layernorm", "ffn_norm"),
        **norm("norm", "output_norm"),
        ".mlp.gate_proj": None,
    },
    block={"norm": "layer", "activation": "relu2", "gated": False},
)

# Layer types in a pattern and in transformers 5.
LAYER_TYPES = {
    "M": "mamba",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
    "linear_attention": "mamba",
    "full_attention": "attention",
}

LAYER_TYPE_LIST = ListOf(Text(("mamba", "attention", "mlp", "moe", *LAYER_TYPES)))

MTP_NAMES = {"1.norm": "post_attention_layernorm", "1.final_layernorm": "shared_head.norm"}


def layer_types(config: Config) -> list[str]:
    """Return each layer's type."""
    listed = config.get("layers_block_type") or config.get("layer_types") or config.get("hybrid_override_pattern")
    listed = listed or ["mamba", "moe", "attention", "mlp"]  # transformers' default
    return [LAYER_TYPES.get(each, each) for each in listed]


def mtp_layer_count(config: Config) -> int:
    """Return the number of MTP layers."""
    return int(config.get("num_nextn_predict_layers") or 0)


def mtp_layers(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the parts of the MTP layer as those of the layer after the last."""
    if not mtp_layer_count(config):
        return config, tensors
    last, renamed = len(layer_types(config)), {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"mtp\.layers\.([01]\.\w+)(.*)", name)
        if match:
            name = f"backbone.layers.{last}.{MTP_NAMES.get(match[1], match[1][2:])}{match[2]}"
        renamed[name] = tensor
    return config, renamed


def published(config: Config, tensors: Tensors) -> dict[str, Tensor]:
    """Return the layer after the last as the two that it was: attention, experts."""
    last, before = len(layer_types(config)), {after: before for before, after in MTP_NAMES.items()}
    start, named = f"backbone.layers.{last}.", {}
    for name, tensor in tensors.items():
        if name.startswith(start):
            part, _, suffix = name.removeprefix(start).rpartition(".")
            attention = re.match(r"(eh_proj|enorm|hnorm|norm|mixer\.[qkvo]_proj)$", part)
            name = f"mtp.layers.{before.get(part, f'{int(not attention)}.{part}')}.{suffix}"
        named[name] = tensor.renamed(name)
    return named


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the type of each layer, by its widths."""
    widths, groups, heads = keys["feed_forward_length"], keys["attention.head_count_kv"], keys["ssm.time_step_rank"]
    types = ["mlp" if width else "attention" if group else "mamba" for width, group in zip(widths, groups, strict=True)]
    return {
        "layers_block_type": types,
        "intermediate_size": max(widths),
        "mamba_head_dim": keys["ssm.inner_size"] // heads,
        **step_limits(keys),
    }


def experts_config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the type of each layer, by its tensors."""
    config = config_from_gguf(keys, tensors)
    count = keys.get("nextn_predict_layers")
    dense = {
        i: tensors[f"blk.{i}.ffn_up.weight"]
        for i in range(len(config["layers_block_type"]))
        if f"blk.{i}.ffn_up.weight" in tensors
    }
    types = [
        "mlp" if i in dense else "moe" if layer_type == "mlp" else layer_type
        for i, layer_type in enumerate(config["layers_block_type"][: keys["block_count"] - count])
    ]
    width = next((weight.shape[0] for weight in dense.values()), config["intermediate_size"])
    return {**config, "layers_block_type": types, "intermediate_size": width, "num_nextn_predict_layers": count}


def mixer(keys: Keys, layer: int) -> str | tuple[str, ...]:
    """Return the mixer by the keys; those of models with experts don't distinguish dense nets from Mamba."""
    if keys.of_layer("attention.head_count_kv", layer):
        return "attention"
    return "none" if keys.of_layer("feed_forward_length", layer) else ("mamba2", "none")


def net_of_experts(keys: Keys, layer: int) -> str | tuple[str, ...]:
    if keys.of_layer("feed_forward_length", layer):
        return "experts"
    return "none" if keys.of_layer("attention.head_count_kv", layer) else ("dense", "none")


NEMOTRON_H = MAMBA2.derive(
    name="nemotron_h",
    hf_classes=("NemotronHForCausalLM",),
    metadata={
        **COMMON,
        "context_length": lambda config: UNBOUNDED,
        "block_count": lambda config: len(layer_types(config)),
        "feed_forward_length": lambda config: [
            config["intermediate_size"] if layer_type == "mlp" else 0 for layer_type in layer_types(config)
        ],
        "attention.head_count_kv": kv_heads_where(lambda config: (each == "attention" for each in layer_types(config))),
        # configs with `rms_norm_eps` get this key too; norms still use `layer_norm_epsilon`
        "attention.layer_norm_rms_epsilon": lambda config: (
            None if config.get("rms_norm_eps") is None else config["layer_norm_epsilon"]
        ),
        "rope.dimension_count": "head_dim",
        "rope.scaling.finetuned": lambda config: False,
        "expert_count": None,
        "expert_used_count": None,
        "vocab_size": "vocab_size",
        "ssm.state_size": "ssm_state_size",
        "ssm.inner_size": lambda config: config["mamba_num_heads"] * config["mamba_head_dim"],
        "ssm.time_step_rank": "mamba_num_heads",
        "ssm.time_step_min": "mamba_dt_min|time_step_min",
        "ssm.time_step_max": None,
    },
    defaults={
        "model_type": "nemotron_h",
        "intermediate_size": 21_504,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": lambda config: config.get("attention_head_dim", 128),
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "time_step_min": 0.001,
        "num_hidden_layers": None,
        "vocab_size": 131_072,
    },
    keys={"layers_block_type": LAYER_TYPE_LIST, "layer_types": LAYER_TYPE_LIST},
    refused={"hidden_act": None, "mamba_hidden_act": other_than("silu", "swish")},
    config_from_gguf=config_from_gguf,
    flags_from_tensors={"attention_bias": "blk.*.attn_q.bias", "mlp_bias": "blk.*.ffn_*.bias"},
    variant=lambda config: NEMOTRON_H_MOE if "moe" in layer_types(config) else None,
    tensors={
        ".mixer.q_proj": TensorMap("attn_q", interleave_rope("num_attention_heads")),
        ".mixer.k_proj": TensorMap("attn_k", interleave_rope("num_key_value_heads")),
        ".mixer.v_proj": "attn_v",
        ".mixer.o_proj": "attn_output",
        ".mixer.up_proj": "ffn_up",
        ".mixer.down_proj": "ffn_down",
    },
    layers_vary=True,
    activation="mlp_hidden_act",
    block={"activation": "relu2", "gated": False, "mixer": mixer, "net": where_wide},
)

NEMOTRON_H_MOE: Architecture = NEMOTRON_H.derive(
    name="nemotron_h_moe",
    variant=None,
    by_variant=True,
    prepare=mtp_layers,
    prepare_export=published,
    metadata={
        **ROUTING,
        "expert_gating_func": None,
        "leading_dense_block_count": None,
        "block_count": lambda config: len(layer_types(config)) + mtp_layer_count(config),
        "nextn_predict_layers": lambda config: mtp_layer_count(config) or None,
        "attention.head_count_kv": kv_heads_where(
            lambda config: [each == "attention" for each in layer_types(config)] + [True] * mtp_layer_count(config)
        ),
        "feed_forward_length": lambda config: [  # of experts; llama.cpp writes none of dense nets next to them
            config["moe_intermediate_size"] * (layer_type == "moe")
            for layer_type in layer_types(config) + ["moe"] * mtp_layer_count(config)
        ],
        "expert_count": "n_routed_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        "moe_latent_size": "moe_latent_size",
    },
    defaults={
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
    },
    config_from_gguf=experts_config_from_gguf,
    tensors={
        **{name: target for name, target in MTP_TENSORS.items() if "embed_tokens" not in name},
        ".post_attention_layernorm": "post_attention_norm",
        ".mixer.gate": "ffn_gate_inp",
        ".mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
        ".mixer.experts.up_proj": "ffn_up_exps.weight",
        ".mixer.experts.down_proj": "ffn_down_exps.weight",
        ".mixer.experts.{e}.up_proj": TensorMap("ffn_up_exps", stack=True),
        ".mixer.experts.{e}.down_proj": TensorMap("ffn_down_exps", stack=True),
        ".mixer.shared_experts.up_proj": "ffn_up_shexp",
        ".mixer.shared_experts.down_proj": "ffn_down_shexp",
        ".mixer.fc1_latent_proj": "ffn_latent_down",
        ".mixer.fc2_latent_proj": "ffn_latent_up",
    },
    block={"scoring": "sigmoid", "net": net_of_experts},
)


def of_blocks(key: str) -> Computed:
    """Return a number for each layer; 0 without experts."""
    return lambda config: [int(block.get(key) or 0) for block in config["block_configs"]]


def by_blocks(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the layers' settings from the blocks, without `mtp.…`, which the file lacks."""
    types = [block["block_type"] for block in config["block_configs"]]
    return changed(config, layers_block_type=types, num_nextn_predict_layers=None), tensors


BLOCK = Fields({"block_type": LAYER_TYPE_LIST.item, "moe_intermediate_size": SOME, "num_experts_per_tok": SOME})


def puzzle_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return blocks by each layer's parts. Raises ModelError if its experts are alike: that is Nemotron H."""
    config, used = config_from_gguf(keys, tensors), keys["expert_used_count"]
    if not isinstance(used, list):
        raise ModelError("all of its layers have as many experts in use")
    names = {"mlp": "moe"}
    blocks = [
        {"block_type": names.get(layer_type, layer_type)}
        | ({"moe_intermediate_size": width, "num_experts_per_tok": count} if layer_type == "mlp" else {})
        for layer_type, width, count in zip(config["layers_block_type"], keys["feed_forward_length"], used, strict=True)
    ]
    plain = {
        "intermediate_size": ...,
        "moe_intermediate_size": ...,
        "num_experts_per_tok": ...,
        "rms_norm_eps": keys.get("attention.layer_norm_rms_epsilon") or ...,
    }
    return {**config, **plain, "block_configs": blocks, "num_hidden_layers": keys["block_count"]}


NEMOTRON_H_PUZZLE = NEMOTRON_H_MOE.derive(
    hf_classes=("NemotronHPuzzleForCausalLM",),
    by_variant=False,
    prepare=by_blocks,
    prepare_export=as_it_is,
    derived_keys=("layers_block_type",),
    prefixes=("model", "backbone"),
    metadata={
        "feed_forward_length": of_blocks("moe_intermediate_size"),
        "expert_feed_forward_length": of_blocks("moe_intermediate_size"),
        "expert_used_count": of_blocks("num_experts_per_tok"),
    },
    defaults={"model_type": "nemotron_h_puzzle", "moe_intermediate_size": None, "num_experts_per_tok": None},
    keys={"block_configs": ListOf(BLOCK)},
    config_from_gguf=puzzle_from_gguf,
)
