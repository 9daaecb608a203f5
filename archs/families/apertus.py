"""Apertus: Llama's layers with a norm on each head of q and k, and an ungated activation that was trained (xIELU).

Reference: transformers `models/apertus/modeling_apertus.py`. The activation's numbers go into metadata.
"""

from archs.config import head_dim
from archs.families.qwen2 import HALVES
from archs.layouts import head_norms
from archs.spec import PerLayerScalars, in_layers

SCALING = {
    "rope_type": "llama3", "rope_theta": 12_000_000.0, "factor": 8.0, "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip

APERTUS = HALVES.derive(
    name="apertus",
    hf_classes=("ApertusForCausalLM", "ApertusModel"),
    vocab=("sentencepiece", "bpe"),
    metadata={"vocab_size": "vocab_size", "rope.dimension_count": head_dim},
    defaults={
        "intermediate_size": 14_336, "max_position_embeddings": 65_536, "rms_norm_eps": 1e-5,
        "rope_theta": 12_000_000.0, "rope_scaling": SCALING, "vocab_size": 131_072,
    },
    tensors=in_layers({
        "input_layernorm": None, "post_attention_layernorm": None, "attention_layernorm": "attn_norm",
        "feedforward_layernorm": "ffn_norm", **head_norms(), "mlp.gate_proj": None,
        "mlp.act_fn.alpha_n": PerLayerScalars("xielu.alpha_n"), "mlp.act_fn.alpha_p": PerLayerScalars("xielu.alpha_p"),
        "mlp.act_fn.beta": PerLayerScalars("xielu.beta", ()), "mlp.act_fn.eps": PerLayerScalars("xielu.eps", ()),
    }),
    rope_parameters="one",
    block={"activation": "xielu", "gated": False},
)  # fmt: skip
