"""GLM-4 (0414): Llama's layers with norms before and after each part, gate and up fused, partly rotating heads.
Adjacent pairs rotate in HF too.

GLM 4.5 and 4.6: partial rotation, DeepSeek V3's routing, MTP layers. GLM 4.7 Flash: DeepSeek V3's layers, GLM's
vocabulary, MTP layers. GLM 4.1V and 4.5V (text): GLM 4's and GLM 4.5's layers with multi-section rope for images. ggml
rotates halves wherever there are such sections (of times and rows at least), so the rows of GLM 4's q and k, of which
adjacent ones rotate in HF, are reordered there. GLM-OCR (text): GLM 4.1V's layers with an explicit head width, and an
MTP layer. GLM-ASR as first published (text): Llama's layers, GLM's vocabulary. Solar Open: GLM 4.5's layers, all with
experts, without norms of q and k; all of a head rotates. Reference: transformers `models/glm4/`, `models/glm4_moe/`,
`models/glm4_moe_lite/`, `models/glm4v/`, `models/glm4v_moe/`, `models/glm_ocr/`, `models/solar_open/`.
"""

from functools import partial

import numpy as np

from archs.config import head_dim, lookup, other_than
from archs.experts import GATING, always, net_types
from archs.families.deepseek2 import DEEPSEEK_V3, DOTS1, v3_config_from_gguf
from archs.families.llama import HALVES, LLAMA
from archs.families.qwen2 import sections
from archs.hparams.file_keys import with_experts
from archs.rope import parts_rotate_apart, rotated_width
from archs.spec import Config, ConfigKeys, GgufKeys, Index, TensorMap, Tensors
from archs.tensor_maps import MTP_KEYS, MTP_TENSORS, NEOX_NET, becomes, head_inside
from archs.transforms import reordered

GLM4 = HALVES.derive(
    name="glm4",
    hf_classes=("Glm4ForCausalLM", "Glm4Model"),
    # the tokenizer's files don't say
    vocab_keys={"eot_token_id": "<|user|>", "unknown_token_id": "<|endoftext|>", "bos_token_id": "<|endoftext|>"},
    metadata={"rope.dimension_count": rotated_width},
    defaults={
        "intermediate_size": 13_696,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1.5625e-07,
        "partial_rotary_factor": 0.5,
        "vocab_size": 151_552,
    },
    tensors={
        ".post_self_attn_layernorm": "post_attention_norm",
        ".post_mlp_layernorm": "post_ffw_norm",
        ".mlp.gate_proj": None,
        ".mlp.up_proj": None,
        ".mlp.gate_up_proj": "ffn_up",
    },
    block={"rope": "adjacent"},
)

GLM_ASR = LLAMA.derive(
    hf_classes=("GlmasrModel",),
    wrappers_refused=("GlmasrModel",),
    vocab=("bpe",),
    vocab_keys=GLM4.vocab_keys,
    config_from_gguf=becomes("LlamaForCausalLM"),
)


def unusual_head_dim(config: Config) -> int | None:
    """Return the head width if it is not the width divided by the heads (llama.cpp drops it)."""
    shared = config["hidden_size"] // config["num_attention_heads"]
    return int(config["head_dim"]) if config["head_dim"] != shared else None


