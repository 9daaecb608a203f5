"""Vocabularies whose keys are left out one at a time, and how llama.cpp cuts texts then (tests/data/absent_keys).

`tests/verify/absent_vocabularies.py` writes the records.
"""

from __future__ import annotations

import json
import lzma
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from archs.metadata import Metadata, ValueType
from quants.errors import GgufToolsError
from runtime.tokenizer import tokenizer_from_metadata
from tests.conftest import DATA

VOCABULARIES = DATA / "absent_keys" / "vocabularies.jsonl.xz"
TEXTS = (
    "Hello world",
    " leading",
    "two  spaces   three",
    "line\nnext\n\nthird\r\ncrlf\ttab",
    "1234567 3.14 1,000",
    "It's they'll I'M",
    "naïve café – “quotes” …",
    "Grüße aus Köln",
    "Привет, мир",
    "你好，世界",
    "こんにちは",
    "한국어 텍스트",
    "مرحبا بالعالم",
    "שלום",
    "हिन्दी",
    "🙂👩‍👩‍👧 🇩🇪",
    "a\u0301 e\u0301 \ufb01 \u00bd",
    "x\u00a0y\u3000z",
    "def f(x):\n    return x ** 2",
    "ALLCAPS MixedCase",
    "!!!???...",
    "▁ and ▁▁",
    "",
    " ",
    "zz" * 20,
)
MANY_SPECIAL = 6
# Keys of ids without which other tokens stand for what is unknown, or where a text ends, and why.
UNNAMED = {
    "bert": (
        ("tokenizer.ggml.unknown_token_id", "tokenizer.ggml.seperator_token_id"),
        "llama.cpp takes BERT's own ids, which are ordinary words here",
    ),
    "t5": (
        ("tokenizer.ggml.unknown_token_id", "tokenizer.ggml.eos_token_id"),
        "llama.cpp takes T5's own ids, which are other tokens here",
    ),
}
COMPOSES = ("command-r", "qwen2")  # pre-tokenizers whose models' own tokenizers put letter and accent together first
Verdict = Literal[
    "equal", "on purpose", "differs", "crashed", "refused by both", "refused here", "refused by llama.cpp"
]


@dataclass(frozen=True)
class Vocabulary:
    """A recorded vocabulary: keys with their types. texts: those that are cut."""

    name: str
    keys: dict[str, tuple[Any, ...]]

    @property
    def texts(self) -> list[str]:
        types = self.keys.get("tokenizer.ggml.token_type", ("", []))[-1]
        special = [text for text, type in zip(self.keys["tokenizer.ggml.tokens"][-1], types, strict=False) if type == 3]
        return [*TEXTS, *(f"x{token} y {token}z" for token in special[:MANY_SPECIAL])]

    def metadata(self, case: Case) -> Metadata:
        made = Metadata({"general.architecture": "llama"})
        for key, value in {**self.keys, **case.changed}.items():
            if key not in case.drop:
                made.set(key, value[-1], *(ValueType[kind] for kind in value[:-1]))
        return made


@dataclass(frozen=True)
class Case:
    """A file without some keys. outcome: of llama.cpp; ids: of each text; ends: tokens that end a generated text."""

    vocabulary: str
    drop: tuple[str, ...] = ()
    changed: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    outcome: str = ""
    reason: str = ""
    ids: list[list[int]] | None = None
    ends: list[int] | None = None

    @property
    def name(self) -> str:
        parts = [f"-{key}" for key in self.drop] + [f"+{key}={value[-1]}" for key, value in self.changed.items()]
        return " ".join(parts) or "as it is"


@cache
def recorded() -> dict[str, tuple[Vocabulary, list[Case]]]:
    found: dict[str, tuple[Vocabulary, list[Case]]] = {}
    answers: list[Any] = []
    with lzma.open(VOCABULARIES, "rt", encoding="utf-8") as lines:
        for line in lines:
            read = json.loads(line)
            if "keys" in read:
                found[read["name"]] = Vocabulary(**read), []
            elif "ids" in read:
                answers.append(read)
            else:
                answer = answers[read.pop("answer")] if "answer" in read else {}
                case = Case(**{**read, "drop": tuple(read["drop"])}, **answer)
                found[case.vocabulary][1].append(case)
    return found


@dataclass(frozen=True)
class Compared:
    case: Case
    verdict: Verdict
    problem: str = ""


def compare(vocabulary: Vocabulary, cases: list[Case]) -> Iterator[Compared]:
    """Each case beside ours; what has a reason in whole files has it in all."""
    for case in cases:
        try:
            tokenizer = tokenizer_from_metadata(vocabulary.metadata(case))
            ids = [tokenizer.encode(text, parse_special=True) for text in vocabulary.texts]
            ends = set(tokenizer.end_ids)
        except GgufToolsError as error:
            yield Compared(case, "refused here" if case.ids is not None else "refused by both", str(error))
            continue
        except Exception as error:  # a bug of ours, which the other cases should not hide
            yield Compared(case, "crashed", repr(error))
            continue
        if case.ids is None:
            yield Compared(case, "refused by llama.cpp", case.reason)
            continue
        told: list[tuple[str, str]] = []  # what differs, and why; "" for no reason
        for text, ours, theirs in zip(vocabulary.texts, ids, case.ids, strict=True):
            if ours != theirs:
                told.append((f"{text!r}: {ours} for {theirs}", reason_for_text(vocabulary, case, text)))
        if ends != set(case.ends or ()):
            why = reason_for_ends(vocabulary, case, ends ^ set(case.ends or ()))
            told.append((f"ends of text: {sorted(ends)} for {case.ends}", why))
        open_ones = [what for what, why in told if not why]
        verdict: Verdict = "differs" if open_ones else "on purpose" if told else "equal"
        yield Compared(case, verdict, "; ".join(open_ones or sorted({why for _, why in told})))


def reason_for_text(vocabulary: Vocabulary, case: Case, text: str) -> str:
    """Why a text is cut otherwise on purpose, or ""."""
    metadata = vocabulary.metadata(case)
    if metadata.get("tokenizer.ggml.pre") in COMPOSES and unicodedata.normalize("NFC", text) != text:
        return "llama.cpp does not compose accents, as the model's own tokenizer does"
    kind = str(metadata.get("tokenizer.ggml.model"))
    keys, why = UNNAMED.get(kind, ((), ""))
    if {*keys} & {*case.drop}:
        return why
    if kind == "t5" and text.strip("▁ ") != text:
        return "SentencePiece takes ▁ at a text's end for a space and puts one in front of spaces; llama.cpp does not"
    return ""


def reason_for_ends(vocabulary: Vocabulary, case: Case, others: set[int]) -> str:
    """Why other tokens end a text on purpose, or ""."""
    metadata = vocabulary.metadata(case)
    if metadata.get("tokenizer.ggml.model") == "gpt2" and "tokenizer.ggml.eos_token_id" in case.drop and others == {11}:
        return "llama.cpp takes 11 for the end of a text, which is Falcon's"
    return ""
