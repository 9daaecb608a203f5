"""Conversion of draft models that read hidden states of a larger one, the target.

They share the target's vocabulary and layers, whose config.json and tokenizer are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quants import Tensor, from_array
from quants.errors import FileError, ModelError, OptionError

from ..config import normalized, typed
from ..families.drafts import DEEPSEEK4_DSPARK, EAGLE3, GEMMA4_ASSISTANT
from ..general import general
from ..hparams.config_keys import SIZE
from ..metadata import Value, ValueType
from ..prequantized import with_settings_file
from ..registry import drafts, of_config
from ..small_files import read_json_object
from ..spec import Architecture, Config, Tensors
from ..typed_json import Fields, ListOf, Whole, read_fields
from ..validation.draft_validators import validate_draft
from ..vocab import vocabulary
from .text import GENERATION, Plan, architecture_metadata, map_tensors

WORDS = Whole(1, 1 << 22)
TARGET: dict[str, Any] = {"vocab_size": WORDS, "num_hidden_layers": Whole(1, 10_000), "hidden_size": SIZE}
ROTATION = Fields({"mrope_section": ListOf(Whole(0, 1 << 20))})
TARGET |= {"rope_parameters": ROTATION, "rope_scaling": ROTATION}
TARGET = {**TARGET, "text_config": Fields(TARGET)}
MASK = "tokenizer.ggml.mask_token_id"


def draft_of_config(config: Mapping[str, Any]) -> Architecture | None:
    """Return the draft model that a config.json describes, if any; EAGLE-3 drafts are published as plain Llamas,
    too.
    """
    flat, classes = _flat(config), config.get("architectures")
    for name in classes if isinstance(classes, list) else ():
        for draft in drafts():
            if name in draft.hf_classes:
                return draft
    return EAGLE3 if "draft_vocab_size" in flat and flat.get("num_hidden_layers") == 1 else None


def is_draft(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is that of a draft model."""
    return draft_of_config(config) is not None


def plan_draft(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Tensors,
    target: Path | None,
    *,
    pre: str | None = None,
    embed_tokenizer: bool = False,
) -> Plan:
    """Plan the conversion of a draft model in `folder`.

    target: the folder of its target model, of which config.json and the tokenizer are read. Else as
    `archs.plans.text.plan`. Raises FileError, ModelError, VocabularyError, OptionError without a target.
    """
    draft = draft_of_config(config)
    if draft is None and "dspark_block_size" in config:  # inside the model itself, which is converted without a target
        draft = DEEPSEEK4_DSPARK
    if draft is None:
        raise ModelError(f"{folder} is no draft: its config.json has no draft_vocab_size and one layer (EAGLE-3)")
    if draft is GEMMA4_ASSISTANT:
        made, home = _assistant(draft, folder, config, tensors), folder
    elif target is None:
        problem = f"{folder} is a draft ({draft.name}), whose vocabulary and layers are those of its target"
        raise OptionError(problem, "name the target's folder: give `target_model_dir`")
    elif not target.is_dir():
        raise FileError(f"there is no folder {target}", "name the folder of the model that is drafted for")
    else:
        made = (_eagle3 if draft is EAGLE3 else _block)(draft, folder, config, tensors, _Target(target))
        home = target
    metadata = general(folder, draft.name, made.tensors.values())
    for key, value in (architecture_metadata(draft, made.config) | made.facts).items():
        metadata[key] = value
    home_config = read_json_object(home / "config.json")
    path = home / "generation_config.json"
    generation = read_fields(read_json_object(path), GENERATION, str(path)) if path.exists() else {}
    of = draft if home is folder else _family(home_config) or draft
    words = vocabulary(
        home,
        of.vocab,
        typed(home_config, of.keys),
        made.config["vocab_size"],
        pre,
        generation,
        extra=of.vocab_keys,
        user_defined=of.vocab_user_defined,
        embed=embed_tokenizer,
    )
    for key in words:
        metadata[key] = words.value(key)
    if made.mask is not None:
        metadata[MASK] = Value(made.mask, ValueType.UINT32)
    _check(draft, metadata, made.tensors)
    return Plan(draft, metadata, made.tensors, made.ignored, made.left_out)


