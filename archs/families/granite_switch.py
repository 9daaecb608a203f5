"""Granite Switch: Granite's layers with adapters (LoRA) inside; a control token in the text switches one on for itself
and the tokens after it.

Adapters are stacked, with one of zeros first that stands for none. A head without weights determines the active one: it
attends to all control tokens so far, and gives the mean of their adapters' numbers, rounded. A control token is read as
a substitute token. Reference: llama.cpp's converter and graph; for the export the code published as `granite-switch`.
"""

import numpy as np

from archs.config import required, unless_tied
from archs.experts import gate_and_up
from archs.families.granite import GRANITE
from archs.families.granite import hparams_hook as granite_numbers
from archs.hparams.config_keys import SOME_LAYERS
from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import HParams
from archs.spec import Config, ConfigKeys, GgufKeys, Index, Target, TensorMap, Tensors
from archs.transforms import Invertible, concatenated, reordered, reshape, take, zeros
from quants import Tensor, from_array
from quants.errors import FormatError, ModelError


def pairs(rows: int, heads: int) -> Index:
    """Return the rows of heads so that rotating pairs are adjacent."""
    if rows % (2 * heads):
        raise FormatError(f"{rows} rows; {heads} heads of an even width don't divide them")
    index: Index = np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
    return index


def fused(rows: int, config: Config) -> Index:
    """Return all q, all k, all v rows."""
    heads, others = required(config, "num_attention_heads"), required(config, "num_key_value_heads")
    width = rows // (heads + 2 * others)
    q, k = heads * width, others * width
    return np.concatenate([pairs(q, heads), q + pairs(k, others), np.arange(q + k, rows)])


