"""Llama's layers under names of their own, of models published with custom code.

CodeShell: StarCoder's layers with several key-value heads, and rotation. Maincoder: a norm on each head of q and k
after rotation; adjacent pairs rotate, as stored. openPangu Embedded: biases on all of attention. OpenELM: heads and
nets of other sizes in each layer, norms of each head's q and k, q/k/v fused. Qwen 1: q/k/v fused with biases;
`intermediate_size` counts both halves of a net. Its two ways to extend the context (dynamic NTK, queries that grow with
the logarithm) are not run, as in llama.cpp. Refact: ALiBi, one key-value head. XVERSE: Llama's layers under a name of
their own. Nanbeige 4.2: Llama's layers, which may run several times, with the last norm between the rounds. Orion:
layer norms, whose epsilon the config calls that of RMS norms. Reference: llama.cpp's graphs.
"""

import math

from archs.config import head_dim, needed, other_than, unless_tied
from archs.experts import gate_and_up
from archs.families.gpt import GPT
from archs.families.llama import HALVES, LLAMA
from archs.hparams.config_keys import KEYS
from archs.rope import unusual_base
from archs.spec import Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.tensor_maps import gated_net, head_norms
from archs.transforms import part

XVERSE = LLAMA.derive(
    name="xverse",
    hf_classes=("XverseForCausalLM",),
    metadata={
        "tensor_data_layout": lambda config: "Meta AI original pth",
        "context_length": "max_position_embeddings|max_sequence_length",
        "vocab_size": None,
    },
    defaults={"head_dim": None, "vocab_size": 100_278},
)

QWEN = GPT.derive(
    name="qwen",
    hf_classes=("QWenLMHeadModel",),
    metadata={
        "context_length": "max_position_embeddings|seq_length",
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "attention.layer_norm_epsilon": None,
        "rope.freq_base": lambda config: float(config["rotary_emb_base"]),
    },
    defaults={
        "rotary_emb_base": 10_000,
        "layer_norm_epsilon": 1e-6,
        **needed("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size"),
    },
    tensors={
        "wte": "token_embd",
        ".ln_1": "attn_norm",
        ".attn.c_attn": "attn_qkv",
        ".attn.c_proj": "attn_output",
        ".ln_2": "ffn_norm",
        **gated_net("mlp", matrices=("w2", "w1", "c_proj")),
        "ln_f": "output_norm",
        "lm_head": "output",
    },
    refused={"rotary_pct": other_than(1), "no_bias": other_than(True)},
    config_from_gguf=lambda keys, tensors: {"rotary_emb_base": keys["rope.freq_base"], "no_bias": True},
    block={"norm": "rms", "rope": "halves", "gated": True, "length_of_both": True},
)


