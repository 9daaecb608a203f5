"""Describe a GGUF file in words and numbers, for `show` and for comparing files as text."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from archs.diffusion.image_file import image_file
from archs.diffusion.readers import verdicts
from archs.metadata import Metadata, Value, ValueType
from quants import Tensor
from quants.arguments import PathLike
from quants.errors import OptionError
from quants.spelling import did_you_mean

from ..metadata.assumptions import assumed_values, typed_value
from ..metadata.text import SHORT_ARRAY, brief, plain
from ..models.model import Model, opened_gguf, selected


def summary(opened: Model) -> dict[str, Any]:
    """Return the main facts about a file; keys whose facts the file lacks are left out."""
    metadata, tensors = opened.metadata, opened.tensors
    name = metadata.get("general.architecture")
    weights = sum(t.size for t in tensors.values())
    types = Counter[str]()
    for tensor in tensors.values():
        types[tensor.format.name] += tensor.nbytes
    size = types.total()
    images = image_file(metadata, tensors, len(opened.files))
    facts: dict[str, Any] = {
        "name": metadata.get("general.name"),
        "architecture": name,
        "model": images and images.family and images.family.title,
        "parameters": weights or None,
        "size label": metadata.get("general.size_label"),
        "tensors": len(tensors),
        "tensor bytes": size,
        "bits per weight": round(8 * size / weights, 3) if weights else None,
        "types": dict(types.most_common()) or None,
        "layers": _number(metadata, f"{name}.block_count"),
        "context": _number(metadata, f"{name}.context_length"),
        "width": _number(metadata, f"{name}.embedding_length"),
        "vocabulary": _vocabulary(metadata),
        "chat template": "yes" if "tokenizer.chat_template" in metadata else None,
        "shards": len(opened.files) if len(opened.files) > 1 else None,
        "read by": None if images is None else [each.title for each in verdicts(images) if each.loads],
    }
    return {key: value for key, value in facts.items() if value is not None}


def _number(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(key)
    return int(value) if isinstance(value, (int, np.integer)) else None


def _vocabulary(metadata: Mapping[str, Any]) -> str | None:
    tokens, model, pre = (metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "model", "pre"))
    if tokens is None or not hasattr(tokens, "__len__"):
        return None
    named = f"{len(tokens):,} tokens, {model if isinstance(model, str) else '?'}"
    return f"{named} ({pre})" if isinstance(pre, str) and pre else named


@dataclass(frozen=True)
class ShowReport:
    """A file without its tensors' data. tensors: the requested ones."""

    model: Model
    tensors: list[Tensor]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; of long arrays their type, length and first items."""
        file, metadata = self.model.file, self.model.metadata
        return {
            "file": str(self.model.path),
            **({"version": file.version, "byte_order": file.byte_order} if file else {}),
            "alignment": self.model.origin.alignment,
            "summary": {name.replace(" ", "_"): value for name, value in summary(self.model).items()},
            "metadata": {key: _json_value(metadata.value(key)) for key in metadata},
            "assumed": {
                each.key: {**_json_value(typed_value(each)), "reason": each.reason} for each in assumed_values(metadata)
            },
            "tensors": [
                {
                    "name": t.name,
                    "type": t.format.name,
                    "shape": list(t.shape),
                    **({"offset": file.offsets[t.name]} if file and t.name in file.offsets else {}),
                    "size_bytes": t.nbytes,
                }
                for t in self.tensors
            ],
        }


def show(source: PathLike | Model, *, tensors: str | None = None) -> ShowReport:
    """Read what a GGUF file contains: a summary, metadata, and the name, type and shape of each tensor.

    source: a GGUF file, any shard of a split set, its URL, or a Model. tensors: a regular expression; only tensors in
    whose name it is found.
    Raises FileError, OptionError for a bad expression and for one that no name matches.
    """
    model = opened_gguf(source)
    return ShowReport(model, selected(model.tensors, tensors))


def _json_value(value: Value) -> dict[str, Any]:
    if value.type is not ValueType.ARRAY or len(value.data) <= SHORT_ARRAY:
        return {"type": str(value.gguf_type), "value": plain(value)}
    first = Value(value.data[:SHORT_ARRAY], value.type, value.element)
    return {"type": str(value.gguf_type), "length": len(value.data), "first": plain(first)}


def metadata_rows(opened: Model) -> Iterator[tuple[str, str, str]]:
    """Yield key, type and shortened value of every key, then of absent keys with an assumed value."""
    for key in opened.metadata:
        value = opened.metadata.value(key)
        yield key, str(value.gguf_type), brief(value)
    for each in assumed_values(opened.metadata):
        value = typed_value(each)
        yield each.key, str(value.gguf_type), f"{brief(value)}  ({each.reason})"


def as_text(opened: Model) -> Iterator[str]:
    """Yield a stable dump for `diff`: every key in full; type, shape and a short hash of each tensor."""
    for key in sorted(opened.metadata):
        value = opened.metadata.value(key)
        yield f"{key}\t{value.gguf_type}\t{json.dumps(plain(value), ensure_ascii=False)}"
    from .hashing import hash  # imported here, as a summary does not need it

    hashes = {digest.tensor: digest.hex[:16] for digest in hash(opened, ["sha256"]).digests}
    for name, tensor in sorted(opened.tensors.items()):
        yield f"{name}\t{tensor.format.name}\t{'x'.join(map(str, tensor.shape))}\t{hashes[name]}"


def full_value(metadata: Metadata, key: str) -> Any:
    """Return the whole value of a key. Raises OptionError with the most similar keys if it does not exist."""
    if key not in metadata:
        raise OptionError(f"there is no key {key!r}", did_you_mean(key, metadata))
    return plain(metadata.value(key))


def fact(value: Any) -> str:
    """Return a fact of the summary as text."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {100 * part / (sum(value.values()) or 1):.1f} %" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(value) or "none of the known programs"
    return f"{value:,}" if isinstance(value, int) else str(value)
