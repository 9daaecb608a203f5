"""Take MTP layers (NextN) out of one file, or put them into another.

They are `blk.N` from the trunk's end on. `block_count` includes them, `nextn_predict_layers` is their number, and lists
with an item for each layer may have items for them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from archs.metadata import Metadata, Value, ValueType
from archs.mtp import BLOCKS, COUNT, LAYER, has_only_mtp
from archs.schema import find
from quants.errors import ModelError, OptionError

from ..io.gguf.assembly import Stored

T = TypeVar("T")  # a tensor: stored, or to be made
OWN_KEYS = {COUNT, BLOCKS, "context_length", "vocab_size"}  # which do not affect how a layer computes
STREAMS = "output_hc_"  # what makes one of several streams
SHARED = re.compile(
    rf"(token_embd|output_norm|output|{STREAMS}(fn|base|scale))\.weight|rope_(freqs|factors_long|factors_short)\.weight"
)


def counts(metadata: Metadata, path: Path) -> tuple[str, int, int]:
    """Return the architecture's name, the number of trunk layers, and of MTP layers. Raises ModelError."""
    name = metadata.get("general.architecture", "")
    layers, mtp_count = metadata.get(f"{name}.{BLOCKS}"), metadata.get(f"{name}.{COUNT}", 0)
    if not isinstance(layers, int) or not isinstance(mtp_count, int) or not 0 <= mtp_count < layers:
        raise ModelError(f"{path}: '{name}.{BLOCKS}' is {layers}, '{name}.{COUNT}' is {mtp_count}: no model has that")
    return str(name), layers - mtp_count, mtp_count


def without(metadata: Metadata, tensors: Mapping[str, T], path: Path) -> tuple[Metadata, dict[str, T]]:
    """Return the model without MTP layers. Raises OptionError if it has none."""
    name, trunk, mtp_count = counts(metadata, path)
    if not mtp_count:
        raise OptionError(f"{path} has no MTP layers ('{name}.{COUNT}')")
    new = metadata.copy()
    del new[f"{name}.{COUNT}"]
    _set(new, f"{name}.{BLOCKS}", trunk)
    for key, value in list(_lists(metadata, name, (trunk + mtp_count,))):
        new[key] = Value(value.data[:trunk], value.type, value.element)
    return new, {tensor: each for tensor, each in tensors.items() if _layer(tensor) < trunk}


def only(metadata: Metadata, tensors: Mapping[str, T], path: Path, left_out: Sequence[str] = ()) -> dict[str, T]:
    """Return the tensors of the MTP layers, and those they share with the trunk, as in llama.cpp's draft files.

    The metadata stays that of the whole model. left_out: source tensors of such layers that the file has no place for.
    Raises OptionError without MTP layers.
    """
    name, trunk, mtp_count = counts(metadata, path)
    kept = {tensor: each for tensor, each in tensors.items() if SHARED.fullmatch(tensor) or _layer(tensor) >= trunk}
    if not mtp_count or not any(_layer(tensor) >= trunk for tensor in kept):
        problem = f"{path} has no MTP layers (NextN)"
        if left_out:
            more = f" and {len(left_out) - 1} more" * (len(left_out) > 1)
            problem = f"{path}: MTP layers ({left_out[0]!r}{more}) are left out of {name} files"
        raise OptionError(problem, 'leave out part="mtp"')
    streams = any(".hc_" in tensor for tensor in kept)
    return {tensor: each for tensor, each in kept.items() if streams or not tensor.startswith(STREAMS)}


