"""MiniMax M3 (text): in some layers an indexer selects blocks of keys for each group of heads; GPT-OSS's clamped units,
dense in the first layers, later as routed experts with a shared one. Norm weights are stored minus one.

Reference: transformers `models/minimax_m3_vl/`.
"""

from archs.config import UnlessUsual, lookup, other_than
from archs.experts import SHARED, always
from archs.families.llama_like import MINIMAX_M2
from archs.hparams.file_keys import with_experts
from archs.spec import Config, ConfigKeys, GgufKeys, Target, TensorMap, Tensors, in_layers
from archs.tensor_maps import gated_net
from archs.transforms import add_one

SPARSE = "sparse_attention_config"
INDEXER = {
    "sparse_num_index_heads": "head_count",
    "sparse_index_dim": "key_length",
    "sparse_topk_blocks": "top_k",
    "sparse_block_size": "block_size",
    "sparse_local_block": "local_blocks",
}
SHARED_NET = gated_net("block_sparse_moe.shared_experts", "_shexp")
NORMS = {
    ".input_layernorm": "attn_norm",
    ".post_attention_layernorm": "ffn_norm",
    ".self_attn.q_norm": "attn_q_norm",
    ".self_attn.k_norm": "attn_k_norm",
    ".self_attn.index_q_norm": "indexer.q_norm",
    ".self_attn.index_k_norm": "indexer.k_norm",
    "norm": "output_norm",
}
PLUS_ONE: dict[str, Target] = {source: TensorMap(name, add_one) for source, name in NORMS.items()}


def dense_layers(config: Config) -> int:
    """Return the number of leading dense layers."""
    net_types = config.get("mlp_layer_types")
    routed = (
        [net_type == "sparse" for net_type in net_types]
        if net_types
        else [bool(each) for each in config["moe_layer_freq"]]
    )
    return [*routed, True].index(True)


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return which layers have experts and which an indexer, under published names."""
    layers = range(keys["block_count"])
    sparse, routed = (
        [int(f"blk.{i}.{name}.weight" in tensors) for i in layers] for name in ("indexer.q_proj", "ffn_gate_inp")
    )
    shared = [tensors[f"blk.{i}.ffn_up_shexp.weight"].shape[0] for i in layers if routed[i]]
    indexer = {name: keys[f"attention.indexer.{key}"] for name, key in INDEXER.items()}
    return {
        SPARSE: {"use_sparse_attention": any(sparse), **indexer, "sparse_attention_freq": sparse},
        "moe_layer_freq": routed,
        "intermediate_size": keys["expert_feed_forward_length"],
        "hidden_act": "swigluoai",
        "n_shared_experts": keys["expert_shared_count"],
        "shared_intermediate_size": shared[0] if shared else 0,
    }


MINIMAX_M3 = MINIMAX_M2.derive(
    name="minimax-m3",
    hf_classes=("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
    config_from_gguf=config_from_gguf,
    legacy_names=tuple(in_layers(SHARED)),
    activation="",
    metadata={
        "feed_forward_length": "dense_intermediate_size",
        "expert_gating_func": always("sigmoid"),
        "expert_shared_count": lambda config: lookup(config, "n_shared_experts") or 1,
        "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": lambda config: True,
        "attention.indexer.head_count": f"{SPARSE}.sparse_num_index_heads|index_n_heads",
        "attention.indexer.key_length": f"{SPARSE}.sparse_index_dim|index_head_dim",
        "attention.indexer.top_k": f"{SPARSE}.sparse_topk_blocks|index_topk_blocks",
        "attention.indexer.block_size": f"{SPARSE}.sparse_block_size|index_block_size",
        "attention.indexer.local_blocks": f"{SPARSE}.sparse_local_block|index_local_blocks",
        "leading_dense_block_count": dense_layers,
        "swiglu_limit": UnlessUsual("swiglu_limit", 7.0),
    },
    defaults={
        "model_type": "minimax_m3_vl_text",
        "hidden_size": 6144,
        "intermediate_size": 3072,
        "dense_intermediate_size": 12_288,
        "num_hidden_layers": 60,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "max_position_embeddings": 524_288,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "rotary_dim": 64,
        "routed_scaling_factor": 2.0,
        "swiglu_limit": 7.0,
    },
    refused={"swiglu_alpha": other_than(1.702), f"{SPARSE}.sparse_init_block": other_than(0)},
    tensors={
        **PLUS_ONE,
        ".self_attn.index_q_proj": "indexer.q_proj",
        ".self_attn.index_k_proj": "indexer.k_proj",
        **SHARED_NET,
        **SHARED,
    },
    absent={"expert_weights_norm": with_experts(False)},
    layers_vary=True,
    float32=("*.indexer.*",),
    block={"activation": "swiglu_oai", "scoring": "sigmoid", "normalize_experts": True},
)
