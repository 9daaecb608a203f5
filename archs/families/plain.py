"""Llama's layers under names of their own, of models that came with code beside their weights.

CodeShell: StarCoder's layers with several key-value heads, and rotation.
Maincoder: a norm on each head of q and k after they are rotated; adjacent pairs rotate, as stored.
openPangu Embedded: biases on all of attention.
Orion: layer norms, whose epsilon the config calls that of RMS norms.
Reference: llama.cpp's graphs.
"""

from archs.config import head_dim, needed, other_than, unless_tied
from archs.families.gpt import GPT
from archs.families.llama import HALVES
from archs.layouts import head_norms
from archs.rope import unusual_base
from archs.spec import TensorMap

MAINCODER = HALVES.derive(
    name="maincoder", hf_classes=("MaincoderForCausalLM",),
    metadata={"rope.dimension_count": "head_dim"},
    defaults={"head_dim": None},
    tensors=head_norms(),
    block={"rope": "adjacent", "qkv_steps": ("clamp", "rope", "norm")},
)  # fmt: skip

PANGU = HALVES.derive(
    name="pangu-embedded", hf_classes=("PanguEmbeddedForCausalLM",), vocab=("sentencepiece", "bpe"),
    metadata={
        "vocab_size": "vocab_size", "rope.dimension_count": head_dim, "attention.key_length": head_dim,
        "attention.value_length": head_dim,
    },
    defaults={"model_type": "PanguEmbedded", "head_dim": None},
    tensors={"lm_head": TensorMap(unless_tied("output"))},
    flags_from_tensors={"attention_bias": None, "bias": "blk.*.attn_q.bias"},
)  # fmt: skip

ORION = HALVES.derive(
    name="orion", hf_classes=("OrionForCausalLM",), vocab=("sentencepiece", "bpe"),
    metadata={
        "tensor_data_layout": lambda config: "Meta AI original pth",
        "context_length": "max_sequence_length|max_position_embeddings|model_max_length",
        "attention.layer_norm_epsilon": "rms_norm_eps", "attention.layer_norm_rms_epsilon": None,
        "rope.freq_base": unusual_base,
    },
    defaults={"rms_norm_eps": 1e-5, "head_dim": None, "max_position_embeddings": None},
    block={"norm": "layer"},
)  # fmt: skip

CODESHELL = GPT.derive(
    name="codeshell", hf_classes=("CodeShellForCausalLM",),
    metadata={
        "feed_forward_length": lambda config: 4 * int(config["n_embd"]),
        "attention.head_count_kv": "num_query_groups", "rope.freq_base": lambda config: 10_000.0,
        "rope.scaling.type": lambda config: "linear", "rope.scaling.factor": lambda config: 1.0,
    },
    defaults={"layer_norm_epsilon": 1e-5, **needed("n_embd", "n_head", "n_layer", "n_positions")},
    tensors={
        "wte": "token_embd", ".ln_1": "attn_norm", ".attn.c_attn": "attn_qkv", ".attn.c_proj": "attn_output",
        ".ln_2": "ffn_norm", ".mlp.c_fc": "ffn_up", ".mlp.c_proj": "ffn_down", "ln_f": "output_norm",
        "lm_head": "output",
    },
    refused={"position_embedding_type": other_than("rope")},
    config_from_gguf=lambda keys, tensors: {
        "num_query_groups": keys["attention.head_count_kv"], "group_query_attention": True,
        "position_embedding_type": "rope", "rope_scaling": None,
    },
    ignored=("h.*.attn.bias", "h.*.attn.masked_bias", "h.*.attn.rotary_emb.inv_freq"),
    block={"rope": "halves", "activation": "gelu_tanh"},
)  # fmt: skip
