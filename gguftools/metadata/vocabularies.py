"""Whether ids of two vocabularies mean the same text, so that one model can draft for the other.

The rules are those of llama.cpp: one kind of vocabulary, the same tokens put around a text, lengths at most 128 apart,
and the same text for every id from 5 on (the first few are special tokens that tuned models rename).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archs.metadata import Metadata
from quants.errors import VocabularyError
from runtime.tokenizer import Tokenizer

from .checks import check_types
from .text import plain

FIRST_COMPARED = 5
MAX_LENGTH_DIFFERENCE = 128
MODEL, TOKENS, PRE = "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.pre"


@dataclass(frozen=True)
class VocabularyComparison:
    """tokens: lengths of the two lists. same_until: the first id from 5 on whose text differs, or the shorter length.
    differing: how many ids differ in text. obstacles: what forbids drafting; edits: the `set-metadata` arguments for
    the draft that remove them, where that can be done; notes: what differs besides.
    """

    tokens: tuple[int, int]
    same_until: int
    differing: int
    obstacles: tuple[str, ...]
    edits: tuple[str, ...]
    notes: tuple[str, ...]


def compare_vocabularies(
    paths: tuple[Path, Path], metadata: tuple[Metadata, Metadata], tokenizers: tuple[Tokenizer, Tokenizer]
) -> VocabularyComparison:
    """Compare the vocabularies of a target and a draft. Raises VocabularyError where one has no vocabulary."""
    a, b = metadata
    texts_a, texts_b = (vocabulary_texts(*each) for each in zip(paths, metadata, strict=True))
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
    conflicts = list(_special_token_conflicts(*tokenizers))
    edits = [] if obstacles else [edit for _, edit in conflicts]
    obstacles += [obstacle for obstacle, _ in conflicts]
    if a.get(PRE) != b.get(PRE):
        pair = f"{a.get(PRE)!r} and {b.get(PRE)!r}"
        notes.append(f"the pre-tokenizers differ ({pair}): the draft was trained on other cuts of text")
    return VocabularyComparison(
        (len(texts_a), len(texts_b)),
        compared[0] if compared else count,
        len(wrong),
        tuple(obstacles),
        tuple(edits),
        tuple(notes),
    )


def vocabulary_texts(path: Path, metadata: Metadata) -> list[Any]:
    """Return the tokens' texts. Raises VocabularyError where there are none."""
    check_types(metadata, "tokenizer.")
    if MODEL not in metadata or TOKENS not in metadata:
        raise VocabularyError(f"{path} has no vocabulary: {MODEL} or {TOKENS} is missing")
    texts: list[Any] = plain(metadata.value(TOKENS))
    return texts


def _special_token_conflicts(target: Tokenizer, draft: Tokenizer) -> Iterator[tuple[str, str]]:
    """Yield obstacles and their edits: which tokens are put around a text, if any."""
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
