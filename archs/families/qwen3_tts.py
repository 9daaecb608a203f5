"""Qwen3-TTS (talker): Qwen3-VL's layers, which read text and predict the first of each frame's audio codes.

Text embeddings go through a net before the layers; files hold its output, followed by the rows of the codes. The head
has rows only for the codes. The predictor of a frame's other codes, and the decoder to audio, are in the encoders' file
(`archs/multimodal/qwen3_tts.py`). Reference: llama.cpp's converter and graph; the model's published code.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from archs.config import required
from archs.families.qwen2 import sections
from archs.families.qwen3 import QWEN3
from archs.spec import Config, Floats, Tensors
from archs.tensor_maps import not_exportable
from archs.transforms import as_float32, computed, concatenated
from quants import Tensor
from quants.errors import ModelError

PART, END = "talker_config", "codec_eos_token_id"
NEVER_DRAWN = 1024  # control codes at the end; only END's is sampled
TABLE = "model.embed_tokens.weight"
NET = "text_projection.linear_fc{}.{}"
ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, np.float32(0)),
}


def with_one_table(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the text rows after their net, followed by the codes' rows, as one table; none if some are missing."""
    named = {name.removeprefix("talker."): tensor for name, tensor in tensors.items()}
    needed = [NET.format(number, suffix) for number in (1, 2) for suffix in ("weight", "bias")]
    needed += ["model.text_embedding.weight", "model.codec_embedding.weight"]
    parts = [named.pop(name) for name in needed if name in named]
    if len(parts) < len(needed):
        return config, named
    sizes = (required(config, f"{PART}.text_vocab_size"), required(config, f"{PART}.vocab_size"))
    head = named.get("codec_head.weight", parts[5])
    if (parts[4].rows, parts[5].rows) != sizes or head.rows != sizes[1]:
        raise ModelError(
            f"config.json says {sizes[0]} tokens of text and {sizes[1]} codes; the tables have {parts[4].rows} and "
            f"{parts[5].rows} rows, codec_head {head.rows}"
        )
    rows = [through_net(parts[4], parts[:4], parts[5], config), as_float32(parts[5])]
    return config, {TABLE: concatenated(rows, TABLE), **named}


def through_net(rows: Tensor, net: list[Tensor], codes: Tensor, config: Config) -> Tensor:
    """Return each row after two layers with biases, in float32, as wide as codes' rows. Raises ModelError for other
    shapes.
    """
    activation, sizes = required(config, f"{PART}.hidden_act"), [each.shape for each in net]
    if activation not in ACTIVATIONS:
        raise ModelError(f"the net of text has activation {activation!r}; known are {', '.join(ACTIVATIONS)}")
    (wide, width), (out, inner) = (sizes[number] if len(sizes[number]) == 2 else (0, 0) for number in (0, 2))
    if codes.shape[1:] != (out,):
        raise ModelError(f"{codes.where} has shape {list(codes.shape)}; rows of {out} values are expected")
    if (rows.width, wide, (wide,), (out,)) != (width, inner, sizes[1], sizes[3]) or len(rows.shape) != 2:
        raise ModelError(f"{net[0].where} and the net's other tensors have shapes {[list(each) for each in sizes]}")

    @cache
    def values() -> list[Floats]:
        return [each.float32() for each in net]

    def run(x: Floats) -> Floats:
        first, of_first, second, of_second = values()
        result: Floats = ACTIVATIONS[activation](x @ first.T + of_first) @ second.T + of_second
        return result

    return replace(computed(rows, run), shape=(rows.rows, out))


def codes(config: Config) -> list[str]:
    """Return the names of the tokens for codes. Raises ModelError for an id beyond them."""
    count = required(config, f"{PART}.vocab_size")
    names = [f"<|codec_{i}|>" for i in range(count)]
    for key, value in config[PART].items():
        begins = key.removesuffix("_id")
        ids = {begins: value} if type(value) is int else value if isinstance(value, dict) else {}
        named = {begins if name == begins else f"{begins}_{name}": each for name, each in ids.items()}
        for name, number in named.items() if key.endswith("_id") else ():
            if type(number) is not int or not 0 <= number < count:
                raise ModelError(f"config.json: {PART}.{key} has {number!r}; there are {count} codes")
            names[number] = f"<|{name}|>"
    return names


def suppressed(config: Config) -> list[int]:
    """Return tokens that are never sampled."""
    text, count, end = (int(required(config, f"{PART}.{key}")) for key in ("text_vocab_size", "vocab_size", END))
    return [text + code for code in range(max(0, count - NEVER_DRAWN), count) if code != end]


QWEN3_TTS = QWEN3.derive(
    name="qwen3tts",
    hf_classes=("Qwen3TTSForConditionalGeneration",),
    vocab=("sentencepiece", "bpe"),
    prepare=with_one_table,
    extra_tokens=codes,
    metadata={
        "rope.dimension_sections": sections,
        "attention.sliding_window": None,
        "attention.sliding_window_pattern": None,
        "tokenizer.ggml.suppress_tokens": suppressed,
        "tokenizer.ggml.add_eos_token": lambda config: False,
        "tokenizer.chat_template": lambda config: None,
    },
    tensors={"lm_head": None, "codec_head": "output"},
    config_from_gguf=not_exportable,
    block={"interleaved_sections": True, "last_tokens": True},
)
