"""Llama's layers with a small difference.

Apertus: a norm on each head of q and k, and an ungated activation that was trained (xIELU); its numbers go into
    metadata.
Arcee (AFM): an ungated squared ReLU. Jais 2: the same with layer norms, and biases everywhere.
Baichuan and Baichuan 2: q/k/v fused; the 13B models have ALiBi instead of rope. Baichuan 2 scales the head's rows to
    length one before use. llama.cpp does not, and knows the 13B by its 40 layers; ours adds `attention.max_alibi_bias`.
InternLM2: other names, q/k/v fused by key-value head.
MiniMax M2: Mixtral's layers with sigmoid routing and a correction bias, norms over all of q and of k, partial rotation.
Seed-OSS: `head_dim` is not hidden size / heads; GGUF has another name for the second norm.
SmolLM3: every fourth layer without rope.
StableLM 2 and 3B: layer norms and partly rotating heads; the 12B has the feed-forward net parallel to attention, and
    separate norms for each head of q and k.
StarCoder2: layer norms, biases, an ungated tanh GELU; a window in every layer, which llama.cpp drops.

Reference: transformers `models/MODEL_TYPE/`; for Baichuan and InternLM2 the code that their checkpoints bring along.
"""

from archs.config import head_dim, windows
from archs.experts import GATING, always
from archs.families.llama import HALVES, LLAMA, MIXTRAL
from archs.hparams.file_keys import Derived, of_original
from archs.rope import rotated_width, unusual_base
from archs.spec import Config, ConfigKeys, GgufKeys, PerLayerScalars, TensorMap, Tensors
from archs.tensor_maps import QKV, gated_net, head_norms
from archs.transforms import chain, interleave_rope, part, ungroup, unit_rows_if

ARCEE = LLAMA.derive(
    name="arcee",
    hf_classes=("ArceeForCausalLM", "ArceeModel"),
    defaults={"hidden_size": 2560, "intermediate_size": 18_432, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    tensors={".mlp.gate_proj": None},
    block={"activation": "relu2", "gated": False},
)

JAIS2 = HALVES.derive(
    name="jais2",
    hf_classes=("Jais2ForCausalLM", "Jais2Model"),
    metadata={"rope.dimension_count": head_dim},
    defaults={
        "hidden_size": 3328,
        "intermediate_size": 26_624,
        "num_attention_heads": 26,
        "head_dim": head_dim,
        "max_position_embeddings": 8192,
        "rms_norm_eps": None,
        "layer_norm_eps": 1e-5,
        "vocab_size": 150_272,
    },
    tensors={".mlp.gate_proj": None},
    block={"norm": "layer", "activation": "relu2", "gated": False},
)

SCALING = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}

APERTUS = HALVES.derive(
    name="apertus",
    hf_classes=("ApertusForCausalLM", "ApertusModel"),
    vocab=("sentencepiece", "bpe"),
    metadata={"vocab_size": "vocab_size", "rope.dimension_count": head_dim},
    defaults={
        "intermediate_size": 14_336,
        "max_position_embeddings": 65_536,
        "rms_norm_eps": 1e-5,
        "rope_theta": 12_000_000.0,
        "rope_scaling": SCALING,
        "vocab_size": 131_072,
    },
    tensors={
        ".input_layernorm": None,
        ".post_attention_layernorm": None,
        ".attention_layernorm": "attn_norm",
        ".feedforward_layernorm": "ffn_norm",
        **head_norms(),
        ".mlp.gate_proj": None,
        ".mlp.act_fn.alpha_n": PerLayerScalars("xielu.alpha_n"),
        ".mlp.act_fn.alpha_p": PerLayerScalars("xielu.alpha_p"),
        ".mlp.act_fn.beta": PerLayerScalars("xielu.beta", ()),
        ".mlp.act_fn.eps": PerLayerScalars("xielu.eps", ()),
    },
    rope_parameters="one",
    block={"activation": "xielu", "gated": False},
)

