"""Whether a small model can draft for a large one in speculative decoding, by their vocabularies."""

from dataclasses import dataclass
from pathlib import Path

from archs.metadata import Metadata
from quants.arguments import PathLike

from ..metadata.vocabularies import compare_vocabularies, vocabulary_texts
from ..models.model import Model, opened
from ..writing.report import Report

ROLES = ("bos", "eos", "eot", "unk", "pad")


@dataclass(frozen=True)
class DraftingReport(Report):
    """Can `draft` draft for `target`?

    tokens: lengths of the two lists. same_until: the first id from 5 on whose text differs, or the shorter length.
    differing: how many ids differ in text. special: role → the two ids. obstacles: what forbids it; edits: the
    `set-metadata` arguments for the draft that remove them, where that can be done; notes: what differs besides.
    """

    also = ("possible",)

    target: Path
    draft: Path
    tokens: tuple[int, int]
    same_until: int
    differing: int
    special: dict[str, tuple[int | None, int | None]]
    obstacles: tuple[str, ...]
    edits: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def possible(self) -> bool:
        return not self.obstacles


def can_draft(target: PathLike | Model, draft: PathLike | Model) -> DraftingReport:
    """Compare the vocabularies of two models. Raises FileError, VocabularyError where one has none."""
    pair = opened(target), opened(draft)
    for model in pair:
        vocabulary_texts(model.path, model.metadata)  # a file without any is told so first
    found = compare_vocabularies(
        (pair[0].path, pair[1].path), (pair[0].metadata, pair[1].metadata), (pair[0].tokenizer, pair[1].tokenizer)
    )
    ids = {role: (_id(pair[0].metadata, role), _id(pair[1].metadata, role)) for role in ROLES}
    return DraftingReport(
        pair[0].path,
        pair[1].path,
        found.tokens,
        found.same_until,
        found.differing,
        {role: both for role, both in ids.items() if both != (None, None)},
        found.obstacles,
        found.edits,
        found.notes,
    )


def _id(metadata: Metadata, role: str) -> int | None:
    number = metadata.get(f"tokenizer.ggml.{role}_token_id")
    return None if number is None else int(number)
