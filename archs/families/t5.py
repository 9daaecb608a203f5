"""T5: an encoder and a decoder; relative positions, no scaling of scores; ReLU, or a gated gelu since version 1.1.

T5's encoder alone (of image models and embedders) has a name of its own in GGUF; it ends in hidden states. Reference:
transformers `models/t5/modeling_t5.py`, `models/umt5/` (each layer has distances of its own). The first version's
decoder output is scaled before the tied head, which llama.cpp drops: `logit_scale` stores it.
"""

from archs.config import UnlessUsual, changed, lookup
from archs.spec import BASE, Architecture, Config, ConfigKeys, GgufKeys, Tensors
from quants.errors import ModelError

FAR = 128  # default without `attention.relative_max_distance`


def logit_scale(config: Config) -> float | None:
    """Return the factor of a tied head's logits; later versions are untied, and have none."""
    scales = config.get("scale_decoder_outputs", config.get("tie_word_embeddings"))
    return float(config["d_model"]) ** -0.5 if config["model_type"] != "mt5" and scales is not False else None


def activation(config: Config) -> str | None:
    """Return the activation, if neither ReLU nor the gated gelu that "gated-gelu" means (llama.cpp drops it)."""
    name = config["feed_forward_proj"]
    return None if name in ("relu", "gated-gelu") else name.removeprefix("gated-")


def side(source: str, name: str, attends_twice: bool) -> dict[str, str]:
    """Return the tensors of the encoder or the decoder, whose layers have cross-attention between their other two
    parts.
    """
    layer, block = f"{source}.block.{{i}}.layer", f"{name}.blk.{{i}}"
    attentions = [("0.SelfAttention", "attn")] + [("1.EncDecAttention", "cross_attn")] * attends_twice
    last = len(attentions)
    targets = {
        f"{layer}.0.SelfAttention.relative_attention_bias": f"{block}.attn_rel_b",
        f"{layer}.{last}.layer_norm": f"{block}.ffn_norm",
        f"{layer}.{last}.DenseReluDense.wi": f"{block}.ffn_up",
        f"{layer}.{last}.DenseReluDense.wi_0": f"{block}.ffn_gate",
        f"{layer}.{last}.DenseReluDense.wi_1": f"{block}.ffn_up",
        f"{layer}.{last}.DenseReluDense.wo": f"{block}.ffn_down",
        f"{source}.final_layer_norm": f"{name}.output_norm",
        f"{source}.embed_tokens": "token_embd",
    }
    for part, attention in attentions:
        targets[f"{layer}.{part[0]}.layer_norm"] = f"{block}.{attention}_norm"
        targets |= {f"{layer}.{part}.{letter}": f"{block}.{attention}_{letter}" for letter in "qkvo"}
    return targets


def config_from_gguf(keys: GgufKeys, tensors: Tensors, each_layer: bool = False) -> ConfigKeys:
    """Return the config. each_layer: layers have distances of their own, as in umT5."""
    for side in ("enc", "dec"):
        there, distances = (f"{side}.blk.1.{name}.weight" in tensors for name in ("attn_q", "attn_rel_b"))
        if each_layer and there and not distances:
            raise ModelError("each layer of umT5 has distances")
        if distances and not each_layer:
            raise ModelError("T5's first layers alone have distances")
    gated = "enc.blk.0.ffn_gate.weight" in tensors
    plain = "gelu" if gated else "relu"
    return {
        "feed_forward_proj": ("gated-" if gated else "") + (keys.get("hidden_activation") or plain),
        "tie_word_embeddings": "logit_scale" in keys,
        "is_encoder_decoder": True,
    }


def legacy_names(tensors: Tensors) -> tuple[str, ...]:
    """Return the legacy names of a net: a gated one has two matrices in place of one."""
    one = "wi" if "enc.blk.0.ffn_gate.weight" in tensors else "wi_1"
    return (
        "encoder.embed_tokens",
        "decoder.embed_tokens",
        *(f"{side}.block.{{i}}.layer.{last}.DenseReluDense.{one}" for side, last in (("encoder", 1), ("decoder", 2))),
    )


# Defaults of mT5's and umT5's configs.
MULTILINGUAL = {"d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"}


