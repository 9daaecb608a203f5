"""BERT, RoBERTa, XLM-RoBERTa and DistilBERT: encoders with learned positions and norms after each part. RoBERTa's
positions start after its padding token's id; DistilBERT has no token types. Heads of classifiers are kept, as llama.cpp
does; those for training tasks and poolers are left out.

Jina v3: XLM-RoBERTa's layers with rotation in place of learned positions. As published, weights are parametrized with
low-rank matrices for each task, and the selected task's are added.

Nomic Embed: BERT's layers with rotation in place of learned positions, gated nets and few biases. Published configs use
GPT-2's keys and name the length that the model can be extended to. Reference: transformers `models/bert/`,
`models/roberta/`, `models/distilbert/`, `models/nomic_bert/`, `models/jina_embeddings_v3/`.
"""

from archs.config import other_than, required, rope_scaling
from archs.rope import FACTORS, SCALING, trained_length
from archs.spec import BASE, Architecture, Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.tasks import for_task
from archs.transforms import skip_rows
from quants.errors import ModelError


def first_position(config: Config) -> int:
    """Return the row of the position table that the first token gets."""
    return int(config["pad_token_id"]) + 1 if config.get("model_type") in ("roberta", "xlm-roberta", "camembert") else 0


def labels(config: Config) -> list[str] | None:
    """Return a classifier's labels; transformers' two default labels without a head are none."""
    listed = config.get("id2label") or {}
    names = [listed[key] for key in sorted(listed, key=int)]
    return None if len(names) == 2 and names[0] == "LABEL_0" else names or None


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    if "token_types.weight" not in tensors:
        raise ModelError("BERT has token types")
    return {"type_vocab_size": tensors["token_types.weight"].shape[0]}


def scores(config: Config, hf_class: str = "BertForSequenceClassification") -> bool:
    """Return whether there is a head. BERT's reads the pooler's output; all others drop the pooler."""
    return hf_class in (config.get("architectures") or ())


BERT = BASE.derive(
    name="bert",
    hf_classes=("BertModel", "BertForMaskedLM", "BertForSequenceClassification"),
    vocab=("wordpiece",),
    metadata={
        "context_length": lambda config: config["max_position_embeddings"] - first_position(config),
        "attention.causal": lambda config: False,
        "classifier.output_labels": labels,
    },
    defaults={
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
        "vocab_size": 30_522,
    },
    refused={"is_decoder": True},
    config_from_gguf=config_from_gguf,
    layers="encoder.layer",
    tensors={
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": TensorMap("position_embd", skip_rows(first_position)),
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm",
        ".attention.self.query": "attn_q",
        ".attention.self.key": "attn_k",
        ".attention.self.value": "attn_v",
        ".attention.output.dense": "attn_output",
        ".attention.output.LayerNorm": "attn_output_norm",
        ".intermediate.dense": "ffn_up",
        ".output.dense": "ffn_down",
        ".output.LayerNorm": "layer_output_norm",
        "pooler.dense": TensorMap(lambda config: "cls" if scores(config) else ""),
        "classifier": "cls.output",
    },
    ignored=("embeddings.position_ids", "cls.*", "lm_head.*", "vocab_*"),
    prefixes=("", "bert", "roberta", "distilbert", "model"),
    block={
        "norm": "layer",
        "rope": "none",
        "activation": "gelu",
        "gated": False,
        "causal": False,
        "hidden_states": True,
    },
)

ROBERTA = BERT.derive(
    hf_classes=("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification", "CamembertModel"),
    vocab=("bpe",),
    tensors={"classifier": None, "classifier.dense": "cls", "classifier.out_proj": "cls.output"},
    defaults={"model_type": "roberta", "pad_token_id": 1, "vocab_size": 50_265},
    config_from_gguf=lambda keys, tensors: {
        **config_from_gguf(keys, tensors),
        "pad_token_id": 1,
        "max_position_embeddings": keys["context_length"] + 2,
    },
)

XLM_ROBERTA = ROBERTA.derive(
    hf_classes=("XLMRobertaModel", "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification"),
    vocab=("fairseq",),
    defaults={"model_type": "xlm-roberta"},
    variant=lambda config: jina_v3() if config.get("position_embedding_type") == "rotary" else None,
)


def jina_v3() -> Architecture:
    return JINA_BERT_V3


def positions(config: Config) -> int:
    """Return learned positions counted from the padding token's id."""
    return int(config["max_position_embeddings"]) - int(config["pad_token_id"]) - 1


def scaled_from(config: Config) -> int | None:
    """Return the context that dynamic scaling counts from, without the padding offset."""
    dynamic = rope_scaling(config, "rope_type") == "dynamic"
    return int(config["max_position_embeddings"]) if dynamic else trained_length(config)


