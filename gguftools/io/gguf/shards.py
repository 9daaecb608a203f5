"""Split sets: how shards are named, which tensors go into each, and the keys that mark them.

A set is PREFIX-00001-of-0000N.gguf and so on, side by side; the first shard has the metadata. Of a sharded checkpoint
the names are the same, but for the suffix.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from archs.metadata import Metadata

SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)

T = TypeVar("T")


def shard_name(prefix: str, number: int, count: int, suffix: str = ".gguf") -> str:
    """The name of shard `number`, from 1, of a set of `count`."""
    return f"{prefix}-{number:05d}-of-{count:05d}{suffix}"


def shard_paths(beside: Path, prefix: str, count: int, suffix: str = ".gguf") -> list[Path]:
    """Where the shards of a set are, in order: in the folder of the file `beside`."""
    return [beside.with_name(shard_name(prefix, number, count, suffix)) for number in range(1, count + 1)]


def set_name(path: Path) -> str:
    """What the names of a shard's set begin with; of another file, its name without `.gguf`."""
    match = SHARD_NAME.fullmatch(path.name)
    return match["prefix"] if match else path.name.removesuffix(".gguf")


def is_first_of_set(path: Path) -> bool:
    """Whether it is named as the first of several shards, without which no program opens the others."""
    match = SHARD_NAME.fullmatch(path.name)
    return match is not None and int(match["number"]) == 1 and int(match["count"]) > 1


def filled(
    items: Iterable[T], size: Callable[[T], int], max_bytes: int | None, max_items: int | None = None
) -> list[list[T]]:
    """Items of each shard, one at least: one after the other, until the next, of `size` bytes, would be too much."""
    shards: list[list[T]] = [[]]
    held = 0
    for item in items:
        more = size(item)
        if shards[-1] and (len(shards[-1]) == max_items or (max_bytes is not None and held + more > max_bytes)):
            shards.append([])
            held = 0
        shards[-1].append(item)
        held += more
    return shards


def shard_metadata(metadata: Metadata, number: int, count: int, tensors: int) -> Metadata:
    """The metadata of shard `number`, from 0, of a set of `count` that has so many tensors."""
    own = metadata.copy() if number == 0 else Metadata()
    own["split.no"] = number
    own["split.count"] = count
    own["split.tensors.count"] = tensors
    return own


def without_split_keys(metadata: Metadata) -> Metadata:
    new = metadata.copy()
    for key in [key for key in new if key.startswith("split.")]:
        del new[key]
    return new
