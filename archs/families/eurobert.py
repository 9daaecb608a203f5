"""EuroBERT: Llama's layers as an encoder; rotates halves, as HF does.

Reference: transformers `models/eurobert/modeling_eurobert.py`.
"""

from archs.families.llama import LLAMA
from archs.families.modernbert import POOLING
from archs.rope import scaling_type

EUROBERT = LLAMA.derive(
    name="eurobert",
    hf_classes=("EuroBertModel", "EuroBertForMaskedLM"),
    vocab=("bpe",),
    vocab_keys={"add_bos_token": False},
    metadata={
        "attention.causal": lambda config: False,
        "classifier.pooling_type": lambda config: POOLING.get(config["classifier_pooling"]),  # not "late", the usual
        "rope.dimension_count": None,
        "rope.scaling.type": scaling_type,
        "vocab_size": None,
    },
    defaults={
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "classifier_pooling": "late", "vocab_size": 128_256,
    },
    config_from_gguf=lambda keys, tensors: {
        "classifier_pooling": {number: word for word, number in POOLING.items()}.get(
            keys.get("classifier.pooling_type"), "late"
        ),
    },
    tensors={
        "layers.{i}.self_attn.q_proj": "blk.{i}.attn_q",
        "layers.{i}.self_attn.k_proj": "blk.{i}.attn_k",
        "lm_head": None,
    },
    ignored=("lm_head.*",),
    block={"rope": "halves", "causal": False, "hidden_states": True},
)  # fmt: skip
