"""A small model to vary of every class that we convert and transformers has.

Most are entries of the zoo or of tests/data/families. The others are made from those: a decoder without its head or
with a classifier's, the text part of a wrapper alone, a wrapper of tests/data/towers around such a text part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from archs.classifier_heads import CLASS as SCORING
from archs.hparams.config_keys import THINKER
from archs.model_type import classifier, of_class
from archs.registry import architectures, drafts
from tests.archs import checkpoints

from .options import SPECIAL, WRITTEN_OTHERWISE, Base, Config, bases, family, varied

# Classes that no base is of, with an entry whose config.json they read, but for these keys.
MINIMAX = (
    "minimax-text-01",
    {
        "model_type": "minimax",
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        **{f"{part}_alpha_factor": 1.4 for part in ("full_attn", "linear_attn", "mlp")},
    },
)
DOTS3_NOTE: Config = {
    "model_type": "dots3_note",
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "moe_intermediate_size": 24,
        "num_local_experts": 4,
        "adapter_in_dim": 32,
        "adapter_out_dim": 64,
        "mlp_layer_types": ["dense"],
    },
    "audio_config": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "downsample_hidden_size": 16,
        "adapter_input_size": 32,
        "adapter_out_dim": 64,
    },
}
SIBLINGS: dict[str, tuple[str, Config]] = {
    "CamembertModel": ("roberta", {"model_type": "camembert"}),
    "Dots3NoteForConditionalGeneration": ("dots3-note", DOTS3_NOTE),
    "HYV4ForCausalLM": ("hy-v4", {}),
    "MiniMaxForCausalLM": MINIMAX,
    "MiniMaxForSequenceClassification": MINIMAX,
    "MT5EncoderModel": ("flan-t5-style", {"model_type": "mt5"}),
    "MT5ForConditionalGeneration": ("flan-t5-style", {"model_type": "mt5"}),
}

# Text parts of wrappers, with those that have the same keys.
SAME_KEYS = {
    "granite4_vision_text": "granite",
    "gemma4_unified_text": "gemma4_text",
    "qwen2_5_omni_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
}

# What is changed in a wrapper, by its model type: it feeds layers that the text part does not have.
CHANGED: dict[str, Config] = {"granite4_vision": {"deepstack_layer_map": [[-1, 1]], "spatial_target_layers": [0]}}

# Classes that transformers has, and that nothing here varies, with the reason.
NOT_VARIED = {
    "Gemma3nForConditionalGeneration": "its encoder needs timm; the text model is varied",
    "PocketTTSModel": "it speaks, and makes no logits; tests of its own compare it",
    "UMT5Model": "it ends in the decoder's states, which nothing here gives; the model with a head is varied",
}

LABELS = 8  # of a classifier: scores of two labels have hardly a spread to compare with


def registered() -> list[str]:
    """Classes that we convert, wrappers too, that transformers has; decoders' classifiers as well."""
    import transformers

    named = {name for each in architectures() for name in (*each.hf_classes, *each.wrappers)}
    headed = {
        f"{_stem(name)}ForSequenceClassification"
        for each in architectures()
        if each.block.causal
        for name in each.hf_classes
        if name.endswith("ForCausalLM")
    }
    headed |= {
        found
        for each in architectures()
        if each.block.causal
        if (found := classifier(each.defaults.get("model_type") or of_class(each.hf_classes[0])))
    }
    theirs, own = set(dir(transformers)), {name for each in drafts() for name in each.hf_classes}
    return sorted(name for name in named | headed if WRITTEN_OTHERWISE.get(name, name) in theirs and name not in own)


@cache
def entries() -> dict[str, tuple[Base, ...]]:
    """Class → what is varied of it, in turn. Classes of NOT_VARIED, and those that lack a base, are not among them."""
    found: dict[str, list[Base]] = {}
    known = registered()
    for base in (each for each in bases() if each.hf_class in known):
        found.setdefault(base.hf_class, []).append(base)
    for name in known:
        if name not in found and name not in NOT_VARIED and (made := _made(name)):
            found[name] = [made]
    return {name: tuple(some) for name, some in sorted(found.items())}


