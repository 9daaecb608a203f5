"""Say which file to choose: from measured divergence and size, and for a given memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .folder import PublishedFile

GIB = MARGIN = 1 << 30  # a card of 24 GB has 24 GiB
MEMORIES = (2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512, 768, 1024)
WORDS = (  # mean KL divergence in nats below which, and share of equal top tokens from which they hold
    (0.001, 0.97, "hardly any difference from the original"),
    (0.01, 0.94, "very close to the original"),
    (0.03, 0.9, "close to the original"),
    (0.1, 0.8, "answers differ now and then"),
    (0.3, 0.5, "answers differ often"),
)
WORST = "clearly worse than the original: only where nothing else fits"


@dataclass(frozen=True)
class Choice:
    """The file to choose for a memory. memory: in GiB; needed: bytes that it takes."""

    memory: int
    file: PublishedFile
    needed: int


def advice(file: PublishedFile, files: Sequence[PublishedFile]) -> str:
    """Return one line about a file: how close it is to the original, or which other file is smaller and closer."""
    if file.is_base:
        return "the original's weights: the others are compared with it"
    if file.measured is None:
        return "not measured"
    if better := dominating(file, files):
        return f"{better.type} is smaller and closer"
    kl, same = file.measured.kl, file.measured.figures.get("same_top", 1.0)
    return next((words for limit, share, words in WORDS if kl < limit and same >= share), WORST)


def dominating(file: PublishedFile, files: Sequence[PublishedFile]) -> PublishedFile | None:
    """Return the closest file that is not larger and measurably closer to the original; None if there is none."""
    if file.measured is None:
        return None
    error = file.measured.figures.get("kl_divergence.standard_error", 0.0)
    closer = [
        other
        for other in files
        if other.measured and other.size <= file.size and other.measured.kl < file.measured.kl - 2 * error
    ]
    return min(closer, key=lambda each: each.measured.kl if each.measured else 0.0, default=None)


def choices(files: Sequence[PublishedFile], needed: Callable[[str], int]) -> list[Choice]:
    """Return for each memory that changes the answer the best file that fits, with MARGIN left free.

    needed: bytes that a file of this name takes with its context. Files that another one dominates are never chosen.
    """
    candidates = [each for each in files if dominating(each, files) is None]
    needs: Mapping[str, int] = {each.name: needed(each.name) for each in candidates}
    ranked = sorted(
        candidates, key=lambda each: (not each.is_base, each.measured.kl if each.measured else 0, -each.size)
    )
    chosen: list[Choice] = []
    for memory in MEMORIES:
        best = next((each for each in ranked if needs[each.name] + MARGIN <= memory * GIB), None)
        if best is not None and (not chosen or chosen[-1].file is not best):
            chosen.append(Choice(memory, best, needs[best.name]))
    return chosen
