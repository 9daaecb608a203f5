"""SentencePiece vocabularies: from the model file, or from a tokenizer.json made from one.

A BPE model becomes GGUF's "llama" (pieces with scores), a unigram model "t5" (with its normalizer). Reference:
sentencepiece's `sentencepiece_model.proto`.
"""

import base64
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import Keys, TokenType

from quants.errors import VocabularyError

from ..metadata import Metadata
from ..small_files import check_not_pointer, read_vocabulary
from .blocks import parts
from .byte_bpe import write_merges
from .files import TokenizerFiles
from .listed import BYTE
from .spaces import is_plain, merges_as_scores, puts_space, write_blocks, write_scheme
from .tokens import ADDED_SCORE, Tokens

MODEL_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "sentencepiece.model")
UNIGRAM = 1  # TrainerSpec.ModelType
SPACES_IN_A_ROW = {"Regex": " {2,}"}  # collapsed into one
USER_DEFINED = 4  # ModelProto.SentencePiece.Type: the same numbers as gguf.TokenType


def is_sentencepiece(files: TokenizerFiles) -> bool:
    """Return whether the folder holds SentencePiece's BPE or unigram: a model file, or a tokenizer.json made from
    one.
    """
    return _model_file(files) is not None or files.model_type == "Unigram" or _rebuilt_bpe(files)


def write_sentencepiece(metadata: Metadata, files: TokenizerFiles, rows: int, vocab_type: str) -> None:
    """Write tokens, scores, types and the model's normalizer.

    vocab_type: "sentencepiece" keeps the added tokens of tokenizer_config.json in a unigram model's list, too, others
    don't, as llama.cpp for T5; ids of "fairseq" are XLM-RoBERTa's, one more than the model file's, with other special
    ones. Raises VocabularyError for a damaged model file.
    """
    if path := _model_file(files):
        _write_model_file(metadata, files, path, rows, vocab_type)
    elif files.model_type == "Unigram":
        _write_unigram_json(metadata, files, rows)
    else:
        _write_bpe_json(metadata, files, rows)


def _write_model_file(metadata: Metadata, files: TokenizerFiles, path: Path, rows: int, vocab_type: str) -> None:
    model = _parse(path)
    _check_pieces(path, model.pieces)
    unigram = model.trainer_spec.model_type == UNIGRAM
    tokens = Tokens.unused(rows)
    for row, piece in enumerate(model.pieces):
        # User-defined pieces count as normal here; `write_lost_tokens` records the difference.
        type = TokenType.NORMAL if piece.type == USER_DEFINED else piece.type
        tokens.put(row, piece.piece, type, piece.score)
    for text, row in files.added_json.items():
        tokens.put(row, text, TokenType.USER_DEFINED, ADDED_SCORE)
    if vocab_type == "sentencepiece" or not unigram:
        tokens.put_added(files.configured, ADDED_SCORE)
    if vocab_type == "fairseq":
        tokens = _as_fairseq(tokens)
    tokens.write(metadata, "t5" if unigram else "llama", "default", scores=True)
    spec = model.normalizer_spec
    if unigram or spec.remove_extra_whitespaces or spec.precompiled_charsmap:
        _write_normalizer(metadata, spec.add_dummy_prefix, spec.remove_extra_whitespaces, spec.precompiled_charsmap)
    if spec.add_dummy_prefix:
        write_scheme(metadata, files, unigram)


def _check_pieces(path: Path, pieces: Any) -> None:
    if not any(piece.piece for piece in pieces):
        raise VocabularyError(f"{path} has no pieces", hint="fetch it again")
    for row, piece in enumerate(pieces):  # those past the embedding are left out, as in llama.cpp
        if not math.isfinite(piece.score):
            raise VocabularyError(f"{path}: piece {row} has the score {piece.score}; a finite number was expected")
        if piece.type == TokenType.BYTE and not BYTE.fullmatch(piece.piece):
            raise VocabularyError(f"{path}: piece {row} is a byte, but {piece.piece!r} is none like <0x0A>")


def _as_fairseq(tokens: Tokens) -> Tokens:
    """Return the model file's three special pieces replaced by four, so that all others move up by one."""
    control = int(TokenType.CONTROL)
    return Tokens(
        ["<s>", "<pad>", "</s>", "<unk>", *tokens.texts[3:-1]],
        [control, control, control, int(TokenType.UNKNOWN), *tokens.types[3:-1]],
        [0.0, 0.0, 0.0, 0.0, *tokens.scores[3:-1]],
    )


def puts_space_in_front(files: TokenizerFiles) -> bool:
    """Return whether a space is put before a text: GGUF's default for SentencePiece's BPE."""
    path = _model_file(files)
    return bool(_parse(path).normalizer_spec.add_dummy_prefix) if path is not None else puts_space(files.tokenizer)


