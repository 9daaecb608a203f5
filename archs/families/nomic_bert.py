"""Nomic Embed: BERT's layers with rotation in place of learned positions, gated nets and few biases.

Reference: transformers `models/nomic_bert/modeling_nomic_bert.py`. Published configs are in GPT-2's words and name the
length that the model can be stretched to.
"""


from archs.config import required
from archs.families import bert
from archs.families.bert import BERT
from archs.rope import SCALING, llama3_freqs, longrope_factors
from archs.spec import Config, ConfigKeys, GgufKeys, Tensors, in_layers


def context(config: Config) -> int:
    given, trained = config.get("n_positions"), config.get("max_trained_positions") or 2048
    return int(min(given, trained) if given else config["max_position_embeddings"])


def head_width(config: Config) -> int:
    """The width of one attention head."""
    given = config.get("head_dim")
    return int(given or required(config, "n_embd|hidden_size") // required(config, "n_head|num_attention_heads"))


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Config keys that follow from a file, for the export to a checkpoint."""
    width, usual = keys.get("attention.key_length"), keys["embedding_length"] // keys["attention.head_count"]
    return {**bert.config_from_gguf(keys, tensors), **({} if width in (None, usual) else {"head_dim": width})}


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
        "activation_function": lambda name: name not in (None, "swiglu"), "prenorm": True,
        "rotary_emb_interleaved": True, "rotary_emb_fraction": lambda share: share not in (None, 1),
        "use_rms_norm": True,
    },
    tensors={
        **{name: None for name in BERT.tensors if name.startswith("encoder.") or "position" in name},
        "embeddings.LayerNorm": None, "emb_ln": "token_embd_norm",
        **in_layers({
            "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm", "mlp.fc11": "ffn_up",
            "mlp.fc12": "ffn_gate", "mlp.fc2": "ffn_down", "norm2": "layer_output_norm",
        }, "encoder.layers"),
    },
    generated=(llama3_freqs, longrope_factors),
    config_from_gguf=config_from_gguf,
    activation="hidden_act",
    block={"rope": "halves", "activation": "silu", "gated": True},
)  # fmt: skip