def kv_channels(config: Config) -> int:
    """Return the head width under ChatGLM's key."""
    return int(config.get("kv_channels") or config["hidden_size"] // config["num_attention_heads"])


def chatglm_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    return {
        "kv_channels": 2 * keys["rope.dimension_count"],
        "multi_query_attention": True,
        "multi_query_group_num": keys["attention.head_count_kv"],
        "seq_length": keys["context_length"],
        "rope_ratio": keys["rope.freq_base"] / 10_000.0,
        "padded_vocab_size": tensors["token_embd.weight"].shape[0],
        "rmsnorm": True,
        "post_layer_norm": True,
        "apply_residual_connection_post_layernorm": False,
        "original_rope": True,
        "add_bias_linear": False,
    }


# GLM-4-9B: without the norms after each part. llama.cpp writes the hidden width as context length if the config has no
# `seq_length`; the true one is in rope.scaling.original_context_length.
GLM = GLM4.derive(
    name="chatglm",
    hf_classes=("GlmForCausalLM", "GlmModel"),
    vocab_keys={"bos_token_id": None},
    metadata={
        "context_length": lambda config: lookup(config, "seq_length|hidden_size"),
        "rope.scaling.original_context_length": (
            "rope_scaling.original_max_position_embeddings|max_position_embeddings"
        ),
        "attention.key_length": unusual_head_dim,
        "attention.value_length": unusual_head_dim,
    },
)

CHATGLM = GLM.derive(  # as first published, with other names
    hf_classes=("ChatGLMModel", "ChatGLMForConditionalGeneration"),
    vocab=("bpe", "sentencepiece"),
    layers="encoder.layers",
    prefixes=("transformer", "model", "language_model", "text_model"),
    prepare_export=partial(head_inside, prefix="transformer", name="output_layer"),
    metadata={
        "block_count": "num_layers",
        "feed_forward_length": "ffn_hidden_size",
        "attention.head_count_kv": lambda config: (
            config["multi_query_group_num"] if config.get("multi_query_attention") else config["num_attention_heads"]
        ),
        "attention.layer_norm_rms_epsilon": "layernorm_epsilon",
        "attention.key_length": lambda config: unusual_head_dim({**config, "head_dim": kv_channels(config)}),
        "attention.value_length": lambda config: unusual_head_dim({**config, "head_dim": kv_channels(config)}),
        "rope.dimension_count": lambda config: kv_channels(config) // 2,
        "rope.freq_base": lambda config: 10_000.0 * (config.get("rope_ratio") or 1.0),
        "rope.scaling.original_context_length": None,
    },
    defaults={"num_hidden_layers": None, "head_dim": None, "rms_norm_eps": None, "layernorm_epsilon": 1e-5},
    refused={"apply_residual_connection_post_layernorm": True, "rmsnorm": False, "post_layer_norm": False},
    tensors={
        **dict.fromkeys(name for name in GLM.tensors),
        "embedding.word_embeddings": "token_embd",
        ".input_layernorm": "attn_norm",
        ".self_attention.query_key_value": "attn_qkv",
        ".self_attention.dense": "attn_output",
        ".post_attention_layernorm": "ffn_norm",
        **NEOX_NET,
        "encoder.final_layernorm": "output_norm",
        "output_layer": "output",
    },
    flags_from_tensors={"attention_bias": None, "mlp_bias": None, "add_qkv_bias": "blk.*.attn_qkv.bias"},
    ignored=("rotary_pos_emb.inv_freq",),
    config_from_gguf=chatglm_from_gguf,
)

GLM4_MOE = DOTS1.derive(
    name="glm4moe",
    hf_classes=("Glm4MoeForCausalLM",),
    vocab_keys={
        "bos_token_id": "[gMASK]",
        "eot_token_id": "<|user|>",
        "eom_token_id": "<|observation|>",
        "unknown_token_id": "<|endoftext|>",
    },
    metadata={
        "block_count": MTP_KEYS["block_count"],
        "rope.dimension_count": lambda config: int(head_dim(config) * config["partial_rotary_factor"]),
        "expert_gating_func": always("sigmoid"),
        "nextn_predict_layers": "num_nextn_predict_layers",
        "attention.sliding_window": None,
        "attention.sliding_window_pattern": None,
    },
    absent={"expert_weights_norm": with_experts(False), "expert_gating_func": with_experts(GATING["sigmoid"])},
    defaults={
        "model_type": "glm4_moe",
        "hidden_size": 4096,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "first_k_dense_replace": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "vocab_size": 151_552,
    },
    flags_from_tensors={"use_qk_norm": "blk.*.attn_q_norm.weight"},
    tensors={".post_attention_layernorm": "post_attention_norm", **MTP_TENSORS},
    block={"ffn_norm": "post_attention_norm"},
)

GLM4_MOE_LITE = DEEPSEEK_V3.derive(
    hf_classes=("Glm4MoeLiteForCausalLM",),
    variant=None,
    vocab_keys=GLM4_MOE.vocab_keys,
    metadata=MTP_KEYS,
    defaults={
        "model_type": "glm4_moe_lite",
        "hidden_size": 2048,
        "intermediate_size": 10_240,
        "num_hidden_layers": 47,
        "num_attention_heads": 20,
        "max_position_embeddings": 202_752,
        "rms_norm_eps": 1e-5,
        "first_k_dense_replace": 1,
        "n_routed_experts": 64,
        "moe_intermediate_size": 1536,
        "num_experts_per_tok": 4,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.8,
        "num_nextn_predict_layers": 0,
        "vocab_size": 154_880,
    },
    config_from_gguf=lambda keys, tensors: {**v3_config_from_gguf(keys, tensors), **net_types(keys, tensors)},
    tensors=MTP_TENSORS,
    refused={"partial_rotary_factor": other_than(1)},
)


@reordered
def halves(rows: int, config: Config) -> Index:
    """Reorder each head: the first of each rotating pair, then the second ones, then the rest; unchanged if adjacent
    ones rotate in the file, too.
    """
    if not parts_rotate_apart(sections(config) or ()):
        return np.arange(rows)
    width, rotated = head_dim(config), rotated_width(config)
    one = np.concatenate([np.arange(0, rotated, 2), np.arange(1, rotated, 2), np.arange(rotated, width)])
    order: Index = (np.arange(0, rows, width)[:, None] + one).reshape(-1)
    return order


GLM4V = GLM4.derive(
    hf_classes=("Glm4vForConditionalGeneration",),
    metadata={"rope.dimension_sections": sections},
    defaults={
        "head_dim": None,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 1.0,
        "mrope_section": [8, 12, 12],
    },
    tensors={".self_attn.q_proj": TensorMap("attn_q", halves), ".self_attn.k_proj": TensorMap("attn_k", halves)},
)

GLM4V_MOE = GLM4_MOE.derive(
    hf_classes=("Glm4vMoeForConditionalGeneration",),
    metadata={"rope.dimension_sections": sections},
    defaults={"max_position_embeddings": 65_536, "mrope_section": [8, 12, 12]},
)

GLM_OCR = GLM4V.derive(
    hf_classes=("GlmOcrForConditionalGeneration",),
    metadata={"block_count": MTP_KEYS["block_count"], "nextn_predict_layers": "num_nextn_predict_layers"},
    defaults={
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "vocab_size": 59_392,
    },
    tensors=MTP_TENSORS,
    layers_vary=True,
)

SOLAR_OPEN = GLM4_MOE.derive(
    hf_classes=("SolarOpenForCausalLM",),
    metadata={"leading_dense_block_count": lambda config: 0},  # its class has no such layers, whatever a config says
    vocab_keys={
        "bos_token_id": "<|startoftext|>",
        "eot_token_id": "<|endoftext|>",
        "eom_token_id": None,
        "unknown_token_id": "<unk>",
    },
    defaults={
        "model_type": "solar_open",
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "head_dim": 128,
        "rope_theta": 1_000_000.0,
        "partial_rotary_factor": 1.0,
        "first_k_dense_replace": None,
        "moe_intermediate_size": 1280,
        "vocab_size": 196_608,
    },
)
