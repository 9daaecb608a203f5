"""Validate the keys and tensors of an mmproj file: what every program needs, whatever the projector type."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from quants import Tensor

from ..encoder import NAME

COMMON = ("embedding_length", "feed_forward_length", "block_count", "projection_dim", "attention.head_count")
OWN = {"vision": ("image_size", "patch_size", "image_mean", "image_std"), "audio": ("num_mel_bins",)}
LAYER = re.compile(r"([va])\.blk\.(\d+)\.(?!\d)")  # with two numbers it is a stage's block
# Names after the encoders' prefix.
PROJECTORS = (
    "mm.",
    "resampler.",
    "v.resample",
    "v.proj_blk.",
    "a.proj_blk.",
    "v.merger",
    "v.vit_merger",
    "a.speaker_proj.",
)


def validate_encoder(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Yield each fault: a key or a tensor, and what is wrong with it."""
    parts = [part for part in OWN if metadata.get(f"{NAME}.has_{part}_encoder")]
    if not parts:
        yield f"{NAME}.has_vision_encoder", "is not true, nor is that for audio: the file has no encoder"
    for part in parts:
        if not {f"{NAME}.projector_type", f"{NAME}.{part}.projector_type"} & {*metadata}:
            yield f"{NAME}.projector_type", "is missing; every program needs it"
        for key in (*COMMON, *OWN[part]):
            if f"{NAME}.{part}.{key}" not in metadata:
                yield f"{NAME}.{part}.{key}", "is missing; every program needs it"
        yield from _layer_faults(part, metadata, tensors)
    if parts and not any(name.startswith(PROJECTORS) for name in tensors):
        yield "tensors", "there is none that brings an encoder's output to the text model (mm.…)"


def _layer_faults(part: str, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    letter, count = part[0], metadata.get(f"{NAME}.{part}.block_count")
    layers = {int(match[2]) for match in map(LAYER.match, tensors) if match and match[1] == letter}
    if isinstance(count, int) and layers:
        first = int(0 not in layers and f"{letter}.asp_attn.weight" in tensors)  # that net counts its stages from 1
        if lacking := sorted(set(range(first, first + min(count, 10_000))) - layers):
            yield f"{letter}.blk.{lacking[0]}", f"is missing, though there are {count} layers"
        if (last := max(layers)) >= first + count:
            yield f"{letter}.blk.{last}", f"is one layer too many: {NAME}.{part}.block_count is {count}"
    width = metadata.get(f"{NAME}.{part}.embedding_length")
    norm = tensors.get(f"{letter}.blk.0.ln1.weight")
    if norm is not None and isinstance(width, int) and norm.shape != (width,):
        yield norm.name, f"has the shape {norm.shape}; {NAME}.{part}.embedding_length is {width}"
    side, patches = metadata.get(f"{NAME}.{part}.patch_size"), tensors.get(f"{letter}.patch_embd.weight")
    if isinstance(side, int) and patches is not None and len(patches.shape) == 4 and patches.shape[2:] != (side, side):
        yield patches.name, f"has the shape {patches.shape}; {NAME}.{part}.patch_size is {side}"