SEED_OSS = HALVES.derive(
    name="seed_oss",
    hf_classes=("SeedOssForCausalLM", "SeedOssModel"),
    defaults={
        "model_type": "seed_oss",
        "intermediate_size": 27_648,
        "num_hidden_layers": 64,
        "num_attention_heads": 80,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 524_288,
        "vocab_size": 155_136,
    },
    tensors={".post_attention_layernorm": "post_attention_norm"},
    flags_from_tensors={"attention_out_bias": "blk.*.attn_output.bias"},
    block={"ffn_norm": "post_attention_norm"},
)

STABLELM = HALVES.derive(
    name="stablelm",
    hf_classes=("StableLmForCausalLM", "StableLMEpochForCausalLM", "StableLmModel"),
    wrappers=("LlavaStableLMEpochForCausalLM",),
    metadata={
        "attention.layer_norm_rms_epsilon": None,
        "rope.dimension_count": rotated_width,
        "rope.freq_base": unusual_base,
        "use_parallel_residual": "use_parallel_residual",
    },
    defaults={
        "hidden_size": 2560,
        "num_key_value_heads": 32,
        "intermediate_size": 6912,
        "max_position_embeddings": 4096,
        "rms_norm_eps": None,
        "layer_norm_eps": lambda config: config.get("norm_eps", 1e-5),
        "partial_rotary_factor": lambda config: config.get("rope_pct", 0.25),
        "use_parallel_residual": False,
        "vocab_size": 50_304,
    },
    tensors={
        ".self_attn.q_layernorm.norms.{e}": TensorMap("attn_q_norm", stack=True),
        ".self_attn.k_layernorm.norms.{e}": TensorMap("attn_k_norm", stack=True),
    },
    flags_from_tensors={
        "attention_bias": None,
        "mlp_bias": None,
        "use_qkv_bias": "blk.*.attn_q.bias",
        "qk_layernorm": "blk.*.attn_q_norm.weight",
    },
    config_from_gguf=lambda keys, tensors: {"use_parallel_residual": "blk.0.ffn_norm.weight" not in tensors},
    block={"norm": "layer", "parallel": "use_parallel_residual", "parallel_without": "ffn_norm"},
)

STARCODER2 = HALVES.derive(
    name="starcoder2",
    hf_classes=("Starcoder2ForCausalLM", "Starcoder2Model"),
    metadata={"attention.sliding_window": "sliding_window"},
    defaults={
        "hidden_size": 3072,
        "intermediate_size": 12_288,
        "num_hidden_layers": 30,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rms_norm_eps": None,
        "norm_epsilon": 1e-5,
        "vocab_size": 49_152,
    },
    tensors={
        ".mlp.gate_proj": None,
        ".mlp.up_proj": None,
        ".mlp.down_proj": None,
        ".mlp.c_fc": "ffn_up",
        ".mlp.c_proj": "ffn_down",
    },
    flags_from_tensors={"attention_bias": None, "mlp_bias": None, "use_bias": "blk.*.attn_q.bias"},
    block={"norm": "layer", "activation": "gelu_tanh", "gated": False},
)

HEADS, KV_HEADS = "num_attention_heads", "num_key_value_heads"

INTERNLM2 = LLAMA.derive(
    name="internlm2",
    hf_classes=("InternLM2ForCausalLM",),
    vocab_keys={"add_space_prefix": True},
    metadata={"vocab_size": None, "rope.dimension_count": None},
    defaults={"head_dim": None, "vocab_size": 103_168},
    tensors={
        **dict.fromkeys(LLAMA.tensors),
        "tok_embeddings": "token_embd",
        ".attention_norm": "attn_norm",
        ".attention.wqkv": (
            TensorMap("attn_q", chain(ungroup(HEADS, KV_HEADS, "q"), interleave_rope(HEADS))),
            TensorMap("attn_k", chain(ungroup(HEADS, KV_HEADS, "k"), interleave_rope(KV_HEADS))),
            TensorMap("attn_v", ungroup(HEADS, KV_HEADS, "v")),
        ),
        ".attention.wo": "attn_output",
        ".ffn_norm": "ffn_norm",
        **gated_net("feed_forward", matrices=("w1", "w3", "w2")),
        "norm": "output_norm",
        "output": "output",
    },
)

