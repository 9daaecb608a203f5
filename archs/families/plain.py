"""Llama's layers under names of their own, of models that came with code beside their weights.

Maincoder: a norm on each head of q and k after they are rotated; adjacent pairs rotate, as stored.
openPangu Embedded: biases on all of attention.
Orion: layer norms, whose epsilon the config calls that of RMS norms.
Reference: llama.cpp's graphs.
"""

from archs.config import head_dim, unless_tied
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
