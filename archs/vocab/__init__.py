"""Vocabularies: the tokenizer of a Hugging Face folder as GGUF metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import Keys, TokenType

from quants.errors import VocabularyError

from ..metadata import Metadata, ValueType
from .byte_bpe import is_bpe, write_bpe, write_gemma4, write_lost_structure
from .chat import write_templates
from .files import AddedToken, TokenizerFiles
from .pretokenizer import pre_tokenizer
from .sentencepiece import is_sentencepiece, puts_space_in_front, user_defined_pieces, write_sentencepiece
from .special import write_special
from .tokens import missing_bytes, plain_text
from .wordpiece import is_wordpiece, write_normalizer, write_token_types, write_wordpiece

__all__ = ["vocabulary"]

KINDS = {
    "sentencepiece": is_sentencepiece,
    "unigram": is_sentencepiece,
    "fairseq": is_sentencepiece,
    "gemma4": is_bpe,
    "bpe": is_bpe,
    "wordpiece": is_wordpiece,
}
Extra = Mapping[str, bool | int | str]
ADDED_TOKENS = "tokenizer.huggingface.added_tokens"


def vocabulary(
    folder: Path,
    kinds: Sequence[str],
    config: Mapping[str, Any],
    rows: int,
    pre: str | None = None,
    generation_config: Mapping[str, Any] | None = None,
    *,
    extra: Extra | None = None,
    embed: bool = False,
) -> Metadata:
    """The `tokenizer.*` keys of a folder's vocabulary.

    kinds: what the architecture allows, tried in this order: "sentencepiece", "unigram", "bpe", "wordpiece". One that
    takes SentencePiece before BPE also takes `add_prefix_space` from tokenizer_config.json, as the reference's Llama
    family does; "unigram" is SentencePiece as the reference writes it for T5,
        "fairseq" the same with XLM-RoBERTa's ids; "gemma4" is BPE of plain text with byte tokens.
    config: config.json. rows: of the embedding; rows past the vocabulary become `[PAD{id}]`, unused.
    pre: the pre-tokenizer's GGUF name; None: found from the structure of tokenizer.json.
    extra: what an architecture sets by itself, without "tokenizer.ggml.": a flag, an id, or a token's text for its id
    (`{"eot_token_id": "<|user|>"}`); what the folder says wins, and a text that is no token is left out.
    embed: keep the whole of tokenizer.json in `tokenizer.huggingface.json`.

    Raises VocabularyError where there is no tokenizer of these kinds, it does not fit the embedding, its pre-tokenizer
    has no name, or its files are not what such files are.
    """
    try:
        return _vocabulary(folder, kinds, config, rows, pre, generation_config or {}, extra or {}, embed)
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise VocabularyError(
            f"the tokenizer files in {folder} have a structure that such files do not have: "
            f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " "),
            hint="fetch them again; --debug shows where",
        ) from error


def _vocabulary(
    folder: Path,
    kinds: Sequence[str],
    config: Mapping[str, Any],
    rows: int,
    pre: str | None,
    generation_config: Mapping[str, Any],
    extra: Extra,
    embed: bool,
) -> Metadata:
    files, kind = _files(folder, kinds)
    metadata = Metadata()
    if pre is not None and pre_tokenizer(pre).name != "default" and kind not in ("wordpiece", "bpe"):
        raise VocabularyError(f"the vocabulary in {folder} is {kind}: it has no pre-tokenizer", "leave out --pre")
    if kind == "wordpiece":
        write_token_types(metadata, config.get("type_vocab_size") or 1)
        write_wordpiece(metadata, files, rows, pre)
    elif kind == "gemma4":
        write_gemma4(metadata, files, rows)
    elif kind == "bpe":
        if kinds[0] == "sentencepiece":
            _write_configured_prefix(metadata, files)
        write_bpe(metadata, files, rows, pre)
    else:
        if "bpe" in kinds:
            _write_configured_prefix(metadata, files)
        write_sentencepiece(metadata, files, rows, keep_added=kind == "sentencepiece", fairseq=kind == "fairseq")
    _check_usable(metadata, folder)
    write_special(metadata, files, config, generation_config, rows)
    write_templates(metadata, files)
    _write_rest(metadata, files, config, kind, extra)
    _write_lost_tokens(metadata, files)
    if embed and not files.tokenizer:
        raise VocabularyError(f"{folder} has no tokenizer.json to embed", "leave out --embed-tokenizer")
    if embed:
        metadata.set(Keys.Tokenizer.HF_JSON, json.dumps(files.tokenizer, ensure_ascii=False), ValueType.STRING)
    _check_unicode(metadata, folder)
    return metadata


def _files(folder: Path, kinds: Sequence[str]) -> tuple[TokenizerFiles, str]:
    """The folder's files and the first kind that they are."""
    files = TokenizerFiles.read(folder)
    kind = next((kind for kind in kinds if KINDS[kind](files)), None)
    if kind is None and not files.tokenizer:
        files = files.converted()
        kind = next((kind for kind in kinds if KINDS[kind](files)), None)
    if kind is not None:
        return files, kind
    model = files.tokenizer.get("model", {}).get("type", "none")
    raise VocabularyError(
        f"{folder} has no vocabulary of a kind that its architecture takes: "
        f"tokenizer.json has model {model!r}, the architecture takes {', '.join(kinds)}"
    )


