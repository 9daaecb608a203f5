"""Gemma 4 (text): global layers have wider heads, of which a part rotates; values are normalised. Optional parts show
in tensors or keys: per-layer inputs, experts next to the dense net, keys that are also values, last layers that share
keys and values of earlier ones.

Gemma 3n (text): alternating updates of four copies, low-rank residuals, sparse activations in the first layers. As in
Gemma 4 each layer gets an input of its own, and the last layers share keys and values of earlier ones. Tokens without
such an input (those of images and audio) get zeros. Reference: transformers `models/gemma4/`, `models/gemma3n/`.
"""

import math
from collections.abc import Iterable
from statistics import NormalDist

import numpy as np

from archs.config import rope_scaling, windowed_layers
from archs.families.gemma import GEMMA3
from archs.hparams.config_keys import FLAG, NET_WIDTH
from archs.hparams.file_keys import Derived
from archs.layer_types import after_dense
from archs.rope import FACTORS, SCALING
from archs.spec import COMMON, Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.tensor_maps import becomes
from archs.transforms import Invertible, concatenated, zeros
from archs.typed_json import Either, ListOf, Text
from quants import Tensor, from_array
from quants.errors import ModelError


def window_pattern(config: Config) -> list[bool]:
    pattern = windowed_layers(config, lambda layer: (layer + 1) % 6 != 0)
    return [*pattern[:-1], False]


def of_wide_layers(config: Config, key: str, otherwise: object) -> object:
    """Return a setting of the global layers: transformers 5 writes it for each of them, if it differs from the general
    one.

    otherwise: default if config.json has no such settings.
    """
    layers = config.get("per_layer_config")
    if layers is None:
        return otherwise
    wide = [layers[str(i)] for i, windowed in enumerate(window_pattern(config)) if not windowed and str(i) in layers]
    return wide[0].get(key) if wide else None


def wide_head(config: Config) -> int:
    return int(str(of_wide_layers(config, "head_dim", config["global_head_dim"]) or config["head_dim"]))


def kv_heads(config: Config) -> int | list[int]:
    usual = config["num_key_value_heads"]
    given = config.get("num_global_key_value_heads") if config["attention_k_eq_v"] else None
    wide = of_wide_layers(config, "num_key_value_heads", given)
    return [usual if windowed else int(str(wide)) for windowed in window_pattern(config)] if wide else usual


def feed_forward_lengths(config: Config) -> int | list[int]:
    """Return the nets' widths; the last layers, which share keys and values, may have nets of twice the width."""
    width, count, shared = (config[key] for key in ("intermediate_size", "num_hidden_layers", "num_kv_shared_layers"))
    return [width] * (count - shared) + [2 * width] * shared if config["use_double_wide_mlp"] else width


