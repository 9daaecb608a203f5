"""ModernBERT: an encoder with rope, gated gelu, and windows to both sides on all layers but every third. The first
layer has no norm before its attention.

EuroBERT: Llama's layers as an encoder; rotates halves, as HF does.
Reference: transformers `models/modernbert/`, `models/eurobert/`.
"""

import re

from archs import decisions
from archs.config import changed, head_dim, rotary_of_all, windowed_layers
from archs.families.bert import labels
from archs.families.llama import HALVES
from archs.hparams.config_keys import BothSides
from archs.hparams.file_keys import with_window
from archs.rope import FACTORS, SCALING, scaled_by_type, scaling_type
from archs.spec import BASE, Config, TensorMap, Tensors, first_of_period
from archs.typed_json import Text

POOLING = {"mean": 1, "cls": 2}

PERIOD = 3  # every third layer has full attention, the first one too


def global_layers(config: Config) -> int | list[bool]:
    """Return the period of global layers; or for each layer whether it is windowed, if that is irregular."""
    windowed = windowed_layers(config, lambda layer: layer % config["global_attn_every_n_layers"] != 0)
    periods = (config["global_attn_every_n_layers"], *range(1, len(windowed) + 1))
    for every in periods:
        if windowed == [layer % every != 0 for layer in range(len(windowed))]:
            return int(every)
    return windowed


def of_classifier(name: str) -> TensorMap:
    """Return a part of the head that only classifiers keep."""
    kept = "ModernBertForSequenceClassification"
    return TensorMap(lambda config: name if kept in (config.get("architectures") or ()) else "")


def head_layers(config: Config) -> int:
    """Return the layers of a decision model's head, which come after the encoder's."""
    return int((config.get("decision") or {}).get("head_layers") or 0)


def net_widths(config: Config) -> int | list[int]:
    """Return the width of nets; those of a head's layers are four times as wide as the model."""
    if not (count := head_layers(config)):
        return int(config["intermediate_size"])
    return [config["intermediate_size"]] * config["num_hidden_layers"] + [4 * config["hidden_size"]] * count


def after_encoder(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the layers of a head numbered after those of the encoder, and rotary settings of all layers."""
    count = config["num_hidden_layers"]
    config = config if global_layers(config) == 1 else changed(config, **rotary_of_all(config))

    def named(match: re.Match[str]) -> str:
        return f"layers.{count + int(match[1])}.head."

    def renamed(name: str) -> str:
        return SCORER.sub(lambda match: SCORER_PARTS[match[1]], HEAD_LAYER.sub(named, name))

    return config, {renamed(name): tensor for name, tensor in tensors.items()} if head_layers(config) else tensors


HEAD_LAYER, SCORER = re.compile(r"^head\.layers\.(\d+)\."), re.compile(r"^scorer\.([013])\.")
SCORER_PARTS = {"0": "scorer.norm.", "1": "scorer.dense.", "3": "scorer.out."}

MODERNBERT = BASE.derive(
    name="modern-bert",
    hf_classes=(
        "ModernBertModel",
        "ModernBertForMaskedLM",
        "ModernBertForSequenceClassification",
        "ModernBertDecisionModel",
    ),
    prepare=after_encoder,
    prepare_export=lambda config, tensors: tensors,
    config_from_gguf=lambda keys, tensors: scaled_by_type(keys),
    vocab_keys={"add_sep_token": True},
    keys={"classifier_pooling": Text(tuple(POOLING)), "local_attention": BothSides()},
    metadata={
        **SCALING,
        "rope.freq_base": "rope_theta|global_rope_theta",
        "rope.freq_base_swa": "rope_local_base_freq|local_rope_theta",
        "rope.scaling.type": scaling_type,
        "attention.layer_norm_rms_epsilon": "norm_eps|layer_norm_eps",
        "attention.layer_norm_epsilon": "norm_eps|layer_norm_eps",
        "attention.causal": lambda config: False,
        "classifier.output_labels": labels,
        "attention.sliding_window": "local_attention",
        "attention.sliding_window_pattern": global_layers,
        "classifier.pooling_type": lambda config: POOLING[config["classifier_pooling"]],
        "vocab_size": "vocab_size",
        "hidden_activation": "hidden_activation",
        "block_count": lambda config: config["num_hidden_layers"] + head_layers(config),
        "feed_forward_length": net_widths,
        **decisions.keys_of(),
        "decision.block_count": lambda config: head_layers(config) or None,
        "decision.max_head_tokens": lambda config: (config.get("decision") or {}).get("head_tokens"),
    },
    defaults={
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
        "local_attention": 128,
        "global_attn_every_n_layers": PERIOD,
        "classifier_pooling": "cls",
        "hidden_activation": "gelu",
        "vocab_size": 50_368,
    },
    tensors={
        # of a decision model's head; an export uses the later rules
        ".head.norm1": "attn_norm",
        ".head.self_attn.in_proj_weight": "attn_qkv.weight",
        ".head.self_attn.in_proj_bias": "attn_qkv.bias",
        ".head.self_attn.out_proj": "attn_output",
        ".head.norm2": "ffn_norm",
        ".head.linear1": "ffn_up",
        ".head.linear2": "ffn_down",
        "type_emb": "token_types",
        "scorer.norm": "cls.norm",
        "scorer.dense": "cls",
        "scorer.out": "cls.output",
        "embeddings.tok_embeddings": "token_embd",
        "embeddings.norm": "token_embd_norm",
        ".attn_norm": "attn_norm",
        ".attn.Wqkv": "attn_qkv",
        ".attn.Wo": "attn_output",
        ".mlp_norm": "ffn_norm",
        ".mlp.Wi": "ffn_up",
        ".mlp.Wo": "ffn_down",
        "final_norm": "output_norm",
        "head.dense": of_classifier("cls"),
        "head.norm": of_classifier("cls.norm"),
        "classifier": "cls.output",
    },
    flags_from_tensors={
        "attention_bias": "blk.*.attn_qkv.bias",
        "mlp_bias": "blk.*.ffn_up.bias",
        "norm_bias": "output_norm.bias",
        "classifier_bias": "cls.bias",
    },
    ignored=("decoder.*", "act_head.*", "temperature"),
    prefixes=("", "encoder", "model", "transformer", "language_model", "text_model"),
    generated=FACTORS,
    layers_vary=True,
    absent={
        "rope.freq_base_swa": with_window(10_000.0),
        "classifier.pooling_type": POOLING["mean"],
        "classifier.hidden_activation": "gelu",
    },
    block={
        "norm": "layer",
        "rope": "halves",
        "activation": "gelu",
        "window_period": PERIOD,
        "is_global_layer": first_of_period,
        "causal": False,
        "hidden_states": True,
        "scales_windowed_rope": False,
    },
)

EUROBERT = HALVES.derive(
    name="eurobert",
    hf_classes=("EuroBertModel", "EuroBertForMaskedLM", "JinaEmbeddingsV5Model"),
    vocab_keys={"add_bos_token": False},
    metadata={
        "attention.causal": lambda config: False,
        "classifier.pooling_type": lambda config: POOLING.get(config["classifier_pooling"]),  # not "late", the default
        "rope.scaling.type": scaling_type,
    },
    defaults={
        "head_dim": head_dim,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "classifier_pooling": "late",
        "vocab_size": 128_256,
    },
    config_from_gguf=lambda keys, tensors: {
        "classifier_pooling": next((k for k in POOLING if POOLING[k] == keys.get("classifier.pooling_type")), "late")
    },
    tensors={"lm_head": None},
    ignored=("lm_head.*",),
    block={"causal": False, "hidden_states": True},
)
