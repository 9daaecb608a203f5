"""MiMo V2 Flash: windows with sinks and more key-value heads in most layers, each type with a rotary base of its own;
values are narrower than keys, and attention's output is scaled. DeepSeek V3's routing without shared experts.

MiMo V2.5 (text): the same with q, k and v fused. In FP8 checkpoints their rows are ordered by the processors that
trained them, each with its share of queries, keys and values and scales for blocks of these rows; here they are put
together. Reference: transformers `models/mimo_v2_flash/`, which attends to `sliding_window_size` tokens besides a token
itself: if a config has that key the window is one more than llama.cpp writes. It reads rotary bases only from
`rope_parameters`; published configs state its defaults.
"""

import itertools
import re

import numpy as np

from archs.config import changed, head_dim, lookup
from archs.experts import ROUTING, always, net_types, renormalized
from archs.families.deepseek2 import DOTS1
from archs.hparams.file_keys import with_window
from archs.layer_types import EXPERTS_OR_DENSE
from archs.prequantized.fp4 import mxfp4
from archs.prequantized.scaled import scaled_weights
from archs.spec import Config, ConfigKeys, GgufKeys, Tensors
from archs.tensor_maps import MTP_KEYS, MTP_TENSORS, mtp_layers
from archs.transforms import concatenated, take
from quants import Tensor
from quants.errors import ModelError


def window_pattern(config: Config) -> list[int]:
    """Return 1 for each layer with a window, MTP layers included."""
    if layer_types := config.get("layer_types"):
        windowed = [int(layer_type == "sliding_attention") for layer_type in layer_types]
    elif layer_types := config.get("hybrid_layer_pattern"):
        windowed = [int(layer_type) for layer_type in layer_types]
    else:
        windowed = [int(i > 0 and (i + 1) % 6 > 0) for i in range(config["num_hidden_layers"])]
    return windowed + [1] * config["num_nextn_predict_layers"]


