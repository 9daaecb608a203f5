"""Tell where llama.cpp puts weights and caches: in a device's memory or in RAM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .description import TABLE, Described

DEVICE, RAM = 0, 1
INPUTS = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")  # always in RAM
WITH_FIRST = ("per_layer_model_proj.", "per_layer_proj_norm.", "token_embd_norm.", "rope_f")  # with the first layer
EXPERTS = re.compile(r"ffn_(up|down|gate|gate_up)_(ch|)exps")
PADDING = 32
LOADS_TWICE = ("gemma3n", "gemma4")  # tied embeddings, even if both are in RAM
LOADS_MTP = ("hy_v3", "step35")  # layers that predict further tokens, whether they are used or not


@dataclass(frozen=True)
class Placement:
    """How many of the last layers are on a device (one more: the output, too), and how many layers' experts are not.

    copies_weights: the device computes with weights in RAM where a step has many tokens (llama.cpp's `op_offload`).
    """

    gpu_layers: int = 0
    cpu_moe: int = 0
    copies_weights: bool = True

    def of_layer(self, model: Described, layer: int) -> int:
        """Return the place of a layer."""
        return DEVICE if layer >= _stored(model) + 1 - self.gpu_layers else RAM

    def of_output(self, model: Described) -> int:
        """Return the place of the last norm and the logits' matrix."""
        return self.of_layer(model, _stored(model))

    def of_tensor(self, model: Described, role: str, layer: int | None) -> int:
        """Return the place of a tensor by its name in its layer."""
        if layer is None:
            if f"{role}.".startswith(INPUTS):
                return RAM
            last = role.startswith("token_embd_norm") and "output_norm.weight" not in model.outside  # LFM2's
            first = f"{role}.".startswith(WITH_FIRST) and not last
            return self.of_layer(model, 0) if first else self.of_output(model)
        if layer < self.cpu_moe and EXPERTS.match(role):
            return RAM
        return self.of_layer(model, layer)


IN_RAM = Placement()
ALL_LAYERS = 1 << 16


def _stored(model: Described) -> int:
    """Return how many layers the file has, with those that predict further tokens."""
    return int(model.keys.need("block_count"))


@dataclass(frozen=True)
class Weights:
    """Bytes of weights that llama.cpp loads, by place. skipped: of tensors that a run without MTP does not load."""

    device: int
    ram: int
    skipped: int


def weights(model: Described, placement: Placement = IN_RAM) -> Weights:
    """Return the bytes of the weights. Tied embeddings count twice if the logits are computed on a device."""
    bytes_of = [0, 0]
    skipped = 0
    for layer, role, size in _tensors(model):
        if layer is not None and layer >= _running(model) and model.architecture.name not in LOADS_MTP:
            skipped += size
            continue
        bytes_of[placement.of_tensor(model, role, layer)] += -(-size // PADDING) * PADDING
    table = model.outside.get(TABLE)
    if "output.weight" not in model.outside and table is not None and not model.architecture.block.hidden_states:
        place = placement.of_output(model)
        if place == DEVICE or model.architecture.name in LOADS_TWICE:
            bytes_of[place] += table.nbytes
    return Weights(bytes_of[DEVICE], bytes_of[RAM], skipped)


def _running(model: Described) -> int:
    """Return how many of the stored layers run."""
    return _stored(model) - model.number("nextn_predict_layers")


def _tensors(model: Described) -> Iterator[tuple[int | None, str, int]]:
    for prefix, roles in model.grouped.items():
        layer = int(prefix.split(".")[-2]) if prefix else None
        for role, tensor in roles.items():
            yield layer, role, tensor.nbytes
