"""Llama-Nemotron (Super): Llama 3 with parts of layers removed (Puzzle): layers without attention, nets of different
widths, different numbers of key-value heads.

Layers with one matrix in place of attention, and empty ones (Ultra), are refused. In Deci's own DeciLM-7B only the
key-value heads differ by layer. Reference: the code of their checkpoints; llama.cpp's graph.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from archs.families.llama import LLAMA
from archs.layer_types import where_wide, with_kv_heads
from archs.spec import Computed, Config, ConfigKeys, GgufKeys, Index, TensorMap, Tensors
from archs.transforms import reordered
from quants.errors import FormatError, ModelError

MULTIPLE = 256  # of nets' widths


def blocks(config: Config) -> Iterator[tuple[Any, Any]]:
    """Return attention and net of each layer, as the config describes them. Raises ModelError if it does not."""
    for number, block in enumerate(config["block_configs"]):
        attention, net = (block.get(key) if isinstance(block, dict) else None for key in ("attention", "ffn"))
        if not isinstance(attention, dict) or not isinstance(net, dict):
            raise ModelError(f"config.json: block_configs[{number}] does not say what attention and net it has")
        if attention.get("n_heads_in_group") is None and net.get("ffn_mult") is None:
            raise ModelError(f"config.json: layer {number} has neither attention nor a net, which is not supported")
        yield attention, net


def kv_heads(config: Config) -> int | list[int]:
    """Return the key-value heads of each layer; 0 without attention."""
    if not config.get("block_configs"):
        return config.get("num_key_value_heads_per_layer") or int(config["num_key_value_heads"])
    counts = []
    for attention, _ in blocks(config):
        if attention.get("replace_with_linear"):
            raise ModelError("config.json replaces attention by one matrix in some layers, which is not supported")
        group = attention.get("n_heads_in_group")
        if group is not None and (not isinstance(group, int) or not 0 < group <= config["num_attention_heads"]):
            raise ModelError(f"config.json: n_heads_in_group is {group!r}, no number of heads")
        counts.append(config["num_attention_heads"] // group if group else 0)
    return counts


def heads(config: Config) -> int | list[int]:
    if not config.get("block_configs"):
        return int(config["num_attention_heads"])
    groups = kv_heads(config)
    return [config["num_attention_heads"] if group else 0 for group in groups] if isinstance(groups, list) else groups


def net_width(config: Config) -> int | list[int]:
    """Return the net's width in each layer; 0 without a net."""
    if not config.get("block_configs"):
        return int(config["intermediate_size"])
    factors = [net.get("ffn_mult") or 0.0 for _, net in blocks(config)]
    if not all(isinstance(factor, int | float) and 0 <= factor < 1000 for factor in factors):
        raise ModelError("config.json: ffn_mult of block_configs is no number")
    return [-(-int(2 * factor * config["hidden_size"] / 3) // MULTIPLE) * MULTIPLE for factor in factors]


def width(config: Config) -> int:
    """Return the width of a head."""
    return int(config["hidden_size"] // config["num_attention_heads"])


@reordered
def interleaved(rows: int, config: Config) -> Index:
    """Return rotating pairs as neighbours, in heads of one width."""
    if rows % width(config) or width(config) % 2:
        raise FormatError(f"{rows} rows; heads are {width(config)} wide")
    index: Index = np.arange(rows).reshape(-1, 2, width(config) // 2).swapaxes(1, 2).reshape(-1)
    return index


def if_blocks(value: Computed) -> Computed:
    return lambda config: value(config) if config.get("block_configs") else None


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the parts of each layer. Raises ModelError for a net width that the model's code cannot express."""
    count, groups, widths = keys["attention.head_count"], keys["attention.head_count_kv"], keys["feed_forward_length"]
    if not isinstance(count, list):
        one = {"num_key_value_heads": groups} if isinstance(groups, int) else {"num_key_value_heads_per_layer": groups}
        return {"model_type": "deci", "num_key_value_heads": ..., "intermediate_size": widths, **one}
    widths = widths if isinstance(widths, list) else [widths] * len(count)
    attention = [count[i] // groups[i] if groups[i] else None for i in range(len(count))]
    hidden = keys["embedding_length"]
    factors = [round(3 * width / (2 * hidden), 6) if width else None for width in widths]
    config: ConfigKeys = {
        "num_attention_heads": max(count),
        "num_key_value_heads": None,
        "intermediate_size": None,
        "hidden_size": hidden,
        "block_configs": [
            {
                "attention": {"n_heads_in_group": group, "no_op": group is None, "replace_with_linear": False},
                "ffn": {"ffn_mult": factor, "no_op": factor is None, "replace_with_linear": False},
            }
            for group, factor in zip(attention, factors, strict=True)
        ],
    }
    if net_width(config) != widths:
        raise ModelError(f"its nets are {sorted({*widths})} wide; their code makes multiples of {MULTIPLE}")
    return config


DECI = LLAMA.derive(
    name="deci",
    hf_classes=("DeciLMForCausalLM",),
    metadata={
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "feed_forward_length": net_width,
        "attention.key_length": if_blocks(width),
        "attention.value_length": if_blocks(width),
    },
    defaults={"model_type": "nemotron-nas", "head_dim": None, "vocab_size": 128_256},
    tensors={
        ".self_attn.q_proj": TensorMap("attn_q", interleaved),
        ".self_attn.k_proj": TensorMap("attn_k", interleaved),
    },
    config_from_gguf=config_from_gguf,
    layers_vary=True,
    activation="hidden_act",
    block={"mixer": with_kv_heads("attention", "none"), "net": where_wide},
)
