"""Qwen4 Exp (Qwen3.8-Flash-Next): Qwen3.5's layers with experts on several streams, of which each part of a layer reads
a gated mean; an indexer that selects blocks of keys by the mean of their low-rank keys; and one layer that adds
embeddings of n-grams from a table, indexed by hashes of token ids.

The table is published in shards, here it is one tensor. Hashes restart after an end of text: by the first of several
such ids, as in transformers (llama.cpp's converter writes the last). Reference: transformers `models/qwen4_exp/`, which
leaves MTP layers out.
"""

import itertools
import math
import re

import numpy as np

from archs.config import lookup
from archs.families.qwen2 import sections
from archs.families.qwen3next import QWEN35_MOE
from archs.families.qwen3next import config_from_gguf as next_from_gguf
from archs.spec import Computed, Config, ConfigKeys, GgufKeys, Target, TensorMap, Tensors
from archs.tensor_maps import mtp_layers, published_mtp
from archs.transforms import add_one, channels_and_taps, concatenated, share, take, transposed
from quants import from_array
from quants.errors import ModelError

SHARD = re.compile(r"(.*\.ngram_embedding)\.shard_(\d+)\.weight")
HASHES = {  # names of buffers → the config keys used here
    "layer_multipliers": "ple_multipliers",
    "ngram_heads_offsets": "ple_offsets",
    "ngram_heads_vocab_sizes": "ple_vocab_sizes",
}
OWN = tuple(HASHES.values())
TABLE = ".ple_embedding.ngram_embedding"
PARTS, PART = 512, 1 << 19  # maximum shards of an exported table, and rows of one
MTP_NAMES = {"mtp.hyper_connection_mixer.": "mtp.layers.0.nextn_hc_head."}


