"""Models that are made of others for tests/verify/absent_keys.py: sizes llama.cpp needs, more layers, early files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tests.absent_keys import Description

Value = tuple[Any, ...]
LAYER = re.compile(r"^blk\.(\d+)\.")

SKIPPED = {
    "llama-kquant-256": "large, and a Llama like others",
    "llama-linear-sharded": "the same keys as llama-yarn's, with another type",
    **dict.fromkeys(("opt-125m", "opt-350m", "opt-galactica-style"), "llama.cpp has no OPT"),
    **dict.fromkeys(("chameleon", "chameleon-swin"), "llama.cpp hides 8,192 logits, and vocabularies here are small"),
    **dict.fromkeys(("cohere-qknorm", "falcon-rw-style"), "llama.cpp takes no such tensors"),
    "baichuan-7b-style": "llama.cpp tells them by their number of layers: baichuan-32-layers",
    "flan-t5-asym": "llama.cpp takes as many layers on both sides",
    "plamo2": "llama.cpp does not come to an end where no head rotates",
    "qwen3-tts": "a codebook's numbers are not finite there",
    **dict.fromkeys(("deepseek-v2-lite", "kimi-vl"), "told by 27 layers: deepseek-v2-lite-27l"),
    **dict.fromkeys(("glm5v", "minicpm-v-4-6"), "text parts like those of glm-moe-dsa and qwen3-5"),
    **dict.fromkeys(("clef", "laya", "openjev"), "llama.cpp gives what their heads decide, not states"),
}


def changed(description: Description, name: str, keys: Mapping[str, Value | None]) -> Description:
    """The same with other keys, given without the architecture in front; None removes one."""
    own = description.architecture
    every = {**description.keys, **{f"{own}.{key}": value for key, value in keys.items()}}
    kept = {key: value for key, value in every.items() if value is not None}
    return replace(description, name=name, keys=kept)


def resized(
    description: Description, name: str, shapes: Mapping[str, list[int]], keys: Mapping[str, Value | None] = {}
) -> Description:
    """The same with other keys, and other shapes of tensors whose names match a pattern."""
    tensors = []
    for row in description.tensors:
        shape = next((shape for pattern, shape in shapes.items() if re.fullmatch(pattern, row[0])), row[2])
        tensors.append([*row[:2], shape, *row[3:]])
    return replace(changed(description, name, keys), tensors=tensors)


def deeper(description: Description, name: str, count: int, keys: Mapping[str, Value | None] = {}) -> Description:
    """The same with more layers, those of the original again and again; so with arrays that have an item for each."""
    own, few = description.architecture, int(description.keys[f"{description.architecture}.block_count"][-1])
    tensors = [row for row in description.tensors if not LAYER.match(row[0])]
    for layer in range(count):
        rows = [row for row in description.tensors if row[0].startswith(f"blk.{layer % few}.")]
        tensors += [[LAYER.sub(f"blk.{layer}.", row[0]), *row[1:]] for row in rows]
    every = {
        key.removeprefix(f"{own}."): (*value[:-1], [value[-1][layer % few] for layer in range(count)])
        for key, value in description.keys.items()
        if value[0] == "ARRAY" and len(value[-1]) == few
    }
    more = {**every, "block_count": ("UINT32", count), **keys}
    return replace(changed(description, name, more), tensors=tensors)


def first_deepseek(description: Description, name: str) -> Description:
    """As files were until April 2025: keys and values of all heads by one matrix, their widths under other names."""
    own = description.architecture
    number = {key.removeprefix(f"{own}."): value[-1] for key, value in description.keys.items()}
    heads, rank = number["attention.head_count"], number["attention.kv_lora_rank"]
    key, value = number["attention.key_length_mla"], number["attention.value_length_mla"]
    height = heads * (key - number["rope.dimension_count"] + value)
    tensors = []
    for row in description.tensors:
        if row[0].endswith(".attn_k_b.weight"):
            tensors.append([row[0].replace("attn_k_b", "attn_kv_b"), "F32", [height, rank], *row[3:]])
        elif not row[0].endswith(".attn_v_b.weight"):
            tensors.append(row)
    keys: dict[str, Value | None] = {
        "attention.key_length_mla": None,
        "attention.value_length_mla": None,
        "attention.head_count_kv": ("UINT32", heads),
        "attention.key_length": ("UINT32", key),
        "attention.value_length": ("UINT32", value),
    }
    return replace(changed(description, name, keys), tensors=tensors)


def large_gemma3n(description: Description, name: str) -> Description:
    """With 22 layers, as llama.cpp takes the first 20 to have keys; and its widths that no key says."""
    layers, vocabulary, width = 22, 64, 256
    own_keys = changed(description, name, {"block_count": ("UINT32", 3)})  # the last two have those of others
    made = deeper(
        own_keys,
        name,
        layers,
        {
            "embedding_length_per_layer_input": ("UINT32", width),
            "activation_sparsity_scale": (
                "ARRAY",
                "FLOAT32",
                [1.6448535919189453] * 10 + [float("-inf")] * (layers - 10),
            ),
            "attention.sliding_window_pattern": ("ARRAY", "BOOL", [layer % 5 < 4 for layer in range(layers)]),
            "attention.shared_kv_layers": ("UINT32", layers - 20),
            "final_logit_softcapping": ("FLOAT32", 30.0),
            "feed_forward_length": ("ARRAY", "INT32", [96] * layers),
        },
    )
    shapes = {
        "token_embd.weight": [vocabulary, 64],
        "per_layer_token_embd.weight": [vocabulary, layers * width],
        "per_layer_model_proj.weight": [layers * width, 64],
        "per_layer_proj_norm.weight": [width],
        r"blk\.\d+\.inp_gate.weight": [width, 64],
        r"blk\.\d+\.proj.weight": [64, width],
        r"blk\.\d+\.laurel_l.weight": [64, 64],
        r"blk\.\d+\.laurel_r.weight": [64, 64],
    }
    made = replace(resized(made, name, shapes), ids=[3 + id % (vocabulary - 3) for id in made.ids])
    # llama.cpp's deviations are over n - 1 gates, of which there are few here: nets that count for little
    return replace(made, tensors=[quieter(row) if ".post_ffw_norm." in row[0] else row for row in made.tensors])


def quieter(row: list[Any]) -> list[Any]:
    return [*row[:3], *(number / 200 for number in row[3:])]


def shared_gemma4(description: Description, name: str) -> Description:
    """With the last layers before the shared ones in llama.cpp's order: a window, then none."""
    windowed = [True, True, True, False, True, False]
    keys = {"attention.sliding_window_pattern": ("ARRAY", "BOOL", windowed)}
    tensors = []
    for name_, *row in description.tensors:
        swapped = {"blk.2.": "blk.3.", "blk.3.": "blk.2."}.get(name_[:6], name_[:6])
        tensors.append([swapped + name_[6:], *row])
    return replace(changed(description, name, keys), tensors=tensors)


