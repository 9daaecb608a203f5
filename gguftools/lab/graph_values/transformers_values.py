"""Values of a checkpoint's modules in transformers, by the names of a graph's nodes."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quants.errors import ModelError, OptionError

from ...inspection.graph import ModelGraph
from ...inspection.original.logits_check import loaded_original, quiet_transformers
from ...io.stores.path import first_line
from ...models.model import Model
from ...models.running import running_model
from .values import Array

LAYERS = ("layers", "h", "blocks")
LAST_NORM = ("norm", "ln_f", "final_layernorm", "norm_f", "embedding_norm")
ATTENTION = ("self_attn", "attn", "attention", "self_attention")
PROJECTION = ("o_proj", "out_proj", "dense", "c_proj")
NET = ("mlp", "feed_forward", "block_sparse_moe", "moe")
# Names of a layer's modules → base names of nodes, the first that the layer has counts.
OUTPUTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("input_layernorm", "ln_1", "operator_norm", "norm"), ("attn_norm",)),
    (("pre_feedforward_layernorm", "ln_2", "ffn_norm"), ("ffn_norm",)),
    (("post_self_attn_layernorm",), ("attn_post_norm",)),
    (("post_feedforward_layernorm", "post_mlp_layernorm"), ("ffn_post_norm",)),
    (ATTENTION, ("attn_out",)),
    (("linear_attn",), ("linear_attn_out",)),
    (("conv",), ("shortconv_out",)),
    (("mixer", "mamba"), ("mamba_out", "ssm_out")),
    (NET, ("ffn_out", "ffn_moe_out")),
)
HEADS = (
    ("v_proj", "Vcur"),
    ("q_proj", "Qcur"),
    ("k_proj", "Kcur"),
    ("q_norm", "Qcur_normed"),
    ("k_norm", "Kcur_normed"),
)
IN_NET = (("gate_proj", "ffn_gate"), ("up_proj", "ffn_up"))

Keep = Callable[[str, Any], None]


def transformers_values(source: Model, shown: ModelGraph, folder: Path, tokens: Sequence[int]) -> dict[str, Array]:
    """Return values (tokens, …) of the nodes that a module of the checkpoint computes, in float32.

    Queries and keys are left out if the converter reorders their rows. Raises OptionError without torch and
    transformers, and ModelError for a checkpoint that transformers cannot run.
    """
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        raise OptionError(
            "a checkpoint is run with transformers on torch, which are not installed", 'pip install "gguftools[verify]"'
        )
    import torch

    values: dict[str, Array] = {}

    def keep(name: str, value: Any) -> None:
        value = value[0] if isinstance(value, tuple) else value
        if isinstance(value, torch.Tensor):
            array = value.detach().float().numpy()
            array = array[0] if array.ndim > 2 and len(array) == 1 else array
            if len(array) == len(tokens):
                values[name] = np.array(array)

    with quiet_transformers(), torch.no_grad():
        original: Any = loaded_original(running_model(source), folder, "compare with a GGUF file of it")
        for name, module, reads_input in _modules(original, shown):
            if reads_input:
                module.register_forward_pre_hook(_input_hook(keep, name), with_kwargs=True)
            else:
                module.register_forward_hook(lambda _, given, value, name=name: keep(name, value))
        try:
            result = original(input_ids=torch.tensor([list(tokens)]))
        except Exception as error:  # any exception of a model that rejects the tokens
            raise ModelError(f"transformers cannot run {folder}: {first_line(error)}") from error
    if "logits" in result:
        keep("result_output", result.logits)
    return values


def _input_hook(keep: Keep, name: str) -> Callable[..., None]:
    def hook(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        keep(name, given[0] if given else named.get("hidden_states"))

    return hook


def _modules(original: Any, shown: ModelGraph) -> Iterator[tuple[str, Any, bool]]:
    """Yield names of nodes with the module that computes each; True: the value is the module's input."""
    backbone = original.base_model
    layers, norm = _one_of(backbone, LAYERS), _one_of(backbone, LAST_NORM)
    if layers is None:
        return
    before = [node.name for node in shown.nodes if node.layer is None and node.name != "result_norm"]
    yield before[0], layers[0], True
    if norm is not None:
        yield "result_norm", norm, False
    for layer, module in enumerate(layers):
        names = [node.name for node in shown.nodes if node.layer == layer]
        if names:
            yield names[-1], module, False
            for base, part, reads_input in _parts(module, _rotates_halves(shown)):
                name = next((f"{each}-{layer}" for each in base if f"{each}-{layer}" in names), None)
                if name:
                    yield name, part, reads_input


def _parts(module: Any, in_order: bool) -> Iterator[tuple[tuple[str, ...], Any, bool]]:
    """Yield base names of nodes and the parts of a layer that compute them. in_order: rows of queries and keys are not
    reordered.
    """
    for modules, base in OUTPUTS:
        part = _one_of(module, modules)
        if part is not None:
            yield base, part, False
    if (after := getattr(module, "post_attention_layernorm", None)) is not None:
        is_post_norm = hasattr(module, "pre_feedforward_layernorm") or not hasattr(module, "input_layernorm")
        is_post_norm |= hasattr(module, "post_feedforward_layernorm")
        yield ("attn_post_norm",) if is_post_norm else ("ffn_norm", "attn_post_norm"), after, False
    mixer, net = _one_of(module, ATTENTION), _one_of(module, NET)
    for name, base_name in HEADS:
        if hasattr(mixer, name) and (in_order or base_name == "Vcur"):
            yield (base_name,), getattr(mixer, name), False
    projection = _one_of(mixer, PROJECTION)
    if projection is not None:
        yield ("attn_sub_norm", "attn_gated", "kqv_out"), projection, True
    for name, base_name in IN_NET:
        if hasattr(net, name):
            yield (base_name,), getattr(net, name), False


def _rotates_halves(shown: ModelGraph) -> bool:
    rotations = [node.attributes["pairs"] for node in shown.nodes if node.operation == "Rope"]
    return all(pairs == "halves" for pairs in rotations)


def _one_of(module: Any, names: Sequence[str]) -> Any:
    return next((getattr(module, name) for name in names if getattr(module, name, None) is not None), None)
