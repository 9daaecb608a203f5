"""LFM2: gated short convolutions and a few attention layers; the norm named after the embedding comes after the layers.

LFM2 as an encoder (LiquidAI's embedders): every token attends to all others, and convolutions are centered.

LFM2.5-Audio's detokenizer: LFM2's layers with windows, and a matrix after them that gives a spectrum for each of the
audio codes; programs add up the embeddings of a frame's codes, which the file lacks.

LFM2 with experts: LFM2's layers, routed experts after the first dense ones, a correction of the router's scores.
Reference: transformers `models/lfm2/`, `models/lfm2_moe/`.
"""

from archs.config import UnlessUsual
from archs.experts import always, renormalized, separate_experts
from archs.families.llama import HALVES
from archs.layer_types import with_kv_heads
from archs.spec import Config, TensorMap
from archs.tensor_maps import gated_net, head_norms, kv_heads_where, not_exportable
from archs.transforms import channels_and_taps


def feed_forward_length(config: Config) -> int:
    """Return the width of the feed-forward nets: as given, or two thirds of it rounded up to a multiple."""
    width = int(config.get("block_ff_dim") or config["intermediate_size"])
    if not config["block_auto_adjust_ff_dim"]:
        return width
    width = int((config.get("block_ffn_dim_multiplier") or 1.0) * int(2 * width / 3))
    multiple = int(config["block_multiple_of"])
    return -(-width // multiple) * multiple


def attends(config: Config) -> list[bool]:
    """Return which layers are attention layers; others are convolutions."""
    if layer_types := config.get("layer_types"):
        return [layer_type != "conv" for layer_type in layer_types]
    full = config.get("full_attn_idxs")
    return [full is None or layer in full for layer in range(config["num_hidden_layers"])]


LFM2 = HALVES.derive(
    name="lfm2",
    hf_classes=("Lfm2ForCausalLM", "LFM2ForCausalLM", "Lfm2Model"),
    wrappers=("Lfm2VlForConditionalGeneration",),
    prefixes=("model", "transformer", "language_model", "text_model", "lfm"),
    metadata={
        "vocab_size": "vocab_size",
        "feed_forward_length": feed_forward_length,
        "attention.head_count_kv": kv_heads_where(attends),
        "attention.layer_norm_rms_epsilon": "norm_eps",
        "shortconv.l_cache": "conv_L_cache",
    },
    defaults={
        "hidden_size": 2560,
        "intermediate_size": 12_288,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128_000,
        "norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": True,
        "block_multiple_of": 256,
        "vocab_size": 65_536,
    },
    config_from_gguf=lambda keys, tensors: {
        "layer_types": ["full_attention" if count else "conv" for count in keys["attention.head_count_kv"]],
        "intermediate_size": keys["feed_forward_length"],
        "block_auto_adjust_ff_dim": False,
    },
    flags_from_tensors={"attention_bias": None, "mlp_bias": None, "conv_bias": "blk.*.shortconv.in_proj.bias"},
    tensors={
        ".operator_norm": "attn_norm",
        ".conv.in_proj": "shortconv.in_proj",
        ".conv.conv": TensorMap("shortconv.conv", channels_and_taps),
        ".conv.out_proj": "shortconv.out_proj",
        **head_norms("q_layernorm", "k_layernorm"),
        ".self_attn.out_proj": "attn_output",
        ".ffn_norm": "ffn_norm",
        **gated_net("feed_forward", matrices=("w1", "w3", "w2")),
        "embedding_norm": "token_embd_norm",
    },
    layers_vary=True,
    activation="",  # always silu
    block={"output_norm": "token_embd_norm", "mixer": with_kv_heads("attention", "shortconv")},
)

LFM2_BIDIRECTIONAL = LFM2.derive(  # of the same GGUF name; `attention.causal` marks its files
    hf_classes=("Lfm2BidirectionalModel", "Lfm2BidirectionalForMaskedLM"),
    metadata={"attention.causal": lambda config: False},
    defaults={"model_type": "lfm2"},
    refused={"conv_L_cache": lambda taps: taps % 2 == 0},
    tensors={"lm_head": None},
    ignored=("lm_head.*",),
    prefixes=("", "model", "lfm2"),
    block={"causal": False, "hidden_states": True},
)

LFM25_AUDIO_TOKENIZER = LFM2.derive(  # of the same GGUF name; windows and `embedding_length_out` mark its files
    hf_classes=("Lfm25AudioTokenizer",),
    vocab=("none",),
    metadata={"attention.sliding_window": "sliding_window", "embedding_length_out": "output_size"},
    defaults={"model_type": "lfm2_audio_detokenizer"},
    tensors={"lin": "dense_2"},
    ignored=("emb.*", "istft.window"),
    config_from_gguf=not_exportable,
)

LFM2_MOE = LFM2.derive(
    name="lfm2moe",
    hf_classes=("Lfm2MoeForCausalLM",),
    metadata={
        "feed_forward_length": "intermediate_size",
        "expert_feed_forward_length": "moe_intermediate_size",
        "leading_dense_block_count": "num_dense_layers",
        "expert_gating_func": always("sigmoid"),
        "expert_weights_norm": renormalized(usual=True),
        "expert_weights_scale": UnlessUsual("routed_scaling_factor", 1.0),
    },
    defaults={
        "model_type": "lfm2_moe",
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_dense_layers": 2,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "routed_scaling_factor": 1.0,
    },
    flags_from_tensors={"use_expert_bias": "blk.*.exp_probs_b.bias"},
    refused={"conv_bias": True},
    tensors={
        ".feed_forward.gate": "ffn_gate_inp",
        ".feed_forward.expert_bias": "exp_probs_b.bias",
        **separate_experts("feed_forward", ("w1", "w3", "w2")),
    },
    block={"normalize_experts": True},
)
