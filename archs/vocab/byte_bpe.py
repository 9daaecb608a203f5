"""Byte-level BPE: tokens in GPT-2's byte characters, merges, and the name of the pre-tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from gguf.constants import Keys, TokenType

from ..metadata import Metadata, ValueType
from .files import TokenizerFiles
from .pretokenizer import name_of, structure, table
from .tokens import ADDED_SCORE, Tokens, check_rows, plain_text, type_of_added

__all__ = ["is_bpe", "write_bpe", "write_gemma4", "write_lost_structure"]

# Gemma 4's tokens that whoever reads a chat wants to see.
CHANNELS = (
    "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
)  # fmt: skip


def is_bpe(files: TokenizerFiles) -> bool:
    return bool(files.tokenizer.get("model", {}).get("type") == "BPE")


def write_bpe(metadata: Metadata, files: TokenizerFiles, rows: int, pre: str | None) -> None:
    """Write tokens, types, merges. pre: the pre-tokenizer's name; None: found from the structure.

    Raises VocabularyError where the structure has no name, or a token has no row in the embedding.
    """
    name = pre or name_of(structure(files.tokenizer), str(files.folder / "tokenizer.json"))
    raw = name in table() and table()[name].raw
    tokens = listed_tokens(files, rows, bytes_too=raw)
    tokens.write(metadata, "gemma4" if raw else "gpt2", name, scores=False)
    merges = [_merge(entry) for entry in files.tokenizer["model"]["merges"]]
    metadata.set(Keys.Tokenizer.MERGES, merges, ValueType.ARRAY, ValueType.STRING)


def write_gemma4(metadata: Metadata, files: TokenizerFiles, rows: int) -> None:
    """Write Gemma 4's tokens, types, scores (all the same) and merges; its kind says how text is cut.

    As the reference does: only tokens with a role are control tokens, and those that chats are read by user-defined.
    """
    tokens, roles = listed_tokens(files, rows, bytes_too=True), set(files.special_texts())
    roles.add("<mask>")  # which its class of tokenizers has without being told
    kinds = dict.fromkeys(roles, TokenType.CONTROL) | dict.fromkeys(CHANNELS, TokenType.USER_DEFINED)
    for row, token in files.added.items():
        tokens.put(row, token.content, kinds.get(token.content, TokenType.NORMAL))
    tokens.scores = [ADDED_SCORE] * len(tokens.scores)
    tokens.write(metadata, "gemma4", "", scores=True)
    merges = [_merge(entry) for entry in files.tokenizer["model"]["merges"]]
    metadata.set(Keys.Tokenizer.MERGES, merges, ValueType.ARRAY, ValueType.STRING)
    metadata.set(Keys.Tokenizer.ADD_PREFIX, False, ValueType.BOOL)
    metadata.set(Keys.Tokenizer.ADD_BOS, True, ValueType.BOOL)


def listed_tokens(files: TokenizerFiles, rows: int, bytes_too: bool = False) -> Tokens:
    """All tokens of tokenizer.json's vocabulary and the added ones. bytes_too: `<0x0A>` and its like are bytes."""
    vocabulary: Mapping[str, int] = files.tokenizer["model"]["vocab"]
    check_rows(files.folder / "tokenizer.json", max(vocabulary.values(), default=-1), rows)
    tokens = Tokens.unused(rows)
    for text, row in vocabulary.items():
        is_byte = bytes_too and re.fullmatch("<0x[0-9A-F]{2}>", text)
        tokens.put(row, text, TokenType.BYTE if is_byte else TokenType.NORMAL)
    for row, token in files.added.items():
        tokens.put(row, plain_text(token), type_of_added(token))
    return tokens


def write_lost_structure(metadata: Metadata, files: TokenizerFiles) -> None:
    """Write what tokenizer.json says and the pre-tokenizer's name does not: normalizer, ignored merges, first space."""
    found = structure(files.tokenizer)
    implied = table().get(metadata[Keys.Tokenizer.PRE])
    if implied is None or implied.escaped or implied.normalizer == found.normalizer:
        pass
    elif found.normalizer in (None, "NFC"):
        metadata.set("tokenizer.ggml.normalizer.nfc", found.normalizer == "NFC", ValueType.BOOL)
    else:
        normalizer = json.dumps(files.tokenizer["normalizer"], ensure_ascii=False)
        metadata.set("tokenizer.huggingface.normalizer", normalizer, ValueType.STRING)
    if implied is not None and implied.ignore_merges != found.ignore_merges:
        metadata.set("tokenizer.huggingface.ignore_merges", found.ignore_merges, ValueType.BOOL)
    if found.prefix_space and Keys.Tokenizer.ADD_PREFIX not in metadata:
        metadata.set(Keys.Tokenizer.ADD_PREFIX, True, ValueType.BOOL)


def _merge(entry: str | Sequence[str]) -> str:
    """A merge as one string. Where a pair holds spaces, they become GPT-2's character for a space."""
    return entry if isinstance(entry, str) else " ".join(part.replace(" ", "Ġ") for part in entry)