def cases(each: int, seed: int, only: str = "") -> Iterator[tuple[str, Base, Config]]:
    """Configs of every class in turn with a name each, five times as many as asked for: some are refused.

    only: a regular expression that the class matches.
    """
    for hf_class, some in entries().items():
        for number in range(5 * wanted(hf_class, each) if re.match(only, hf_class) else 0):
            base, turn = some[number % len(some)], number // len(some)
            name = f"{base.name}-{seed}-{turn}"
            yield name, base, varied(base, Random(f"{base.name} {seed} {turn}"))


def plain(only: str = "") -> Iterator[tuple[str, Base, Config]]:
    """A config of every class that matches a regular expression, as its base has it."""
    for hf_class, some in entries().items():
        if re.search(only, hf_class):
            yield f"{some[0].name}-plain", some[0], some[0].config


def wanted(hf_class: str, each: int) -> int:
    """How many configs of a class are compared: so many, or a quarter of a class whose layers are another's."""
    return each if any(base.name != made_name(base, hf_class) for base in entries()[hf_class]) else -(-each // 4)


def made_name(base: Base, hf_class: str) -> str:
    """What a base of a class is called that was made of this one."""
    return f"{base.name.removesuffix(f'-{hf_class}')}-{hf_class}"


def _made(hf_class: str) -> Base | None:
    """A base of this class made from another; None where there is none that fits."""
    if hf_class in SIBLINGS:
        entry, changes = SIBLINGS[hf_class]
        base = next((base for base in bases() if base.name == entry), None) or family(entry)
        return _of_class(base, hf_class, {**base.config, **changes})
    kind = _model_type(hf_class)
    if found := _of_type(kind):
        return _of_class(found, hf_class, found.config)
    for entry in checkpoints.encoders():
        path = checkpoints.ENCODERS / entry / "config.json"
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if config.get("model_type") == kind and (around := _around(config)):
            return _of_class(around, hf_class, around.config)
    return None


def _of_type(kind: str) -> Base | None:
    """A base of this model type, or whose text part is, then that alone."""
    every = bases()
    for base in every:
        if base.config.get("model_type") == kind:
            return base
    for base in every:
        text = base.config.get("text_config")
        if isinstance(text, dict) and text.get("model_type") == kind:
            return replace(base, config=text)
    return None


def _around(config: Config) -> Base | None:
    """A wrapper's config.json with a text part that has a vocabulary, and tokens for images that no text has."""
    config = {
        key: value % SPECIAL if key.endswith(("_token_id", "_token_index")) else value for key, value in config.items()
    } | CHANGED.get(config.get("model_type", ""), {})
    if THINKER in config:
        inside = _around(config[THINKER])
        return replace(inside, config={**config, THINKER: inside.config}) if inside else None
    kind = (config.get("text_config") or {}).get("model_type", "")
    if not (base := _of_type(SAME_KEYS.get(kind, kind))):
        return None
    inside = {**base.config, "model_type": kind}
    if kind in SAME_KEYS:
        del inside["architectures"]
    return replace(base, config={**config, "text_config": inside})


def _of_class(base: Base, hf_class: str, config: Config) -> Base:
    config = {**config, "architectures": [hf_class]}
    if SCORING.search(hf_class):
        names = {str(number): f"label {number}" for number in range(LABELS)}
        config |= {"id2label": names, "label2id": {name: int(number) for number, name in names.items()}}
    return Base(made_name(base, hf_class), config, hf_class, base.tokenizer)


def _model_type(hf_class: str) -> str:
    import transformers

    config: Any = getattr(transformers, WRITTEN_OTHERWISE.get(hf_class, hf_class)).config_class
    return str(config.model_type)


def _stem(name: str) -> str:
    return name.removesuffix("ForCausalLM")
