"""EAGLE-3 drafts: a layer trained to write what a larger model, the target, will write.

It reads the hidden states of three of the target's layers, brought to its width by one matrix (`fc`), beside the
embedding of the token before; so its projections have inputs of twice its width. Its output may be that of some tokens
alone: `d2t` says which of the target's they are, here by their ids, in checkpoints by the distance from their place.
Embedding and vocabulary are the target's where it has none of its own.
Facts: llama.cpp's converter and graph of `eagle3`; published checkpoints of SpecForge, speculators and NVIDIA.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quants import Tensor, from_array
from quants.errors import FileError, ModelError, OptionError

from .config import head_dim, normalized, typed
from .config_keys import FLAG, SIZE
from .families.llama import LLAMA
from .general import general
from .packed import with_settings_beside
from .plan import GENERATION, Plan, architecture_metadata, map_tensors
from .small_files import read_json_object
from .spec import Config, Tensors
from .typed_json import Fields, ListOf, Whole, read_fields
from .vocab import vocabulary

NAME = "eagle3"
CLASSES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")
LAYERS = ListOf(Whole(0, 10_000), most=100)
OWN = {  # keys of a draft's config.json beside those of Llama
    "eagle_aux_hidden_state_layer_ids": LAYERS, "target_hidden_size": SIZE,
    "norm_before_residual": FLAG, "norm_before_fc": FLAG,
}  # fmt: skip
TARGET: dict[str, Any] = {"vocab_size": SIZE, "num_hidden_layers": Whole(1, 10_000), "hidden_size": SIZE}
TARGET = {**TARGET, "text_config": Fields(TARGET)}

EAGLE3 = LLAMA.derive(
    name=NAME, hf_classes=(), ignored=("t2d",),
    tensors={".hidden_norm": "attn_norm_2", "fc": "fc", "input_norm": "enc.output_norm"},
)  # fmt: skip


def is_draft(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of an EAGLE-3 draft, of which some are published as plain Llamas."""
    flat = _flat(config)
    classes = config.get("architectures")
    if isinstance(classes, list) and any(name in CLASSES for name in classes):
        return True
    return "draft_vocab_size" in flat and flat.get("num_hidden_layers") == 1