def net_width(config: Config) -> int:
    """Return two thirds of four widths, rounded up to a multiple of 256."""
    return -(-int(2 * 4 * config["n_embd"] / 3) // 256) * 256


REFACT = GPT.derive(
    name="refact",
    hf_classes=("GPTRefactForCausalLM",),
    metadata={
        "context_length": "n_positions",
        "feed_forward_length": net_width,
        "attention.head_count_kv": lambda config: 1,
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "attention.layer_norm_epsilon": None,
    },
    defaults={"layer_norm_epsilon": 1e-5, **needed("n_embd", "n_head", "n_layer", "n_positions")},
    tensors={
        "wte": "token_embd",
        ".ln_1": "attn_norm",
        ".attn.q": "attn_q",
        ".attn.kv": (TensorMap("attn_k", part(0, 2)), TensorMap("attn_v", part(1, 2))),
        ".attn.c_proj": "attn_output",
        ".ln_2": "ffn_norm",
        ".mlp.gate_up_proj": gate_and_up(""),
        ".mlp.c_proj": "ffn_down",
        "ln_f": "output_norm",
        "lm_head": "output",
    },
    refused={"multi_query": False},
    activation="",
    absent={"attention.max_alibi_bias": 8.0},
    block={"norm": "rms", "alibi": True, "gated": True},
)


def divisible(config: Config) -> list[int]:
    """Return the width of each layer's net: a multiple of the divisor, at most a tenth below the exact width."""
    divisor, widths = config["ffn_dim_divisor"], []
    for share in config["ffn_multipliers"]:
        wanted = share * config["model_dim"]
        width = max(divisor, int(wanted + divisor / 2) // divisor * divisor)
        widths.append(width + divisor if width < 0.9 * wanted else width)
    return widths


def openelm_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the nets' width multipliers in as few digits as reproduce them."""
    width, widths = keys["embedding_length"], keys["feed_forward_length"]
    config: ConfigKeys = {
        "intermediate_size": ...,
        "rope_scaling": ...,
        "tie_word_embeddings": ...,
        "share_input_output_layers": True,
        "ffn_with_glu": True,
        "normalize_qk_projections": True,
        "normalization_layer_name": "rms_norm",
        "model_dim": width,
        "ffn_dim_divisor": math.gcd(256, *widths),
        "num_gqa_groups": keys["attention.head_count"][0] // keys["attention.head_count_kv"][0],
    }
    for digits in range(1, 17):
        config["ffn_multipliers"] = [round(each / width, digits) for each in widths]
        if divisible(config) == widths:
            break
    return config


OPENELM = GPT.derive(
    name="openelm",
    hf_classes=("OpenELMForCausalLM",),
    vocab=("sentencepiece", "bpe"),
    layers="layers",
    metadata={
        "block_count": "num_transformer_layers",
        "context_length": "max_context_length",
        "embedding_length": "model_dim",
        "feed_forward_length": divisible,
        "attention.head_count": "num_query_heads",
        "attention.head_count_kv": "num_kv_heads",
        "attention.layer_norm_rms_epsilon": lambda config: 1e-6,
        "attention.layer_norm_epsilon": None,
        "rope.freq_base": "rope_freq_constant",
        "rope.dimension_count": "head_dim",
    },
    defaults=needed(
        "num_transformer_layers",
        "max_context_length",
        "model_dim",
        "num_query_heads",
        "num_kv_heads",
        "head_dim",
        "ffn_multipliers",
        "ffn_dim_divisor",
        "rope_freq_constant",
    ),
    keys={"num_kv_heads": KEYS["num_query_heads"]},
    refused={"share_input_output_layers": False, "ffn_with_glu": False, "normalize_qk_projections": False},
    tensors={
        "token_embeddings": "token_embd",
        ".attn_norm": "attn_norm",
        ".attn.qkv_proj": "attn_qkv",
        ".attn.q_norm": "attn_q_norm",
        ".attn.k_norm": "attn_k_norm",
        ".attn.out_proj": "attn_output",
        ".ffn_norm": "ffn_norm",
        ".ffn.proj_1": gate_and_up(""),
        ".ffn.proj_2": "ffn_down",
        "norm": "output_norm",
    },
    activation="activation_fn_name",
    config_from_gguf=openelm_from_gguf,
    block={"norm": "rms", "rope": "halves", "gated": True},
)

MAINCODER = HALVES.derive(
    name="maincoder",
    hf_classes=("MaincoderForCausalLM",),
    metadata={"rope.dimension_count": "head_dim"},
    defaults={"head_dim": None},
    tensors=head_norms(),
    block={"rope": "adjacent", "qkv_steps": ("clamp", "rope", "norm")},
)

PANGU = HALVES.derive(
    name="pangu-embedded",
    hf_classes=("PanguEmbeddedForCausalLM",),
    vocab=("sentencepiece", "bpe"),
    metadata={
        "vocab_size": "vocab_size",
        "rope.dimension_count": head_dim,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
    },
    defaults={"model_type": "PanguEmbedded", "head_dim": None},
    tensors={"lm_head": TensorMap(unless_tied("output"))},
    flags_from_tensors={"attention_bias": None, "bias": "blk.*.attn_q.bias"},
)

NANBEIGE = LLAMA.derive(
    name="nanbeige",
    hf_classes=("NanbeigeForCausalLM",),
    metadata={
        "num_loops": lambda config: config.get("num_loops") or 1,
        "skip_loop_final_norm": lambda config: bool(config.get("skip_loop_final_norm")),
    },
    config_from_gguf=lambda keys, tensors: {
        "num_loops": keys.get("num_loops"),
        "skip_loop_final_norm": keys.get("skip_loop_final_norm"),
    },
)

ORION = HALVES.derive(
    name="orion",
    hf_classes=("OrionForCausalLM",),
    vocab=("sentencepiece", "bpe"),
    metadata={
        "tensor_data_layout": lambda config: "Meta AI original pth",
        "context_length": "max_sequence_length|max_position_embeddings|model_max_length",
        "attention.layer_norm_epsilon": "rms_norm_eps",
        "attention.layer_norm_rms_epsilon": None,
        "rope.freq_base": unusual_base,
    },
    defaults={"rms_norm_eps": 1e-5, "head_dim": None, "max_position_embeddings": None},
    block={"norm": "layer"},
)

CODESHELL = GPT.derive(
    name="codeshell",
    hf_classes=("CodeShellForCausalLM",),
    metadata={
        "feed_forward_length": lambda config: 4 * int(config["n_embd"]),
        "attention.head_count_kv": "num_query_groups",
        "rope.freq_base": lambda config: 10_000.0,
        "rope.scaling.type": lambda config: "linear",
        "rope.scaling.factor": lambda config: 1.0,
    },
    defaults={"layer_norm_epsilon": 1e-5, **needed("n_embd", "n_head", "n_layer", "n_positions")},
    tensors={
        "wte": "token_embd",
        ".ln_1": "attn_norm",
        ".attn.c_attn": "attn_qkv",
        ".attn.c_proj": "attn_output",
        ".ln_2": "ffn_norm",
        ".mlp.c_fc": "ffn_up",
        ".mlp.c_proj": "ffn_down",
        "ln_f": "output_norm",
        "lm_head": "output",
    },
    refused={"position_embedding_type": other_than("rope")},
    config_from_gguf=lambda keys, tensors: {
        "num_query_groups": keys["attention.head_count_kv"],
        "group_query_attention": True,
        "position_embedding_type": "rope",
        "rope_scaling": None,
    },
    ignored=("h.*.attn.bias", "h.*.attn.masked_bias", "h.*.attn.rotary_emb.inv_freq"),
    block={"rope": "halves", "activation": "gelu_tanh"},
)
