"""Task-specific weights of a checkpoint: each matrix has a low-rank addition for each task (Jina v3).

Tensors are parametrized: `NAME.parametrizations.weight.original` with `….0.lora_A` and `….0.lora_B`, stacked by task,
in the order of config.json's `lora_adaptations`. Source: the code of Jina's embeddings v3; llama.cpp's converter, which
writes an adapter for each task.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import Tensor, format_named
from quants.errors import ModelError, OptionError
from quants.spelling import did_you_mean, quote

from .spec import Config, Tensors

TASK = "lora_task"  # of a config: the selected task
ORIGINAL = re.compile(r"(.*)\.parametrizations\.(\w+)\.original$")
ADDED = re.compile(r".*\.lora_[AB]$")


def tasks_of(config: Mapping[str, Any]) -> list[str]:
    """Return the tasks that a checkpoint has weights for."""
    named = config.get("lora_adaptations")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def check_task(config: Mapping[str, Any], task: str) -> None:
    """Raise OptionError for a task that a checkpoint with this config does not have."""
    if not (known := tasks_of(config)):
        raise OptionError("the checkpoint has no weights for tasks", "leave the task out")
    if task not in known:
        raise OptionError(f"{quote(task)} is no task of the checkpoint", did_you_mean(task, known, ", ".join(known)))


def for_task(config: Config, tensors: Tensors) -> dict[str, Tensor]:
    """Return weights by their plain names: those of the config's task, or without any task's addition."""
    named = {}
    for name, tensor in tensors.items():
        if ADDED.fullmatch(name):
            continue
        match, plain = ORIGINAL.fullmatch(name), name
        if match is not None:
            plain, start = f"{match[1]}.{match[2]}", name.removesuffix("original")
            if config.get(TASK) is not None:
                tensor = _with_task(config, tensor, *(tensors.get(f"{start}0.lora_{each}") for each in "AB"))
        named[plain] = tensor.renamed(plain)
    return named


def _with_task(config: Config, weight: Tensor, a: Tensor | None, b: Tensor | None) -> Tensor:
    """Return the weight with the addition of the config's task: alpha / rank times B·A, of an embedding A·B."""
    tasks = tasks_of(config)
    if a is None or b is None:
        return weight
    embedding = b.shape[2:] == weight.shape[1:] and a.shape[1:2] == weight.shape[:1]  # whose rows are its inputs
    rows, other = (a, b) if embedding else (b, a)
    rank, wanted = other.shape[1] if len(other.shape) == 3 else 0, (len(tasks), *weight.shape)
    if not rank or (*rows.shape[:2], *other.shape[2:], rows.shape[-1]) != (*wanted, rank):
        shapes = f"{a.where} has shape {list(a.shape)}, {b.where} {list(b.shape)}"
        raise ModelError(f"{shapes}; config.json has {len(tasks)} tasks (lora_adaptations)")
    number, scale = tasks.index(config[TASK]), np.float32((config.get("lora_alpha") or 1) / rank)
    first = number * weight.shape[0]

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        added = rows.float32(first + start, first + stop) @ other.float32(number * rank, (number + 1) * rank)
        return np.ascontiguousarray(weight.float32(start, stop) + scale * added, "<f4").view(np.uint8)

    return replace(weight, format=format_named("F32"), read=read, origin=f"{weight.origin} + {a.origin}")
