"""HY V4 (Hunyuan 4): DeepSeek V3.2's attention with an indexer, head gates and sinks, between streams of hidden states,
of which each part reads a mix and to which it is added. DeepSeek V3's routing; experts' gated units are clamped.

Reference: transformers `models/hy_v4/` and llama.cpp's `hy-v4.cpp`, which is made of the patch that the model's makers
published. They differ in which values of a head rotate together, halves or neighbours. llama.cpp has been measured with
the published weights, so neighbours it is. The MTP layer is left out of the model's file, as llama.cpp has none, and
has a file of its own: it reads one stream, taken after the model's last norm (vLLM's and SGLang's code of HY V4).
"""

import re

from archs.config import lookup, other_than
from archs.experts import SEPARATE_EXPERTS, always
from archs.families.deepseek4 import PARTS
from archs.families.deepseek32 import DEEPSEEK_V32
from archs.families.deepseek32 import config_from_gguf as v32_from_gguf
from archs.families.glm5_next import dense_layers
from archs.hparams.config_keys import LAYER_TYPE
from archs.layer_types import unless_one_stream
from archs.spec import Architecture, Computed, Config, ConfigKeys, GgufKeys, Target, Tensors, in_layers
from archs.tensor_maps import MTP_KEYS, MTP_ONLY, MTP_TENSORS, as_it_is, gated_net
from archs.typed_json import ListOf
from quants.errors import ModelError


def prepare(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return MTP layers (`mtp_layers`) as layers after the last."""
    last, named, mtp_layers = config["num_hidden_layers"], {}, 0
    for name, tensor in tensors.items():
        if part := re.fullmatch(r"(?:model\.)?mtp_layers\.(\d+)\.(.*)", name):
            mtp_layers = max(mtp_layers, int(part[1]) + 1)
            name = f"model.layers.{last + int(part[1])}.{part[2]}"
        named[name] = tensor.renamed(name)
    configured = config.get("num_nextn_predict_layers") or 0
    return {**config, "num_nextn_predict_layers": max(configured, mtp_layers)}, named


def chooses(config: Config) -> list[bool]:
    """Return which layers have an indexer; the others reuse the last one's selection."""
    indexer_types, count = config.get("indexer_types"), config["num_hidden_layers"]
    return (
        [each == "full" for each in indexer_types]
        if indexer_types
        else [i == 0 or (i - 1) % 4 == 0 for i in range(count)]
    )


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return groups and a limit for files whose absent keys mean none."""
    count, limits = keys["block_count"], keys.get("swiglu_clamp_exp") or [0.0]
    if {*limits} != {limits[0]}:
        raise ModelError("its layers clamp gated units to several limits; a config has one for all")
    return {
        **v32_from_gguf(keys, tensors),
        "swiglu_limit": limits[0],
        "layer_types": ["indexed_attention"] * count,
        "indexer_types": ["full" if each else "shared" for each in keys["attention.indexer.types"]],
        "n_group": keys.get("expert_group_count"),
        "topk_group": keys.get("expert_group_used_count"),
    }


def groups(key: str) -> Computed:
    """Return a number of groups of experts, if there are several."""
    return lambda config: lookup(config, key) if lookup(config, "n_group") not in (None, 1) else None


STREAMS: dict[str, Target] = {
    **{
        f".{source}.hc_{part}": f"hc_{net}_{part}.weight"
        for net, sources in (
            ("attn", ("hc_pre.hc_attn_layer", "hc_attn_layer.hc_pre")),
            ("ffn", ("hc_pre.hc_mlp_layer", "hc_mlp_layer.hc_pre")),
        )
        for source in sources
        for part in PARTS
    },
    **{
        f"{source}.hc_head_{part}": f"output_hc_{part}.weight"
        for source in ("hc_pre.hc_head", "hc_head")
        for part in PARTS
    },
}

OTHER_GATES: dict[str, Target] = {".mlp.linear_gate": "ffn_gate", ".mlp.shared_experts.linear_gate": "ffn_gate_shexp"}


HY_V4 = DEEPSEEK_V32.derive(
    name="hy_v4",
    variant=lambda config: HY_V4_MTP if config.get(MTP_ONLY) else None,
    hf_classes=("HYV4ForCausalLM",),
    config_from_gguf=config_from_gguf,
    prepare=prepare,
    prepare_export=as_it_is,
    float32=("*hc_*fn.weight",),
    legacy_names=tuple(in_layers({**SEPARATE_EXPERTS, **OTHER_GATES})),
    metadata={
        "block_count": "num_hidden_layers",
        "nextn_predict_layers": None,
        "attention.latent_norm_epsilon": None,
        "leading_dense_block_count": dense_layers,
        "attention.indexer.types": chooses,
        "expert_group_count": groups("n_group"),
        "expert_group_used_count": groups("topk_group"),
        "expert_gating_func": always("sigmoid"),
        "swiglu_clamp_exp": lambda config: (
            [config["swiglu_limit"]] * config["num_hidden_layers"] if (config.get("swiglu_limit") or 0) > 0 else None
        ),
        "hyper_connection.count": "hc_mult",
        "hyper_connection.epsilon": "hc_eps",
        "hyper_connection.magnitude": "hc_magnitude",
    },
    defaults={
        "head_dim": None,
        "first_k_dense_replace": 1,
        "model_type": "hy_v4",
        "hidden_size": 2816,
        "intermediate_size": 6912,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 34,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-5,
        "n_routed_experts": 256,
        "routed_scaling_factor": 2.827,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "n_group": 1,
        "topk_group": 1,
        "index_n_heads": 16,
        "hc_mult": 4,
        "hc_magnitude": 2.0,
        "hc_eps": 1e-6,
        "swiglu_limit": 10.0,
        "vocab_size": 120_832,
    },
    keys={"layer_types": ListOf(LAYER_TYPE)},
    refused={"hidden_act": other_than("silu", "swish")},  # the activation of experts in any case
    tensors={
        **STREAMS,
        ".self_attn.linear_gate": "attn_gate",
        ".self_attn.learnable_sink_param": "attn_sinks.weight",
        **gated_net("mlp"),
        **gated_net("mlp.shared_experts", "_shexp"),
        **OTHER_GATES,
    },
    block={
        "arrangement": unless_one_stream("mixed_streams"),
        "rope": "adjacent",
        "indexer_rope": "adjacent",
        "indexer_rotates": "last",
        "indexer_eps": 0.0,
        "clamps_gate_first": True,
    },
)

HY_V4_MTP: Architecture = HY_V4.derive(
    hf_classes=(),
    variant=None,
    metadata=MTP_KEYS,
    tensors={**MTP_TENSORS, ".final_layernorm": "nextn.shared_head_norm"},
)
