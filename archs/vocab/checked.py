"""A tokenizer's files read by type, and checks that a vocabulary is valid: invalid ones are refused before use."""

import math
from collections.abc import Mapping
from typing import Any

from quants.errors import VocabularyError

from ..typed_json import Either, Fields, FieldType, Flag, ListOf, MapOf, Text, Whole, read_fields, shown

ROLES = ("bos", "eos", "unk", "sep", "pad", "mask", "cls")
FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")
MAX_ID = 2**31 - 1
FLAG, TEXT, ID = Flag(), Text(), Whole(0, MAX_ID)

TOKEN = Fields({"id": ID, "content": TEXT, **dict.fromkeys(FLAGS, FLAG)})
NAMED = Either((TEXT, TOKEN))  # a token by its text, or with all its properties
BLOCK = Fields({"type": TEXT})
CONFIG: dict[str, FieldType] = {
    **{f"{role}_token": NAMED for role in ROLES},
    **{f"add_{role}_token": FLAG for role in ROLES},
    "added_tokens_decoder": MapOf(TOKEN, r"\d{1,10}"),
    "additional_special_tokens": ListOf(NAMED),
    "extra_special_tokens": Either((ListOf(NAMED), MapOf(NAMED))),
    **dict.fromkeys(("add_prefix_space", "do_lower_case", "strip_accents", "tokenize_chinese_chars", "legacy"), FLAG),
    "tokenizer_class": TEXT,
    "chat_template": Either((TEXT, ListOf(Fields({"name": TEXT, "template": TEXT})), MapOf(TEXT))),
}
TOKENIZER: dict[str, FieldType] = {
    "added_tokens": ListOf(TOKEN),
    "model": Fields(
        {
            "type": TEXT,
            "unk_token": TEXT,
            "unk_id": ID,
            "byte_fallback": FLAG,
            "ignore_merges": FLAG,
            "continuing_subword_prefix": TEXT,
            "end_of_word_suffix": TEXT,
            "max_input_chars_per_word": Whole(1, 1 << 20),
        }
    ),
    "normalizer": Fields({"type": TEXT, "normalizers": ListOf(BLOCK), "lowercase": FLAG, "strip_accents": FLAG}),
    "pre_tokenizer": Fields({"type": TEXT, "pretokenizers": ListOf(BLOCK)}),
    "post_processor": Fields({"type": TEXT, "processors": ListOf(BLOCK)}),
}


def read_tokenizer_config(content: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return tokenizer_config.json or special_tokens_map.json. Raises VocabularyError."""
    return read_fields(content, CONFIG, file, VocabularyError)


def read_tokenizer(content: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return tokenizer.json. Raises VocabularyError."""
    read = read_fields(content, TOKENIZER, file, VocabularyError)
    texts: dict[int, str] = {}
    for token in read.get("added_tokens") or ():
        if token.get("id") is None or token.get("content") is None:
            raise VocabularyError(f"{file} has an added token without id or content: {shown(token)}")
        if texts.setdefault(token["id"], token["content"]) != token["content"]:
            raise VocabularyError(
                f"{file} has two added tokens {token['id']}: {shown(texts[token['id']])} and {shown(token['content'])}"
            )
    check_model(read.get("model") or {}, file)
    return read


def check_model(model: Mapping[str, Any], file: str) -> None:
    """Raise VocabularyError for a model without tokens, with invalid or shared ids, with scores that are no numbers, or
    with merges of unknown tokens.
    """
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        check_ids(vocabulary, file, unique=True)
    elif isinstance(vocabulary, list):
        _check_scored(vocabulary, file)
    elif vocabulary is not None or model.get("type"):
        raise VocabularyError(f'{file}: "model.vocab" is {shown(vocabulary)}; tokens with their ids were expected')
    if vocabulary is not None and not any(entry if isinstance(entry, str) else entry[0] for entry in vocabulary):
        raise VocabularyError(f"{file} has an empty vocabulary", hint="fetch it again")
    if model.get("type") == "BPE":
        _check_merges(model.get("merges"), vocabulary if isinstance(vocabulary, dict) else {}, file)


def check_ids(vocabulary: Mapping[str, Any], file: str, unique: bool = False) -> dict[str, int]:
    """Return tokens and their ids, such as added_tokens.json. unique: no two may share an id. Raises
    VocabularyError.
    """
    wrong = next((text for text, id in vocabulary.items() if type(id) is not int or not 0 <= id <= MAX_ID), None)
    if wrong is not None:
        raise VocabularyError(
            f"{file}: token {shown(wrong)} has the id {shown(vocabulary[wrong])}; a whole number from 0 to {MAX_ID} "
            "was expected"
        )
    if unique and len(owners := {number: text for text, number in vocabulary.items()}) < len(vocabulary):
        text, number = next((text, number) for text, number in vocabulary.items() if owners[number] != text)
        raise VocabularyError(f"{file}: tokens {shown(text)} and {shown(owners[number])} have one id, {number}")
    return dict(vocabulary)


def _check_scored(vocabulary: list[Any], file: str) -> None:
    for number, entry in enumerate(vocabulary):
        pair = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
        if not pair or type(entry[1]) not in (int, float) or not math.isfinite(entry[1]):
            raise VocabularyError(f"{file}: token {number} is {shown(entry)}; a text with its score was expected")


def _check_merges(merges: Any, vocabulary: Mapping[str, int], file: str) -> None:
    if not isinstance(merges, list):
        raise VocabularyError(f'{file}: "model.merges" is {shown(merges)}; a list of pairs was expected')
    for number, merge in enumerate(merges):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise VocabularyError(f"{file}: merge {number} is {shown(merge)}; two tokens were expected")
        left, right = parts
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            lost = next(text for text in (left, right, left + right) if text not in vocabulary)
            raise VocabularyError(f"{file}: merge {number} is {shown(merge)}, but {shown(lost)} is no token")
