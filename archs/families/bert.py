"""BERT, RoBERTa, XLM-RoBERTa and DistilBERT: encoders with learned positions and norms after each part.

Reference: transformers `models/bert/modeling_bert.py`, `models/roberta/`, `models/distilbert/`. RoBERTa's positions
start after its padding token's id; DistilBERT has no token types. Heads of classifiers are kept, as llama.cpp does;
those for training tasks and poolers are left out.
"""



from archs.spec import COMMON, Architecture, Block, Config, ConfigKeys, GgufKeys, TensorMap, Tensors, in_layers
from archs.transforms import skip_rows
from quants.errors import ModelError


def first_position(config: Config) -> int:
    """The row of the position table that the first token gets."""
    return int(config["pad_token_id"]) + 1 if config.get("model_type") in ("roberta", "xlm-roberta", "camembert") else 0


def labels(config: Config) -> list[str] | None:
    """What a classifier tells apart; the two labels that stand in a config without one are none."""
    found = config.get("id2label") or {}
    names = [found[key] for key in sorted(found, key=int)]
    return None if len(names) == 2 and names[0] == "LABEL_0" else names or None


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    if "token_types.weight" not in tensors:
        raise ModelError("BERT has token types")
    types = tensors["token_types.weight"].shape[0]
    return {"max_position_embeddings": keys["context_length"], "type_vocab_size": types}


BERT = Architecture(
    name="bert",
    hf_classes=("BertModel", "BertForMaskedLM", "BertForSequenceClassification"),
    vocab=("wordpiece",),
    metadata={
        **COMMON,
        "context_length": lambda config: config["max_position_embeddings"] - first_position(config),
        "attention.causal": lambda config: False,
        "classifier.output_labels": labels,
    },
    defaults={
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "max_position_embeddings": 512, "layer_norm_eps": 1e-12, "type_vocab_size": 2, "vocab_size": 30_522,
    },
    refused={"is_decoder": True},
    config_from_gguf=config_from_gguf,
    tensors={
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": TensorMap("position_embd", skip_rows(first_position)),
        "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
        **in_layers({
            "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
            "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
            "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
        }, "encoder.layer"),
        "classifier": TensorMap(lambda config: "cls.output" if labels(config) else "cls"),
    },
    ignored=("embeddings.position_ids", "pooler.*", "cls.*", "lm_head.*", "vocab_*"),
    prefixes=("", "bert", "roberta", "distilbert", "model"),
    block=Block(norm="layer", rope="none", activation="gelu", gated=False, causal=False, hidden_states=True),
)  # fmt: skip

ROBERTA = BERT.derive(
    hf_classes=("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification", "CamembertModel"),
    vocab=("bpe",),
    tensors={"classifier": None, "classifier.dense": "cls", "classifier.out_proj": "cls.output"},
    defaults={"model_type": "roberta", "pad_token_id": 1, "vocab_size": 50_265},
    config_from_gguf=lambda keys, tensors: {
        **config_from_gguf(keys, tensors), "pad_token_id": 1, "max_position_embeddings": keys["context_length"] + 2,
    },
)

XLM_ROBERTA = ROBERTA.derive(
    hf_classes=("XLMRobertaModel", "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification"),
    vocab=("fairseq",),
    defaults={"model_type": "xlm-roberta"},
)

DISTILBERT = BERT.derive(
    hf_classes=("DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"),
    defaults={
        "hidden_size": None, "num_hidden_layers": None, "num_attention_heads": None, "intermediate_size": None,
        "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072, "type_vocab_size": None,
    },
    tensors={
        **{name: None for name in BERT.tensors if "token_type" in name or name.startswith("encoder.")},
        **in_layers({
            "attention.q_lin": "attn_q", "attention.k_lin": "attn_k", "attention.v_lin": "attn_v",
            "attention.out_lin": "attn_output", "sa_layer_norm": "attn_output_norm", "ffn.lin1": "ffn_up",
            "ffn.lin2": "ffn_down", "output_layer_norm": "layer_output_norm",
        }, "transformer.layer"),
        "pre_classifier": "cls", "classifier": "cls.output",
    },
    config_from_gguf=lambda keys, tensors: {"max_position_embeddings": keys["context_length"]},
    activation="activation",
)  # fmt: skip
