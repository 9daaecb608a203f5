"""Draft models that read hidden states of a larger model, the target: none runs alone.

EAGLE-3: one layer of Llama's type. It reads the hidden states of three of the target's layers, brought to its width by
one matrix (`fc`), and the embedding of the next token; so its projections have inputs of twice its width. Its output
may cover only some tokens: `d2t` maps them to the target's. Embedding and output are the target's if it has none of its
own.

DFlash: layers of Qwen3's type that write a block of tokens at once: all tokens of the block, mask tokens except the
first, attend to each other and to states of any number of the target's layers. DFlash 2 adds convolutions, and a
selector of candidates. DSpark: DFlash with a head that makes each token depend on the one before (Markov). Muse
Glimmer's assistants: DFlash by other names.

Gemma 4's assistants: a few of its layers without keys and values of their own, which attend to those of the target's
last layers of their type. Each token is drafted from the position of the last known one. Vocabulary and embedding are
their own; the embedding of the token before is the target's. Facts: llama.cpp's converters and graphs of `eagle3`,
`dflash` and `gemma4-assistant`; published checkpoints of SpecForge, speculators, NVIDIA and z-lab; transformers
`models/gemma4_assistant/`.
"""

import re
from collections.abc import Iterable
from typing import Any

from archs.config import rope_scaling
from archs.families.deepseek4 import DEEPSEEK4
from archs.families.gemma4 import GEMMA4, proportional_freqs
from archs.families.llama import LLAMA
from archs.families.qwen3 import QWEN3
from archs.hparams.config_keys import FLAG, SIZE, TOKEN
from archs.rope import SCALING
from archs.spec import Computed, Config, TensorMap, Tensors
from archs.transforms import interleave_rope
from archs.typed_json import Fields, FieldType, ListOf, Number, Text, Whole
from quants import Tensor
from quants.errors import ModelError

NUMBER = Number()

LAYERS = ListOf(Whole(0, 10_000), max_items=100)  # numbers of the target's

EAGLE3 = LLAMA.derive(
    name="eagle3",
    draft=True,
    ignored=("t2d",),
    hf_classes=("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel"),
    tensors={".hidden_norm": "attn_norm_2", "fc": "fc", "input_norm": "enc.output_norm", "d2t": "d2t"},
    keys={
        "eagle_aux_hidden_state_layer_ids": LAYERS,
        "target_hidden_size": SIZE,
        "norm_before_residual": FLAG,
        "norm_before_fc": FLAG,
    },
)


# DFlash and DSpark

BLOCK: dict[str, FieldType] = {  # of a block draft model, at the root of config.json or in its "dflash_config"
    "target_layer_ids": LAYERS,
    "mask_token_id": TOKEN,
    "block_size": Whole(1),
    "swa_window_size": Whole(1),
    "use_swa": FLAG,
    "causal": FLAG,
    "attention_value_scale": NUMBER,
    "output_multiplier": NUMBER,
    "final_logit_softcapping": NUMBER,
    "input_embedding_scale": NUMBER,
    "conv_kernel_size": Whole(1),
    "conv_group_size": Whole(1),
    "selector_rank": Whole(1),
    "selector_top_k": Whole(1),
    "markov_head_type": Text(),
}


def of_block(*names: str, otherwise: Any = None, nested: bool = False) -> Computed:
    """Return the first of these settings that is there. nested: only in "dflash_config"."""

    def setting(config: Config) -> Any:
        settings = config.get("dflash_config") or {}
        given = [settings.get(name) for name in names] + [config.get(name) for name in names if not nested]
        return next((each for each in given if each is not None), otherwise)

    return setting


def target_layers(config: Config) -> list[int]:
    """Return the layers whose inputs are read; configs name those whose outputs are, except speculators'."""
    given = (config.get("dflash_config") or {}).get("target_layer_ids")
    if given is None and config.get("aux_hidden_state_layer_ids") is not None:
        return list(config["aux_hidden_state_layer_ids"])
    if not (given := given or config.get("target_layer_ids")):
        raise ModelError('config.json has no "target_layer_ids"')
    return [layer + 1 for layer in given]


