"""Kimi K3 (text): Kimi Linear's layers, each part of which reads a weighted mean of the hidden states and the outputs
of earlier blocks of layers; experts in a low-dimensional space with a norm after them; gates on attention's output;
tanh bounds in the nets.

Reference: llama.cpp's converter and graph; transformers has no such class. Image encoders are left out.
"""

import re

import numpy as np

from archs.config import other_than
from archs.families.kimi_linear import KIMI_LINEAR, LINEAR
from archs.families.kimi_linear import config_from_gguf as linear_from_gguf
from archs.hparams.file_keys import with_experts
from archs.spec import Config, ConfigKeys, Floats, GgufKeys, TensorMap, Tensors, in_layers
from archs.tensor_maps import gated_net
from archs.transforms import chain, computed, flat, negative_exp
from quants import Tensor, from_array
from quants.errors import ModelError

GATE = re.compile(r"(.*\.layers\.(\d+)\.self_attn\.)g_proj\.weight")
SCORE = re.compile(r"(.*_res)_norm\.weight")


def prepare(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return gates by the type of their layer, as they share a name, and the product of each norm and its weights."""
    full, named = (config.get(LINEAR) or {}).get("full_attn_layers") or [], {}
    for name, tensor in tensors.items():
        if (gate := GATE.fullmatch(name)) and int(gate[2]) + 1 in full:
            name = f"{gate[1]}out_gate.weight"
        elif score := SCORE.fullmatch(name):
            weights = f"{score[1]}_proj.weight"
            if weights not in tensors:
                raise ModelError(f"the checkpoint has {name!r}, but not {weights!r}")
            name, tensor = f"{score[1]}.weight", times(tensor, tensors[weights])
        elif name.endswith("_res_proj.weight"):
            continue
        named[name] = tensor
    return config, named


def times(tensor: Tensor, other: Tensor) -> Tensor:
    """Return the elementwise product of two tensors, in float32."""

    def product(values: Floats) -> Floats:
        return np.multiply(values, other.float32().reshape(values.shape), dtype=np.float32)

    if tensor.size != other.size:
        raise ModelError(f"{tensor.where} has {tensor.size} values, {other.where} {other.size}")
    return computed(tensor, product)


def published(config: Config, tensors: Tensors) -> Tensors:
    """Return gates under one name; a norm is the stored product, its weights are ones."""
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith("_res.weight"):
            at, width = name.removesuffix(".weight"), tensor.size
            named[f"{at}_norm.weight"] = tensor
            named[f"{at}_proj.weight"] = from_array("", np.ones((1, width), np.float32))
        else:
            named[name.replace(".self_attn.out_gate.", ".self_attn.g_proj.")] = tensor
    return named


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the config under published names, which differ from transformers' Kimi Linear."""
    config = linear_from_gguf(keys, tensors)
    bound = {"gate_lower_bound": keys["kda.gate_lower_bound"]} if "kda.gate_lower_bound" in keys else {}
    return {
        **config,
        LINEAR: {**config[LINEAR], **bound},
        "hidden_act": "situ",
        "moe_router_activation_func": "sigmoid",
        "moe_renormalize": bool(keys.get("expert_weights_norm")),
        "num_expert_group": keys.get("expert_group_count"),
        "moe_layer_freq": 1,
        "first_k_dense_replace": keys["leading_dense_block_count"],
        **dict.fromkeys(("mlp_layer_types", "norm_topk_prob", "n_group", "topk_method"), ...),
    }


KIMI_K3 = KIMI_LINEAR.derive(
    name="kimi-k3",
    hf_classes=("KimiK3ForConditionalGeneration",),
    prepare=prepare,
    activation="",
    config_from_gguf=config_from_gguf,
    prepare_export=published,
    part=True,
    legacy_names=tuple(in_layers(gated_net("block_sparse_moe"))),
    wrappers_refused=("KimiK3ForConditionalGeneration",),
    metadata={
        "vocab_size": "vocab_size",
        "attention.value_length": "kv_lora_rank",
        "attention.latent_norm_epsilon": None,
        "kda.gate_lower_bound": f"{LINEAR}.gate_lower_bound",
        "expert_latent_length": "routed_expert_hidden_size",
        "activation.situ_beta": "activation_situ_beta",
        "activation.situ_linear_beta": "activation_situ_linear_beta",
        "attn_res.block_size": "attn_res_block_size",
        "expert_weights_norm": "moe_renormalize",
        "context_length": "max_position_embeddings|model_max_length",
    },
    defaults={"model_type": "kimi_linear", "num_hidden_layers": 93, "rms_norm_eps": 1e-5},
    refused={
        "hidden_act": other_than("situ"),
        "moe_router_activation_func": other_than("sigmoid"),
        "mla_use_nope": other_than(True),
    },
    tensors={
        ".self_attn.A_log": TensorMap("ssm_a", chain(negative_exp, flat)),
        ".self_attn.g_a_proj": None,
        ".self_attn.g_b_proj": None,
        ".self_attn.g_proj": "ssm_g",
        ".self_attn.out_gate": "attn_gate",
        ".self_attention_res": "attn_res_score",
        ".mlp_res": "ffn_res_score",
        "output_attn_res": "output_res_score",
        ".block_sparse_moe.routed_expert_down_proj": "ffn_routed_down",
        ".block_sparse_moe.routed_expert_up_proj": "ffn_routed_up",
        ".block_sparse_moe.routed_expert_norm": "ffn_routed_norm",
    },
    absent={"expert_weights_norm": with_experts(False)},
    block={"activation": "situ", "arrangement": "residuals"},
)