def multilingual(config: Config) -> Architecture | None:
    """Return mT5, which differs only in its defaults."""
    if "MT5ForConditionalGeneration" not in (config.get("architectures") or ()):
        return None
    return T5.derive(defaults={"model_type": "mt5", **MULTILINGUAL}, variant=None)


T5 = BASE.derive(
    name="t5",
    hf_classes=("T5ForConditionalGeneration", "T5WithLMHeadModel", "MT5ForConditionalGeneration"),
    variant=multilingual,
    vocab=("unigram",),
    metadata={
        "context_length": "n_positions",
        "feed_forward_length": "d_ff",
        "block_count": "num_layers",
        "decoder_block_count": "num_decoder_layers",
        "attention.head_count": "num_heads",
        "attention.key_length": "d_kv",
        "attention.value_length": "d_kv",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "attention.relative_buckets_count": "relative_attention_num_buckets",
        "attention.relative_max_distance": UnlessUsual("relative_attention_max_distance", FAR),
        "decoder_start_token_id": "decoder_start_token_id|pad_token_id",
        "logit_scale": logit_scale,
        "hidden_activation": activation,
    },
    defaults={
        "model_type": "t5",
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_decoder_layers": lambda config: lookup(config, "num_layers"),
        "num_heads": 8,
        "n_positions": 512,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": FAR,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "pad_token_id": 0,
        "vocab_size": 32_128,
    },
    config_from_gguf=config_from_gguf,
    legacy_names=legacy_names,
    tensors={
        "shared": "token_embd",
        **side("encoder", "enc", attends_twice=False),
        **side("decoder", "dec", attends_twice=True),
        "lm_head": "output",
    },
    layers_vary=True,
    prefixes=("", "model", "transformer", "language_model", "text_model"),
    activation="",
    block={"rope": "none", "activation": "relu", "output_norm": "dec.output_norm"},
)


def with_head_in_mind(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the config with scaling for a tied head: by the config, or because the checkpoint has no other head.

    umT5 was published with a head of its own, `tie_word_embeddings` false and no scaling (T5X's `logits_via_embedding =
    False`; transformers 4). transformers 5 always treats the flag as true, and scales that head too.
    """
    own = config.get("tie_word_embeddings") is False and "lm_head.weight" in tensors
    return changed(config, tie_word_embeddings=not own), tensors


UMT5 = T5.derive(
    hf_classes=("UMT5ForConditionalGeneration", "UMT5Model"),
    variant=None,
    prepare=with_head_in_mind,
    prepare_export=lambda config, tensors: tensors,  # they keep their names
    config_from_gguf=lambda keys, tensors: config_from_gguf(keys, tensors, each_layer=True),
    defaults={"model_type": "umt5", **MULTILINGUAL},
)


def encoder_config_from_gguf(keys: GgufKeys, tensors: Tensors, each_layer: bool = False) -> ConfigKeys:
    config = config_from_gguf(keys, tensors, each_layer)
    return {**config, "is_encoder_decoder": False, "tie_word_embeddings": True}


def multilingual_encoder(config: Config) -> Architecture | None:
    """Return mT5's encoder."""
    if "MT5EncoderModel" not in (config.get("architectures") or ()):
        return None
    return T5_ENCODER.derive(defaults={"model_type": "mt5", **MULTILINGUAL}, variant=None)


T5_ENCODER: Architecture = T5.derive(
    name="t5encoder",
    hf_classes=("T5EncoderModel", "MT5EncoderModel"),
    variant=multilingual_encoder,
    metadata={"decoder_block_count": None, "decoder_start_token_id": None, "logit_scale": None},
    defaults={"model_type": "t5", "num_decoder_layers": None},
    tensors={name: None for name in T5.tensors if name.startswith("decoder.")} | {"lm_head": None},
    ignored=("decoder.*", "lm_head.*"),
    config_from_gguf=encoder_config_from_gguf,
    block={"output_norm": "enc.output_norm", "causal": False, "hidden_states": True},
)

UMT5_ENCODER = T5_ENCODER.derive(
    hf_classes=("UMT5EncoderModel",),
    variant=None,
    defaults={"model_type": "umt5", **MULTILINGUAL},
    config_from_gguf=lambda keys, tensors: encoder_config_from_gguf(keys, tensors, each_layer=True),
)