def plan_draft(
    folder: Path, config: Mapping[str, Any], tensors: Tensors, target: Path | None, *,
    pre: str | None = None, embed_tokenizer: bool = False,
) -> Plan:  # fmt: skip
    """Plan the conversion of an EAGLE-3 draft in `folder`.

    target: the folder of the model that it drafts for, of which config.json and the tokenizer are read. Else as
    `archs.plan.plan`. Raises FileError, ModelError, VocabularyError, OptionError where there is no target.
    """
    if not is_draft(config):
        raise ModelError(f"{folder} is no EAGLE-3 draft: its config.json has no draft_vocab_size and one layer")
    if target is None:
        problem = f"{folder} is a draft (EAGLE-3), whose vocabulary and layers are those of its target"
        raise OptionError(problem, "name the target's folder: --target-model-dir DIR")
    if not target.is_dir():
        raise FileError(f"there is no folder {target}", "name the folder of the model that is drafted for")
    whole, own = _target(target), read_fields(dict(config), OWN, "config.json")
    renamed = _in_layers(tensors)
    full = with_settings_beside(folder, normalized(_flat(config), EAGLE3.defaults, tensors=renamed))
    if full["num_hidden_layers"] != 1:
        raise ModelError(f"config.json says {full['num_hidden_layers']} layers; an EAGLE-3 draft has one")
    mapped = map_tensors(EAGLE3, full, renamed, whole=False)
    placed = dict(mapped.tensors)
    if "d2t" in tensors:
        placed["d2t"] = _ids(tensors["d2t"], whole["vocab_size"])
    count = whole["num_hidden_layers"]
    layers = own.get("eagle_aux_hidden_state_layer_ids") or [2, count // 2, count - 3]
    if min(layers) < 0 or max(layers) > count:
        raise ModelError(f"the draft reads layers {', '.join(map(str, layers))} of its target, which has {count}")
    facts = {
        "target_layers": layers, "target_hidden_size": own.get("target_hidden_size") or whole["hidden_size"],
        "norm_before_residual": bool(own.get("norm_before_residual")),
        "norm_before_fc": bool(own.get("norm_before_fc")),
    }  # fmt: skip
    _check(full, facts, placed)
    metadata = general(folder, NAME, placed.values())
    for key, value in architecture_metadata(EAGLE3, full).items():
        metadata[key] = value
    for key, value in facts.items():
        metadata[f"{NAME}.{key}"] = value
    said = typed(read_json_object(target / "config.json"))
    path = target / "generation_config.json"
    generation = read_fields(read_json_object(path), GENERATION, str(path)) if path.exists() else {}
    words = vocabulary(target, EAGLE3.vocab, said, full["vocab_size"], pre, generation, embed=embed_tokenizer)
    for key in words:
        metadata[key] = words.value(key)
    return Plan(EAGLE3, metadata, placed, mapped.ignored, mapped.left_out)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """With the layer's settings in front, which speculators' configs have in an object of their own."""
    layer = config.get("transformer_layer_config")
    return {**config, **(layer if isinstance(layer, dict) else {})}


def _in_layers(tensors: Tensors) -> dict[str, Tensor]:
    """The layer's tensors as those of layer 0, where they are called midlayer; without `d2t`."""
    start = "midlayer."
    return {
        f"layers.0.{name.removeprefix(start)}" if name.startswith(start) else name: tensor
        for name, tensor in tensors.items()
        if name != "d2t"
    }


def _target(folder: Path) -> dict[str, Any]:
    """The target's numbers that matter to a draft."""
    found = read_fields(read_json_object(folder / "config.json"), TARGET, str(folder / "config.json"))
    found |= found.get("text_config") or {}
    if missing := [key for key in ("vocab_size", "num_hidden_layers", "hidden_size") if found.get(key) is None]:
        raise ModelError(f'{folder / "config.json"} has no "{missing[0]}", which the draft needs of its target')
    return found


def _ids(tensor: Tensor, count: int) -> Tensor:
    """Ids of the target's tokens, of their distances from where they stand. count: of the target's tokens."""
    distances = tensor.elements().astype(np.int64).reshape(-1)
    ids = distances + np.arange(len(distances))
    if len(ids) and (ids.min() < 0 or ids.max() >= count):
        raise ModelError(f"{tensor.origin} 'd2t' names tokens that the target, which has {count}, does not have")
    if len(np.unique(ids)) != len(ids):
        raise ModelError(f"{tensor.origin} 'd2t' names a token twice")
    return from_array("d2t", ids, tensor.origin)


def _check(config: Config, facts: Mapping[str, Any], tensors: Tensors) -> None:
    """Raise ModelError for a tensor that is not there, or not as config.json makes it."""
    width, states = config["hidden_size"], len(facts["target_layers"]) * facts["target_hidden_size"]
    size, inner, words = head_dim(config), config["intermediate_size"], config["vocab_size"]
    queries, keys = (config[f"num_{kind}_heads"] * size for kind in ("attention", "key_value"))
    drafted = config.get("draft_vocab_size") or words
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, states), "output_norm.weight": (width,), "blk.0.attn_norm.weight": (width,),
        "blk.0.attn_norm_2.weight": (width,), "blk.0.ffn_norm.weight": (width,),
        "blk.0.attn_q.weight": (queries, 2 * width), "blk.0.attn_k.weight": (keys, 2 * width),
        "blk.0.attn_v.weight": (keys, 2 * width), "blk.0.attn_output.weight": (width, queries),
        "blk.0.ffn_gate.weight": (inner, width), "blk.0.ffn_up.weight": (inner, width),
        "blk.0.ffn_down.weight": (width, inner),
    }  # fmt: skip
    needed = set(shapes)
    shapes |= {
        "enc.output_norm.weight": (states,), "token_embd.weight": (words, width), "output.weight": (drafted, width),
        "d2t": (drafted,),
    }  # fmt: skip
    needed |= {"enc.output_norm.weight"} if facts["norm_before_fc"] else set()
    needed |= {"d2t", "output.weight"} if drafted != words else set()
    if missing := sorted(needed - set(tensors)):
        raise ModelError(f"no tensor of the draft becomes {missing[0]!r}", "a shard may be missing")
    for name, shape in shapes.items():
        if name in tensors and tensors[name].shape != shape:
            found = f"{tensors[name].origin} has shape {list(tensors[name].shape)}, not {list(shape)} ({name})"
            raise ModelError(found, "config.json and weights belong to different models")
