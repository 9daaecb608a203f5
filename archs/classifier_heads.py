"""Heads of classifiers and reward models on decoders: one matrix, which scores a text by the state of its last token.

It becomes `cls.output`, as llama.cpp names the last matrix of such heads, and the file says that its texts are ranked.
llama.cpp itself reads it in Qwen 3's files alone.
Source: transformers `modeling_layers.py` (GenericForSequenceClassification); InternLM 2's published reward models.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from quants.errors import ModelError

from .model_type import CLASS_ENDS, classifier, of_class
from .spec import Architecture, Computed, Config, ConfigKeys, GgufKeys, Target, Tensors
from .tensor_maps import NotExportable

CLASS = re.compile("For(SequenceClassification|RewardModel)$")
SCORING = "ForSequenceClassification"
HEADS: dict[str, Target] = {"score": "cls.output", "v_head": "cls.output"}
RANK = 4  # of GGUF's `pooling_type`
USUAL = 2  # labels of a config that names none


def with_head(architecture: Architecture, config: Config) -> Architecture:
    """Return the architecture of a checkpoint with this config: a decoder with the head that its class has."""
    classes = config.get("architectures") or ()
    if not architecture.block.causal or not any(CLASS.search(name) for name in classes):
        return architecture
    tensors = {name: target for name, target in architecture.tensors.items() if target != "output"}
    keys: dict[str, Computed] = {"classifier.output_labels": label_names, "pooling_type": lambda config: RANK}
    return replace(architecture, tensors=tensors | HEADS, metadata={**architecture.metadata, **keys})


def headed(architecture: Architecture, tensors: Tensors) -> Architecture:
    """Return the architecture for the export of a file with these tensors, with a rule for its head."""
    inner = architecture.config_from_gguf
    if "cls.output.weight" not in tensors or isinstance(inner, NotExportable):
        return architecture
    if architecture.block.causal:
        model_type = str(architecture.defaults.get("model_type", of_class(architecture.hf_classes[0])))
        hf_class = classifier(model_type) or CLASS_ENDS.sub("", architecture.hf_classes[0]) + SCORING
    elif not (hf_class := next((name for name in architecture.hf_classes if name.endswith(SCORING)), "")):
        return architecture
    named = replace(architecture, hf_classes=(hf_class,))

    def config(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
        rows = tensors["cls.output.weight"].shape[0]
        names = keys.get("classifier.output_labels") or [f"LABEL_{i}" for i in range(rows)]
        numbers = {str(i): name for i, name in enumerate(names)}
        labels = {"id2label": numbers, "label2id": {name: int(i) for i, name in numbers.items()}}
        return {**(inner(keys, tensors) if inner else {}), **labels}

    result = with_head(named, {"architectures": named.hf_classes})
    rules = {name: target for name, target in result.tensors.items() if name != "v_head"}  # transformers' name only
    return replace(result, tensors=rules, config_from_gguf=config)


def check_labels(named: Sequence[str] | None, tensors: Tensors) -> None:
    """Raise ModelError if config.json names another number of labels than a head has rows."""
    head = tensors.get("cls.output.weight")
    if named is not None and head is not None and head.shape[0] != len(named):
        problem = f"{head.where} has {head.shape[0]} rows; config.json has {len(named)} labels (id2label)"
        raise ModelError(problem, hint="config.json and weights belong to different models")


def label_names(config: Config) -> list[str]:
    """Return a name for each row of the head; transformers' default names if the config has none."""
    named = config.get("id2label")
    if named:
        return [named[key] for key in sorted(named, key=int)]
    reward = any(name.endswith("RewardModel") for name in config["architectures"])
    return [f"LABEL_{i}" for i in range(1 if reward else USUAL)]
