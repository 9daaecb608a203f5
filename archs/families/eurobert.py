"""EuroBERT: Llama's layers as an encoder; rotates halves, as HF does.

Reference: transformers `models/eurobert/modeling_eurobert.py`.
"""

from archs.config import head_dim
from archs.families.modernbert import POOLING
from archs.families.qwen2 import HALVES
from archs.rope import scaling_type

EUROBERT = HALVES.derive(
    name="eurobert",
    hf_classes=("EuroBertModel", "EuroBertForMaskedLM"),
    vocab_keys={"add_bos_token": False},
    metadata={
        "attention.causal": lambda config: False,
        "classifier.pooling_type": lambda config: POOLING.get(config["classifier_pooling"]),  # not "late", the usual
        "rope.scaling.type": scaling_type,
    },
    defaults={
        "head_dim": head_dim, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "classifier_pooling": "late",
        "vocab_size": 128_256,
    },
    config_from_gguf=lambda keys, tensors: {
        "classifier_pooling": {number: word for word, number in POOLING.items()}.get(
            keys.get("classifier.pooling_type"), "late"
        ),
    },
    tensors={
        "lm_head": None,
    },
    ignored=("lm_head.*",),
    block={"causal": False, "hidden_states": True},
)  # fmt: skip
