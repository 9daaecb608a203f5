"""Files next to a checkpoint: `general.*` (name, size label, licence, base models, by the rules of `gguf.Metadata`),
and an embedding model's pooling (sentence-transformers' modules.json).
"""

import math
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from quants import Tensor
from quants.errors import ModelError, VocabularyError
from quants.spelling import quote

from .metadata import Metadata
from .small_files import read_json, read_json_object, record_read
from .typed_json import FieldType, Number, Text, Whole, read_fields

NAME: dict[str, FieldType] = {"_name_or_path": Text(max_length=4096)}
WHOLE, NUMBER = Whole(-(2**31), 2**31 - 1), Number()
SAMPLING: dict[str, FieldType] = {  # of generation_config.json
    "sequence": Text(),
    **dict.fromkeys(("top_k", "penalty_last_n", "mirostat"), WHOLE),
    **dict.fromkeys(
        (
            "top_p",
            "min_p",
            "xtc_probability",
            "xtc_threshold",
            "temperature",
            "penalty_repeat",
            "mirostat_tau",
            "mirostat_eta",
        ),
        NUMBER,
    ),
}


# Values of `pooling_type`, by sentence-transformers' words (older files have a flag for each).
POOLING = {
    "pooling_mode_mean_tokens": 1,
    "pooling_mode_cls_token": 2,
    "pooling_mode_lasttoken": 3,
    "mean": 1,
    "cls": 2,
    "lasttoken": 3,
}
MODULE = {"type": Text(), "path": Text(form=r"(?!\.\.?$)[^/\\\x00]*")}  # a folder next to modules.json


def general(
    folder: Path, architecture: str, tensors: Iterable[Tensor], general_type: str = "model", name: str | None = None
) -> Metadata:
    """Return `general.architecture`, `general.type` and what model card, config and folder name give.

    tensors: as they will be in the file; they give the size label. name: used instead of the folder's name if no other
    is known.
    """
    import gguf  # imported here because it is slow to import
    import yaml

    counts = _parameters(tensors)
    if general_type == "adapter":
        counts = (-counts[0], *counts[1:])  # marks the count as that of the adapted weights, not of the stored ones
    writer = gguf.GGUFWriter(None, architecture)  # never written: it only collects keys and types
    writer.add_type(general_type)
    card = folder / "README.md"
    try:
        if card.is_file():
            record_read(card, card.stat())  # read by the library
        described = _described(folder, counts[0])
        if described.size_label is None and counts[0] > 0:
            described.size_label = gguf.size_label(*counts)
        if described.name is None:
            described.name = name or folder.resolve().name
        described.set_gguf_meta_model(writer)
    except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError, yaml.YAMLError) as error:
        # a model card may hold anything, and the libraries may raise anything; our own errors pass
        why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise ModelError(f"{card} is no model card: {why}", "mend or remove it") from error
    values = {}
    for key, each in writer.kv_data[0].items():
        listed = isinstance(each.value, (list, tuple))
        values[key] = [str(item) for item in each.value] if listed else _text_or_value(card, key, each)
    return Metadata(values)


def _text_or_value(card: Path, key: str, field: Any) -> Any:
    """Return a value of the model card; YAML may read a text as a number or a date: `model_name: 3`."""
    if field.type.name != "STRING" or isinstance(field.value, str):
        return field.value
    if isinstance(field.value, (int, float, date)):
        return str(field.value).lower() if isinstance(field.value, bool) else str(field.value)
    raise ModelError(f"{card} is no model card: {key} is {quote(field.value)}, not a text", "mend or remove it")


def _described(folder: Path, parameters: int) -> Any:
    """Return what `gguf.Metadata.load` gives, from files checked by type."""
    import gguf

    config, generation = (
        read_fields(read_json_object(path), table, path.name) if path.is_file() else {}
        for path, table in ((folder / "config.json", NAME), (folder / "generation_config.json", SAMPLING))
    )
    card = gguf.Metadata.load_model_card(folder)
    described = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), card, config, folder, parameters)
    for key in SAMPLING:
        setattr(described, f"sampling_{'temp' if key == 'temperature' else key}", generation.get(key))
    return described


def size_label(tensors: Iterable[Tensor]) -> str | None:
    """Return `general.size_label` of these tensors for a model whose name has none, such as 8x7B; None without
    tensors.
    """
    import gguf  # imported here because it is slow to import

    counts = _parameters(tensors)
    return str(gguf.size_label(*counts)) if counts[0] > 0 else None


def _parameters(tensors: Iterable[Tensor]) -> tuple[int, int, int, int]:
    """Return the numbers of parameters: all, outside experts, of one expert; and the experts, from which a label such
    as 8x7B is made.
    """
    tensors = list(tensors)
    stacks = [tensor for tensor in tensors if "_exps." in tensor.name and len(tensor.shape) > 2]
    total, in_experts = (sum(tensor.size for tensor in some) for some in (tensors, stacks))
    of_one_expert = sum(math.prod(tensor.shape[1:]) for tensor in stacks)
    experts = sum(tensor.shape[0] for tensor in stacks) // max(len(stacks), 1)
    return total, total - in_experts, of_one_expert, experts


def modules_of(folder: Path, module_type: str) -> list[str]:
    """Return the folders of sentence-transformers' modules of a type ("Pooling", "Dense") that modules.json lists, in
    order.

    Raises VocabularyError for a file that lists something else.
    """
    file = folder / "modules.json"
    listed = read_json(file) if file.is_file() else []
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise VocabularyError(f"{file} does not hold a JSON list of objects")
    modules = [read_fields(module, MODULE, str(file)) for module in listed]
    return [module.get("path") or "" for module in modules if (module.get("type") or "").endswith(module_type)]


def pooling_type(folder: Path) -> int | None:
    """Return GGUF's `pooling_type`; None where the folder says nothing. Raises ModelError for another way of
    pooling.
    """
    paths = modules_of(folder, "Pooling")
    if not paths:
        return None
    path = paths[0]
    config = read_json_object(folder / path / "config.json", optional=True)
    settings = read_fields(config, {"pooling_mode": Text()}, f"{path}/config.json")
    words = [key for key, value in settings.items() if value is True] + [settings.get("pooling_mode")]
    types = [POOLING[word] for word in words if word in POOLING]
    if len(types) != 1:
        raise ModelError(f"{folder / path / 'config.json'} has another pooling mode than mean, first or last token")
    return types[0]
