"""Ids of special tokens, and which of them are put around a text: by the rules of `gguf.SpecialVocab`.

A role's token comes from tokenizer_config.json (else special_tokens_map.json) and its id from tokenizer.json's added
tokens; config.json fills what is missing. What is put around a text comes from tokenizer.json's post-processor, over
which `add_bos_token` and its like in tokenizer_config.json have the last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gguf.constants import Keys

from quants.errors import VocabularyError

from ..metadata import Metadata, ValueType
from .files import ROLES, TokenizerFiles

__all__ = ["write_special"]

ID_KEYS = {  # no key for "cls": a classifier's first token is its BOS
    "bos": Keys.Tokenizer.BOS_ID,
    "eos": Keys.Tokenizer.EOS_ID,
    "unk": Keys.Tokenizer.UNK_ID,
    "sep": Keys.Tokenizer.SEP_ID,
    "pad": Keys.Tokenizer.PAD_ID,
    "mask": Keys.Tokenizer.MASK_ID,
    "eot": Keys.Tokenizer.EOT_ID,
}
ADD_KEYS = {"bos": Keys.Tokenizer.ADD_BOS, "eos": Keys.Tokenizer.ADD_EOS, "sep": Keys.Tokenizer.ADD_SEP}


@dataclass
class _Special:
    texts: dict[str, str]
    adds: dict[str, bool] = field(default_factory=dict)


def write_special(
    metadata: Metadata, files: TokenizerFiles, config: Mapping[str, Any], generation: Mapping[str, Any], rows: int
) -> None:
    """Write the ids of special tokens and the add_* flags. Ids beyond `rows` are left out.

    Raises VocabularyError for a negative id.
    """
    found = _special(files)
    ids: dict[str, int] = {}
    for role, text in found.texts.items():
        number = next((i for i, token in files.listed.items() if token.content == text), None)
        _fill(ids, role, number, rows)
    for role in found.texts | dict.fromkeys(ROLES):
        _fill(ids, role, config.get(f"{role}_token_id"), rows)
    _fill(ids, "eos", _first(generation.get("eos_token_id") or config.get("eos_token_id")), rows)
    for role in ("bos", "eos"):
        if role not in ids and role in found.texts:
            _fill(ids, role, _position(metadata[Keys.Tokenizer.LIST], found.texts[role]), rows)
    for role, number in ids.items():
        if role in ID_KEYS:
            metadata.set(ID_KEYS[role], number, ValueType.UINT32)
    for role, flag in found.adds.items():
        metadata.set(ADD_KEYS[role], flag, ValueType.BOOL)


def _special(files: TokenizerFiles) -> _Special:
    """Each role's text, in the order they are written, and what goes around a text."""
    found = _Special({role: text for role in ROLES if (text := files.role(role))})
    if files.tokenizer:
        for role, stand_in in (("bos", "cls"), ("eos", "sep")):
            if role not in found.texts and stand_in in found.texts:
                found.texts[role] = found.texts[stand_in]
        for processor in _processors(files.tokenizer.get("post_processor")):
            _PROCESSORS.get(processor["type"], _nothing)(found, processor)
    found.texts = {role: found.texts[role] for role in (*ROLES, "eot") if role in found.texts}
    for role in ADD_KEYS:
        if isinstance(flag := files.config.get(f"add_{role}_token"), bool):
            found.adds[role] = flag
    return found


def _processors(block: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    return list(block.get("processors", [block])) if block else []


def _nothing(found: _Special, processor: Mapping[str, Any]) -> None:
    """A post-processor that says nothing about special tokens."""


def _byte_level(found: _Special, processor: Mapping[str, Any]) -> None:
    """Adds no tokens."""
    found.adds |= {"bos": False, "eos": False}


def _roberta(found: _Special, processor: Mapping[str, Any]) -> None:
    """<s> A </s></s> B </s>."""
    found.adds |= {"bos": True, "eos": True, "sep": True}
    for role in ("cls", "sep"):
        found.texts.setdefault(role, processor[role][0])


def _template(found: _Special, processor: Mapping[str, Any]) -> None:
    """A list of special tokens and texts, for one text and for a pair."""
    single, pair = processor.get("single", []), processor.get("pair", [])
    first = last = None
    if len(single) > 1:
        first, last = _token(single[0]), _token(single[-1])
    if first:
        found.texts.setdefault("bos", first)
        found.adds["bos"] = first in (found.texts["bos"], found.texts.get("cls"))
    if last:
        if "eos" in found.texts and last != found.texts["eos"]:
            found.texts["eot"] = found.texts["eos"]  # what ends a turn, where something else ends the text
        found.texts["eos"] = last
        found.adds["eos"] = True
    inner = _between(pair, first, last)
    if inner is not None:
        ends = (found.texts.get("sep"), found.texts.get("eos"))
        separated = (not last and inner[0] in ends) or (len(inner) == 2 and inner[1] in ends)
        found.adds["sep"] = separated
        if separated and "eos" in found.texts:
            found.texts.setdefault("sep", found.texts["eos"])


def _between(pair: list[Mapping[str, Any]], first: str | None, last: str | None) -> list[str | None] | None:
    """What stands between the two texts of a pair; None where nothing does."""
    start = 1 if first and pair and _token(pair[0]) == first else 0
    stop = len(pair) - 1 if last and pair and _token(pair[-1]) == last else len(pair)
    body = pair[start:stop]
    if len(body) < 3 or _text(body[0]) != "A" or _text(body[-1]) != "B":
        return None
    return [_token(part) for part in body[1:-1]]


def _token(part: Mapping[str, Any]) -> str | None:
    name = part.get("SpecialToken", {}).get("id")
    return None if name is None else str(name)


def _text(part: Mapping[str, Any]) -> str:
    return str(part.get("Sequence", {}).get("id", ""))


def _fill(ids: dict[str, int], role: str, number: Any, rows: int) -> None:
    """Set a role's id unless it has one or the number is none."""
    if not isinstance(number, int) or isinstance(number, bool) or role in ids or number >= rows:
        return
    if number < 0:
        raise VocabularyError(f"{role}_token_id is {number}; a token's id is not negative")
    ids[role] = number


def _position(tokens: list[str], text: str) -> int | None:
    return tokens.index(text) if text in tokens else None


def _first(numbers: Any) -> Any:
    return numbers[0] if isinstance(numbers, list) and numbers else numbers


_PROCESSORS = {"ByteLevel": _byte_level, "RobertaProcessing": _roberta, "TemplateProcessing": _template}