def adapters(heads: str = "") -> Invertible:
    """Return adapters (count, 1, rows, width), with zeros first. heads: the key that counts the heads whose rows
    rotate.
    """

    def ordered(flat: Tensor, rows: int, config: Config, *, back: bool) -> Tensor:
        if not heads:
            return flat
        order = pairs(rows, required(config, heads))
        order = np.argsort(order) if back else order
        return take(flat, (np.arange(flat.rows // rows)[:, None] * rows + order).reshape(-1))

    def inverse(tensor: Tensor, config: Config) -> Tensor:
        if len(tensor.shape) != 3:
            raise FormatError(f"{tensor.where} has shape {list(tensor.shape)}; (adapters, rows, width) was expected")
        count, rows, width = tensor.shape
        if tensor.float32(0, rows).any():
            raise ModelError(f"the first adapter of {tensor.name!r} is not zero; it stands for none")
        flat = take(reshape(tensor, (count * rows, width)), np.arange(rows, count * rows))
        return reshape(ordered(flat, rows, config, back=True), (count - 1, 1, rows, width))

    def transform(tensor: Tensor, config: Config) -> Tensor:
        if len(tensor.shape) != 4 or tensor.shape[1] != 1:
            raise FormatError(f"{tensor.where} has shape {list(tensor.shape)}; (adapters, 1, rows, width) was expected")
        count, _, rows, width = tensor.shape
        flat = ordered(reshape(tensor, (count * rows, width)), rows, config, back=False)
        return reshape(concatenated([zeros(flat, rows), flat], tensor.name), (count + 1, rows, width))

    return Invertible(transform, inverse)


def layers(config: Config) -> int:
    """Return the number of layers; the last counted one is the switch, which has no weights."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    if config.get("projection_head_dim") not in (None, width // heads):
        raise ModelError("config.json has a projection_head_dim that is not hidden_size / num_attention_heads")
    return int(config["num_hidden_layers"]) - 1


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the config. Its class wants each adapter's rank, of which files have only the largest."""
    return {
        "num_hidden_layers": keys["block_count"] + 1,
        "num_local_experts": 0,
        "position_embedding_type": "rope",
        "shared_intermediate_size": keys["feed_forward_length"],
        "adapter_ranks": [keys["adapters.lora_rank"]] * keys["adapters.count"],
    }


def with_control_tokens(config: Config, tensors: Tensors) -> Tensors:
    """Return the tensors with those that the class keeps and files have as keys: control tokens, and each token's
    substitute (-1: itself).
    """
    tokens, others = (config[f"adapter_{name}token_ids"] for name in ("", "substitute_"))
    read_as = np.full(max(config["vocab_size"], *(token + 1 for token in tokens)), -1, np.int64)
    read_as[tokens] = others
    values = {"adapter_token_ids": np.array(tokens, np.int64), "switch.control_to_substitute_lut": read_as}
    return {**tensors, **{f"model.{name}": from_array(f"model.{name}", each) for name, each in values.items()}}


def hparams_hook(keys: Keys, usual: HParams) -> HParams:
    """Raise ModelError if lists of control tokens don't match the adapters."""
    for key in ("adapters.token_ids_activate", "adapters.token_ids_substitute"):
        items, count = len(keys.get(key)), keys.need("adapters.count")
        if items != count:
            raise ModelError(f"'{keys.architecture}.{key}' has {items} items; there are {count} adapters")
    return granite_numbers(keys, usual)


def of(source: str, *targets: tuple[str, str]) -> dict[str, Target]:
    """Return the adapters of a matrix, or of several fused ones; each with the key that counts its rotating heads, or
    "".
    """
    rules: dict[str, Target] = {}
    for i, (name, heads) in enumerate(targets):
        a, b = (f"lora_{each}_slices.{i}" if len(targets) > 1 else f"lora_{each}" for each in "AB")
        rules[f"{source}.{a}"] = TensorMap(f"{name}.lora_a", adapters())
        rules[f"{source}.{b}"] = TensorMap(f"{name}.lora_b", adapters(heads))
    return rules


GRANITE_SWITCH = GRANITE.derive(
    name="graniteswitch",
    hf_classes=("GraniteSwitchForCausalLM",),
    keys={"num_hidden_layers": SOME_LAYERS},  # one more than the checkpoint has
    metadata={
        "block_count": layers,
        "expert_used_count": lambda config: 0,
        "deepstack_mapping": None,
        "expert_shared_feed_forward_length": "shared_intermediate_size",
        "adapters.count": "num_adapters",
        "adapters.lora_rank": "max_lora_rank",
        "adapters.token_ids_activate": "adapter_token_ids",
        "adapters.token_ids_substitute": "adapter_substitute_token_ids",
        "adapters.router_gain": "control_token_gain",
    },
    defaults={"model_type": "granite_switch", "hidden_act": "silu", "control_token_gain": 15.0},
    tensors={
        **dict.fromkeys((f".self_attn.{each}_proj" for each in "qkv"), None),
        **dict.fromkeys((f".mlp.{each}_proj" for each in ("gate", "up", "down")), None),
        ".self_attn.o_proj": None,
        "lm_head": TensorMap(unless_tied("output")),
        ".self_attn.qkv_proj.base_layer": TensorMap("attn_qkv", reordered(fused)),
        **of(
            ".self_attn.qkv_proj", ("attn_q", "num_attention_heads"), ("attn_k", "num_key_value_heads"), ("attn_v", "")
        ),
        ".self_attn.o_proj.base_layer": "attn_output",
        **of(".self_attn.o_proj", ("attn_output", "")),
        ".shared_mlp.input_linear.base_layer": gate_and_up(""),
        **of(".shared_mlp.input_linear", ("ffn_gate", ""), ("ffn_up", "")),
        ".shared_mlp.output_linear.base_layer": "ffn_down",
        **of(".shared_mlp.output_linear", ("ffn_down", "")),
    },
    ignored=("switch.*", "*adapter_token_ids", "*control_to_substitute_lut"),
    config_from_gguf=config_from_gguf,
    prepare_export=with_control_tokens,
    block={"hparams_hook": hparams_hook},
)
