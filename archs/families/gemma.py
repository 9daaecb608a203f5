"""Gemma: Llama's layers with a tanh GELU, norm weights stored minus one, the embedding scaled by the root of its width.

Reference: transformers `models/gemma/modeling_gemma.py`, where "gelu" as the old configs' `hidden_act` means tanh too
and `hidden_activation` nothing.
"""

from archs.families.qwen2 import HALVES
from archs.rope import unusual_base
from archs.spec import Config, TensorMap
from archs.transforms import add_one


def unusual_activation(config: Config) -> str | None:
    name = config.get("hidden_act")
    return None if name in (None, "gelu", "gelu_pytorch_tanh") else str(name)


GEMMA = HALVES.derive(
    name="gemma",
    hf_classes=("GemmaForCausalLM", "GemmaModel"),
    vocab=("sentencepiece", "bpe"),
    vocab_keys={"eot_token_id": 107},
    wrappers_refused=("PaliGemmaForConditionalGeneration", "ColPaliForRetrieval"),  # prompts are seen as a whole
    metadata={"rope.freq_base": unusual_base, "hidden_activation": unusual_activation},
    defaults={
        "hidden_size": 3072, "intermediate_size": 24_576, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192, "vocab_size": 256_000,
    },
    tensors={
        "layers.{i}.input_layernorm": TensorMap("blk.{i}.attn_norm", add_one),
        "layers.{i}.post_attention_layernorm": TensorMap("blk.{i}.ffn_norm", add_one),
        "norm": TensorMap("output_norm", add_one),
    },
    config_from_gguf=lambda keys, tensors: {"hidden_act": keys.get("hidden_activation", "gelu_pytorch_tanh")},
    activation="",
    block={"activation": "gelu_tanh", "embedding_scale": "sqrt_width"},
)  # fmt: skip