def of_task(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return weights by their plain names, of one task or of none."""
    return config, for_task(config, tensors)


JINA_BERT_V3 = XLM_ROBERTA.derive(
    name="jina-bert-v3",
    variant=None,
    prepare=of_task,
    prepare_export=lambda config, tensors: tensors,
    hf_classes=("JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForMaskedLM", "JinaEmbeddingsV3ForSequenceClassification"),
    metadata={
        **SCALING,
        "context_length": positions,
        "rope.freq_base": "rotary_emb_base|rope_theta",
        "rope.scaling.original_context_length": scaled_from,
    },
    generated=FACTORS,
    defaults={
        "model_type": "jina_embeddings_v3",
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "max_position_embeddings": 8194,
        "layer_norm_eps": 1e-5,
        "type_vocab_size": 1,
        "vocab_size": 250_002,
        "rope_theta": 20_000.0,
    },
    layers="encoder.layers",
    tensors={
        **{name: None for name in BERT.tensors if name.startswith("encoder.") or "position" in name},
        "embeddings.LayerNorm": None,
        "emb_ln": "token_embd_norm",
        ".mixer.Wqkv": "attn_qkv",
        ".mixer.out_proj": "attn_output",
        ".norm1": "attn_output_norm",
        ".mlp.fc1": "ffn_up",
        ".mlp.fc2": "ffn_down",
        ".norm2": "layer_output_norm",
    },
    config_from_gguf=lambda keys, tensors: {
        **config_from_gguf(keys, tensors),
        "pad_token_id": 1,
        "max_position_embeddings": keys["context_length"] + 2,
    },
    block={"rope": "halves"},
)


def between(config: Config) -> str | None:
    """Return the activation between the head's two matrices, if not a tanh."""
    return "relu" if scores(config, "DistilBertForSequenceClassification") else None


DISTILBERT = BERT.derive(
    hf_classes=("DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"),
    defaults={
        "hidden_size": None,
        "num_hidden_layers": None,
        "num_attention_heads": None,
        "intermediate_size": None,
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "type_vocab_size": None,
    },
    layers="transformer.layer",
    tensors={
        **{name: None for name in BERT.tensors if "token_type" in name or name.startswith("encoder.")},
        ".attention.q_lin": "attn_q",
        ".attention.k_lin": "attn_k",
        ".attention.v_lin": "attn_v",
        ".attention.out_lin": "attn_output",
        ".sa_layer_norm": "attn_output_norm",
        ".ffn.lin1": "ffn_up",
        ".ffn.lin2": "ffn_down",
        ".output_layer_norm": "layer_output_norm",
        "pre_classifier": "cls",
        "classifier": "cls.output",
    },
    metadata={"classifier.hidden_activation": between},
    config_from_gguf=None,
    activation="activation",
)


def context(config: Config) -> int:
    given, trained = config.get("n_positions"), config.get("max_trained_positions") or 2048
    return int(min(given, trained) if given else config["max_position_embeddings"])


def head_width(config: Config) -> int:
    """Return the width of one attention head."""
    given = config.get("head_dim")
    return int(given or required(config, "n_embd|hidden_size") // required(config, "n_head|num_attention_heads"))


def nomic_config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    width, usual = keys.stored("attention.key_length"), keys["embedding_length"] // keys["attention.head_count"]
    return {**config_from_gguf(keys, tensors), **({} if width in (None, usual) else {"head_dim": width})}


NOMIC_BERT = BERT.derive(
    name="nomic-bert",
    hf_classes=("NomicBertModel",),
    metadata={
        **SCALING,
        "context_length": context,
        "embedding_length": "n_embd|hidden_size",
        "block_count": "n_layer|num_hidden_layers",
        "feed_forward_length": "n_inner|intermediate_size",
        "attention.head_count": "n_head|num_attention_heads",
        "attention.layer_norm_epsilon": "layer_norm_epsilon|layer_norm_eps",
        "attention.key_length": head_width,
        "attention.value_length": head_width,
        "rope.freq_base": "rotary_emb_base|rope_theta",
    },
    defaults={"model_type": "nomic_bert", "max_position_embeddings": 2048, "rope_theta": 1000.0, "vocab_size": 30_528},
    refused={
        "moe_every_n_layers": lambda every: bool(every),
        "activation_function": other_than("swiglu"),
        "prenorm": True,
        "rotary_emb_interleaved": True,
        "rotary_emb_fraction": other_than(1),
        "use_rms_norm": True,
    },
    layers="encoder.layers",
    tensors={
        **{name: None for name in BERT.tensors if name.startswith("encoder.") or "position" in name},
        "embeddings.LayerNorm": None,
        "emb_ln": "token_embd_norm",
        ".attn.Wqkv": "attn_qkv",
        ".attn.out_proj": "attn_output",
        ".norm1": "attn_output_norm",
        ".mlp.fc11": "ffn_up",
        ".mlp.fc12": "ffn_gate",
        ".mlp.fc2": "ffn_down",
        ".norm2": "layer_output_norm",
    },
    generated=FACTORS,
    config_from_gguf=nomic_config_from_gguf,
    activation="hidden_act",
    block={"rope": "halves", "activation": "silu", "gated": True},
)
