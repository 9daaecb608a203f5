"""Numbered blocks of an image or video model."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

NUMBERED = re.compile(r"^(.*?)\.(\d{1,9})\.(.*)$")
LISTS = ("blocks", "layers")  # ends of names of blocks whose numbers have no gaps
OF_STAGES = ("input_blocks", "output_blocks", "down_blocks", "up_blocks")  # of U-Nets, whose neighbours differ


def missing_block(names: Iterable[str]) -> tuple[str, int] | None:
    """Return the first block that is missing among numbered ones, and the last number; None for no gap."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for name in names:
        if match := NUMBERED.match(name):
            numbers[match[1]].add(int(match[2]))
    for stem, present in numbers.items():
        gap = next((number for number in range(len(present)) if number not in present), None)
        if stem.endswith(LISTS) and gap is not None:
            return f"{stem}.{gap}", max(present)
    return None


def unlike_neighbours(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Return tensors that a block lacks, or has in another shape, where both its neighbours agree → what is wrong.

    Blocks of transformers are alike, or change from one on, or at the ends: one that differs from both sides was
    damaged.
    """
    blocks: dict[str, dict[int, dict[str, tuple[int, ...]]]] = defaultdict(lambda: defaultdict(dict))
    for name, shape in shapes.items():
        match = NUMBERED.match(name)
        if match and match[1].endswith(LISTS) and not match[1].endswith(OF_STAGES):
            blocks[match[1]][int(match[2])][match[3]] = shape
    faults = {}
    for stem, numbered in blocks.items():
        for number, own in numbered.items():
            before, after = numbered.get(number - 1, {}), numbered.get(number + 1, {})
            sides = f"blocks {number - 1} and {number + 1}"
            for name, shape in before.items():
                if after.get(name) != shape or own.get(name) == shape:
                    continue
                what = f"has shape {list(own[name])}, and {list(shape)} in" if name in own else "is missing, and is in"
                faults[f"{stem}.{number}.{name}"] = f"{what} {sides}"
    return faults