@dataclass
class _Made:
    """config: normalized; facts: keys besides those of the family; mask: the placeholder token."""

    config: Config
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    ignored: list[str]
    left_out: list[str]
    mask: int | None = None


@dataclass
class _Target:
    """The target model's folder, and its numbers that matter to a draft model."""

    folder: Path

    def __post_init__(self) -> None:
        path = self.folder / "config.json"
        numbers = read_fields(read_json_object(path), TARGET, str(path))
        self.numbers = numbers = numbers | (numbers.get("text_config") or {})
        if missing := [key for key in ("vocab_size", "num_hidden_layers", "hidden_size") if numbers.get(key) is None]:
            raise ModelError(f'{path} has no "{missing[0]}", which the draft needs of its target')
        self.words, self.layers, self.width = (
            int(numbers[key]) for key in ("vocab_size", "num_hidden_layers", "hidden_size")
        )

    def check_layers(self, layers: Sequence[int]) -> None:
        if not layers or min(layers) < 0 or max(layers) > self.layers:
            listed = ", ".join(map(str, layers))
            raise ModelError(f"the draft reads layers {listed} of its target, which has {self.layers}")

    def rows(self, tensors: Tensors) -> Tensors:
        """Return a draft's tensors, with one that has as many rows as the target has tokens: it bounds the config."""
        rows = from_array("token_embd", np.broadcast_to(np.float32(0), self.words))
        return {**tensors, "embed_tokens": rows, f"layers.{self.layers - 1}": rows}