def with_donor(
    metadata: Metadata, tensors: dict[str, Stored], donor: Metadata, donated: Mapping[str, Stored], path: Path
) -> tuple[Metadata, dict[str, tuple[Stored, str]]]:
    """Return the metadata with a donor's MTP layers, and the layers' tensors by new names, each with its old name.

    The target's own MTP layers are removed from `tensors`. path: the donor's. Raises ModelError; OptionError if the
    donor has none.
    """
    name, trunk, old_count = counts(metadata, path)
    _, their_trunk, mtp_count = counts(donor, path)
    mtp_tensors = {old: each for old, each in donated.items() if _layer(old) >= their_trunk}
    if not mtp_count or not mtp_tensors:
        raise OptionError(f"{path} has no MTP layers ('{name}.{COUNT}')")
    if has_only_mtp(donor, donated) and f"{name}.hyper_connection.count" in metadata and not _has_own_mean(mtp_tensors):
        problem = f"a {name} model's file has no place for what makes one of the streams of {path}"
        raise OptionError(problem, "the file drafts as it is: `gguftools generate MODEL --draft FILE`")
    for old in [tensor for tensor in tensors if _layer(tensor) >= trunk]:
        del tensors[old]
    new = metadata.copy()
    _set(new, f"{name}.{BLOCKS}", trunk + mtp_count)
    new[f"{name}.{COUNT}"] = donor.value(_key(donor, COUNT))
    for key, value in _lists(metadata, name, (trunk, trunk + old_count)):
        theirs = donor.value(key) if key in donor else None
        items = list(value.data[:trunk])
        if theirs is not None and theirs.type is ValueType.ARRAY and len(theirs.data) == their_trunk + mtp_count:
            items += list(theirs.data[their_trunk:])
        new[key] = Value(items, value.type, value.element)
    for key in donor:
        if re.fullmatch(rf"{re.escape(name)}\.(nextn|mtp)[._].+", key):
            new[key] = donor.value(key)
    renamed = {}
    for old, each in mtp_tensors.items():
        match = LAYER.fullmatch(old)
        assert match is not None
        fresh = f"blk.{trunk + int(match[1]) - their_trunk}.{match[2]}"
        renamed[fresh] = (each.renamed(fresh), old)
    return new, renamed


def _has_own_mean(tensors: Mapping[str, T]) -> bool:
    return any(tensor.endswith(".nextn.hc_head_up.weight") for tensor in tensors)


def differences(metadata: Metadata, donor: Metadata) -> Iterator[str]:
    """Yield reasons why a donor's layer would compute differently in the target: keys with other values."""
    name = metadata.get("general.architecture", "")
    mine, theirs = (_trunk(each, str(name)) for each in (metadata, donor))
    if mine != theirs:
        yield f"its trunk has {theirs} layers, not {mine}"
    keys = {key for each in (metadata, donor) for key in each if key.startswith(f"{name}.")}
    for key in sorted(keys):
        if key.removeprefix(f"{name}.") in OWN_KEYS or re.fullmatch(rf"{re.escape(str(name))}\.(nextn|mtp)[._].+", key):
            continue
        a, b = (each.value(key) if key in each else None for each in (metadata, donor))
        if a is not None and b is not None and a.type is b.type is ValueType.ARRAY:
            if list(a.data[:mine]) == list(b.data[:theirs]):
                continue
        elif a is not None and b is not None and a.data == b.data:
            continue
        shown = [("missing" if each is None else str(each.data)[:40]) for each in (b, a)]
        yield f"its {key!r} is {shown[0]}, not {shown[1]}"


def _trunk(metadata: Metadata, name: str) -> int:
    layers, mtp_count = metadata.get(f"{name}.{BLOCKS}", 0), metadata.get(f"{name}.{COUNT}", 0)
    return layers - mtp_count if isinstance(layers, int) and isinstance(mtp_count, int) else -1


def _key(metadata: Metadata, name: str) -> str:
    return f"{metadata.get('general.architecture', '')}.{name}"


def _layer(tensor: str) -> int:
    match = LAYER.fullmatch(tensor)
    return int(match[1]) if match else -1


def _set(metadata: Metadata, key: str, number: int) -> None:
    metadata[key] = Value(number, metadata.value(key).type)


def _lists(metadata: Metadata, name: str, lengths: tuple[int, ...]) -> Iterator[tuple[str, Value]]:
    """Yield keys of the architecture with an item for each layer."""
    for key in metadata:
        value, known = metadata.value(key), find(key, name)
        if known is not None and not known.per_layer:
            continue
        if key.startswith(f"{name}.") and value.type is ValueType.ARRAY and len(value.data) in lengths:
            yield key, value