def user_defined_pieces(files: TokenizerFiles) -> dict[int, str]:
    """Return the pieces of the model file that SentencePiece matches in text before anything else, by id."""
    path = _model_file(files)
    pieces = _parse(path).pieces if path is not None else ()
    return {row: piece.piece for row, piece in enumerate(pieces) if piece.type == USER_DEFINED}


def _write_unigram_json(metadata: Metadata, files: TokenizerFiles, rows: int) -> None:
    model = files.tokenizer["model"]
    tokens = Tokens.unused(rows, files, len(model["vocab"]) - 1)
    for row, (text, score) in enumerate(model["vocab"]):
        is_byte = model.get("byte_fallback") and BYTE.fullmatch(text)
        tokens.put(row, text, TokenType.BYTE if is_byte else TokenType.NORMAL, score)
    tokens.put_added(files.added)
    if model.get("unk_id") is not None:
        tokens.put(model["unk_id"], model["vocab"][model["unk_id"]][0], TokenType.UNKNOWN)
    tokens.write(metadata, "t5", "default", scores=True)
    normalizers = parts(files.tokenizer, "normalizer")
    charsmap = next((n["precompiled_charsmap"] for n in normalizers if n["type"] == "Precompiled"), None)
    cuts = [block["type"] for block in parts(files.tokenizer, "pre_tokenizer")]
    removes = "WhitespaceSplit" in cuts or any(n.get("pattern") == SPACES_IN_A_ROW for n in normalizers)
    _write_normalizer(metadata, puts_space(files.tokenizer), removes, base64.b64decode(charsmap or ""))
    write_blocks(metadata, files)


def _write_bpe_json(metadata: Metadata, files: TokenizerFiles, rows: int) -> None:
    """Write the pieces of a BPE tokenizer.json. A piece's score is minus the rank of its merge, which orders merges as
    the model did.
    """
    model = files.tokenizer["model"]
    tokens = Tokens.unused(rows, files, max(model["vocab"].values()))
    for text, row in model["vocab"].items():
        token_type = TokenType.BYTE if BYTE.fullmatch(text) else TokenType.NORMAL
        tokens.put(row, text, token_type, -float(len(model["merges"])))
    for rank, merge in reversed(list(enumerate(model["merges"]))):
        text = "".join(merge.split(" ") if isinstance(merge, str) else merge)
        tokens.put(model["vocab"][text], text, TokenType.NORMAL, -float(rank))
    tokens.put_added(files.added, ADDED_SCORE)
    if (unknown := model["vocab"].get(model.get("unk_token"))) is not None:
        tokens.put(unknown, model["unk_token"], TokenType.UNKNOWN)
    tokens.write(metadata, "llama", "default", scores=True)
    if not is_plain(files) or not merges_as_scores(model["vocab"], model["merges"]):
        write_blocks(metadata, files)
        write_merges(metadata, files)


def _write_normalizer(metadata: Metadata, prefix: bool, remove_spaces: bool, charsmap: bytes) -> None:
    metadata[Keys.Tokenizer.ADD_PREFIX] = bool(prefix)
    metadata[Keys.Tokenizer.REMOVE_EXTRA_WS] = bool(remove_spaces)
    if charsmap:
        metadata[Keys.Tokenizer.PRECOMPILED_CHARSMAP] = np.frombuffer(charsmap, np.uint8)


def _rebuilt_bpe(files: TokenizerFiles) -> bool:
    """Return whether tokenizer.json is SentencePiece's BPE: byte fallback, and spaces written as U+2581."""
    if files.model_type != "BPE" or not files.tokenizer["model"].get("byte_fallback"):
        return False
    return not any(block["type"] == "ByteLevel" for block in parts(files.tokenizer, "pre_tokenizer"))


def _model_file(files: TokenizerFiles) -> Path | None:
    return next((files.folder / name for name in MODEL_FILES if is_model_file(files.folder / name)), None)


def is_model_file(path: Path) -> bool:
    """Return whether a file is SentencePiece's: tiktoken's base64 lists are also called tokenizer.model."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        beginning = file.read(64)
    check_not_pointer(path, beginning)
    if not beginning:
        raise VocabularyError(f"{path} is empty", hint="fetch it again")
    return beginning.startswith(b"\n")  # field 1, length-delimited: the first piece


def _parse(path: Path) -> Any:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        return _parsed(read_vocabulary(path))
    except DecodeError as error:
        raise VocabularyError(f"{path} is not a SentencePiece model: {error}") from error


@lru_cache(maxsize=1)  # by content: another checkpoint may later be in the same folder
def _parsed(data: bytes) -> Any:
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(data)
    return model
