"""ERNIE 4.5 (dense): Llama's layers with heads of a width of their own. Adjacent pairs rotate in HF too.

Reference: transformers `models/ernie4_5/modeling_ernie4_5.py`.
"""

from archs.families.qwen2 import HALVES

ERNIE4_5 = HALVES.derive(
    name="ernie4_5",
    hf_classes=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM", "Ernie4_5Model"),
    vocab=("sentencepiece", "bpe"),
    defaults={
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0, "vocab_size": 103_424,
    },
    flags_from_tensors={"attention_bias": None, "mlp_bias": None, "use_bias": "blk.*.attn_q.bias"},
    block={"rope": "adjacent"},
)  # fmt: skip
