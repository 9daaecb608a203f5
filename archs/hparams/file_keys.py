"""Read the keys of a GGUF file, with defaults for keys that the file lacks.

Defaults are declared, never given by the caller: in `schema.json` ("absent") if they are the same in every
architecture, in `Architecture.absent` if a family differs. Both follow llama.cpp; where the original model differs, see
`archs.hparams.deviations`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quants.errors import ModelError

from ..schema import F32, MODEL, find
from ..spec import Architecture
from .assumed import DEFAULT, Assumed

SAME_AS = "="  # prefix of another key, whose value is used


@dataclass(frozen=True)
class Derived:
    """A default that follows from other keys.

    formula: how users see it, "" for a constant. compute: None where the rule of all architectures holds. when: in the
    docs, the value and its condition, if there is no formula.
    """

    formula: str
    compute: Callable[["Keys"], Any]
    when: str = ""


@dataclass(frozen=True)
class Keys:
    """Metadata of one architecture: `keys.get("attention.head_count")`, without the name in front.

    absent, unread: of the family, see `Architecture`.
    """

    architecture: str
    metadata: Mapping[str, Any]
    absent: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    @classmethod
    def of(cls, architecture: Architecture, metadata: Mapping[str, Any]) -> "Keys":
        return cls(architecture.name, metadata, architecture.absent, architecture.unread)

    def stored(self, key: str) -> Any:
        """Return the file's own value, under an old spelling too; None if it has none.

        An integer under a key of floats is a float.
        """
        if key in self.unread:
            return None
        name = f"{self.architecture}.{key}"
        value, known = self.metadata.get(name), find(name, self.architecture)
        if value is None and known:
            values = (self.metadata.get(f"{self.architecture}.{old}") for old in known.old)
            value = next((each for each in values if each is not None), None)
        return float(value) if known and known.type is F32 and isinstance(value, int) else value

    def get(self, key: str) -> Any:
        """Return the file's value, or the default; None for nothing."""
        value = self.stored(key)
        return self.meaning(key) if value is None else value

    def meaning(self, key: str) -> Any:
        """Return the default of an absent key; None for nothing."""
        own = self.of_family(key)
        return self.usual(key) if own is None else own

    def of_family(self, key: str) -> Any:
        """Return the family's default, or None."""
        return self._resolved(self.absent.get(key))

    def usual(self, key: str) -> Any:
        """Return the default common to all architectures."""
        return self._resolved(COMMON.get(key))

    def _resolved(self, rule: Any) -> Any:
        if isinstance(rule, Derived):
            return rule.compute(self)
        if isinstance(rule, str) and rule.startswith(SAME_AS):
            return self.get(rule.removeprefix(SAME_AS))
        return rule

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise ModelError(f"the file lacks the key '{self.architecture}.{key}', which its architecture needs")
        return value

    def of_layer(self, key: str, layer: int) -> Any:
        """Return a value that may differ by layer: an array has one for each. Raises ModelError if it is too short."""
        return self._item(key, self.get(key), layer)

    def stored_of_layer(self, key: str, layer: int) -> Any:
        """Return the file's own value for a layer."""
        return self._item(key, self.stored(key), layer)

    def _item(self, key: str, value: Any, layer: int) -> Any:
        if isinstance(value, str) or not hasattr(value, "__len__"):
            return value
        if layer >= len(value):
            raise ModelError(f"'{self.architecture}.{key}' has {len(value)} items; layer {layer} has none")
        return value[layer]

    @property
    def layer_count(self) -> int:
        """Return how many layers run; the last ones of some models are MTP layers, or those of a head."""
        head = self.get("decision.block_count") if self.get("decision.type") == "laya" else 0
        return int(self.need("block_count")) - int(self.get("nextn_predict_layers")) - int(head)


def where(key: str, value: Any) -> Derived:
    """Return the default in files whose `key` is above 0, nothing in others."""
    shown = str(value).lower() if isinstance(value, bool) else f"{value:g}"
    return Derived("", lambda keys: value if keys.get(key) else None, f"{shown} with `{key}`")


def with_window(value: Any) -> Derived:
    return where("attention.sliding_window", value)


def with_experts(value: Any) -> Derived:
    return where("expert_count", value)


def of_original(value: Any) -> Derived:
    """Return the original model's value with experts, for a key that llama.cpp requires."""
    return Derived("as the original model; llama.cpp needs the key", with_experts(value).compute)


def assumed(architecture: Architecture, metadata: Mapping[str, Any]) -> tuple[Assumed, ...]:
    """Return the family's defaults for keys that the file lacks. Raises ModelError as `Keys.need`."""
    keys, defaults = Keys.of(architecture, metadata), []
    for key, rule in architecture.absent.items():
        if keys.stored(key) is None and (value := keys.of_family(key)) is not None:
            formula = formula_of(rule)
            defaults.append(Assumed(f"{architecture.name}.{key}", value, f"absent: {formula}" if formula else DEFAULT))
    return tuple(defaults)


def assumed_rotation(architecture: Architecture, metadata: Mapping[str, Any]) -> tuple[Assumed, ...]:
    """Return the default rotary base, if the file has none and its layers rotate."""
    keys, base = Keys.of(architecture, metadata), "rope.freq_base"
    rotates = architecture.block.rope != "none" and not architecture.block.alibi
    if base in architecture.absent or not rotates or keys.stored(base) is not None:
        return ()
    heads = keys.get("attention.head_count")
    return (Assumed(f"{architecture.name}.{base}", keys.get(base)),) if np.any(heads) else ()


def completed(architecture: Architecture, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with the defaults filled in, and with current names for old spellings."""
    start, current = f"{architecture.name}.", dict(metadata)
    for key, known in MODEL.items():
        for old in known.old:
            if (value := current.pop(start + old, None)) is not None:
                current.setdefault(start + key, value)
    return {**current, **{each.key: each.value for each in assumed(architecture, metadata)}}


def formula_of(rule: Any) -> str:
    """Return how a declared default is shown: the keys it follows from, "" for a constant."""
    if isinstance(rule, Derived):
        return rule.formula
    return rule.removeprefix(SAME_AS) if isinstance(rule, str) and rule.startswith(SAME_AS) else ""


def _head_width(keys: Keys) -> int | None:
    """Return the head width of the first layer that has heads, if layers differ."""
    heads = np.atleast_1d(keys.get("attention.head_count"))
    attending = heads[heads > 0]
    return int(keys.need("embedding_length")) // int(attending[0]) if len(attending) else 0


HEAD_WIDTH = Derived("embedding_length / attention.head_count", _head_width)
COMMON: dict[str, Any] = {
    **{key: known.absent for key, known in MODEL.items() if known.absent is not None},
    "attention.key_length": HEAD_WIDTH,
    "attention.value_length": HEAD_WIDTH,
    "ssm.time_step_max": math.inf,
}