def window(config: Config) -> int | None:
    settings = config.get("dflash_config") or {}
    if not (config.get("use_sliding_window") or settings.get("use_swa")):
        return None
    return settings.get("swa_window_size") or config.get("sliding_window") or None


def windowed(config: Config) -> list[bool] | None:
    if not window(config):
        return None
    if (config.get("dflash_config") or {}).get("use_swa"):
        return [True] * config["num_hidden_layers"]
    return [each == "sliding_attention" for each in config.get("layer_types") or ()]


def causal(config: Config) -> bool | None:
    given = config.get("is_causal")
    return (config.get("dflash_config") or {}).get("causal") if given is None else given


def rotated(config: Config) -> int | None:
    share = config.get("partial_rotary_factor")
    return None if share is None else int(config["head_dim"] * share)


def cap(config: Config) -> float | None:
    return of_block("final_logit_softcapping")(config) or None


def pairs_apart(name: str, heads: str = "one_head") -> TensorMap:
    """Return rows of q or k, which may rotate adjacent pairs (`rope_is_neox_style` false). heads: the key of their
    number.
    """
    adjacent = interleave_rope(heads).invert

    def transform(tensor: Tensor, config: Config) -> Tensor:
        return tensor if config.get("rope_is_neox_style", True) else adjacent(tensor, {**config, "one_head": 1})

    return TensorMap(name, transform)