def proportional_freqs(config: Config) -> Iterable[Tensor]:
    """Return `rope_freqs.weight`: pairs that don't rotate are slowed down to a standstill."""
    if rope_scaling(config, "rope_type") != "proportional":
        raise ModelError("config.json has another rope_type for full_attention than 'proportional', which Gemma 4 has")
    if local := config.get("rope_scaling_local"):
        rope_type = local["rope_type"]
        raise ModelError(
            f"config.json scales windowed layers' rope ({rope_type}), which Gemma 4's files cannot express"
        )
    pairs = wide_head(config) // 2
    rotating = int(wide_head(config) * config["partial_rotary_factor"] / 2)
    yield from_array("rope_freqs.weight", np.array([1.0] * rotating + [1e30] * (pairs - rotating), np.float32))


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return widths and heads of both layer types; a global layer without values uses keys as values."""
    own = range(keys["block_count"] - keys.get("attention.shared_kv_layers"))
    windowed, widths = keys["attention.sliding_window_pattern"], keys["feed_forward_length"]
    heads: int | list[int] = keys["attention.head_count_kv"]
    alike = any(f"blk.{i}.attn_v.weight" not in tensors for i in own if not windowed[i])
    config: ConfigKeys = {
        "model_type": "gemma4_text",
        "architectures": ["Gemma4ForCausalLM"],
        "partial_rotary_factor": None,
        "head_dim": keys["attention.key_length_swa"],
        "global_head_dim": keys["attention.key_length"],
        "intermediate_size": widths[0] if isinstance(widths, list) else widths,
        "use_double_wide_mlp": isinstance(widths, list),
        "attention_k_eq_v": alike,
        "hidden_size_per_layer_input": keys["embedding_length_per_layer_input"],
        "enable_moe_block": "blk.0.ffn_gate_inp.weight" in tensors,
        "num_experts": keys.stored("expert_count"),
    }
    if isinstance(heads, int):
        config["num_key_value_heads"] = heads
    else:
        pairs = [*zip(heads, windowed, strict=True)]
        wide, usual = ([count for count, each in pairs if bool(each) is is_windowed] for is_windowed in (False, True))
        if not alike:
            raise ModelError("layers have several numbers of key-value heads, and values separate from keys")
        config |= {"num_key_value_heads": [*usual, *wide][0], "num_global_key_value_heads": wide[0]}
    if (table := tensors.get("per_layer_token_embd.weight")) is not None:
        config["vocab_size_per_layer_input"] = table.shape[0]
    return config


GEMMA4 = GEMMA3.derive(
    name="gemma4",
    hf_classes=("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4TextModel"),
    vocab=("plain_bpe",),
    vocab_user_defined=(  # visible in decoded chats
        "<|channel>",
        "<channel|>",
        "<|tool_call>",
        "<tool_call|>",
        "<|tool_response>",
        "<tool_response|>",
        '<|"|>',
    ),
    metadata={
        **dict.fromkeys(SCALING),
        "feed_forward_length": feed_forward_lengths,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": wide_head,
        "attention.value_length": wide_head,
        "attention.key_length_swa": "head_dim",
        "attention.value_length_swa": "head_dim",
        "attention.sliding_window_pattern": window_pattern,
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "attention.scale": None,
        "embedding_length_per_layer_input": lambda config: config.get("hidden_size_per_layer_input") or 0,
        "expert_used_count": "top_k_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "rope.dimension_count": wide_head,
        "rope.dimension_count_swa": "head_dim",
    },
    absent={"final_logit_softcapping": 30.0, "attention.scale": 1.0},  # the head width does not scale q·k
    defaults={
        "num_hidden_layers": 30,
        "global_head_dim": 512,
        "sliding_window": 512,
        "rope_scaling": {"rope_type": "proportional"},
        "partial_rotary_factor": 0.25,
        "hidden_size_per_layer_input": 256,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "vocab_size": 262_144,
    },
    keys={"use_bidirectional_attention": Either((FLAG, Text(("all", "vision"))))},
    refused={"use_bidirectional_attention": "all"},
    config_from_gguf=config_from_gguf,
    generated=(proportional_freqs,),
    rope_parameters="by type",
    tensors={
        **{name: TensorMap(to.name) if isinstance(to, TensorMap) else to for name, to in GEMMA3.tensors.items()},
        "embed_tokens_per_layer": "per_layer_token_embd",
        "per_layer_model_projection": "per_layer_model_proj",
        "per_layer_projection_norm": "per_layer_proj_norm",
        ".per_layer_input_gate": "inp_gate",
        ".per_layer_projection": "proj",
        ".post_per_layer_input_norm": "post_norm",
        ".layer_scalar": "layer_output_scale.weight",
        ".router.proj": "ffn_gate_inp",
        ".router.scale": "ffn_gate_inp.scale",
        ".router.per_expert_scale": "ffn_down_exps.scale",
        ".experts.gate_up_proj": "ffn_gate_up_exps.weight",
        ".experts.down_proj": "ffn_down_exps.weight",
        ".pre_feedforward_layernorm_2": "pre_ffw_norm_2",
        ".post_feedforward_layernorm_1": "post_ffw_norm_1",
        ".post_feedforward_layernorm_2": "post_ffw_norm_2",
    },
    layers_vary=True,
    block={
        "net": after_dense("experts+dense"),
        "window_period": 0,
        "images_in_windows": True,
        "normalize_experts": True,
        "qkv_steps": ("clamp", "norm_values", "norm", "rope"),
    },
)


def sparsity(config: Config) -> list[float]:
    """Return for each layer the multiple of the standard deviation that an activation has to exceed; as torch computes
    it.
    """
    shares, count = config.get("activation_sparsity_pattern"), config["num_hidden_layers"]
    if shares is None:
        sparse = 10 if count > 10 else 0
        shares = [0.95] * sparse + [0.0] * (count - sparse)
    return [_multiple(share) for share in (shares if isinstance(shares, list) else [shares] * count)]


def _multiple(share: float) -> float:
    if share <= 0:
        return -math.inf
    at = np.float32(2) * np.float32(share) - np.float32(1)
    root = np.float32(math.sqrt(2))
    return float(np.float32(NormalDist().inv_cdf((1 + float(at)) / 2) / math.sqrt(2)) * root)


def for_each_token(tensor: Tensor, config: Config) -> Tensor:
    """Return the tensor with zero rows appended for tokens that the table lacks."""
    missing = int(config["vocab_size"]) - tensor.shape[0]
    if missing <= 0:
        return tensor
    return concatenated([tensor, zeros(tensor, missing)], tensor.name)


GEMMA4_UNIFIED = GEMMA4.derive(
    hf_classes=("Gemma4UnifiedForConditionalGeneration",),
    config_from_gguf=becomes("Gemma4ForCausalLM"),
    defaults={"hidden_size_per_layer_input": 0, "sliding_window": 1024},
)


def _share(multiple: float) -> float:
    """Return the share that `_multiple` gives the multiple for, in as few digits as reproduce it."""
    if multiple == -math.inf:
        return 0.0
    exact = NormalDist().cdf(multiple)
    return next(
        (
            each
            for each in (round(exact, digits) for digits in range(2, 10))
            if np.float32(_multiple(each)) == np.float32(multiple)
        ),
        exact,
    )


def gemma3n_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return only the text model's config; its tables of per-layer inputs have a row for every token, as in files."""
    return {
        "architectures": ["Gemma3nForCausalLM"],
        "intermediate_size": keys["feed_forward_length"],
        "head_dim": keys["attention.key_length"],
        "altup_correct_scale": True,
        "partial_rotary_factor": None,
        "activation_sparsity_pattern": [_share(each) for each in keys["activation_sparsity_scale"]],
        "hidden_size_per_layer_input": keys["embedding_length_per_layer_input"],
        "vocab_size_per_layer_input": tensors["per_layer_token_embd.weight"].shape[0],
        "laurel_rank": tensors["blk.0.laurel_l.weight"].shape[0],
    }


