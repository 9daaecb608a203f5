"""Vocabularies: the tokenizer of a Hugging Face folder as GGUF metadata."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import Keys, TokenType

from quants.errors import VocabularyError

from ..metadata import Metadata, ValueType
from ..schema import ADDED_TOKENS
from . import plamo, rwkv
from .around import write_around
from .byte_bpe import write_bpe, write_lost_structure, write_plain_bpe
from .chat import write_templates
from .ends import write_ends
from .files import AddedToken, TokenizerFiles
from .listed import TokenList
from .pretokenizer import pre_tokenizer
from .sentencepiece import is_sentencepiece, puts_space_in_front, user_defined_pieces, write_sentencepiece
from .special import write_special
from .tokens import NAMED_TYPES, missing_bytes, plain_text
from .wordpiece import write_normalizer, write_wordpiece

MODEL_TYPES = {"plain_bpe": "BPE", "bpe": "BPE", "wordpiece": "WordPiece"}  # in tokenizer.json; others: SentencePiece
OWN_FILES = {"rwkv": rwkv.FILE, "plamo": plamo.FILE}
NEVER = -1000.0  # the score of tokens that no text produces
Extra = Mapping[str, bool | int | str]


def vocabulary(  # noqa: PLR0913  # a tokenizer's files, and how each is read
    folder: Path,
    vocab_types: Sequence[str],
    config: Mapping[str, Any],
    rows: int,
    pre: str | None = None,
    generation_config: Mapping[str, Any] | None = None,
    *,
    extra: Extra | None = None,
    user_defined: Iterable[str] = (),
    embed: bool = False,
) -> Metadata:
    """Return the `tokenizer.*` keys of a folder's vocabulary.

    vocab_types: what the architecture allows, tried in this order: "sentencepiece", "unigram" (as llama.cpp writes it
    for T5), "fairseq" (the same with XLM-RoBERTa's ids), "bpe", "plain_bpe" (of plain text with byte tokens),
    "wordpiece", "rwkv", "plamo"; "none": the ids are no text, and no file is read. If SentencePiece comes before BPE,
    `add_prefix_space` of tokenizer_config.json counts, as for llama.cpp's Llama. rows: of the embedding; those after
    the vocabulary become `[PAD{id}]`, unused. pre: the pre-tokenizer's GGUF name; None: by the structure of
    tokenizer.json. extra: the architecture's `vocab_keys`; the folder's values win, and texts that are no token are
    left out. user_defined: for "plain_bpe", tokens that stay visible in decoded text. embed: keep tokenizer.json in
    `tokenizer.huggingface.json`. Raises VocabularyError without a tokenizer of these types, for one that does not fit
    the embedding, a pre-tokenizer without a name, and invalid files.
    """
    if "none" in vocab_types:
        return Metadata({Keys.Tokenizer.MODEL: "none"})
    try:
        files, vocab_type = _files(folder, vocab_types)
        if pre is not None and pre_tokenizer(pre).name != "default" and vocab_type not in ("wordpiece", "bpe"):
            raise VocabularyError(
                f"the vocabulary in {folder} is {vocab_type}: it has no pre-tokenizer", "leave out `pre`"
            )
        metadata = Metadata()
        by_bpe = vocab_types[0] == "sentencepiece" if vocab_type == "bpe" else vocab_type not in MODEL_TYPES
        if by_bpe and "bpe" in vocab_types and isinstance(prefix := files.config.get("add_prefix_space"), bool):
            metadata[Keys.Tokenizer.ADD_PREFIX] = prefix
        if vocab_type == "wordpiece":
            metadata[Keys.Tokenizer.TOKEN_TYPE_COUNT] = config.get("type_vocab_size") or 1
        _write_tokens(metadata, files, vocab_type, rows, pre, user_defined)
        _check_usable(metadata, folder)
        write_special(metadata, files, config, generation_config or {}, rows, vocab_type)
        write_templates(metadata, files)
        _write_rest(metadata, files, config, vocab_type, extra or {})
        write_ends(metadata, config, generation_config or {})
        _write_no_bos(metadata)
        _write_lost_tokens(metadata, files)
        write_around(metadata, files)
        if embed and not files.tokenizer:
            raise VocabularyError(f"{folder} has no tokenizer.json to embed", "leave out `embed_tokenizer`")
        if embed:
            metadata[Keys.Tokenizer.HF_JSON] = json.dumps(files.tokenizer, ensure_ascii=False)
        _check_unicode(metadata, folder)
        return metadata
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:  # files of another structure
        raise VocabularyError(
            f"the tokenizer files in {folder} have a structure that such files do not have: "
            f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " "),
            hint="fetch them again",
        ) from error


def _write_tokens(
    metadata: Metadata, files: TokenizerFiles, vocab_type: str, rows: int, pre: str | None, user_defined: Iterable[str]
) -> None:
    """Write the tokens of a vocabulary of this type, with their types and scores."""
    if vocab_type == "wordpiece":
        write_wordpiece(metadata, files, rows, pre)
    elif vocab_type == "plain_bpe":
        write_plain_bpe(metadata, files, rows, user_defined)
    elif vocab_type == "bpe":
        write_bpe(metadata, files, rows, pre)
    elif vocab_type == "rwkv":
        rwkv.write_rwkv(metadata, files.folder, rows)
    elif vocab_type == "plamo":
        plamo.write_plamo(metadata, files, rows)
    else:
        write_sentencepiece(metadata, files, rows, vocab_type)


def add_control_tokens(words: Metadata, names: Sequence[str], score: float = NEVER) -> None:
    """Append control tokens after all others, with that score if tokens have scores.

    Raises VocabularyError for a name that is already a token.
    """
    if not names:
        return
    tokens = list(words[Keys.Tokenizer.LIST])
    if twice := sorted({*names} & {*tokens}) or [name for name in names if list(names).count(name) > 1]:
        raise VocabularyError(f"the tokenizer has {twice[0]!r} twice")
    words[Keys.Tokenizer.LIST] = [*tokens, *names]
    words[Keys.Tokenizer.TOKEN_TYPE] = [*words[Keys.Tokenizer.TOKEN_TYPE], *[int(TokenType.CONTROL)] * len(names)]
    if Keys.Tokenizer.SCORES in words:
        words[Keys.Tokenizer.SCORES] = [*words[Keys.Tokenizer.SCORES], *[score] * len(names)]


def _files(folder: Path, vocab_types: Sequence[str]) -> tuple[TokenizerFiles, str]:
    """Return the folder's files and the first vocabulary type that fits them."""
    files = TokenizerFiles.read(folder)
    vocab_type = next((vocab_type for vocab_type in vocab_types if _fits(vocab_type, files)), None)
    if vocab_type is None and not files.tokenizer:
        files = files.converted()
        vocab_type = next((vocab_type for vocab_type in vocab_types if _fits(vocab_type, files)), None)
    if vocab_type is not None:
        return files, vocab_type
    raise VocabularyError(
        f"{folder} has no vocabulary of a type that its architecture takes: "
        f"tokenizer.json has model {files.model_type or 'none'!r}, the architecture takes {', '.join(vocab_types)}"
    )


def _fits(vocab_type: str, files: TokenizerFiles) -> bool:
    if vocab_type in OWN_FILES:
        return (files.folder / OWN_FILES[vocab_type]).is_file()
    return files.model_type == MODEL_TYPES[vocab_type] if vocab_type in MODEL_TYPES else is_sentencepiece(files)


def _check_usable(metadata: Metadata, folder: Path) -> None:
    types = np.asarray(metadata[Keys.Tokenizer.TOKEN_TYPE])
    if not np.isin(types, (TokenType.NORMAL, TokenType.BYTE)).any():
        raise VocabularyError(f"the tokenizer of {folder} has no token that text can become")
    if metadata[Keys.Tokenizer.MODEL] in ("llama", "t5") and (lost := missing_bytes(metadata[Keys.Tokenizer.LIST])):
        raise VocabularyError(f"the tokenizer of {folder} has no token <0x{lost[0]:02X}>, but such ones of other bytes")


def _check_unicode(metadata: Metadata, folder: Path) -> None:
    """Raise VocabularyError for lone surrogates, which JSON can write and a file's UTF-8 strings cannot."""
    for key in metadata:
        value = metadata.value(key)
        if ValueType.STRING in (value.type, value.element):
            try:
                "\n".join([value.data] if isinstance(value.data, str) else value.data).encode()
            except UnicodeEncodeError as error:
                text = error.object[max(0, error.start - 10) : error.end]
                raise VocabularyError(f"{folder}: {key} would have {text!r}, half a pair of UTF-16") from error


def _write_rest(
    metadata: Metadata, files: TokenizerFiles, config: Mapping[str, Any], vocab_type: str, extra: Extra
) -> None:
    """Write the keys that follow special tokens and templates."""
    if vocab_type == "wordpiece":
        write_normalizer(metadata, files)
    elif vocab_type == "fairseq":
        metadata[Keys.Tokenizer.TOKEN_TYPE_COUNT] = config.get("type_vocab_size") or 1
    elif vocab_type == "bpe":
        if files.tokenizer and Keys.Tokenizer.ADD_BOS not in metadata:
            # Nothing in the folder adds a first token, though the pre-tokenizer's name may imply one.
            metadata[Keys.Tokenizer.ADD_BOS] = False
        if "type_vocab_size" in config:
            metadata[Keys.Tokenizer.TOKEN_TYPE_COUNT] = config["type_vocab_size"]
        write_lost_structure(metadata, files)
    elif vocab_type == "rwkv":
        rwkv.write_roles(metadata, len(metadata[Keys.Tokenizer.LIST]))
    elif vocab_type == "plamo":
        plamo.write_roles(metadata, files)
    elif Keys.Tokenizer.ADD_PREFIX not in metadata and not puts_space_in_front(files):
        metadata[Keys.Tokenizer.ADD_PREFIX] = False
    tokens = metadata[Keys.Tokenizer.LIST]
    for name, value in extra.items():
        key = f"tokenizer.ggml.{name}"
        if key not in metadata and (not isinstance(value, str) or value in tokens):
            metadata[key] = int(tokens.index(value)) if isinstance(value, str) else value


def _write_no_bos(metadata: Metadata) -> None:
    """Write that no token is added in front where none is known: readers assume one if a file does not say it."""
    roles = (Keys.Tokenizer.BOS_ID, Keys.Tokenizer.ADD_BOS)
    if metadata[Keys.Tokenizer.MODEL] == "llama" and not any(key in metadata for key in roles):
        metadata[Keys.Tokenizer.ADD_BOS] = False


def _write_lost_tokens(metadata: Metadata, files: TokenizerFiles) -> None:
    """Write the added tokens that GGUF's own keys cannot describe, in the form of tokenizer.json's `added_tokens`:
    those that strip the space next to them or match whole words only, that match normalized text, or whose row has
    another type or text.
    """
    normalizes = TokenList(metadata).normalizes
    tokens, types = metadata[Keys.Tokenizer.LIST], metadata[Keys.Tokenizer.TOKEN_TYPE]
    added = {row: AddedToken(piece) for row, piece in user_defined_pieces(files).items()} | files.added
    lost = [
        {"id": row, **vars(token)}
        for row, token in sorted(added.items())
        if row < len(tokens)
        and (
            tokens[row] != plain_text(token)
            or types[row] not in NAMED_TYPES
            or token.lstrip
            or token.rstrip
            or token.single_word
            or (normalizes and token.is_normalized)
        )
    ]
    if lost:
        metadata[ADDED_TOKENS] = json.dumps(lost, ensure_ascii=False)