def prepare_block(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the tensors without an embedding that is the target's by the config."""
    if not config.get("has_embed_tokens", True):
        tensors = {name: each for name, each in tensors.items() if not name.endswith("embed_tokens.weight")}
    return config, tensors


DFLASH = QWEN3.derive(
    name="dflash",
    draft=True,
    hf_classes=("DFlashDraftModel", "DFlash2DraftModel"),
    wrappers=(),
    prepare=prepare_block,
    absent={"swiglu_clamp_shexp": "=swiglu_clamp_exp"},
    metadata={
        "rope.dimension_count": rotated,
        "attention.value_scale": of_block("attention_value_scale", nested=True),
        "block_size": of_block("block_size", otherwise=16),
        "logit_scale": of_block("output_multiplier"),
        **{
            key: of_block(key, nested=True)
            for key in ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        },
        "final_logit_softcapping": cap,
        "embedding_scale": of_block("input_embedding_scale"),
        "target_layers": target_layers,
        "attention.sliding_window": window,
        "attention.causal": causal,
        "attention.sliding_window_pattern": windowed,
    },
    tensors={
        "fc": "fc",
        "hidden_norm": "enc.output_norm",
        ".self_attn.sinks": "attn_sinks.weight",
        ".self_attn.q_proj": pairs_apart("attn_q", "num_attention_heads"),
        ".self_attn.k_proj": pairs_apart("attn_k", "num_key_value_heads"),
        ".self_attn.q_norm": pairs_apart("attn_q_norm"),
        ".self_attn.k_norm": pairs_apart("attn_k_norm"),
        ".attention_conv.base_kernel": "attn_conv_base",
        ".attention_conv.kernel_projection": "attn_conv_proj",
        ".mlp_conv.base_kernel": "ffn_conv_base",
        ".mlp_conv.kernel_projection": "ffn_conv_proj",
        "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
        "candidate_selector.successor_codebook": "selector_successor.weight",
        "candidate_selector.hidden_projection": "selector_hidden",
    },
    layers_vary=True,
    keys={
        "dflash_config": Fields(BLOCK),
        **BLOCK,
        "aux_hidden_state_layer_ids": LAYERS,
        "has_embed_tokens": FLAG,
        "rope_is_neox_style": FLAG,
        "is_causal": FLAG,
        "sample_from_anchor": FLAG,
    },
)


def vanilla(config: Config) -> str:
    return str(of_block("markov_head_type", otherwise="vanilla")(config))


def prepare_markov(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the tensors without an output that is the target's, as in a draft model of all its tokens."""
    if vanilla(config) != "vanilla":
        raise ModelError(f"config.json has a Markov head of type {vanilla(config)!r}; files have 'vanilla' ones")
    config, tensors = prepare_block(config, tensors)
    published = not {"transformer_layer_config", "aux_hidden_state_layer_ids"} & set(config)
    anchor = config.get("sample_from_anchor")
    facts = {
        "sample_from_anchor": published if anchor is None else anchor,
        "has_confidence_head": any("confidence_head.proj" in name for name in tensors),
    }
    if (config.get("draft_vocab_size") or config["vocab_size"]) == config["vocab_size"]:
        tensors = {name: each for name, each in tensors.items() if not name.endswith("lm_head.weight")}
    return {**config, **facts}, tensors


MARKOV = {
    "markov_head.markov_w1": "markov_w1",
    "markov_head.markov_w2": "markov_w2",
    "confidence_head.proj": "conf_proj",
}
DSPARK = DFLASH.derive(
    hf_classes=("Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator", "Lfm2DSparkDraftModel", "LingDSparkModel"),
    prepare=prepare_markov,
    ignored=("t2d",),
    metadata={"sample_from_anchor": "sample_from_anchor", "has_confidence_head": "has_confidence_head"},
    tensors={**MARKOV, "d2t": "d2t"},
)

MUSE_GLIMMER = DFLASH.derive(
    hf_classes=("MuseGlimmerAssistantModel",),
    metadata={
        "attention.sliding_window": lambda config: (config.get("layer_types") and config.get("sliding_window")) or None,
        "attention.sliding_window_pattern": lambda config: (
            [each == "sliding_attention" for each in config["layer_types"]]
            if config.get("layer_types") and config.get("sliding_window")
            else None
        ),
        **dict.fromkeys(("attention.value_scale", "logit_scale", "final_logit_softcapping", "embedding_scale")),
        **dict.fromkeys(("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")),
        "rope.dimension_count": None,
        "attention.causal": lambda config: False if config.get("is_causal") is False else None,
    },
    tensors={
        f".self_attn.{part}": f"attn_{part.removesuffix('_proj')}" for part in ("q_proj", "k_proj", "q_norm", "k_norm")
    },
)


# Gemma 4's assistants

GEMMA4_ASSISTANT = GEMMA4.derive(
    name="gemma4-assistant",
    draft=True,
    wrappers=(),
    hf_classes=("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"),
    ignored=("masked_embedding.*", "lm_head.weight"),
    metadata={
        "embedding_length_out": "backbone_hidden_size",
        "nextn_predict_layers": "num_hidden_layers",
        "attention.shared_kv_layers": lambda config: config["num_kv_shared_layers"] or config["num_hidden_layers"],
    },
    absent={"final_logit_softcapping": None},
    tensors={"pre_projection": "nextn.pre_projection", "post_projection": "nextn.post_projection"},
    keys={"backbone_hidden_size": Whole(1, 1 << 20)},
)


# DSpark of Gemma 4 and DeepSeek V4

GELU = "gelu_pytorch_tanh"


def prepare_gemma4(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Raise ModelError for what such files cannot express."""
    count, head = config["num_hidden_layers"], any("confidence_" in name for name in tensors)
    layer_types, whole = config.get("layer_types"), config["vocab_size"]
    wrong = {
        "attention_k_eq_v": not config.get("attention_k_eq_v"),
        "layer_types": layer_types != ["full_attention"] * count,
        "hidden_activation": config.get("hidden_activation", GELU) != GELU,
        "attention_bias": bool(config.get("attention_bias")),
        "enable_moe_block": bool(config.get("enable_moe_block")),
        "draft_vocab_size": (config.get("draft_vocab_size") or whole) != whole,
        "markov_head_type": vanilla(config) != "vanilla",
        "final_logit_softcapping": bool(config.get("final_logit_softcapping")),
    }
    for key, is_wrong in wrong.items():
        if is_wrong:
            raise ModelError(f"config.json has {key} = {config.get(key)!r}, which no dflash file of Gemma 4 has")
    anchor = config.get("sample_from_anchor")
    given = {"hidden_activation": GELU, "sample_from_anchor": True if anchor is None else anchor}
    return {**config, **given, "has_confidence_head": head}, tensors


def gemma4_freqs(config: Config) -> Iterable[Tensor]:
    """Return `rope_freqs.weight`: pairs that don't rotate are slowed down to a standstill."""
    if rope_scaling(config, "rope_type") in (None, "default"):
        return
    yield from proportional_freqs(config)


GEMMA4_DSPARK = DFLASH.derive(
    hf_classes=("Gemma4DSparkModel",),
    prepare=prepare_gemma4,
    generated=(gemma4_freqs,),
    rope_parameters="by type",
    metadata={
        **dict.fromkeys(SCALING),
        "attention.head_count_kv": "num_global_key_value_heads",
        **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), "global_head_dim"),
        "embedding_scale": lambda config: float(config["hidden_size"] ** 0.5),
        "attention.scale": lambda config: 1.0,
        "sample_from_anchor": "sample_from_anchor",
        "has_confidence_head": "has_confidence_head",
        "final_logit_softcapping": None,
    },
    defaults={
        "global_head_dim": 512,
        "rope_scaling": {"rope_type": "proportional", "rope_theta": 1e6},
        "partial_rotary_factor": 0.25,
    },
    keys={"enable_moe_block": FLAG},
    tensors={
        **MARKOV,
        "confidence_proj": "conf_proj",
        ".layer_scalar": "layer_output_scale.weight",
        ".post_attention_layernorm": "post_attention_norm",
        ".pre_feedforward_layernorm": "ffn_norm",
        ".post_feedforward_layernorm": "post_ffw_norm",
        **{
            f".self_attn.{part}": f"attn_{part.removesuffix('_proj')}"
            for part in ("q_proj", "k_proj", "q_norm", "k_norm")
        },
    },
)

OUTSIDE = (
    "main_proj",
    "main_norm",
    "markov_head",
    "confidence_head",
    "norm",
    "hc_head_fn",
    "hc_head_base",
    "hc_head_scale",
)


def prepare_deepseek4(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return only the tensors of `mtp.…`, as layers; tensors outside of layers may be in any of them."""
    named, count = dict[str, Tensor](), 0
    for name, tensor in tensors.items():
        part = re.fullmatch(r"mtp\.(\d{1,4})\.(\w+)(.*)", name)
        if part is None:
            continue
        count = max(count, int(part[1]) + 1)
        bare = f"{part[2]}{part[3]}"
        if not bare.endswith(".bias_vl"):
            named[bare if part[2] in OUTSIDE else f"layers.{part[1]}.{bare}"] = tensor
    if not count:
        raise ModelError("the checkpoint has no tensor of a draft (mtp.…)")
    full = {
        **config,
        "num_hidden_layers": count,
        "compress_ratios": [0] * count,
        "num_hash_layers": 0,
        "num_nextn_predict_layers": 0,
        "layer_types": None,
        "mlp_layer_types": None,
    }
    assert DEEPSEEK4.prepare is not None
    return DEEPSEEK4.prepare(full, named)


DEEPSEEK4_DSPARK = DEEPSEEK4.derive(
    name="dflash",
    draft=True,
    hf_classes=("DeepseekV4DSparkModel",),
    prepare=prepare_deepseek4,
    wrappers=(),
    variant=None,
    metadata={
        "embedding_length_out": None,
        "block_size": "dspark_block_size",
        "target_layers": lambda config: [layer + 1 for layer in config["dspark_target_layer_ids"]],
    },
    tensors={**MARKOV, "main_proj": "fc", "main_norm": "enc.output_norm"},
    keys={"dspark_block_size": Whole(1), "dspark_target_layer_ids": LAYERS, "dspark_noise_token_id": TOKEN},
)