def prepare(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the table's shards as one, the hashes' numbers as config keys, the MTP layer as a layer."""
    layers = config.get("ple_layer_ids") or []
    if len(set(layers)) > 1:
        raise ModelError(f'config.json: "ple_layer_ids" is {layers}; one layer alone can have a table of n-grams')
    numbers, plain, shards = {}, {}, dict[str, dict[int, str]]()
    for name, tensor in tensors.items():
        key = HASHES.get(name.rpartition(".")[2])
        if key and ".ple_embedding." in name:
            if tensor.format.name != "I64":
                raise ModelError(f"{tensor.where} is {tensor.format.name}; whole numbers of 64 bits are expected")
            numbers[key] = tensor.raw().reshape(-1).view("<i8").tolist()
        elif shard := SHARD.fullmatch(name):
            shards.setdefault(shard[1], {})[int(shard[2])] = name
        else:
            old = next((old for old in MTP_NAMES if name.startswith(old)), "")
            plain[MTP_NAMES.get(old, "") + name.removeprefix(old)] = tensor
    for name, numbered in shards.items():
        if wrong := sorted(set(range(config.get("split_ngram_parts") or 1)) ^ set(numbered)):
            which = "one too many" if wrong[0] in numbered else "missing"
            raise ModelError(f'{name}: shard {wrong[0]} is {which} by config.json\'s "split_ngram_parts"')
        parts = [tensors[numbered[number]] for number in sorted(numbered)]
        plain[f"{name}.weight"] = concatenated(parts, f"{name}.weight")
    if layers and (lacking := [name for name, key in HASHES.items() if key not in numbers]):
        raise ModelError(f"the checkpoint lacks 'ple_embedding.{lacking[0]}', by which its table is looked up")
    projections = [plain.pop(f"mtp.fc_{half}.weight", None) for half in ("embedding", "hidden")]
    if projections[0] is not None and projections[1] is not None:  # side by side, as they are applied
        both = concatenated([transposed(each) for each in projections if each is not None], "mtp.fc.weight")
        plain["mtp.fc.weight"] = transposed(both)
    return mtp_layers({**config, **numbers}, plain)


def published(config: Config, tensors: Tensors) -> Tensors:
    """Undo `prepare`: the table in shards, its numbers as tensors, both halves of a projection apart."""
    source = dict(published_mtp(config, tensors))
    for new, old in MTP_NAMES.items():
        source |= {new + name.removeprefix(old): source.pop(name) for name in [*source] if name.startswith(old)}
    if (both := source.pop("mtp.fc.weight", None)) is not None:
        columns, width = transposed(both), config["hidden_size"]
        for i, half in enumerate(("embedding", "hidden")):
            name = f"mtp.fc_{half}.weight"
            source[name] = transposed(take(columns, np.arange(i * width, (i + 1) * width))).renamed(name)
    table = next((source.pop(name) for name in [*source] if name.endswith(f"{TABLE}.weight")), None)
    if table is not None:
        at = f"model.layers.{config['ple_layer_ids'][0] - 1}.ple.ple_embedding."
        for name, key in HASHES.items():
            source[at + name] = from_array(at + name, np.array(config[key], np.int64))
        each = -(-table.shape[0] // config["split_ngram_parts"])
        for number in range(config["split_ngram_parts"]):
            name = f"{at}ngram_embedding.shard_{number}.weight"
            source[name] = take(table, np.arange(number * each, min((number + 1) * each, table.shape[0]))).renamed(name)
    return source


def next_prime(number: int) -> int:
    """Return the first prime that is larger."""
    after = itertools.count(max(number + 1, 2))
    return next(each for each in after if all(each % divisor for divisor in range(2, math.isqrt(each) + 1)))


def table_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the keys that determine the n-gram table's size. Raises ModelError if none give it."""
    sizes, rows = keys["ple.head_vocab_sizes"], tensors["per_layer_token_embd.weight"].shape[0]
    if any(next_prime(before) != size for before, size in zip([sizes[0] - 1, *sizes], sizes, strict=False)):
        raise ModelError("the shares of its table of n-grams are no primes one after the other, as transformers' are")
    padded = (each for each in (128, *(1 << i for i in range(20)), rows) if -(-sum(sizes) // each) * each == rows)
    if not (divisor := next(padded, None)):
        raise ModelError(f"its table of n-grams has {rows} rows, fewer than its shares have")
    parts = min(PARTS, -(-rows // PART))
    heads = (keys["ple.ngram_size"] - 1) * keys["ple.heads_per_ngram"]
    return {
        "ple_layer_ids": [i + 1 for i in keys["ple.layers"]],
        "ngram_vocab_size_base": sizes[0],
        "make_ngram_vocab_size_divisible_by": divisor,
        "split_ngram_parts": -(-rows // -(-rows // parts)),
        "ple_embed_dim": keys["embedding_length_per_layer_input"] * heads,
        "eos_token_id": keys["ple.eos_token_id"],
        "ngram_size": keys["ple.ngram_size"],
        "heads_per_ngram": keys["ple.heads_per_ngram"],
        "ple_conv_kernel_size": keys["ple.conv_kernel"],
        "image_token_id": keys.get("ple.image_token_id"),
        "ple_multipliers": keys["ple.layer_multipliers"],
        "ple_offsets": keys["ple.head_offsets"],
        "ple_vocab_sizes": sizes,
    }


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    return {
        **next_from_gguf(keys, tensors),
        **(table_from_gguf(keys, tensors) if "ple.layers" in keys else {}),
        "indexer_kv_heads": 1,
        "indexer_compress_ratio": max(keys["attention.compress_ratios"]),
        "output_gate_type": "sigmoid",
        "mtp_num_hidden_layers": keys.get("nextn_predict_layers"),
    }


def ratios(config: Config) -> list[int]:
    """Return how many keys the indexer pools, 0 in layers without one."""
    layer_types = config.get("layer_types") or []
    every, count = config["full_attention_interval"], config["num_hidden_layers"]
    linear = [each == "linear_attention" for each in layer_types] or [(i + 1) % every != 0 for i in range(count)]
    return [0 if each else config["indexer_compress_ratio"] for each in linear] + (
        [config["indexer_compress_ratio"]] * config["num_nextn_predict_layers"]
    )


def end_of_text(config: Config) -> int | None:
    """Return the id after which n-grams restart."""
    ids: list[int] | int | None = config["eos_token_id"]
    return ids[0] if isinstance(ids, list) else ids


def of_table(key: str) -> Computed:
    """Return a key of models with an n-gram table."""
    return lambda config: lookup(config, key) if config.get("ple_layer_ids") else None


def mixer(source: str, name: str) -> dict[str, Target]:
    """Return the mixer of streams: the gated mean that a part reads, and the weights with which its output is added."""
    return {
        f"{source}.hc_norm": TensorMap(f"{name}_norm", add_one),
        f"{source}.input_mix_weight_down": f"{name}_down",
        f"{source}.input_mix_weight_up": f"{name}_up",
        f"{source}.block_inject_weight": f"{name}_inject",
    }


def queries(config: Config) -> int:
    return int(config["indexer_n_heads"] * config["indexer_head_dim"])


INDEXER: dict[str, Target] = {
    ".self_attn.indexer.index_qk_proj": (
        TensorMap("indexer.q_proj", share(lambda count, config: np.arange(queries(config)))),
        TensorMap("indexer.k_proj", share(lambda count, config: np.arange(queries(config), count))),
    ),
    ".self_attn.indexer.q_layernorm": TensorMap("indexer.q_norm", add_one),
    ".self_attn.indexer.k_layernorm": TensorMap("indexer.k_norm", add_one),
}

QWEN4_EXP = QWEN35_MOE.derive(
    name="qwen4exp",
    hf_classes=("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"),
    prepare=prepare,
    config_from_gguf=config_from_gguf,
    prepare_export=published,
    derived_keys=OWN,
    metadata={
        "feed_forward_length": None,
        "rope.dimension_sections": lambda config: sections(config) or [11, 11, 10, 0],
        "attention.recurrent_layers": lambda config: [each == 0 for each in ratios(config)],
        "hyper_connection.count": "hc_count",
        "hyper_connection.low_rank": "hc_lowrank",
        "attention.indexer.head_count": "indexer_n_heads",
        "attention.indexer.key_length": "indexer_head_dim",
        "attention.indexer.top_k": "indexer_budget",
        "attention.compress_ratios": ratios,
        "ple.layers": lambda config: [i - 1 for i in config.get("ple_layer_ids") or []] or None,
        "ple.ngram_size": of_table("ngram_size"),
        "ple.heads_per_ngram": of_table("heads_per_ngram"),
        "ple.conv_kernel": of_table("ple_conv_kernel_size"),
        "ple.eos_token_id": lambda config: end_of_text(config) if config.get("ple_layer_ids") else None,
        "ple.image_token_id": of_table("image_token_id"),
        "ple.layer_multipliers": of_table("ple_multipliers"),
        "ple.head_offsets": of_table("ple_offsets"),
        "ple.head_vocab_sizes": of_table("ple_vocab_sizes"),
        "embedding_length_per_layer_input": lambda config: (
            (config.get("ple_embed_dim") or config["hidden_size"])
            // ((config["ngram_size"] - 1) * config["heads_per_ngram"])
            if config.get("ple_layer_ids")
            else None
        ),
    },
    defaults={
        "model_type": "qwen4_exp_text",
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "hc_count": 4,
        "hc_lowrank": 320,
        "ngram_size": 3,
        "heads_per_ngram": 8,
        "ple_conv_kernel_size": 4,
        "split_ngram_parts": 512,
        "partial_rotary_factor": 1.0,  # of configs without one, other than Qwen3 Next's
    },
    refused={
        "output_gate_type": lambda value: value != "sigmoid",  # other gates of delta nets than llama.cpp's
        "rope_scaling": lambda scaling: (
            bool(scaling) and scaling.get("rope_type") == "dynamic"
        ),  # pooled keys end it there
    },
    tensors={
        ".input_layernorm": None,
        ".post_attention_layernorm": None,
        "norm": None,
        ".shared_head.norm": None,
        **mixer(".attn_hyper_connection", "hc_attn"),
        **mixer(".mlp_hyper_connection", "hc_ffn"),
        **mixer("hyper_connection_mixer", "output_hc"),
        **mixer(".nextn_hc_head", "nextn.hc_head"),
        **INDEXER,
        "layers.{i}.ple.ple_embedding.ngram_embedding": "per_layer_token_embd",
        ".ple.key_proj": "ple_key",
        ".ple.value_proj": "ple_value",
        ".ple.norm_key": TensorMap("ple_norm_key", add_one),
        ".ple.norm_query": TensorMap("ple_norm_query", add_one),
        ".ple.norm_conv": TensorMap("ple_norm_conv", add_one),
        ".ple.conv1d": TensorMap("ple_conv1d", channels_and_taps),
    },
    block={"ffn_norm": "ffn_norm", "delta_gate": "sigmoid", "arrangement": "streams"},
)