BAICHUAN = LLAMA.derive(
    name="baichuan",
    hf_classes=("BaichuanForCausalLM", "BaiChuanForCausalLM"),
    vocab=("sentencepiece",),
    metadata={
        "tensor_data_layout": lambda config: "Meta AI original pth",
        "context_length": "max_position_embeddings|model_max_length",
        "attention.head_count_kv": None,
        "attention.max_alibi_bias": lambda config: (  # of the 13B models, whose config has no `max_position_embeddings`
            8.0 if config.get("max_position_embeddings") is None else None
        ),
        "rope.freq_base": None,
        "vocab_size": None,
    },
    defaults={"head_dim": None, "max_position_embeddings": None, "vocab_size": 64_000},
    tensors={
        **dict.fromkeys(QKV),
        ".self_attn.W_pack": (
            TensorMap("attn_q", chain(part(0, 3), interleave_rope("num_attention_heads"))),
            TensorMap("attn_k", chain(part(1, 3), interleave_rope("num_attention_heads"))),
            TensorMap("attn_v", part(2, 3)),
        ),
        "lm_head": TensorMap("output", unit_rows_if(lambda config: "z_loss_weight" in config)),
    },
    absent={
        "attention.max_alibi_bias": Derived(
            "",
            lambda keys: 8.0 if keys.layer_count == 40 else None,
            "8 in 40 layers",  # the 13B model
        )
    },
    block={"alibi": True},
)


def width(config: Config) -> int:
    """Return how many values of each head rotate, given as a share or a number."""
    by_share = config.get("partial_rotary_factor") or not config.get("rotary_dim")
    return rotated_width(config) if by_share else config["rotary_dim"]


MINIMAX_M2 = MIXTRAL.derive(
    name="minimax-m2",
    hf_classes=("MiniMaxM2ForCausalLM",),
    vocab=("bpe",),
    metadata={
        "vocab_size": None,
        "rope.dimension_count": width,
        "expert_gating_func": always("sigmoid"),
        "expert_feed_forward_length": "intermediate_size",
        "attention.sliding_window": None,
    },
    defaults={
        "model_type": "minimax_m2",
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "num_hidden_layers": 62,
        "num_attention_heads": 48,
        "head_dim": 128,
        "max_position_embeddings": 196_608,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5_000_000.0,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "scoring_func": "sigmoid",
        "vocab_size": 200_064,
    },
    tensors={
        ".self_attn.q_proj": "attn_q",
        ".self_attn.k_proj": "attn_k",
        **head_norms(),
        ".mlp.e_score_correction_bias": "exp_probs_b.bias",
        ".block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
    },
    absent={"expert_gating_func": of_original(GATING["sigmoid"])},
    block={"rope": "halves"},
)

PERIOD = 4  # default without `no_rope_layers`


def rope_layers(config: Config) -> list[int]:
    """Return 1 for each layer that has rope, 0 for the others."""
    every = config["no_rope_layer_interval"]
    return config.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(config["num_hidden_layers"])]


def unusual_rope_layers(config: Config) -> list[int] | None:
    """Return the rope layers if not all but every fourth (llama.cpp drops it)."""
    layers = rope_layers(config)
    return layers if layers != [int((i + 1) % PERIOD != 0) for i in range(len(layers))] else None


def rope_layers_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    usual = rope_layers({"no_rope_layer_interval": PERIOD, "num_hidden_layers": keys["block_count"]})
    return {"no_rope_layers": keys.get("no_rope_layers") or usual}


SMOLLM3 = LLAMA.derive(
    name="smollm3",
    hf_classes=("SmolLM3ForCausalLM", "SmolLM3Model"),
    metadata={
        "no_rope_layers": unusual_rope_layers,
        **windows(lambda config, layer: not rope_layers(config)[layer], layer_types_switch=True),
    },
    defaults={
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": None,
        "max_position_embeddings": 32_768,
        "rope_theta": 2_000_000.0,
        "no_rope_layer_interval": PERIOD,
        "vocab_size": 128_256,
    },
    config_from_gguf=rope_layers_from_gguf,
    block={"rope_period": PERIOD},
)
