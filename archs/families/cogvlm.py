"""CogVLM's text model: Llama's layers with q, k and v fused, and separate ones for image tokens.

CogVLM 2 shares keys and values among heads, and has another rotary base, from its own code (llama.cpp's graph reads
neither). All but the last token of an image go through the layers for images, and all but the first and the last share
one position (llama.cpp: all, at consecutive positions). Reference: the published models' own code
(`modeling_cogvlm.py`), llama.cpp's graph.
"""

from archs.config import head_dim
from archs.families.llama import HALVES
from archs.spec import Config
from archs.tensor_maps import NotExportable, gated_net

BASE = 500_000.0  # CogVLM 2's


def base(config: Config) -> float | None:
    return BASE if config.get("num_multi_query_heads") else None


COGVLM = HALVES.derive(
    name="cogvlm",
    hf_classes=("CogVLMForCausalLM",),
    vocab=("sentencepiece", "bpe"),
    metadata={
        "vocab_size": "vocab_size",
        "rope.dimension_count": head_dim,
        "rope.freq_base": base,
        "attention.head_count_kv": "num_multi_query_heads",
    },
    defaults={"head_dim": None, "num_multi_query_heads": None},
    tensors={
        **{f".self_attn.{letter}_proj": None for letter in "qkvo"},
        **{f".mlp.{name}": None for name in ("gate_proj", "up_proj", "down_proj")},
        ".self_attn.language_expert_query_key_value": "attn_qkv",
        ".self_attn.language_expert_dense": "attn_output",
        ".self_attn.vision_expert_query_key_value": "vis_attn_qkv",
        ".self_attn.vision_expert_dense": "vis_attn_output",
        **gated_net("mlp.language_mlp"),
        ".mlp.vision_mlp.gate_proj": "vis_gate",
        ".mlp.vision_mlp.up_proj": "vis_up",
        ".mlp.vision_mlp.down_proj": "vis_down",
    },
    config_from_gguf=NotExportable("its class always has an encoder for images, which the file lacks"),
)
