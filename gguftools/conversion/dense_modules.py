"""Add the Dense modules of sentence-transformers, matrices that multiply pooled states, to a GGUF file.

llama.cpp's files hold two of them, without biases: `dense_2` and after it `dense_3`. LFM2's (ColBERT, with a vector for
every token) hold one of any width.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from archs.general import general, modules_of
from archs.hparams.config_keys import FLAG, SIZE
from archs.plans.text import Plan
from archs.small_files import read_json_object
from archs.typed_json import Text, read_fields
from quants import Tensor
from quants.errors import FileError, ModelError, OptionError

from ..io.checkpoint.folder import Checkpoint
from ..io.checkpoint.safetensors import open_safetensors

NAMES = ("dense_2", "dense_3")
READ_BY = ("gemma-embedding", "gemma3")  # llama.cpp refuses such tensors in files of others
NARROWING = ("lfm2",)  # with a key of their own for the width of what comes out
CONFIG = {"in_features": SIZE, "out_features": SIZE, "bias": FLAG, "activation_function": Text()}
WEIGHT, BIAS = "linear.weight", "linear.bias"


def with_dense_modules(planned: Plan, checkpoint: Checkpoint) -> Plan:
    """Return the plan with Dense modules.

    Raises OptionError if there are none, ModelError for modules that files cannot hold, FileError for a module without
    its files.
    """
    name, folders = planned.architecture.name, modules_of(checkpoint.folder, "Dense")
    if not folders:
        raise OptionError(f"{checkpoint.folder} has no Dense modules in its modules.json", "leave the option out")
    if name not in READ_BY + NARROWING:
        known = ", ".join(READ_BY + NARROWING)
        raise ModelError(f"files of {name} have no place for Dense modules", f"those that have: {known}")
    limit = 1 if name in NARROWING else len(NAMES)
    if len(folders) > limit:
        raise ModelError(f"{checkpoint.folder} has {len(folders)} Dense modules; files of {name} hold {limit}")
    metadata, tensors = planned.metadata.copy(), dict(planned.tensors)
    width = planned.metadata[f"{name}.embedding_length"]
    for target, folder in zip(NAMES, folders, strict=False):
        matrix = _matrix(checkpoint.folder / folder, width)
        if name in NARROWING:
            metadata[f"{name}.embedding_length_out"] = matrix.shape[0]
        else:
            sizes = f"{name}.{target}_feat_in", f"{name}.{target}_feat_out"
            metadata[sizes[0]], metadata[sizes[1]] = matrix.shape[1], matrix.shape[0]
        tensors[f"{target}.weight"] = matrix.renamed(f"{target}.weight")
        width = matrix.shape[0]
    if name not in NARROWING and width != planned.metadata[f"{name}.embedding_length"]:
        raise ModelError(f"{folders[-1]} gives {width} values; files of {name} give as many as the model is wide")
    metadata["general.size_label"] = general(checkpoint.folder, name, tensors.values())["general.size_label"]
    return replace(planned, metadata=metadata, tensors=tensors)


def _matrix(folder: Path, width: int) -> Tensor:
    """Return a module's weight, (out, in)."""
    path, weights = folder / "config.json", folder / "model.safetensors"
    if not path.is_file() or not weights.is_file():
        lacking = weights if path.is_file() else path
        raise FileError(f"{folder} lacks {lacking.name}", "fetch the module's files, too")
    config: dict[str, Any] = read_fields(read_json_object(path), CONFIG, str(path))
    activation = config.get("activation_function") or "Identity"
    if activation.rpartition(".")[2] != "Identity":
        raise ModelError(f"{path}: files cannot express the activation {activation}")
    tensors = open_safetensors(weights)
    if BIAS in tensors:
        raise ModelError(f"{weights}: files cannot express the bias {BIAS!r}")
    if WEIGHT not in tensors:
        raise ModelError(f"{weights} has no {WEIGHT!r}")
    matrix = tensors[WEIGHT]
    if len(matrix.shape) != 2 or matrix.shape != (config.get("out_features", matrix.shape[0]), width):
        expected = f"{config.get('out_features')} rows of {width} were expected"
        raise ModelError(f"{weights}: {WEIGHT!r} has shape {list(matrix.shape)}; {expected}")
    return matrix
