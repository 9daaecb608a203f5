"""GPT-BigCode (SantaCoder, StarCoder): GPT-2's layers with one key-value head, weights stored as (out, in).

Reference: transformers `models/gpt_bigcode/modeling_gpt_bigcode.py`. Without multi_query, q/k/v are fused head by head.
"""

from archs.families.gpt2 import GPT2, config_from_gguf
from archs.spec import Config, TensorMap
from archs.transforms import ungroup


def kv_heads(config: Config) -> int:
    return 1 if config["multi_query"] else int(config["n_head"])


STARCODER = GPT2.derive(
    name="starcoder",
    hf_classes=("GPTBigCodeForCausalLM", "GPTBigCodeModel"),
    metadata={"context_length": "n_positions", "attention.head_count_kv": kv_heads},
    defaults={"model_type": "gpt_bigcode", "multi_query": True},
    config_from_gguf=lambda keys, tensors: {
        **config_from_gguf(keys, tensors), "multi_query": keys.get("attention.head_count_kv", 1) == 1
    },
    tensors={
        "h.{i}.attn.c_attn": TensorMap("blk.{i}.attn_qkv", ungroup("n_head", kv_heads)),
        "h.{i}.attn.c_proj": "blk.{i}.attn_output",
        "h.{i}.mlp.c_fc": "blk.{i}.ffn_up",
        "h.{i}.mlp.c_proj": "blk.{i}.ffn_down",
    },
)
