"""Texts that files are tried with: pieces of those that come with the package, and what tokenizers trip over."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from ..measurement.texts import default_texts

AWKWARD = (
    "", " ", "  ", "\n", "\t", "\n\n\n", " \n \t", "a", " a", "a ", "  a  b", "\na\n", "a\u00a0b", "a\u3000b", "\r\n",
    "0", "12", "123", "1234", "12345678901", "3.14159", "1,234,567.89", "-1 +2 =3", "2024-02-29T12:00:00Z",
    "Hello", "hello world", "Hello, world!", "HELLO WORLD", "it's we'll I'VE they'Re", "don’t “quote” — dash…",
    "snake_case camelCase kebab-case", "x=[i**2 for i in range(10)]\n\tif x:\n\t\treturn x", "<a href=\"b\">c</a>",
    "https://example.org/a?b=c&d=%20e#f", "user@example.org", "$1 €2 £3 ¥4", "!?!?...,,,;;;", "((({{{[[[]]]}}})))",
    "naïve café", "e\u0301 ä a\u0308", "ﬁ ligature ½ ² ™", "İstanbul ß ẞ ſ", "Ωμέγα", "Привет, мир", "שלום עולם",
    "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก", "你好，世界", "こんにちは世界カタカナ", "안녕하세요 세계", "Việt Nam",
    "🙂", "👩\u200d👩\u200d👧 👍🏽 🇫🇷", "a🙂b 🙂 c", "\u200b\u200d\ufeffx", "\U0001f9ff\U00020000",
    "[UNK] <unk> <s> </s>", "<0x41>",
)  # fmt: skip
PROMPTS = ("It is a truth universally acknowledged, that", "The capital of France is", "def fibonacci(n):\n")
PASSAGES = ("fiction", "encyclopedia", "code")  # of the package's texts: what predictions are compared on
PIECE = 300  # characters


def token_texts(special: Iterable[str]) -> list[str]:
    """What tokens are made of to compare them: awkward texts, texts with special tokens, pieces of many languages."""
    found = list(AWKWARD)
    for token in special:
        found += [token, f"a{token}b", f"{token} {token}\n"]
    for name, text in _package_texts().items():
        step = PIECE * (2 if name in ("languages", "scripts") else 20)
        found += [text[start : start + PIECE] for start in range(0, len(text), step)]
    return found


def passage(name: str) -> str:
    return _package_texts()[name]


@cache
def _package_texts() -> dict[str, str]:
    return {each.name: Path(each.path).read_text(encoding="utf-8") for each in default_texts()}
