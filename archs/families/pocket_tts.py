"""Pocket TTS (text model): GPT's layers with rotation, whose states a net in the encoders' file turns into audio
(`archs/multimodal/pocket_tts.py`). It generates no text: the logits against its table are never sampled.

Published checkpoints have no config.json; shapes of tensors identify them. Learned vectors for the beginning of a voice
and of audio become rows of the table. Reference: llama.cpp's converter and graph; transformers `models/pocket_tts/`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from archs.families.gpt import GPT
from archs.spec import Config, Floats, TensorMap, Tensors
from archs.tensor_maps import not_exportable
from archs.transforms import as_float32, computed, concatenated, part, reshape
from archs.typed_json import Whole
from quants.errors import ModelError

CLASS, HEAD = "PocketTTSModel", 64  # the width of every head
TABLE, VOICE, BEGIN, INTO = (
    f"flow_lm.{name}" for name in ("conditioner.embed.weight", "bos_before_voice", "bos_emb", "input_linear.weight")
)
LAYERS = {"": "flow_lm.transformer", "audio_config": "mimi.encoder_transformer.transformer"}


def config_of(tensors: Tensors) -> Mapping[str, Any] | None:
    """Return the config of a checkpoint without one, by its tensors; None for another model's."""
    parts = {name: _layers(tensors, begins) for name, begins in LAYERS.items()}
    if not {TABLE, BEGIN, INTO} <= {*tensors} or not all(parts.values()) or not tensors[TABLE].shape:
        return None
    rows = tensors[TABLE].shape[0] + 1 + (VOICE in tensors)
    return {
        "architectures": [CLASS],
        "model_type": "pockettts",
        "max_position_embeddings": 4096,
        "vocab_size": rows,
        "rope_theta": 10_000.0,
        "layer_norm_eps": 1e-5,
        "insert_bos_before_voice": VOICE in tensors,
        **parts.pop(""),
        **parts,
    }


def _layers(tensors: Tensors, begins: str) -> dict[str, int]:
    """Return the number of layers and their width; empty if there are none."""
    layers = {match[1] for name in tensors if (match := re.fullmatch(rf"{begins}\.layers\.(\d+)\.norm1\.weight", name))}
    norm, net = (tensors.get(f"{begins}.layers.0.{name}.weight") for name in ("norm1", "linear1"))
    if norm is None or net is None or not norm.shape or not net.shape:
        return {}
    return {
        "num_hidden_layers": len(layers),
        "hidden_size": norm.shape[0],
        "intermediate_size": net.shape[0],
        "num_attention_heads": max(1, norm.shape[0] // HEAD),
    }


def with_one_table(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the table with the rows that are learned separately; none if some are missing."""
    others = {name: each for name, each in tensors.items() if name not in (TABLE, VOICE, BEGIN, INTO)}
    if not {TABLE, BEGIN, INTO} <= {*tensors}:
        return config, others
    table, matrix = tensors[TABLE], tensors[INTO]
    if len(table.shape) != 2 or matrix.shape != (table.width, tensors[BEGIN].size):
        raise ModelError(
            f"{matrix.where} has shape {list(matrix.shape)}; the table's is {list(table.shape)}, and {BEGIN} has "
            f"{tensors[BEGIN].size} values"
        )

    def projected(x: Floats) -> Floats:
        product: Floats = x @ matrix.float32().T
        return product

    voice = tensors.get(VOICE)
    if voice is not None and voice.size != table.width:
        raise ModelError(f"{voice.where} has {voice.size} values; the table's rows have {table.width}")
    begin = reshape(tensors[BEGIN], (1, tensors[BEGIN].size))
    rows = [table, *([reshape(voice, (1, table.width))] if voice is not None else [])]
    rows.append(replace(computed(begin, projected), shape=(1, table.width)))
    return config, {TABLE: concatenated([as_float32(each) for each in rows], TABLE), **others}


def extra_tokens(config: Config) -> list[str]:
    """Return names of the rows after the tokenizer's pieces, the table's own last one among them."""
    return ["<|pad|>", *(["<|bos_before_voice|>"] if config.get("insert_bos_before_voice") else []), "<|audio_bos|>"]


POCKET_TTS = GPT.derive(
    name="pockettts",
    hf_classes=(CLASS,),
    vocab=("unigram",),
    config_of_tensors=config_of,
    prepare=with_one_table,
    layers="layers",
    extra_tokens=extra_tokens,
    prefixes=("flow_lm", "transformer"),
    metadata={
        "rope.freq_base": "rope_theta",
        "tokenizer.ggml.add_bos_token": lambda config: False,
        "tokenizer.ggml.add_eos_token": lambda config: False,
    },
    defaults={"model_type": "pockettts"},
    keys={"vocab_size": Whole(1, 1 << 24)},  # more rows than any tensor has
    tensors={
        "conditioner.embed": "token_embd",
        "out_norm": "output_norm",
        ".norm1": "attn_norm",
        ".norm2": "ffn_norm",
        ".self_attn.in_proj": tuple(TensorMap(f"attn_{name}", part(i, 3)) for i, name in enumerate("qkv")),
        ".self_attn.out_proj": "attn_output",
        ".linear1": "ffn_up",
        ".linear2": "ffn_down",
    },
    config_from_gguf=not_exportable,
    activation="",
    block={"rope": "adjacent", "activation": "gelu_tanh"},
)
