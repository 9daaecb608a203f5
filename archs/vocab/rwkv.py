"""RWKV's "world" vocabulary: a text file with a line for each token: its id, its text or bytes as a Python literal, and
their length in bytes. The longest matching token is taken; there are no merges and no scores.

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
START, TURN_ENDS = 0, 261  # "<s>" begins and ends texts; an empty line ends a turn
LINE = re.compile(r"(\d{1,9}) (b?(?:'.*'|\".*\")) (\d{1,9})")
ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)
ESCAPED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ {'system': 'System', 'user': 'User'}.get(message['role'], 'Assistant') + ': ' + message['content'] | trim }}"
    "{{ '\\n\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def write_rwkv(metadata: Metadata, folder: Path, rows: int) -> None:
    """Write the tokens of a folder's vocabulary. Raises VocabularyError for a file with other lines, and for a token
    without a row in the embedding.
    """
    path, tokens = folder / FILE, Tokens.unused(rows)
    tokens.put(START, "<s>", TokenType.CONTROL)
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), start=1):
        match = LINE.fullmatch(line.removesuffix("\r"))  # also published with Windows line ends
        spelled = _bytes(match[2]) if match else None
        if match is None or spelled is None or len(spelled) != int(match[3]) or int(match[1]) != number:
            expected = f"{number}, a text or bytes as Python writes them, and their length"
            raise VocabularyError(f"{path}, line {number}: {line[:80]!r}; {expected} were expected", "fetch it again")
        if number >= rows:
            raise VocabularyError(f"{path} has a token {number}, but the embedding only {rows} rows", OTHER)
        tokens.put(number, repr(spelled)[2:-1], TokenType.NORMAL)
    tokens.write(metadata, "rwkv", "", scores=False)


def write_roles(metadata: Metadata, rows: int) -> None:
    """Write the tokens that begin and end texts and turns, over those of the folder's configs, as llama.cpp does; and
    the default chat template of models with this vocabulary, if the folder has none.
    """
    metadata[Keys.Tokenizer.BOS_ID] = metadata[Keys.Tokenizer.EOS_ID] = START
    if rows > TURN_ENDS:
        metadata[Keys.Tokenizer.EOT_ID] = TURN_ENDS
    if Keys.Tokenizer.CHAT_TEMPLATE not in metadata:
        metadata[Keys.Tokenizer.CHAT_TEMPLATE] = TEMPLATE


def spelled_bytes(text: str) -> bytes:
    """Return the bytes of a token as files write them: the inside of b"…"."""
    return ESCAPE.sub(
        lambda match: bytes.fromhex(match[1].decode()) if match[1] else ESCAPED.get(match[2], match[2]), text.encode()
    )


def restored(texts: Sequence[str]) -> bytes:
    """Return the file of a list of tokens, all but the first."""
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
    """Return the bytes of a literal; none if it is neither text nor bytes."""
    try:
        value = ast.literal_eval(literal)
        return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else None
    except (SyntaxError, ValueError):
        return None
