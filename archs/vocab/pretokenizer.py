"""The GGUF name of a byte-level BPE pre-tokenizer, from the structure of tokenizer.json, and the meaning of each name.

Names and their meaning are data: `pretokenizers.json`. Structures are compared in a canonical form that unifies the
many spellings of one regular expression. If several names mean the same, the first in the file is written.
"""

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from quants.errors import VocabularyError
from quants.spelling import did_you_mean

from .blocks import LayerSpec, byte_level, parts, split

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LINES = r"[^\n]+|[\n]+"  # split of escaped (SentencePiece-like) BPE: byte fallback, no byte characters
PUNCTUATION = {"Contiguous": r"[\p{P}\$\+<=>\^~\|`]+", "Isolated": r"[\p{P}!-/:-@\[-`{-~]"}
SPELLINGS = (  # variant spellings with their canonical one
    ("\r", r"\r"),
    ("\n", r"\n"),
    ("\t", r"\t"),
    ("(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
    ("'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])", "'(?i:[sdmt]|ll|ve|re)"),
    ("((?=[\\p{L}])([^a-z]))", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"),
    ("((?=[\\p{L}])([^A-Z]))", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"),
    (r" ?[^(\s|[.,!?…。，、।۔،])]+", r" ?[^(\s|.,!?…。，、।۔،)]+"),
    ("?+", "?"),  # possessive where backtracking could not match anyway
    ("]++", "]+"),
)
TELLING = ("ignore_merges", "normalizer", "add_sep", "add_bos", "bare")  # flags, the most significant first


@dataclass(frozen=True)
class PreTokenizer:
    """The meaning of a GGUF name.

    steps: each splits the pieces of the one before: a regular expression whose matches become pieces of their own, or a
    block of tokenizer.json's `pre_tokenizer`. also: other steps that tokenizers were published with. raw: tokens are
    plain text, not GPT-2's byte characters; escaped: with spaces as U+2581. always_bos: the first token is added even
    if a file says that it is not, as llama.cpp does.
    """

    name: str
    steps: tuple[str | LayerSpec, ...]
    ignore_merges: bool = False
    normalizer: str | None = None
    add_bos: bool = False
    add_sep: bool = False
    raw: bool = False
    escaped: bool = False
    bare: bool = False
    always_bos: bool = False
    also: tuple[tuple[str | LayerSpec, ...], ...] = ()


@dataclass(frozen=True)
class Structure:
    """The structure that decides the name: canonical regular expressions and flags of a tokenizer.json.

    normalizer: a Unicode form ("NFC"), None, or the JSON of any other normalizer. prefix_space: a space is put before
    the text. bare: there is no post-processor. raw: bytes do not become GPT-2's characters; None: not known.
    """

    splits: tuple[str, ...]
    ignore_merges: bool = False
    normalizer: str | None = None
    add_bos: bool = False
    add_sep: bool = False
    bare: bool = False
    prefix_space: bool = False
    raw: bool | None = None


@cache
def table() -> dict[str, PreTokenizer]:
    """Return all names that GGUF knows, in order of preference."""
    data = json.loads((Path(__file__).parent / "pretokenizers.json").read_text(encoding="utf-8"))

    def entry(name: str, splits: str, **flags: Any) -> PreTokenizer:
        also = tuple(tuple(steps) for steps in data["also"].get(splits, ()))
        return PreTokenizer(name, tuple(data["splits"][splits]), also=also, **flags)

    return {name: entry(name, **fields) for name, fields in data["names"].items()}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return the meaning of `tokenizer.ggml.pre` = name. Raises VocabularyError for an unknown name."""
    if entry := table().get(name):
        return entry
    known = f"llama.cpp knows {', '.join(sorted(table()))}"
    raise VocabularyError(f"unknown pre-tokenizer {name!r}", did_you_mean(name, table(), known))


def byte_characters() -> dict[int, str]:
    """Return GPT-2's characters for bytes: printable bytes stand for themselves, the others follow from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def structure(tokenizer: LayerSpec) -> Structure:
    """Return how tokenizer.json splits text (its parsed content)."""
    processors, blocks = parts(tokenizer, "post_processor"), parts(tokenizer, "pre_tokenizer")
    model = tokenizer.get("model", {})
    raw = not any(block["type"] == "ByteLevel" for block in blocks)
    escaped = raw and bool(model.get("byte_fallback"))
    templates = (p.get("single", ()) for p in processors if p["type"] == "TemplateProcessing")
    return Structure(
        splits=(LINES,) if escaped else tuple(regex for block in blocks for regex in _regexes(block)),
        ignore_merges=bool(model.get("ignore_merges")),
        normalizer=None if escaped else _normalizer(tokenizer),
        add_bos=any(len(template) > 1 and "SpecialToken" in template[0] for template in templates),
        add_sep=any(p["type"] == "RobertaProcessing" for p in processors),
        bare=not processors,
        prefix_space=any(block.get("add_prefix_space") for block in blocks if block["type"] == "ByteLevel"),
        raw=raw,
    )


def name_of(wanted: Structure, where: str) -> str:
    """Return the GGUF name of a structure. where: the file, for the error.

    Raises VocabularyError, with the structure and the nearest known one, if none splits text in the same way.
    """
    fitting = [
        name
        for name, entry in table().items()
        if wanted.raw in (None, entry.raw) and wanted.splits in map(_canonical_steps, (entry.steps, *entry.also))
    ]
    if fitting:  # the first of those that agree best otherwise
        return max(
            fitting, key=lambda name: [getattr(table()[name], flag) == getattr(wanted, flag) for flag in TELLING]
        )
    known = {name: _canonical_steps(entry.steps) for name, entry in table().items() if wanted.raw in (None, entry.raw)}
    own = " ".join(wanted.splits)
    matchers = {name: difflib.SequenceMatcher(None, " ".join(cut), own, autojunk=False) for name, cut in known.items()}
    nearest = max(known, key=lambda name: matchers[name].ratio())
    raise VocabularyError(
        f"{where} has a pre-tokenizer that GGUF has no name for: it cuts {'plain text' if wanted.raw else 'bytes'} by "
        f"{_shown(wanted.splits)}; the nearest known is {nearest!r}, which cuts by {_shown(known[nearest])}",
        f"pass `pre` if you know one that fits, such as {nearest}; with `embed_tokenizer` the file also "
        "keeps tokenizer.json itself, which gguftools goes by",
    )


def cutting(entry: PreTokenizer, prefix: bool) -> dict[str, Any]:
    """Return the pre_tokenizer of tokenizer.json. prefix: it puts a space before the text."""
    if entry.name == "whitespace":
        return {"type": "WhitespaceSplit"}
    *first, last = entry.steps or ("",)
    if last == GPT2 and not first:
        return byte_level(prefix, True)
    steps = [dict(step) if isinstance(step, Mapping) else split(step) for step in entry.steps]
    for step in steps:
        if step["type"] == "ByteLevel":  # one of several steps: bytes become characters there, and only once
            step["add_prefix_space"] = prefix
            break
    else:
        steps += [] if entry.raw else [byte_level(prefix, False)]
    return {"type": "Sequence", "pretokenizers": steps}


def canonical(regex: str) -> str:
    """Return a canonical spelling of regular expressions that match the same."""
    for spelling, right in SPELLINGS:
        regex = regex.replace(spelling, right)
    # A match of only the final alternative, a lone space before text, becomes a piece of its own without it too.
    return regex.removesuffix(r"|\s+") if regex.endswith(r"|\s+(?!\S)|\s+") else regex


def _regexes(block: LayerSpec) -> list[str]:
    """Return a pre-tokenizer block as regular expressions; as its own JSON if it has none."""
    match block:
        case {"type": "ByteLevel"}:
            return [canonical(GPT2)] if block.get("use_regex", True) else []
        case {"type": "Digits"}:
            return [r"\p{N}" if block.get("individual_digits") else r"\p{N}+"]
        case {"type": "Punctuation"} if block.get("behavior", "Isolated") in PUNCTUATION:
            return [PUNCTUATION[block.get("behavior", "Isolated")]]
        case {"type": "WhitespaceSplit"}:
            return [r"\S+"]
        case {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"}:
            return [canonical(regex)]
        case {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Removed", "invert": True}:
            return [canonical(regex)]  # keeps only the matches, and these regular expressions match everything
    return [json.dumps(block, ensure_ascii=False)]


def _normalizer(tokenizer: LayerSpec) -> str | None:
    match parts(tokenizer, "normalizer"):
        case []:
            return None
        case [{"type": "NFC" | "NFD" | "NFKC" | "NFKD" as form}]:
            return str(form)
    return json.dumps(tokenizer["normalizer"], ensure_ascii=False)


def _canonical_steps(steps: Iterable[str | LayerSpec]) -> tuple[str, ...]:
    return tuple(regex for step in steps for regex in ([canonical(step)] if isinstance(step, str) else _regexes(step)))


def _shown(splits: tuple[str, ...]) -> str:
    return ", then ".join(splits) if splits else "nothing"
