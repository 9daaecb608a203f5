"""Whether a small model can draft for a large one in speculative decoding: what counts is that ids mean the same text.

The rules are those of llama.cpp: one kind of vocabulary, the same tokens put around a text, lengths at most 128 apart,
and the same text for every id from 5 on (the first few are special tokens that tuned models rename).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archs.metadata import Metadata
from quants.arguments import PathLike
from quants.errors import VocabularyError
from runtime.tokenizer import Tokenizer

from ..metadata.checks import check_types
from ..metadata.text import plain
from ..model import Model, opened
from ..writing.report import Report

FIRST_COMPARED = 5
MAX_LENGTH_DIFFERENCE = 128
MODEL, TOKENS, PRE = "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.pre"
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
    models = opened(target), opened(draft)
    texts_a, texts_b = map(_texts, models)
    a, b = (model.metadata for model in models)
    obstacles: list[str] = []
    notes: list[str] = []
    if a[MODEL] != b[MODEL]:
        obstacles.append(f"the vocabularies are of different kinds: {a[MODEL]!r} and {b[MODEL]!r}")
    if abs(len(texts_a) - len(texts_b)) > MAX_LENGTH_DIFFERENCE:
        obstacles.append(f"{len(texts_a):,} and {len(texts_b):,} tokens: more than {MAX_LENGTH_DIFFERENCE} apart")
    count = min(len(texts_a), len(texts_b))
    wrong = [i for i in range(count) if texts_a[i] != texts_b[i]]
    compared = [i for i in wrong if i >= FIRST_COMPARED]
    if compared:
        i = compared[0]
        obstacles.append(f"{len(compared):,} tokens differ; the first is {i}: {texts_a[i]!r} and {texts_b[i]!r}")
        if len(compared) <= MAX_LENGTH_DIFFERENCE and compared[0] > count - 2 * MAX_LENGTH_DIFFERENCE:
            notes.append("only tokens at the end differ: they may be unused in one of the models")
    notes += [f"token {i} is {texts_a[i]!r} and {texts_b[i]!r} (not compared)" for i in wrong if i < FIRST_COMPARED]
    conflicts = list(_special_token_conflicts(*(model.tokenizer for model in models)))
    edits = [] if obstacles else [edit for _, edit in conflicts]
    obstacles += [obstacle for obstacle, _ in conflicts]
    if a.get(PRE) != b.get(PRE):
        pair = f"{a.get(PRE)!r} and {b.get(PRE)!r}"
        notes.append(f"the pre-tokenizers differ ({pair}): the draft was trained on other cuts of text")
    ids = {role: (_id(a, role), _id(b, role)) for role in ROLES}
    return DraftingReport(
        models[0].path, models[1].path, (len(texts_a), len(texts_b)), compared[0] if compared else count, len(wrong),
        {role: pair for role, pair in ids.items() if pair != (None, None)},
        tuple(obstacles), tuple(edits), tuple(notes),
    )  # fmt: skip


def _texts(model: Model) -> list[Any]:
    check_types(model.metadata, "tokenizer.")
    if MODEL not in model.metadata or TOKENS not in model.metadata:
        raise VocabularyError(f"{model.path} has no vocabulary: {MODEL} or {TOKENS} is missing")
    texts: list[Any] = plain(model.metadata.value(TOKENS))
    return texts


def _id(metadata: Metadata, role: str) -> int | None:
    number = metadata.get(f"tokenizer.ggml.{role}_token_id")
    return None if number is None else int(number)


def _special_token_conflicts(target: Tokenizer, draft: Tokenizer) -> Iterator[tuple[str, str]]:
    """Obstacles and their edits: whether tokens are put around a text, and, if so, which they are."""
    for role in ("bos", "eos"):
        adds, draft_adds = (bool(getattr(each, f"add_{role}")) for each in (target, draft))
        number, draft_number = getattr(target, role), getattr(draft, role)
        if adds != draft_adds:
            does = {True: "adds", False: "does not add"}
            obstacle = f"the target {does[adds]} {role.upper()} to a text, the draft {does[draft_adds]} one"
            yield obstacle, f"tokenizer.ggml.add_{role}_token={str(adds).lower()}"
        if adds and number != draft_number:
            obstacle = f"{role.upper()} is token {number} in the target, {draft_number} in the draft"
            yield obstacle, f"tokenizer.ggml.{role}_token_id={number}"