def kv_heads(config: Config) -> list[int]:
    some = config["num_key_value_heads"]
    more = config.get("swa_num_key_value_heads") or 2 * some
    return [more if windowed else some for windowed in window_pattern(config)]


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return layer types and their key-value heads. Raises ModelError if layers of one type differ in these."""
    count = keys["block_count"] - keys.get("nextn_predict_layers")
    windowed, heads = keys["attention.sliding_window_pattern"], keys["attention.head_count_kv"]
    full, local = (
        {n for n, each in zip(heads, windowed, strict=True) if bool(each) is is_windowed}
        for is_windowed in (False, True)
    )
    if len(full) > 1 or len(local) > 1:
        raise ModelError("layers of one type have several numbers of key-value heads")
    some = next(iter(full), next(iter(local), 0) // 2)
    if local - {2 * some}:
        raise ModelError(f"windows have {next(iter(local))} key-value heads where transformers expects {2 * some}")
    return {
        **net_types(keys, tensors),
        "num_key_value_heads": some,
        "swa_num_key_value_heads": 2 * some,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in windowed[:count]],
        "routed_scaling_factor": keys.get("expert_weights_scale"),
    }


def published(config: Config, tensors: Tensors) -> Tensors:
    """Return MTP layers under their published names."""
    last, source = config["num_hidden_layers"], {}
    for name, tensor in tensors.items():
        part = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
        if part and int(part[1]) >= last:
            place = part[2].replace("post_attention_layernorm", "pre_mlp_layernorm")
            name = f"model.mtp.layers.{int(part[1]) - last}.{place}"
        source[name] = tensor.renamed(name)
    return source


MIMO2 = DOTS1.derive(
    name="mimo2",
    hf_classes=("MiMoV2FlashForCausalLM",),
    vocab=("bpe",),
    prepare=mtp_layers,
    config_from_gguf=config_from_gguf,
    prepare_export=published,
    rope_parameters="by type",
    legacy_names=("layers.{i}.pre_mlp_layernorm",),
    metadata={
        **ROUTING,
        **MTP_KEYS,
        "expert_gating_func": always("sigmoid"),
        "leading_dense_block_count": None,
        "attention.head_count_kv": kv_heads,
        "attention.value_length": "v_head_dim",
        "attention.sliding_window": lambda config: (
            config["sliding_window_size"] + 1 if config.get("sliding_window_size") else config["sliding_window"]
        ),
        "attention.sliding_window_pattern": window_pattern,
        "rope.freq_base_swa": "rope_local_base_freq|swa_rope_theta",
        "rope.dimension_count": lambda config: int(head_dim(config) * config["partial_rotary_factor"]),
        "attention.layer_norm_rms_epsilon": "layernorm_epsilon|rms_norm_eps",
        "attention.value_scale": "attention_value_scale",
        "expert_weights_norm": renormalized(usual=True),
        "expert_weights_scale": lambda config: (
            None if lookup(config, "routed_scaling_factor") in (None, 1) else config["routed_scaling_factor"]
        ),
    },
    defaults={
        "model_type": "mimo_v2_flash",
        "hidden_size": 4096,
        "intermediate_size": 16_384,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "sliding_window": 129,
        "rope_theta": 5_000_000.0,
        "swa_rope_theta": 10_000.0,
        "partial_rotary_factor": 0.334,
        "attention_value_scale": 0.707,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
        "vocab_size": 152_576,
    },
    # with scaled rope, transformers rotates whole heads if the settings name no share
    refused={"rope_scaling": lambda scaling: bool(scaling) and "partial_rotary_factor" not in scaling},
    tensors={
        ".self_attn.sinks": "attn_sinks.weight",
        ".self_attn.attention_sink_bias": "attn_sinks.weight",
        ".pre_mlp_layernorm": "ffn_norm",
        ".final_layernorm": "layer_output_norm",
        **MTP_TENSORS,
        ".self_attn.q_norm": None,
        ".self_attn.k_norm": None,
    },
    absent={"rope.freq_base_swa": with_window(10_000.0), "expert_gating_func": None},
    block={"scoring": "sigmoid", "normalize_experts": True, "scales_windowed_rope": False, "net": EXPERTS_OR_DENSE},
)


FUSED = re.compile(r"(?:.*\.)?layers\.(\d+)\.self_attn\.qkv_proj\.weight")
EXPERT = re.compile(r".*\.mlp\.experts\.\d+\.\w+\.weight")
RANKS = (8, 4)


def put_together(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return MTP layers after the others, rows of q, k and v in one piece each, experts in MXFP4."""
    settings = config.get("quantization_config") or {}
    windowed, named = window_pattern(changed(config, num_nextn_predict_layers=0)), dict(tensors)
    for name, tensor in tensors.items():
        scale = f"{name}_scale_inv"
        if (fused := FUSED.fullmatch(name)) and scale in tensors:
            local = ".mtp." in name or bool(windowed[int(fused[1])])
            heads = config["num_attention_heads"], kv_heads_of(config, local)
            widths = (heads[0] * config["head_dim"], heads[1] * config["head_dim"], heads[1] * config["v_head_dim"])
            named[name] = by_ranks(tensor, named.pop(scale), widths, settings.get("weight_block_size") or [128, 128])
        elif EXPERT.fullmatch(name) and tensor.format.name == "U8" and f"{name}_scale" in tensors:
            named[name] = mxfp4(name, tensor, named.pop(f"{name}_scale"))
    return mtp_layers(config, named)


def kv_heads_of(config: Config, windowed: bool) -> int:
    some = int(config["num_key_value_heads"])
    return int(config.get("swa_num_key_value_heads") or 2 * some) if windowed else some


def by_ranks(weight: Tensor, scale: Tensor, widths: tuple[int, ...], blocks: list[int]) -> Tensor:
    """Return rows stored in shares of several ranks, with scales of their own, as all of q, all of k, all of v in
    float32. Raises ModelError if no number of ranks explains the scales.
    """
    total = sum(widths)
    count = next((n for n in RANKS if total % n == 0 and scale.shape[0] == n * -(-(total // n) // blocks[0])), 0)
    if weight.shape[0] != total or not count:
        shapes = f"{list(weight.shape)} with scales {list(scale.shape)}"
        raise ModelError(f"{weight.where} has shape {shapes}, which are no rows of {RANKS[1]} or {RANKS[0]} ranks")
    rows, high, parts = total // count, scale.shape[0] // count, []
    for rank in range(count):
        own = {
            "w": take(weight, np.arange(rank * rows, (rank + 1) * rows)),
            "w_scale_inv": take(scale, np.arange(rank * high, (rank + 1) * high)),
        }
        parts.append(scaled_weights({key: each.renamed(key) for key, each in own.items()}, blocks)["w"])
    begins = np.cumsum([0, *(width // count for width in widths)])
    shares = [take(part, np.arange(begin, end)) for begin, end in itertools.pairwise(begins) for part in parts]
    return concatenated(shares, weight.name)


MIMO25 = MIMO2.derive(
    hf_classes=("MiMoV2ForCausalLM",),
    prepare=put_together,
    defaults={"model_type": "mimo_v2"},
    tensors={".self_attn.qkv_proj": "attn_qkv"},
)