def _check_usable(metadata: Metadata, folder: Path) -> None:
    types = np.asarray(metadata[Keys.Tokenizer.TOKEN_TYPE])
    if not np.isin(types, (TokenType.NORMAL, TokenType.BYTE)).any():
        raise VocabularyError(f"the tokenizer of {folder} has no token that text can become")
    if metadata[Keys.Tokenizer.MODEL] in ("llama", "t5") and (lost := missing_bytes(metadata[Keys.Tokenizer.LIST])):
        raise VocabularyError(f"the tokenizer of {folder} has no token <0x{lost[0]:02X}>, but such ones of other bytes")


def _check_unicode(metadata: Metadata, folder: Path) -> None:
    """JSON can write halves of UTF-16's pairs alone; a file's strings are UTF-8, which cannot."""
    for key in metadata:
        value = metadata.value(key)
        if ValueType.STRING in (value.type, value.element):
            try:
                "\n".join([value.data] if isinstance(value.data, str) else value.data).encode()
            except UnicodeEncodeError as error:
                text = error.object[max(0, error.start - 10) : error.end]
                raise VocabularyError(f"{folder}: {key} would have {text!r}, half a pair of UTF-16") from error


def _write_configured_prefix(metadata: Metadata, files: TokenizerFiles) -> None:
    if isinstance(prefix := files.config.get("add_prefix_space"), bool):
        metadata.set(Keys.Tokenizer.ADD_PREFIX, prefix, ValueType.BOOL)


def _write_rest(metadata: Metadata, files: TokenizerFiles, config: Mapping[str, Any], kind: str, extra: Extra) -> None:
    """What comes after special tokens and templates."""
    if kind == "wordpiece":
        write_normalizer(metadata, files)
    elif kind == "fairseq":
        write_token_types(metadata, config.get("type_vocab_size") or 1)
    elif kind == "bpe":
        if files.tokenizer and Keys.Tokenizer.ADD_BOS not in metadata:
            # Nothing in the folder puts a token in front, though the pre-tokenizer's name may imply one.
            metadata.set(Keys.Tokenizer.ADD_BOS, False, ValueType.BOOL)
        if "type_vocab_size" in config:
            write_token_types(metadata, config["type_vocab_size"])
        write_lost_structure(metadata, files)
    elif Keys.Tokenizer.ADD_PREFIX not in metadata and not puts_space_in_front(files):
        metadata.set(Keys.Tokenizer.ADD_PREFIX, False, ValueType.BOOL)
    for name, value in extra.items():
        _write_extra(metadata, f"tokenizer.ggml.{name}", value)


def _write_extra(metadata: Metadata, key: str, value: bool | int | str) -> None:
    if key in metadata:
        return
    if isinstance(value, str):
        if value not in (tokens := metadata[Keys.Tokenizer.LIST]):
            return
        value = int(tokens.index(value))
    metadata.set(key, value, ValueType.BOOL if isinstance(value, bool) else ValueType.UINT32)


def _write_lost_tokens(metadata: Metadata, files: TokenizerFiles) -> None:
    """Write the added tokens that GGUF's own keys cannot describe, in the form of tokenizer.json's `added_tokens`.

    Those are tokens that take the space beside them with them or stand as words only, and those whose row in the token
    list has another type or text.
    """
    tokens, types = metadata[Keys.Tokenizer.LIST], metadata[Keys.Tokenizer.TOKEN_TYPE]
    added = {row: AddedToken(piece) for row, piece in user_defined_pieces(files).items()} | files.added
    lost = []
    for row, token in sorted(added.items()):
        if row >= len(tokens):
            continue
        known = tokens[row] == plain_text(token) and types[row] in (
            TokenType.CONTROL,
            TokenType.USER_DEFINED,
            TokenType.UNKNOWN,
        )
        if not known or token.lstrip or token.rstrip or token.single_word:
            lost.append({"id": row, **vars(token)})
    if lost:
        metadata.set(ADDED_TOKENS, json.dumps(lost, ensure_ascii=False), ValueType.STRING)
