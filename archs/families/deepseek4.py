"""DeepSeek V4: several streams of hidden states (hyper connections), attention to a window and to compressed entries
for blocks of tokens, and in the first layers experts chosen by token id.

Reference: transformers `models/deepseek_v4/`. Published files have names of their own, weights in FP8 with separate
scales, experts in MXFP4. llama.cpp only supports entries of 4 and of 128 tokens and four streams. The MTP layer
(`mtp.0.…`) is left out of the model's file, because its mix of the streams would have the name of the model's own. It
has a file of its own, as from llama.cpp's converter.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from archs.config import unless_tied
from archs.families.deepseek32 import INDEXER_KEYS
from archs.families.llama import LLAMA
from archs.hparams.config_keys import LAYER_TYPE
from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import HParams
from archs.spec import Architecture, Config, ConfigKeys, GgufKeys, Target, TensorMap, Tensors
from archs.tensor_maps import MTP_KEYS, MTP_ONLY, MTP_TENSORS, gated_net, mtp_layers
from archs.transforms import Invertible, reshape, side_by_side, take
from archs.typed_json import ListOf, Text
from quants import Tensor, from_array
from quants.errors import ModelError

RATIOS = "attention.compress_ratios"
SPARSE, DENSE = "compressed_sparse_attention", "heavily_compressed_attention"
RATES = {"sliding_attention": 0, SPARSE: 4, DENSE: 128}
SCORING = {"sqrtsoftplus": 4, "sigmoid": 2}


def ratios(config: Config) -> list[int]:
    """Return the tokens per compressed entry, by layer; 0 for a window only."""
    rates, count = RATES | dict(config.get("compress_rates") or {}), config["num_hidden_layers"]
    if layer_types := config.get("layer_types"):
        return [rates[layer_type] for layer_type in layer_types]
    if published := config.get("compress_ratios"):
        return [
            next((rates[layer_type] for layer_type, usual in RATES.items() if usual == each), each)
            for each in published
        ]
    return [rates[SPARSE if i > 1 and i % 2 else DENSE] for i in range(count)]


def hash_layers(config: Config) -> int:
    """Return how many leading layers choose experts by token id. Raises ModelError if others do."""
    net_types = config.get("mlp_layer_types")
    if net_types is None:
        return min(int(config["num_hash_layers"]), int(config["num_hidden_layers"]))
    count = net_types.count("hash_moe")
    if "hash_moe" in net_types[count:]:
        raise ModelError('config.json has layers of "hash_moe" after others, which deepseek4 files cannot express')
    return int(count)


def rotated(config: Config) -> int:
    if share := config.get("partial_rotary_factor"):
        return int(config["head_dim"] * share)
    return int(config.get("qk_rope_head_dim") or config["head_dim"] // 8)


def is_stretched_otherwise(scaling: Mapping[str, Any] | None) -> bool:
    """Return whether layers with entries use a scaling other than YaRN without its attention factor or linear."""
    if not scaling:
        return False
    return scaling.get("rope_type") not in ("yarn", "linear") or scaling.get("attention_factor") not in (None, 1)


def prepare(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return scales next to a weight under the usual names; set apart the correction of routers that choose by token
    id, which nothing reads.
    """
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        weight = name.removesuffix(".scale") + ".weight"
        if name.endswith(".scale") and weight in tensors:
            name = f"{weight}_scale"
        if name.endswith(".gate.bias") and name.replace(".bias", ".tid2eid") in tensors:
            name = name.replace(".gate.bias", ".gate.unread_bias")
        named[name] = tensor
    config, prepared = mtp_layers(config, named)
    return config, {name: tensor.renamed(name) for name, tensor in prepared.items()}


