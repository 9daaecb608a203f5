"""What a file leaves out, and what it says that llama.cpp reads otherwise: for whoever shows or checks it."""

from collections.abc import Iterator, Mapping
from typing import Any

from archs import unsupported_encoders
from archs.hparams.assumed import Assumed
from archs.hparams.config_keys import MAX_LAYERS
from archs.hparams.deviations import Deviation, deviations
from archs.hparams.file_keys import assumed, assumed_rotation
from archs.metadata import Metadata, Value
from archs.registry import architectures, draft_of_file, of_file
from archs.schema import find
from archs.spec import Architecture
from archs.vocab import absent
from quants.errors import ModelError

NO_MODELS = ("imatrix", "mmproj", "adapter", "delta", "vocab", "dataset")


def assumed_values(metadata: Mapping[str, Any]) -> tuple[Assumed, ...]:
    """Return values that count though the file lacks them: of the model, of its vocabulary, of its image and audio
    encoders. Nothing of files that are not sound.
    """
    family = _family(metadata)
    try:
        of_model = () if family is None else (*assumed(family, metadata), *assumed_rotation(family, metadata))
        return (*of_model, *absent.assumed(metadata), *unsupported_encoders.assumed(metadata))
    except (ModelError, TypeError, ValueError):  # keys of wrong types, which `validate` names
        return ()


def deliberate_differences(metadata: Mapping[str, Any]) -> tuple[Deviation, ...]:
    """Where the file means here something else than in llama.cpp. Nothing of files that are not sound."""
    family = _family(metadata)
    try:
        return () if family is None else deviations(family, metadata)
    except ModelError:
        return ()


def notes(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Return a line for each of these differences."""
    name = metadata.get("general.architecture")
    for each in deliberate_differences(metadata):
        yield f"{name}.{each.key}: {each.here}; llama.cpp: {each.llama_cpp} ({each.reason})"


def _family(metadata: Mapping[str, Any]) -> Architecture | None:
    """Return the architecture of a model's file whose keys have values that they can have."""
    name, general_type = metadata.get("general.architecture"), metadata.get("general.type")
    if not isinstance(name, str) or general_type in NO_MODELS:
        return None
    if (draft := draft_of_file(name)) is None and name not in {each.name for each in architectures()}:
        return None
    for key, value in metadata.items():
        if key.startswith(f"{name}.") and (rule := find(key, name)) is not None and rule.wrong(value) is not None:
            return None
    if metadata.get(f"{name}.block_count", 0) > MAX_LAYERS:
        return None
    return draft or of_file(name, metadata)


def typed_value(assumption: Assumed) -> Value:
    """Return the assumed value with the type that its key has; of a list of equal items, one of them."""
    known = find(assumption.key)
    if known is not None and known.array and not isinstance(assumption.value, (list, tuple)):
        return Value(assumption.value, known.type)
    return Metadata({assumption.key: assumption.value}).value(assumption.key)