def without_control(description: Description, name: str) -> Description:
    """With a text without tokens that switch adapters, and adapters that add nothing."""
    first = min(description.keys["graniteswitch.adapters.token_ids_activate"][-1])
    tensors = [[*row[:3], 0, 0, 0, 0] if ".lora_b" in row[0] else row for row in description.tensors]
    return replace(description, name=name, ids=[min(id, first - 1) for id in description.ids], tensors=tensors)


WIDE_INDEX = {
    r"blk\.\d+\.indexer\.k_norm\.\w+": [64],
    r"blk\.\d+\.indexer\.attn_k\.weight": [64, 64],
    r"blk\.\d+\.indexer\.attn_q_b\.weight": [1024, 48],
}
INDEX_KEYS = {"attention.indexer.key_length": ("UINT32", 64)}
EVEN_HEADS = {
    r"blk\.\d+\.ssm_conv1d\.weight": [128, 4],
    r"blk\.\d+\.attn_qkv\.weight": [128, 64],
    r"blk\.\d+\.attn_gate\.weight": [64, 64],
    r"blk\.\d+\.ssm_norm\.weight": [16],
    r"blk\.\d+\.ssm_out\.weight": [64, 64],
}
STATE_KEYS = {"ssm.inner_size": ("UINT32", 64)}
ALL_CHOSEN = {"attention.indexer.top_k": ("UINT32", 256)}  # scores of 0 are many, and whose come first is chance
SHARED_EXPERT = {r"blk\.\d+\.ffn_(gate|up)_shexp\.weight": [24, 64], r"blk\.\d+\.ffn_down_shexp\.weight": [64, 24]}

# Models whose keys that only our converter writes stay: llama.cpp needs them.
WITH_OUR_KEYS = ("exaone", "qwen1", "gemma-embedding", "minimax-text-01")

Change = Callable[[Description, str], Description]

# Name → the model that it is made of, and how; under the same name it takes that one's place.
VARIANTS: dict[str, tuple[str, Change]] = {
    "deepseek-v32": ("deepseek-v32", partial(resized, shapes=WIDE_INDEX, keys=INDEX_KEYS)),
    "glm-moe-dsa": ("glm-moe-dsa", partial(resized, shapes=WIDE_INDEX, keys=INDEX_KEYS)),
    **{
        name: (name, partial(resized, shapes=EVEN_HEADS, keys=STATE_KEYS))
        for name in ("qwen3-next", "qwen3-5", "qwen3-5-moe")
    },
    "minimax-m3": ("minimax-m3", partial(resized, shapes=SHARED_EXPERT, keys=ALL_CHOSEN)),
    **{name: (name, partial(changed, keys=ALL_CHOSEN)) for name in ("hy-v4", "dots3-note")},
    "granite-switch": ("granite-switch", without_control),
    "mistral4": ("mistral4", partial(changed, keys={"attention.temperature_length": ("UINT32", 8)})),
    "gemma3n": ("gemma3n", large_gemma3n),
    "phi3-longrope": ("phi3-longrope", partial(changed, keys={"context_length": ("UINT32", 32)})),  # below the text's
    "qwen3-omni": ("qwen3-omni", partial(changed, keys={"rope.dimension_sections": ("ARRAY", "INT32", [6, 5, 5, 0])})),
    "gemma4-e": ("gemma4-e", shared_gemma4),
    "gemma2-46-layers": ("gemma2", partial(deeper, count=46)),
    "gemma3-62-layers": ("gemma3", partial(deeper, count=62)),
    "baichuan-32-layers": ("baichuan-7b-style", partial(deeper, count=32)),
    "baichuan-40-layers": ("baichuan-7b-style", partial(deeper, count=40)),
    "exaone4-64-layers": ("exaone4", partial(deeper, count=64)),
    "deepseek-v2-first": ("deepseek-v2-yarn", first_deepseek),
    "deepseek-v2-lite-first": ("deepseek-v2-lite-27l", first_deepseek),
    "deepseek-v3-first": ("deepseek-v3", first_deepseek),
}
