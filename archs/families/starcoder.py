"""GPT-BigCode (SantaCoder, StarCoder): GPT-2's layers with one key-value head, weights stored as (out, in).

Reference: transformers `models/gpt_bigcode/modeling_gpt_bigcode.py`. Without multi_query, q/k/v are fused head by head.
"""

from archs.families.gpt2 import GPT2, restored
from archs.spec import Config, Map
from archs.transforms import ungroup


def kv_heads(config: Config) -> int:
    return 1 if config["multi_query"] else int(config["n_head"])


STARCODER = GPT2.but(
    name="starcoder",
    hf_classes=("GPTBigCodeForCausalLM", "GPTBigCodeModel"),
    metadata={"context_length": "n_positions", "attention.head_count_kv": kv_heads},
    defaults={"multi_query": True},
    restored=lambda keys, tensors: {
        **restored(keys, tensors), "multi_query": keys.get("attention.head_count_kv", 1) == 1
    },
    tensors={
        "h.{i}.attn.c_attn": Map("blk.{i}.attn_qkv", ungroup("n_head", kv_heads)),
        "h.{i}.attn.c_proj": "blk.{i}.attn_output",
        "h.{i}.mlp.c_fc": "blk.{i}.ffn_up",
        "h.{i}.mlp.c_proj": "blk.{i}.ffn_down",
    },
)
