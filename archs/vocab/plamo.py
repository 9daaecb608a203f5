"""PLaMo 2 and 3's vocabulary: a file with a JSON list for each token, its text, score and type. Text is split into the
tokens with the greatest sum of scores; characters without a token become bytes.

Reference: the tokenizer's code of PLaMo 2's checkpoints; llama.cpp's converter.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import Keys, TokenType

from quants.errors import VocabularyError

from ..metadata import Metadata
from ..schema import SPECIAL_TOKENS
from ..small_files import read_text
from .files import TokenizerFiles
from .listed import BYTE
from .tokens import ADDED_SCORE, OTHER, Tokens

FILE = "tokenizer.jsonl"
TYPES = {"UNKNOWN": TokenType.UNKNOWN, "CONTROL": TokenType.CONTROL, "BYTE": TokenType.BYTE}
TURN_ENDS = 4  # <|plamo:op|>
ROLES = ("bos", "eos", "pad", "sep", "unk")


def write_plamo(metadata: Metadata, files: TokenizerFiles, rows: int) -> None:
    """Write tokens, scores and types. Raises VocabularyError for lines that are no tokens, for a vocabulary that lacks
    bytes, and for a token without a row in the embedding.
    """
    path, tokens, count = files.folder / FILE, Tokens.unused(rows), 0
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        if count >= rows:
            raise VocabularyError(f"{path} has a token {count}, but the embedding only {rows} rows", OTHER)
        text, score, token_type = _token(line, f"{path}, line {number}")
        tokens.put(count, text, token_type, score)
        count += 1
    for row in range(count, rows):
        tokens.put(row, f"[PAD{row - count + 1}]", TokenType.UNUSED, ADDED_SCORE)
    _check_bytes(path, tokens)
    tokens.write(metadata, "plamo2", "default", scores=True)


def _token(line: str, where: str) -> tuple[str, float, int]:
    """Return a token's text, score and type."""
    try:
        fields: Any = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, list) or [type(each) for each in fields[:2]] not in ([str, float], [str, int]):
        expected = "a list of a text, a score and a type was expected"
        raise VocabularyError(f"{where}: {line[:80]!r}; {expected}", hint="fetch it again")
    text, score, token_type = (
        fields[0],
        float(fields[1]),
        TYPES.get(str(fields[2]) if fields[2:] else "", TokenType.NORMAL),
    )
    if not math.isfinite(score):
        raise VocabularyError(f"{where}: the score is {score}; a finite number was expected")
    special = text.startswith("<|plamo:") and text.endswith("|>")
    return text, score, int(TokenType.CONTROL if special and token_type is TokenType.NORMAL else token_type)


def _check_bytes(path: Path, tokens: Tokens) -> None:
    known = {text for text, token_type in zip(tokens.texts, tokens.types, strict=True) if token_type == TokenType.BYTE}
    if wrong := next((text for text in sorted(known) if not BYTE.fullmatch(text)), None):
        raise VocabularyError(f"{path}: {wrong!r} is a byte, but none like <0x0A>")
    lost = next((byte for byte in range(256) if f"<0x{byte:02X}>" not in known), None)
    if lost is not None:
        raise VocabularyError(f"{path} has no token <0x{lost:02X}>: all bytes are expected", hint="fetch it again")


def restored(texts: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> bytes:
    """Return the file of a list of tokens. The four numbers of a line that do not affect tokenization are zero."""
    names = {number: token_type for token_type, number in TYPES.items()}
    lines = [
        json.dumps(
            [text, float(str(np.float32(score))), names.get(TokenType(token_type), "NORMAL"), 0, 0, 0, 0],
            ensure_ascii=False,
        )
        for text, score, token_type in zip(texts, scores, types, strict=False)
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def write_roles(metadata: Metadata, files: TokenizerFiles) -> None:
    """Write the role tokens. Raises VocabularyError for a missing one."""
    texts = metadata[Keys.Tokenizer.LIST]
    for role in ROLES:
        text = files.role(role)
        if text is not None and text not in texts:
            raise VocabularyError(f"{files.folder}: the {role} token {text!r} is not in {FILE}")
        if text is not None:
            metadata[SPECIAL_TOKENS[role]] = texts.index(text)
    if len(texts) > TURN_ENDS:
        metadata[Keys.Tokenizer.EOT_ID] = TURN_ENDS
    metadata[Keys.Tokenizer.ADD_PREFIX] = False
