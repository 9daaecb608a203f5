"""Jina BERT v2: BERT's layers with distance penalties (ALiBi) to both sides in place of learned positions, and gated
nets whose gate and up are one matrix, the gate first.

Reference: the published models' own code (`JinaBertModel`), and llama.cpp's graph of `jina-bert-v2`. Files of their
code model (other names, the two halves swapped) are refused by their names.
"""

from archs.config import other_than
from archs.families.bert import BERT, config_from_gguf

VARIANT = {"feed_forward_type": "geglu", "position_embedding_type": "alibi"}


JINA_BERT_V2 = BERT.derive(
    name="jina-bert-v2",
    hf_classes=("JinaBertModel", "JinaBertForMaskedLM"),
    vocab=("wordpiece", "bpe"),
    metadata={"context_length": "max_position_embeddings"},
    defaults={"model_type": "bert", "max_position_embeddings": 8192, "vocab_size": 30_528},
    refused={key: other_than(usual) for key, usual in VARIANT.items()},
    config_from_gguf=lambda keys, tensors: {**config_from_gguf(keys, tensors), **VARIANT},
    tensors={
        "embeddings.position_embeddings": None,
        ".intermediate.dense": None,
        ".output.dense": None,
        ".output.LayerNorm": None,
        ".attention.self.layer_norm_q": "attn_q_norm",
        ".attention.self.layer_norm_k": "attn_k_norm",
        ".mlp.gated_layers": "ffn_up",
        ".mlp.wo": "ffn_down",
        ".mlp.layernorm": "layer_output_norm",
        "classifier": None,
    },
    absent={"attention.max_alibi_bias": 8.0},
    block={"alibi": True, "gated": True},
)