DEVIATIONS = 1.6448533535003662  # 95% of values are below

GEMMA3N = GEMMA4.derive(
    name="gemma3n",
    hf_classes=("Gemma3nForConditionalGeneration", "Gemma3nForCausalLM", "Gemma3nTextModel"),
    vocab=("sentencepiece", "bpe"),
    generated=FACTORS,
    config_from_gguf=gemma3n_from_gguf,
    rope_parameters="",
    keys={"intermediate_size": Either((NET_WIDTH, ListOf(NET_WIDTH, per_layer=True)))},
    float32=("*.altup_correct_coef.weight", "*.altup_predict_coef.weight"),
    metadata={
        **SCALING,
        **{key: COMMON[key] for key in ("attention.head_count_kv", "attention.key_length", "attention.value_length")},
        **dict.fromkeys(key for key in GEMMA4.metadata if key.endswith("_swa") and key != "rope.freq_base_swa"),
        "feed_forward_length": lambda config: (
            width if isinstance(width := config["intermediate_size"], list) else [width] * config["num_hidden_layers"]
        ),
        "attention.sliding_window_pattern": lambda config: windowed_layers(config, lambda layer: (layer + 1) % 5 != 0),
        "rope.dimension_count": None,
        "expert_used_count": None,
        "expert_feed_forward_length": None,
        "altup.active_idx": "altup_active_idx",
        "altup.num_inputs": "altup_num_inputs",
        "activation_sparsity_scale": sparsity,
    },
    absent={
        "attention.shared_kv_layers": Derived(
            "all layers but the first 20", lambda keys: max(0, keys.layer_count - 20)
        ),
        "activation_sparsity_scale": Derived(
            "1.645 standard deviations in the first 10 layers",
            lambda keys: [DEVIATIONS if i < 10 else -math.inf for i in range(keys.layer_count)],
        ),
    },
    defaults={
        "model_type": "gemma3n_text",
        "hidden_size": 2048,
        "intermediate_size": 16_384,
        "num_hidden_layers": 35,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "rope_scaling": None,
        "partial_rotary_factor": None,
        "final_logit_softcapping": 30.0,
        "altup_active_idx": 0,
        "altup_num_inputs": 4,
        "num_kv_shared_layers": 15,
        "vocab_size": 262_400,
    },
    refused={"altup_correct_scale": False, "altup_num_inputs": lambda count: count != 4},
    tensors={
        "embed_tokens": TensorMap("token_embd", Invertible(for_each_token)),
        "embed_tokens_per_layer": TensorMap("per_layer_token_embd", Invertible(for_each_token)),
        "altup_projections.{e}": TensorMap("altup_proj", stack=True),
        "altup_unembed_projections.{e}": TensorMap("altup_unembd_proj", stack=True),
        ".altup.correct_output_scale": "altup_correct_scale.weight",
        ".altup.correction_coefs": "altup_correct_coef",
        ".altup.prediction_coefs": "altup_predict_coef",
        ".altup.modality_router": "altup_router",
        ".altup.router_norm": "altup_router_norm",
        ".laurel.linear_left": "laurel_l",
        ".laurel.linear_right": "laurel_r",
        ".laurel.post_laurel_norm": "laurel_post_norm",
    },
    block={"window_period": 5, "arrangement": "copies"},
)
