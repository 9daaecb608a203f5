"""Find deceptive metadata: odd characters in tokens, keys and names; links and paths; terminal escape codes."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import ip_address
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from gguf.constants import Keys, TokenType

from archs.metadata import Metadata, ValueType
from archs.vocab.pretokenizer import byte_characters

from ...metadata.checks import type_mismatches
from ..vocabulary_check import MODEL, TOKENS, TYPES, token_texts
from .finding import Finding, Severity
from .unicode import CONTROL, DECEPTIVE, INVISIBLE, hidden, mixed_word, named

LINK_KEYS = re.compile(r"general\..*(url|link|doi)$")
LINK = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}:(?://|(?=[^\s/]))[^\s'\"<>]+", re.IGNORECASE)
SCHEMES = ("http", "https", "doi", "hf")
OTHER_SCHEMES = ("file", "javascript", "data", "ftp", "smb", "ssh", "git", "vbscript", "ldap", "jar", "gopher")
PATH = re.compile(
    r"(?:^|[\s'\"=(])((?:/(?:home|root|Users|mnt|tmp|etc|var|opt|usr|proc|dev)/|[A-Za-z]:\\|\\\\|~/)[^\s'\"]*)"
)
LONG_TOKEN, LONG_TEXT = 1024, 1 << 20
PLAIN_TYPES = (int(TokenType.NORMAL), int(TokenType.BYTE), int(TokenType.UNUSED))


def audit_names(names: Iterable[str], what: str) -> Iterator[Finding]:
    """Check keys or tensor names."""
    for name in names:
        if match := DECEPTIVE.search(name) or INVISIBLE.search(name) or CONTROL.search(name):
            yield Finding("high", "name", repr(name), f"the {what} has {named(match[0])}")
        elif not name.isascii():
            yield Finding("medium", "name", repr(name), f"the {what} has characters other than ASCII")
        if ".." in name.split("/") or name.startswith(("/", "\\")) or "\\" in name:
            yield Finding("medium", "name", repr(name), f"the {what} looks like a path")


def audit_metadata(metadata: Metadata) -> Iterator[Finding]:
    """Check all strings but the vocabulary and chat templates."""
    for key in metadata:
        value = metadata.value(key)
        if value.type is ValueType.STRING:
            yield from _text(key, value.data)
        elif value.element is ValueType.STRING and not key.startswith("tokenizer.ggml."):
            for text in value.data:
                yield from _text(key, text)


def _text(key: str, text: Any) -> Iterator[Finding]:
    if isinstance(text, bytes):
        yield Finding("low", "encoding", key, "is not UTF-8")
        text = text.decode("utf-8", "replace")
    if len(text) > LONG_TEXT:
        yield Finding("low", "size", key, f"has {len(text):,} characters")
    if match := CONTROL.search(text):
        yield Finding("medium", "terminal", key, f"has {named(match[0])}, which a terminal may obey when it is printed")
    if key.startswith((Keys.Tokenizer.CHAT_TEMPLATE, "tokenizer.huggingface")):
        return
    for severity, name in islice(hidden(text), 1):
        worse: Severity = "high" if severity == "high" else "low"
        yield Finding(worse, "invisible text", key, f"has {name}, which a reader doesn't see")
    if word := mixed_word(text):
        yield Finding("medium", "look-alike letters", key, f"mixes alphabets in the word {word!r}")
    for match in islice(LINK.finditer(text), 20):
        yield from _link(key, match[0])
    if match := PATH.search(text):
        yield Finding("low", "path", key, f"has a path on someone's machine: {match[1][:100]}")
    if "../" in text or "..\\" in text:
        yield Finding("low", "path", key, f"has a path that leads upwards: {text[:100]!r}")
    if re.search(r"<(script|iframe|img|svg)\b", text, re.IGNORECASE):
        yield Finding("medium", "markup", key, "has HTML that a page showing it might run")


def _link(key: str, link: str) -> Iterator[Finding]:
    scheme = link.partition(":")[0].lower()
    if scheme in OTHER_SCHEMES:
        yield Finding("medium", "link", key, f"has a link of the kind {scheme}: {link[:100]}")
    if scheme not in SCHEMES or "//" not in link:
        return
    try:
        parts = urlsplit(link)
        host = parts.hostname or ""
    except ValueError:
        yield Finding("medium", "link", key, f"has a link that is not valid: {link[:100]}")
        return
    is_address = False
    with suppress(ValueError):
        is_address = bool(ip_address(host))
    if "@" in parts.netloc or host.startswith("xn--") or ".xn--" in host or is_address:
        yield Finding("medium", "link", key, f"has a link that hides where it leads: {link[:100]}")
    elif not LINK_KEYS.fullmatch(key):
        yield Finding("low", "link", key, f"has a link to {host}")
    elif scheme == "http":
        yield Finding("low", "link", key, f"links to {host}, not encrypted")
    else:
        yield Finding("info", "link", key, f"links to {host}")


def audit_tokens(metadata: Metadata) -> Iterator[Finding]:
    """Check texts of tokens, above all of special ones, which a tokenizer matches before anything else."""
    if TOKENS not in metadata or metadata.value(TOKENS).element is not ValueType.STRING:
        return
    texts = token_texts(metadata)
    sound = not any(wrong == TYPES for wrong, _ in type_mismatches(metadata, "tokenizer."))
    types = np.asarray(metadata.get(TYPES, ()) if sound else ())
    types = types if len(types) == len(texts) else np.ones(len(texts), np.int32)
    special = {i: texts[i] for i in np.flatnonzero(~np.isin(types, PLAIN_TYPES)).tolist()}
    problems = [*_special_tokens(special), *_plain_tokens(texts, special, str(metadata.get(MODEL)) == "gpt2")]
    yield from (Finding(severity, "token", TOKENS, message) for severity, message in problems)


def _special_tokens(special: dict[int, Any]) -> Iterator[tuple[Severity, str]]:
    shown: dict[str, int] = {}
    for i, text in special.items():
        if isinstance(text, bytes):
            yield "medium", f"special token {i} is not UTF-8"
            continue
        if match := DECEPTIVE.search(text) or INVISIBLE.search(text):
            yield "medium", f"special token {i}, {text[:60]!r}, has {named(match[0])}"
        elif word := mixed_word(text):
            yield "medium", f"special token {i} mixes alphabets in the word {word!r}"
        visible = INVISIBLE.sub("", DECEPTIVE.sub("", text)).strip()
        if shown.setdefault(visible, i) != i and visible:
            yield "medium", f"special tokens {shown[visible]} and {i} look the same: {text[:60]!r}"
        if len(text) > LONG_TOKEN:
            yield "low", f"special token {i} has {len(text):,} characters"


def _plain_tokens(texts: list[Any], special: dict[int, Any], in_bytes: bool) -> Iterator[tuple[Severity, str]]:
    """Count odd characters in ordinary tokens, which come from the training text: worth a note, no more."""
    counts = Counter[str]()
    for i, text in enumerate(_readable(texts) if in_bytes else texts):
        if i in special or not isinstance(text, str) or text.isascii():
            continue
        if DECEPTIVE.search(text):
            counts["that turn the direction of text or are tags"] += 1
        elif INVISIBLE.search(text):
            counts["with invisible characters"] += 1
    yield from (("info", f"{count} tokens {what}") for what, count in counts.items())
    if longest := [i for i, text in enumerate(texts) if len(text) > LONG_TOKEN and i not in special]:
        yield "low", f"{len(longest)} tokens of more than {LONG_TOKEN} bytes, first {longest[0]}"


def _readable(texts: list[Any]) -> Iterator[Any]:
    """Yield tokens as text instead of GPT-2's byte characters."""
    table = {ord(character): byte for byte, character in byte_characters().items()}
    for text in texts:
        if isinstance(text, str) and all(ord(character) in table for character in text):
            yield bytes(table[ord(character)] for character in text).decode("utf-8", "replace")
        else:
            yield text
