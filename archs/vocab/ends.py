"""Tokens that end generated texts: from configs to the keys of a file and back.

A config may list any number of ids (`eos_token_id`). A file has one key for the token that ends a text (eos), one for
that of a turn (eot) and one for that of a message (eom); llama.cpp adds tokens with well-known names to them. A listed
id without any of these gets eot's or eom's key if that is free, and the list itself is stored in LISTED if the keys do
not reproduce it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gguf.constants import Keys, TokenType

from ..metadata import Metadata
from ..schema import SPECIAL_TOKENS
from .listed import as_text
from .named import TEXTS

SUPPRESSED = "tokenizer.ggml.suppress_tokens"  # never sampled
LISTED = "tokenizer.huggingface.eos_token_ids"
# Keys with the token names that llama.cpp uses for them in files without the key.
FREE: dict[str, frozenset[str]] = {
    Keys.Tokenizer.EOT_ID: frozenset(
        {
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<end_of_turn>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "<｜end▁of▁sentence｜>",
            "<end_of_utterance>",
        }
    ),
    Keys.Tokenizer.EOM_ID: frozenset({"<|eom_id|>"}),
}
SPECIAL = (TokenType.CONTROL, TokenType.USER_DEFINED)
# Tokens that end a turn, and others that end texts of models that have them: Llama 3, GLM.
ENDS = {"<|eot_id|>": ("<|end_of_text|>", "<|eom_id|>"), "<|user|>": ("<|endoftext|>", "<|observation|>")}


def stated_ends(config: Mapping[str, Any], generation: Mapping[str, Any]) -> Any:
    """Return `eos_token_id` of generation_config.json, which goes before that of config.json."""
    ids = generation.get("eos_token_id")
    return config.get("eos_token_id") if ids is None else ids


def listed_ids(ids: Any, rows: int) -> list[int]:
    """Return those ids of a config's `eos_token_id`, a number or a list, that the vocabulary has."""
    every = ids if isinstance(ids, list) else [ids]
    numbers = (number for number in every if isinstance(number, int) and not isinstance(number, bool))
    return list(dict.fromkeys(number for number in numbers if 0 <= number < rows))


def write_ends(metadata: Metadata, config: Mapping[str, Any], generation: Mapping[str, Any]) -> None:
    """Write the keys of the tokens that configs list as ends of a text, besides eos.

    A single id of ordinary text, such as "#", is a default of the model's class, and left out.
    """
    tokens, types = metadata[Keys.Tokenizer.LIST], metadata[Keys.Tokenizer.TOKEN_TYPE]
    ids, stated = stated_ends(config, generation), _stated(metadata)
    listed = [number for number in listed_ids(ids, len(tokens)) if isinstance(ids, list) or types[number] in SPECIAL]
    left = [number for number in listed if number not in stated and as_text(tokens[number]) not in TEXTS]
    names = set(map(as_text, tokens)) if left else set()
    for key, taken in FREE.items():
        if left and key not in metadata and not names & taken:
            metadata[key] = left.pop(0)
    implied = ends(metadata)
    if not {*listed} <= {*(implied if isinstance(implied, list) else [implied])}:
        metadata[LISTED] = listed


def _stated(metadata: Mapping[str, Any]) -> set[int]:
    """Return the tokens that keys name as ends."""
    keys = (SPECIAL_TOKENS["eos"], Keys.Tokenizer.EOT_ID, Keys.Tokenizer.EOM_ID)
    return {int(metadata[key]) for key in keys if key in metadata}


def listed_ends(metadata: Mapping[str, Any]) -> list[int]:
    """Return the ids that the file lists in addition to its keys."""
    size = len(metadata.get(Keys.Tokenizer.LIST, ()))
    return [int(number) for number in metadata.get(LISTED, ()) if 0 <= int(number) < size]


def ends(metadata: Mapping[str, Any]) -> int | list[int] | None:
    """Return `eos_token_id`: the list that the file has, or all control tokens that are known to end a text, the first
    of them `eos` if the tokenizer's files do not name it. A file has `eos`, `eot` and `eom`; some vocabularies have
    other known ones.
    """
    if listed := listed_ends(metadata):
        return listed if len(listed) > 1 else listed[0]
    eos = metadata.get(SPECIAL_TOKENS["eos"])
    if eos is None or Keys.Tokenizer.LIST not in metadata:
        return None if eos is None else int(eos)
    texts, types = metadata[Keys.Tokenizer.LIST], metadata.get(Keys.Tokenizer.TOKEN_TYPE, ())
    control = set(np.flatnonzero(np.asarray(types) == TokenType.CONTROL.value).tolist())
    named = {int(metadata[key]) for key in (Keys.Tokenizer.EOT_ID, Keys.Tokenizer.EOM_ID) if key in metadata}
    ids = {int(eos), *(named & control)}
    others = [other for row in ids & control for other in ENDS.get(as_text(texts[row]), ())]
    ids |= {row for row in control if as_text(texts[row]) in others} if others else set()
    ordered = sorted(ids) if eos in control else [int(eos), *sorted(ids - {int(eos)})]
    return ordered if len(ordered) > 1 else ordered[0]


def suppressed_ids(generation: Mapping[str, Any], end: int | list[int] | None) -> list[int]:
    """Return the tokens that generation_config.json bars: `suppress_tokens`, and single-token entries of
    `bad_words_ids`, unless they end a text. end: the result of `ends`.
    """
    ended = end if isinstance(end, list) else [end]
    words = [word[0] for word in generation.get("bad_words_ids") or () if len(word) == 1 and word[0] not in ended]
    return sorted({*(generation.get("suppress_tokens") or ()), *words})