def with_mtp_layer(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return `mtp.0.…` as the layer after the last; its mix of the streams replaces the model's. Raises ModelError for
    several.
    """
    last, named, there = config["num_hidden_layers"], dict[str, Tensor](), False
    for name, tensor in tensors.items():
        if part := re.fullmatch(r"mtp\.(\d{1,4})\.(\w+)(.*)", name):
            if int(part[1]):
                raise ModelError(f"the checkpoint has {name!r}; a deepseek4 file has room for one such layer, mtp.0")
            place, there = MTP_PARTS.get(part[2], part[2]), True
            named[place if place in HEAD else f"layers.{last}.{place}{part[3]}"] = tensor
        elif name.removeprefix("model.") not in HEAD:
            named[name] = tensor
    overrides = {"compress_ratios": [*ratios(config), 0][: last + 1], "layer_types": None}
    config, prepared = prepare({**config, **overrides}, named)
    return {**config, "num_nextn_predict_layers": int(there)}, prepared


def _side_by_side(tensor: Tensor, config: Config) -> Tensor:
    """Return two stacked matrices, (2, rows, width), side by side."""
    rows = tensor.shape[1]
    both = reshape(tensor, (2 * rows, tensor.shape[2]))
    return side_by_side([take(both, np.arange(i * rows, (i + 1) * rows)) for i in range(2)], tensor.name)


def _experts_of_tokens(tensor: Tensor, config: Config) -> Tensor:
    return from_array(tensor.name, tensor.elements().reshape(tensor.shape).astype(np.int32), tensor.origin)


def _as_published(tensor: Tensor, config: Config) -> Tensor:
    return from_array(tensor.name, tensor.elements().reshape(tensor.shape).astype(np.int64), tensor.origin)


def hparams_hook(keys: Keys, usual: HParams) -> HParams:
    """Set another rotary base for layers with entries, and scaling for them only."""
    base = float(keys.need("attention.compress_rope_freq_base"))

    def own(i: int, layer: Any) -> dict[str, Any]:
        return {"rope_base": base, "rope_scaled": True} if keys.of_layer(RATIOS, i) else {"rope_scaled": False}

    return usual.with_layers(own)


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    count, limits = keys["block_count"], keys["swiglu_clamp_exp"]
    compress_ratios, scoring = (
        [int(each) for each in keys["attention.compress_ratios"]],
        keys.stored("expert_gating_func"),
    )
    if len({*limits, *keys["swiglu_clamp_shexp"]}) > 1:
        raise ModelError("layers have several limits of gated units")
    if set(compress_ratios) - set(RATES.values()):
        raise ModelError("transformers knows entries of 4 and of 128 tokens alone")
    return {
        "compress_ratios": compress_ratios,
        "mlp_layer_types": ["hash_moe" if i < keys["hash_layer_count"] else "moe" for i in range(count)],
        "swiglu_limit": limits[0],
        "scoring_func": next(name for name, each in SCORING.items() if each == scoring),
        "qk_rope_head_dim": keys["rope.dimension_count"],
        "norm_topk_prob": True,
        "partial_rotary_factor": keys["rope.dimension_count"] / keys["attention.key_length"],
    }


def published(config: Config, tensors: Tensors) -> Tensors:
    """Return names without the base model's prefix."""
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    return {name: tensor.renamed(name) for name, tensor in bare.items()}


LATENT: dict[str, Target] = {
    ".attn.wq_a": "attn_q_a",
    ".attn.q_norm": "attn_q_a_norm",
    ".attn.wq_b": "attn_q_b",
    ".attn.wkv": "attn_kv",
    ".attn.kv_norm": "attn_kv_a_norm",
    ".attn.norm": "attn_kv_a_norm",  # as transformers writes it
    ".attn.wo_a": "attn_output_a",
    ".attn.wo_b": "attn_output_b",
    ".attn.attn_sink": "attn_sinks.weight",
    **{
        f".attn.{net}compressor.{part}": f"{name}_compressor_{suffix}"
        for net, name in (("", "attn"), ("indexer.", "indexer"))
        for part, suffix in (("wkv", "kv"), ("wgate", "gate"), ("ape", "ape.weight"), ("norm", "norm"))
    },
    ".attn.indexer.wq_b": "indexer.attn_q_b",
    ".attn.indexer.weights_proj": "indexer.proj",
}
PARTS = ("fn", "base", "scale")
STREAMS: dict[str, Target] = {
    f".hc_{net}_{part}": f"hc_{net}_{part}.weight" for net in ("attn", "ffn") for part in PARTS
}
HEAD: dict[str, Target] = {
    f"{place}_{part}": f"output_hc_{part}.weight" for place in ("hc_head", "hc_head.hc") for part in PARTS
}
MTP_PARTS = {"e_proj": "eh.0", "h_proj": "eh.1", "norm": "shared_head.norm"}  # of `mtp.0` → what the rules know


DEEPSEEK4 = LLAMA.derive(
    name="deepseek4",
    variant=lambda config: DEEPSEEK4_MTP if config.get(MTP_ONLY) else None,
    hf_classes=("DeepseekV4ForCausalLM",),
    vocab=("bpe",),
    prepare=prepare,
    prepare_export=published,
    config_from_gguf=config_from_gguf,
    ignored=("*.gate.unread_bias",),
    float32=("*hc_*fn.weight", "*_ape.weight"),
    legacy_names=(
        "layers.{i}.attn.norm",
        "embed_tokens",
        "lm_head",
        "hc_head.hc_fn",
        "hc_head.hc_base",
        "hc_head.hc_scale",
    ),
    metadata={
        **INDEXER_KEYS,
        "feed_forward_length": None,
        "rope.dimension_count": rotated,
        "attention.q_lora_rank": "q_lora_rank",
        "attention.sliding_window": "sliding_window",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "n_shared_experts",
        "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": lambda config: True,
        "expert_gating_func": lambda config: SCORING[config["scoring_func"]],
        "swiglu_clamp_exp": lambda config: [config["swiglu_limit"]] * config["num_hidden_layers"],
        "swiglu_clamp_shexp": lambda config: [config["swiglu_limit"]] * config["num_hidden_layers"],
        "attention.output_group_count": "o_groups",
        "attention.output_lora_rank": "o_lora_rank",
        "attention.compress_ratios": ratios,
        "attention.compress_rope_freq_base": "compress_rope_theta",
        "hyper_connection.count": "hc_mult",
        "hyper_connection.sinkhorn_iterations": "hc_sinkhorn_iters",
        "hyper_connection.epsilon": "hc_eps",
        "hash_layer_count": hash_layers,
        "embedding_length_out": lambda config: config["hidden_size"] * config["hc_mult"],
        "rope.scaling.attn_factor": None,
        "rope.scaling.yarn_attn_factor": None,
        "vocab_size": None,
    },
    defaults={
        "model_type": "deepseek_v4",
        "hidden_size": 4096,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 43,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "q_lora_rank": 1024,
        "num_experts_per_tok": 6,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "scoring_func": "sqrtsoftplus",
        "routed_scaling_factor": 1.5,
        "max_position_embeddings": 1_048_576,
        "rope_theta": 10_000.0,
        "compress_rope_theta": 160_000.0,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "num_hash_layers": 3,
        "swiglu_limit": 10.0,
        "sliding_window": 128,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 512,
        "rms_norm_eps": 1e-6,
        "vocab_size": 129_280,
    },
    keys={
        "scoring_func": Text(tuple(SCORING)),
        "layer_types": ListOf(LAYER_TYPE),
        "mlp_layer_types": ListOf(Text(("hash_moe", "moe")), per_layer=True),
    },
    refused={"rope_scaling": is_stretched_otherwise},
    flags_from_tensors={"mlp_bias": "blk.*.ffn_up_shexp.bias"},
    tensors={
        "embed_tokens": "token_embd",
        "embed": "token_embd",
        "lm_head": TensorMap(unless_tied("output")),
        "head": TensorMap(unless_tied("output")),
        **STREAMS,
        **HEAD,
        **LATENT,
        ".attn_norm": "attn_norm",
        ".ffn_norm": "ffn_norm",
        ".ffn.gate": "ffn_gate_inp",
        ".ffn.gate.bias": "exp_probs_b.bias",
        ".ffn.gate.bias_vl": "exp_probs_b_vl.bias",
        ".ffn.gate.tid2eid": TensorMap("ffn_gate_tid2eid.weight", Invertible(_experts_of_tokens, _as_published)),
        **{
            f".ffn.experts.{{e}}.w{i}": TensorMap(f"ffn_{name}_exps", stack=True)
            for i, name in ((1, "gate"), (2, "down"), (3, "up"))
        },
        **gated_net("ffn.shared_experts", "_shexp", ("w1", "w3", "w2")),
    },
    layers_vary=True,
    absent={"swiglu_clamp_shexp": "=swiglu_clamp_exp"},
    block={
        "scoring": "sqrt_softplus",
        "normalize_experts": True,
        "clamps_gate_first": True,
        "hparams_hook": hparams_hook,
        "mixer": "compressed",
        "arrangement": "mixed_streams",
    },
)

DEEPSEEK4_MTP: Architecture = DEEPSEEK4.derive(
    hf_classes=(),
    variant=None,
    prepare=with_mtp_layer,
    metadata={
        **MTP_KEYS,
        **{
            f"swiglu_clamp_{net}": lambda config: [config["swiglu_limit"]] * (config["num_hidden_layers"] + 1)
            for net in ("exp", "shexp")
        },
    },
    tensors={**MTP_TENSORS, ".eh.{e}": TensorMap("nextn.eh_proj", _side_by_side, stack=True)},
)
