"""Compare vocabularies to see whether a small model can draft for a large one in speculative decoding."""

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
    """Whether `draft` can draft for `target`.

    tokens: lengths of the two vocabularies. same_until: the first id from 5 on whose text differs, or the shorter
    length. differing: number of ids with different text. special: role → the two ids. obstacles: reasons why it cannot;
    edits: arguments of `set-metadata` for the draft that remove them, where possible; notes: other differences.
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
    """Compare the vocabularies of two models for speculative decoding.

    Raises FileError, and VocabularyError for a model without a vocabulary.
    """
    pair = opened(target), opened(draft)
    for model in pair:
        vocabulary_texts(model.path, model.metadata)  # raises for a model without a vocabulary
    comparison = compare_vocabularies(
        (pair[0].path, pair[1].path), (pair[0].metadata, pair[1].metadata), (pair[0].tokenizer, pair[1].tokenizer)
    )
    ids = {role: (_id(pair[0].metadata, role), _id(pair[1].metadata, role)) for role in ROLES}
    return DraftingReport(
        pair[0].path,
        pair[1].path,
        comparison.tokens,
        comparison.same_until,
        comparison.differing,
        {role: both for role, both in ids.items() if both != (None, None)},
        comparison.obstacles,
        comparison.edits,
        comparison.notes,
    )


def _id(metadata: Metadata, role: str) -> int | None:
    number = metadata.get(f"tokenizer.ggml.{role}_token_id")
    return None if number is None else int(number)
