"""Name the shards of split sets, distribute tensors over them, and set the keys that mark them.

A set is PREFIX-00001-of-0000N.gguf and so on, in one folder; the first shard has the metadata. Shards of a checkpoint
are named in the same way, with another suffix.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from archs.metadata import Metadata

SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)

T = TypeVar("T")


def shard_name(prefix: str, number: int, count: int, suffix: str = ".gguf") -> str:
    """Return the name of shard `number`, from 1, of a set of `count`."""
    return f"{prefix}-{number:05d}-of-{count:05d}{suffix}"


def shard_paths(path: Path, prefix: str, count: int, suffix: str = ".gguf") -> list[Path]:
    """Return the paths of a set's shards, in order, in the folder of the file `path`."""
    return [path.with_name(shard_name(prefix, number, count, suffix)) for number in range(1, count + 1)]


def set_name(path: Path) -> str:
    """Return the prefix of a shard's set; of another file, its name without `.gguf`."""
    match = SHARD_NAME.fullmatch(path.name)
    return match["prefix"] if match else path.name.removesuffix(".gguf")


def is_first_of_set(path: Path) -> bool:
    """Return True for the name of the first of several shards; no program opens the others without it."""
    match = SHARD_NAME.fullmatch(path.name)
    return match is not None and int(match["number"]) == 1 and int(match["count"]) > 1


def distribute(
    items: Iterable[T], size: Callable[[T], int], max_bytes: int | None, max_items: int | None = None
) -> list[list[T]]:
    """Distribute items over shards, in order: each gets at least one, and more until the next would exceed a limit.

    size(item): bytes of an item.
    """
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
    """Return the metadata of shard `number`, from 0, of a set of `count` shards and `tensors` tensors."""
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
