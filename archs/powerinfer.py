"""PowerInfer's form of a ReLU model: down projections by neuron, and a predictor of the neurons that will fire.

Differences from a plain file: the magic is PWRI; `blk.N.ffn_down.weight` is stored transposed as
`blk.N.ffn_down_t.weight`, so that a neuron is a row of every matrix (its bias is renamed with it); `blk.N.fc1.weight`
and `blk.N.fc2.weight` are the predictor, two linear maps with a ReLU between; `powerinfer.sparse_threshold` is the
score from which a neuron counts.
"""

from collections.abc import Sequence
from typing import Any

from quants import Tensor
from quants.errors import ModelError

from .metadata import Metadata
from .spec import Architecture, Config, Tensors
from .transforms import transposed

MAGIC = b"PWRI"
THRESHOLD = "powerinfer.sparse_threshold"
ARCHITECTURES = ("llama", "falcon", "opt")
ACTIVATION_KEYS = ("activation", "activation_function", "hidden_act", "hidden_activation")


def sparse_metadata(
    architecture: Architecture, config: Config, metadata: Metadata, threshold: float | None
) -> Metadata:
    """Return a model's keys with its threshold. Raises ModelError for models without ReLU or unknown to PowerInfer."""
    if architecture.name not in ARCHITECTURES:
        raise ModelError(f"PowerInfer runs {', '.join(ARCHITECTURES)}, not {architecture.name}")
    named = {str(config[key]) for key in ACTIVATION_KEYS if config.get(key)}
    if "relu" not in named and (named or architecture.name != "falcon"):  # PowerInfer's Falcon has always ReLU
        stated = f"config.json {'says ' + ', '.join(sorted(named)) if named else 'names none'} as activation"
        hint = "predictors belong to the ReLU versions of models"
        raise ModelError(f"a predictor tells which neurons a ReLU will let through; {stated}", hint)
    added: dict[str, Any] = {}
    if architecture.block.activation != "relu":
        added[f"{architecture.name}.hidden_activation"] = "relu"
    if threshold is not None:
        added[THRESHOLD] = threshold
    keys = list(metadata)
    end = next((i for i, key in enumerate(keys) if key.startswith("tokenizer.")), len(keys))
    before, after = ({key: metadata.value(key) for key in some} for some in (keys[:end], keys[end:]))
    return Metadata({**before, **added, **after})


def sparse_tensors(tensors: Tensors, predictors: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Return a model's tensors in PowerInfer's form, predictors first.

    predictors: fc1 (rank, width) and fc2 (neurons, rank) of each layer. Raises ModelError if they don't fit.
    """
    result: dict[str, Tensor] = {}
    layers = sum(name.endswith(".ffn_up.weight") for name in tensors)
    if layers != len(predictors):
        raise ModelError(f"the model has {layers} layers, the predictor {len(predictors)}")
    for i, (first, second) in enumerate(predictors):
        neurons, width = tensors[f"blk.{i}.ffn_up.weight"].shape
        if first.shape != (first.shape[0], width) or second.shape != (neurons, first.shape[0]):
            shapes = f"{first.origin} is {list(first.shape)} and {second.origin} {list(second.shape)}"
            needed = f"the layer needs [rank, {width}] and [{neurons}, rank]"
            raise ModelError(f"{shapes}; {needed}", hint="the predictor belongs to another model")
        for name, tensor in (("fc1", first), ("fc2", second)):
            result[f"blk.{i}.{name}.weight"] = tensor.renamed(f"blk.{i}.{name}.weight")
    for name, tensor in tensors.items():
        new = name.replace(".ffn_down.", ".ffn_down_t.")
        turned = transposed(tensor) if new != name and new.endswith(".weight") else tensor
        result[new] = turned.renamed(new)
    return result
