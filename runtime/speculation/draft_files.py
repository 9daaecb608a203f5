"""Draft readers: files that draft with a model and are no model themselves."""

from collections.abc import Mapping
from typing import Any

from archs.families.drafts import EAGLE3, GEMMA4_ASSISTANT
from archs.mtp import has_only_mtp
from archs.registry import draft_of_file
from quants import Tensor

from ..model import RunningModel
from .assistants import Assistant
from .blocks import BlockWriter
from .readers import Eagle3, MtpLayer, Reader


def reader_of(
    model: RunningModel, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Reader | Assistant | BlockWriter | None:
    """Return the reader of a model's states or keys in a file; None for a file of another type. Raises ModelError."""
    if has_only_mtp(metadata, tensors):
        return MtpLayer(model, metadata, tensors)
    architecture = draft_of_file(metadata.get("general.architecture"))
    if architecture is None:
        return None
    if architecture.name == EAGLE3.name:
        return Eagle3(model, architecture, metadata, tensors)
    if architecture.name == GEMMA4_ASSISTANT.name:
        return Assistant(model, architecture, metadata, tensors)
    return BlockWriter(model, architecture, metadata, tensors)
