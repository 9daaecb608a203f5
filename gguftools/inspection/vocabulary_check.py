"""Check the consistency of a vocabulary: lengths of lists, ids, byte tokens, merges, the embedding."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gguf.constants import Keys, TokenType

from archs.metadata import Metadata, ValueType
from archs.vocab.absent import assumed_id
from archs.vocab.pretokenizer import byte_characters, table
from archs.vocab.tokens import missing_bytes
from quants import Tensor
from quants.errors import VocabularyError
from quants.spelling import quote
from runtime.tokenizer import tokenizer_from_metadata

from ..metadata.checks import type_mismatches
from ..metadata.text import plain

TOKENS, TYPES, MERGES, MODEL, PRE = (
    Keys.Tokenizer.LIST,
    Keys.Tokenizer.TOKEN_TYPE,
    Keys.Tokenizer.MERGES,
    Keys.Tokenizer.MODEL,
    Keys.Tokenizer.PRE,
)
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
ERROR, WARNING = "error", "warning"
SAMPLE = "Hello, world 123\n naïve 日本語 🙂"
Problem = tuple[str, str, str]  # severity, key, message


def check_vocabulary(metadata: Metadata, tensors: Mapping[str, Tensor]) -> Iterator[Problem]:
    """Yield problems that single keys do not show; none for a file without a vocabulary."""
    if TOKENS not in metadata or metadata.value(TOKENS).element is not ValueType.STRING:
        if MODEL in metadata and metadata[MODEL] != "none":
            yield ERROR, TOKENS, f"there are no tokens, though {MODEL} is {quote(metadata[MODEL])}"
        return
    if wrong := [(ERROR, key, message) for key, message in type_mismatches(metadata, "tokenizer.")]:
        yield from wrong
        return
    texts = token_texts(metadata)
    model = metadata.get(MODEL)
    if not texts:
        yield ERROR, TOKENS, "is empty: there are no tokens"
        return
    yield from _check_texts(texts)
    yield from _check_types(metadata, len(texts))
    yield from _check_counts(metadata, len(texts), tensors)
    if model == "gpt2":
        yield from _check_byte_level(metadata, texts)
    elif model in ("llama", "t5"):
        yield from _check_bytes(metadata, texts, needed=model == "llama")
        if Keys.Tokenizer.SCORES not in metadata:
            yield WARNING, Keys.Tokenizer.SCORES, "is missing; every token counts as 0, so that none is preferred"
    yield from _check_special(metadata, texts)
    try:
        tokenizer_from_metadata(metadata).encode(SAMPLE, parse_special=True)
    except Exception as error:  # ours, or any exception of a library that rejects a tokenizer.json
        reason = str(error) if isinstance(error, VocabularyError) else f"{type(error).__name__}: {str(error)[:200]}"
        yield WARNING, MODEL, f"cannot be run here: {reason}"


def token_texts(metadata: Metadata) -> list[Any]:
    """Return the vocabulary: str, or bytes for texts that are not UTF-8."""
    tokens = metadata[TOKENS]
    return tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)


def _check_texts(texts: Sequence[Any]) -> Iterator[Problem]:
    broken = [i for i, text in enumerate(texts) if isinstance(text, bytes)]
    empty = [i for i, text in enumerate(texts) if not text]
    for rows, what in ((broken, "not UTF-8"), (empty, "empty")):
        if rows:
            yield WARNING, TOKENS, f"{_some(rows)} {what}"
    if doubled := [text for text, count in Counter(texts).items() if count > 1]:
        rows = [i for i, text in enumerate(texts) if text == doubled[0]]
        first = f"{quote(doubled[0])} is token {_listed(rows)}"
        yield WARNING, TOKENS, f"{len(doubled)} texts appear more than once; {first}"


def _some(numbers: Sequence[int]) -> str:
    return f"token {numbers[0]} is" if len(numbers) == 1 else f"{len(numbers)} tokens ({_listed(numbers)}) are"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:4])) + (", …" if len(numbers) > 4 else "")


def _check_types(metadata: Metadata, count: int) -> Iterator[Problem]:
    if TYPES not in metadata:
        yield WARNING, TYPES, "is missing; every token counts as an ordinary one"
        return
    types = np.asarray(metadata[TYPES])
    wrong = np.flatnonzero((types < int(TokenType.NORMAL)) | (types > int(TokenType.BYTE)))
    if len(wrong) and len(types) == count:
        yield ERROR, TYPES, f"token {wrong[0]} has type {types[wrong[0]]}; 1 to 6 are defined"
    elif not np.isin(types, (TokenType.NORMAL, TokenType.BYTE)).any():
        yield ERROR, TYPES, "there is no token that text can become"


def _check_counts(metadata: Metadata, count: int, tensors: Mapping[str, Tensor]) -> Iterator[Problem]:
    stated = metadata.get(f"{metadata.get('general.architecture')}.vocab_size")
    if isinstance(stated, int) and stated != count:
        yield ERROR, TOKENS, f"has {count} tokens, but vocab_size is {stated}"
    output = tensors.get("output.weight")
    if (
        output is not None and output.rows != count and "d2t" not in tensors
    ):  # "d2t": a draft with a part of the vocabulary
        yield ERROR, TOKENS, f"has {count} tokens, but output.weight has {output.rows} rows"


def _check_byte_level(metadata: Metadata, texts: Sequence[Any]) -> Iterator[Problem]:
    known = set(texts)
    if missing := [byte for byte, character in byte_characters().items() if character not in known]:
        yield WARNING, TOKENS, f"{len(missing)} bytes have no token ({_listed(missing)}): text with them is lost"
    name = metadata.get(PRE)
    if name is None:
        yield WARNING, PRE, "is missing: programs will cut text by rules that may not be this model's"
    elif name not in table() and name != "default":
        yield ERROR, PRE, f"{quote(name)} is not a pre-tokenizer that is known"
    if MERGES not in metadata:
        yield ERROR, MERGES, "is missing; 'gpt2' vocabularies need it"
        return
    merges = plain(metadata.value(MERGES))
    for i, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if not left or not right:
            yield ERROR, MERGES, f"item {i}, {quote(merge)}, is not two tokens with a space between"
            return
    pairs = [merge.split(" ") for merge in merges if merge.count(" ") == 1]
    strange = [pair for pair in pairs if not known.issuperset(pair)]
    lost = [pair for pair in pairs if "".join(pair) not in known]
    for severity, wrong, what in ((ERROR, strange, "are of what is no token"), (WARNING, lost, "make no token")):
        if wrong:
            first = " ".join(wrong[0])
            message = f"{len(wrong)} merges {what}; the first is item {merges.index(first)}, {quote(first)}"
            yield severity, MERGES, message


def _check_bytes(metadata: Metadata, texts: Sequence[Any], needed: bool) -> Iterator[Problem]:
    types, byte = np.asarray(metadata.get(TYPES, ())), int(TokenType.BYTE)
    byte_tokens = {i for i, text in enumerate(texts) if isinstance(text, str) and BYTE.fullmatch(text)}
    if not needed and not byte_tokens:
        return
    if count := len(missing_bytes(texts)) if byte_tokens else 256:
        lost = f"{count} bytes have no token <0x00> … <0xFF>: text with them cannot be encoded"
        yield (ERROR if byte_tokens else WARNING), TOKENS, lost
    if len(types) == len(texts):
        typed = set(np.flatnonzero(types == byte).tolist())
        if wrong := sorted(byte_tokens - typed):
            yield WARNING, TYPES, f"{_some(wrong)} written as bytes but not of type {byte} (byte)"
        if others := sorted(typed - byte_tokens):
            yield ERROR, TYPES, f"{_some(others)} of type {byte} (byte), but not written as <0x00>"


def _check_special(metadata: Metadata, texts: Sequence[Any]) -> Iterator[Problem]:
    types = np.asarray(metadata.get(TYPES, ()))
    for role in ("bos", "eos", "eot"):
        key = f"tokenizer.ggml.{role}_token_id"
        number = metadata.get(key)
        if not isinstance(number, int) or not 0 <= number < min(len(texts), len(types)):
            continue
        if types[number] not in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN):
            type_name = TokenType(int(types[number])).name if 1 <= types[number] <= 6 else str(types[number])
            yield WARNING, key, f"token {number}, {quote(texts[number])}, is of type {type_name}, not CONTROL"
    for role in ("bos", "eos"):
        adds, key = metadata.get(f"tokenizer.ggml.add_{role}_token"), f"tokenizer.ggml.{role}_token_id"
        if adds is True and key not in metadata:
            number = assumed_id(metadata, key, len(texts))
            instead = "" if number is None else f"; {number}, {quote(texts[number])}, is taken"
            yield WARNING, f"tokenizer.ggml.add_{role}_token", f"is true, but there is no {role}_token_id{instead}"