def _eagle3(draft: Architecture, folder: Path, config: Mapping[str, Any], tensors: Tensors, target: _Target) -> _Made:
    own, renamed = read_fields(dict(config), draft.keys, "config.json"), _in_layers(tensors)
    full = with_settings_file(folder, normalized(_flat(config), draft.defaults, tensors=target.rows(renamed)))
    if full["num_hidden_layers"] != 1:
        raise ModelError(f"config.json says {full['num_hidden_layers']} layers; an EAGLE-3 draft has one")
    mapped = map_tensors(draft, full, renamed, whole=False)
    placed = dict(mapped.tensors)
    if "d2t" in tensors:
        placed["d2t"] = _ids(tensors["d2t"], target.words)
    usual = [2, target.layers // 2, target.layers - 3]
    layers = own.get("eagle_aux_hidden_state_layer_ids") or usual
    target.check_layers(layers)
    facts = {
        "target_layers": layers,
        "target_hidden_size": own.get("target_hidden_size") or target.width,
        "norm_before_residual": bool(own.get("norm_before_residual")),
        "norm_before_fc": bool(own.get("norm_before_fc")),
    }
    facts = {f"{draft.name}.{key}": value for key, value in facts.items()}
    return _Made(full, placed, facts, mapped.ignored, mapped.left_out)


def _block(draft: Architecture, folder: Path, config: Mapping[str, Any], tensors: Tensors, target: _Target) -> _Made:
    """Plan a draft model that writes a block of tokens at once (DFlash, DSpark)."""
    if (folder / "mask_embedding.pt").exists():
        problem = f"{folder} has an embedding of its mask token in mask_embedding.pt, which is not read"
        raise ModelError(problem, "llama.cpp's converter reads it")
    bounds = target.rows(tensors)
    full: Config = with_settings_file(folder, normalized(_flat(config), draft.defaults, draft.keys, bounds))
    assert draft.prepare is not None
    full, tensors = draft.prepare(full, tensors)
    ids = next((tensors[name] for name in ("d2t", "model.d2t") if name in tensors), None)
    plain = {name: each for name, each in tensors.items() if name.removeprefix("model.") != "d2t"}
    mapped = map_tensors(draft, full, plain, whole=False)
    target.check_layers(architecture_metadata(draft, full)[f"{draft.name}.target_layers"])
    placed, drafted = dict(mapped.tensors), full.get("draft_vocab_size") or full["vocab_size"]
    if ids is not None:
        placed["d2t"] = _ids(ids, target.words)
    elif drafted < full["vocab_size"]:
        raise ModelError(f"config.json says that {drafted} tokens are drafted, and no tensor 'd2t' which ones")
    settings, facts = full.get("dflash_config") or {}, dict[str, Any]()
    if full.get("input_embedding_scale") is None and settings.get("input_embedding_scale") is None:
        classes = read_json_object(target.folder / "config.json").get("architectures")
        if isinstance(classes, list) and str(classes[:1]).startswith("['Gemma") and "embedding_scale" in draft.metadata:
            facts["embedding_scale"] = float(target.width**0.5)  # the target's embedding, without its scale
    rotates = "embedding_scale" in draft.metadata  # neither Muse Glimmer's nor DeepSeek's
    rotation = target.numbers.get("rope_parameters") or target.numbers.get("rope_scaling") or {}
    if rotates and rotation.get("mrope_section"):
        facts["rope.dimension_sections"] = [full["head_dim"] // 2, 0, 0, 0]
    facts = {f"{draft.name}.{key}": value for key, value in facts.items()}
    mask = settings.get("mask_token_id", full.get("mask_token_id", full.get("dspark_noise_token_id")))
    return _Made(full, placed, facts, mapped.ignored, mapped.left_out, mask)


def _assistant(draft: Architecture, folder: Path, config: Mapping[str, Any], tensors: Tensors) -> _Made:
    """Plan a draft model that takes only keys and values from the target."""
    full = with_settings_file(folder, normalized(config, draft.defaults, draft.keys, tensors))
    mapped = map_tensors(draft, full, tensors, whole=False)
    return _Made(full, dict(mapped.tensors), {}, mapped.ignored, mapped.left_out)


def _family(target: Mapping[str, Any]) -> Architecture | None:
    """Return the target's family, whose vocabulary the draft model has; None if it is unknown."""
    try:
        return of_config(target)
    except ModelError:
        return None


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with the layer's settings on top, which speculators' configs nest."""
    layer = config.get("transformer_layer_config")
    return {**config, **(layer if isinstance(layer, dict) else {})}


def _in_layers(tensors: Tensors) -> dict[str, Tensor]:
    """Return the layer's tensors, called midlayer, as those of layer 0; without `d2t`."""
    start = "midlayer."
    return {
        f"layers.0.{name.removeprefix(start)}" if name.startswith(start) else name: tensor
        for name, tensor in tensors.items()
        if name != "d2t"
    }


def _ids(tensor: Tensor, count: int) -> Tensor:
    """Return ids of the target's tokens, from their offsets to the draft's ids. count: of the target's tokens."""
    distances = tensor.elements().astype(np.int64).reshape(-1)
    ids = distances + np.arange(len(distances))
    if len(ids) and (ids.min() < 0 or ids.max() >= count):
        raise ModelError(f"{tensor.origin} 'd2t' names tokens that the target, which has {count}, does not have")
    if len(np.unique(ids)) != len(ids):
        raise ModelError(f"{tensor.origin} 'd2t' names a token twice")
    return from_array("d2t", ids, tensor.origin)


def _check(draft: Architecture, metadata: Mapping[str, Any], tensors: Tensors) -> None:
    """Raise ModelError for a tensor that is missing or does not fit config.json."""
    for fault in validate_draft(draft, metadata, tensors):
        origin = tensors[fault.where].origin if fault.where in tensors else ""
        hint = "config.json and weights belong to different models, or a shard is missing"
        raise ModelError(f"{origin} {fault.problem} ({fault.where})" if origin else str(fault), hint)
