"""Test texts: passages that come with the package, and texts on which tokenizers differ."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from ...measurement.texts import default_texts

AWKWARD = (
    "",
    " ",
    "  ",
    "\n",
    "\t",
    "\n\n\n",
    " \n \t",
    "a",
    " a",
    "a ",
    "  a  b",
    "\na\n",
    "a\u00a0b",
    "a\u3000b",
    "\r\n",
    "0",
    "12",
    "123",
    "1234",
    "12345678901",
    "3.14159",
    "1,234,567.89",
    "-1 +2 =3",
    "2024-02-29T12:00:00Z",
    "Hello",
    "hello world",
    "Hello, world!",
    "HELLO WORLD",
    "it's we'll I'VE they'Re",
    "don’t “quote” — dash…",
    "snake_case camelCase kebab-case",
    "x=[i**2 for i in range(10)]\n\tif x:\n\t\treturn x",
    '<a href="b">c</a>',
    "https://example.org/a?b=c&d=%20e#f",
    "user@example.org",
    "$1 €2 £3 ¥4",
    "!?!?...,,,;;;",
    "((({{{[[[]]]}}})))",
    "naïve café",
    "e\u0301 ä a\u0308",
    "ﬁ ligature ½ ² ™",
    "İstanbul ß ẞ ſ",
    "Ωμέγα",
    "Привет, мир",
    "שלום עולם",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "你好，世界",
    "こんにちは世界カタカナ",
    "안녕하세요 세계",
    "Việt Nam",
    "🙂",
    "👩\u200d👩\u200d👧 👍🏽 🇫🇷",
    "a🙂b 🙂 c",
    "\u200b\u200d\ufeffx",
    "\U0001f9ff\U00020000",
    "[UNK] <unk> <s> </s>",
    "<0x41>",
)
RUNS = (*" \t\n", "\r\n", *"\u00a0\u3000\u2028\u2581a0=-.\u0301中🙂กא")
COUNTS = (1, 2, 3, 4, 7, 8, 16, 33)
CONTROLS = (
    "\x00\x01\x07\x08\x0b\x0c\x1b\x1f\x7f\x80\x85\x9f\u00ad\u200b\u200e\u2060\u2066\u2069\ufeff\ufffd\ue000\U000e0041"
)
SCRIPTS = (
    "Ελληνικά άέ ς",
    "Русский ё Й",
    "Հայերեն",
    "עִבְרִית ״׳",
    "العربيّة ٣٤ ـ",
    "فارسی ۱۲",
    "ܣܘܪܝܝܐ",
    "हिन्दी क्षि १२",
    "বাংলা",
    "ਪੰਜਾਬੀ",
    "ગુજરાતી",
    "தமிழ்",
    "తెలుగు",
    "ಕನ್ನಡ",
    "മലയാളം",
    "සිංහල",
    "ภาษาไทย ๑๒",
    "ລາວ",
    "བོད་ཡིག",
    "မြန်မာ",
    "ქართული Ⴀ",
    "አማርኛ",
    "ខ្មែរ",
    "ᠮᠣᠩᠭᠣᠯ",
    "ᏣᎳᎩ",
    "ᐃᓄᒃᑎᑐᑦ",
    "漢字仮名交じり文。",
    "ｶﾀｶﾅ ﾊﾝｶｸ",
    "简体，繁體",
    "ㄅㄆㄇ",
    "한국어 ᄒᆞᆫ글 각",
    "Tiếng Việt ệ",
    "ÅÅÅ ǅ ﬃ ſt",
    "ＡＢＣ１２３",
    "①②③ Ⅳ ⅻ",
    "𝔘𝔫𝔦 𝟘𝟙",
    "𐍈𐌰 𒀀 𓀀",
    "x²+y₃=∑√∞≠≈",
    "₿ ₹ € ƒ",
    "ʰəˈloʊ",
    "🏳️‍🌈🇩🇪👩🏽‍🚀❤️☺︎",
    "ﷺ ﷲ ﬅ ㎏ ㍿",
    "İI ıi ß ẞ Σσς ŉ",
    "\u0041\u030a \u212b \u00c5",
    "\u1100\u1161\u11a8 \uac01",
    "\u0958 \u0915\u093c",
)
CODE = (
    "def f(x):\n    return x**2  # \u00b2\n",
    "for(int i=0;i<10;++i){\n\ta[i] += 0x1F;\r\n}",
    '{"a": [1, -2.5e10, null]}',
    "SELECT * FROM t WHERE a != 'it''s';",
    "<p class='x'>a &amp; b</p>\n\n\n",
    "C:\\Users\\a\\b.txt /usr/bin/env",
    "a=b;c==d;e===f!==g",
    "#!/bin/sh\nset -eu\n",
    "\\frac{a}{b} $x_1^{2}$",
    "2024-01-31T23:59:59.999+01:00",
    "1000000 1,000,000 0.1 .5 1e-7 0b101",
    "foo_bar.fooBar(FooBar::baz) -> &'a str",
    "user:pass@host:8080/path?q=a+b%20c#frag",
    "don't I'll we've you're he'd I'm it's DON'T I'LL",
)
PROMPTS = ("It is a truth universally acknowledged, that", "The capital of France is", "def fibonacci(n):\n")
PASSAGES = ("fiction", "encyclopedia", "code")  # of the package's texts: what predictions are compared on
PIECE = 300  # characters


def token_texts(special: Iterable[str]) -> list[str]:
    """Return texts to compare tokenizers on: awkward ones, texts with special tokens, pieces of many languages."""
    texts = list(AWKWARD)
    for token in special:
        texts += [token, f"a{token}b", f"{token} {token}\n"]
    for name, text in _package_texts().items():
        step = PIECE * (2 if name in ("languages", "scripts") else 20)
        texts += [text[start : start + PIECE] for start in range(0, len(text), step)]
    return texts


def adversarial_texts(special: Iterable[str]) -> list[str]:
    """Return some hundred short texts on which tokenizers differ.

    Scripts, emoji, marks, digits, runs of one character, control characters, code, and special tokens alone, inside and
    next to text.
    """
    texts = [*AWKWARD, *SCRIPTS, *CODE]
    for run in RUNS:
        texts += [run * count for count in COUNTS] + [f"a{run * count}b" for count in (1, 2, 5)] + [f"{run}x{run}"]
    texts += [f"a{control}b" for control in CONTROLS] + [f"{control}{control} x" for control in CONTROLS[:8]]
    texts += ["ab " * 60, "12 " * 40, "Aa1!" * 30, "\n a\n  b\n   c" * 8, " " * 200, "9" * 120, "日本" * 50]
    for token in special:
        texts += [token, token * 2, f"a{token}", f"{token}a", f" {token} ", f"a {token} b", f"{token}\n{token} b\n"]
        texts += [f"{token}user\nHi there{token}", token[:-1], token.upper(), f"x{token}\u00a0y"]
    return list(dict.fromkeys(texts))


def passage(name: str) -> str:
    return _package_texts()[name]


@cache
def _package_texts() -> dict[str, str]:
    return {each.name: Path(each.path).read_text(encoding="utf-8") for each in default_texts()}
