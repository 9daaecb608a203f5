"""RWKV's "world" vocabulary: a text file with a line for each token: its id, its text or bytes as Python writes them,
and how many bytes these are. The longest token that fits is taken, byte by byte; there are no merges and no scores.

Reference: BlinkDL's `rwkv_tokenizer.py`; llama.cpp's files have a token's bytes as Python writes them, without quotes.
"""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from gguf.constants import Keys, TokenType

from quants.errors import VocabularyError

from ..metadata import Metadata
from ..small_files import read_text
from .tokens import OTHER, Tokens

FILE = "rwkv_vocab_v20230424.txt"
START, TURN_ENDS = 0, 261  # "<s>" begins and ends texts; an empty line ends what a speaker says
LINE = re.compile(r"(\d{1,9}) (b?(?:'.*'|\".*\")) (\d{1,9})")
ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
ESCAPED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ {'system': 'System', 'user': 'User'}.get(message['role'], 'Assistant') + ': ' + message['content'] | trim }}"
    "{{ '\\n\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def write_rwkv(metadata: Metadata, folder: Path, rows: int) -> None:
    """Write the tokens of a folder's vocabulary. Raises VocabularyError for a file with other lines than such ones, and
    where the embedding has no row for a token.
    """
    path, tokens = folder / FILE, Tokens.unused(rows)
    tokens.put(START, "<s>", TokenType.CONTROL)
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), start=1):
        match = LINE.fullmatch(line.removesuffix("\r"))  # it is published with lines of Windows, too
        spelled = _bytes(match[2]) if match else None
        if match is None or spelled is None or len(spelled) != int(match[3]) or int(match[1]) != number:
            expected = f"{number}, a text or bytes as Python writes them, and their length"
            raise VocabularyError(f"{path}, line {number}: {line[:80]!r}; {expected} were expected", "fetch it again")
        if number >= rows:
            raise VocabularyError(f"{path} has a token {number}, but the embedding only {rows} rows", OTHER)
        tokens.put(number, repr(spelled)[2:-1], TokenType.NORMAL)
    tokens.write(metadata, "rwkv", "", scores=False)


def write_roles(metadata: Metadata, rows: int) -> None:
    """Write what begins and ends texts and turns, over what the folder's configs say, as llama.cpp does; and how models
    of this vocabulary are talked to, where the folder has no template.
    """
    metadata[Keys.Tokenizer.BOS_ID] = metadata[Keys.Tokenizer.EOS_ID] = START
    if rows > TURN_ENDS:
        metadata[Keys.Tokenizer.EOT_ID] = TURN_ENDS
    if Keys.Tokenizer.CHAT_TEMPLATE not in metadata:
        metadata[Keys.Tokenizer.CHAT_TEMPLATE] = TEMPLATE


def spelled_bytes(text: str) -> bytes:
    """Return the bytes of a token as files write them: b"…" without what stands around it."""
    return ESCAPE.sub(
        lambda match: bytes.fromhex(match[1].decode()) if match[1] else ESCAPED.get(match[2], match[2]), text.encode()
    )


def restored(texts: Sequence[str]) -> bytes:
    """Return the file of a list of tokens, of which it has all but the first."""
    lines = []
    for number, text in enumerate(texts[1:], start=1):
        spelled = spelled_bytes(text)
        try:
            literal = repr(spelled.decode())
        except UnicodeDecodeError:
            literal = repr(spelled)
        lines.append(f"{number} {literal} {len(spelled)}\n")
    return "".join(lines).encode()


def _bytes(literal: str) -> bytes | None:
    """Return none where it is no text or bytes after all."""
    try:
        found = ast.literal_eval(literal)
        return found.encode() if isinstance(found, str) else found if isinstance(found, bytes) else None
    except (SyntaxError, ValueError):
        return None
