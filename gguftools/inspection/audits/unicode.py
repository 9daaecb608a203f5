"""Characters that a reader does not see, or mistakes for others."""

import re
import unicodedata
from collections.abc import Iterator

from .finding import Severity

# Direction overrides, and "tag" characters, which spell a second, invisible text.
DECEPTIVE = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
INVISIBLE = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
    "\ufff9-\ufffb\U000e0100-\U000e01ef]"
)
# Codes that terminals obey when a string is printed.
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")
HIDDEN: tuple[tuple[Severity, re.Pattern[str]], ...] = (("high", DECEPTIVE), ("medium", INVISIBLE))
WORD = re.compile(r"\w{2,}")
LOOK_ALIKE_SCRIPTS = ("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE")


def hidden(text: str) -> Iterator[tuple[Severity, str]]:
    """Yield the severity and first character of each type: direction overrides, then invisible characters."""
    for severity, pattern in HIDDEN:
        if match := pattern.search(text):
            yield severity, named(match[0])


def named(text: str) -> str:
    """Return the first character of `text` as U+XXXX NAME."""
    return f"U+{ord(text[0]):04X} {unicodedata.name(text[0], 'unnamed')}"


def mixed_word(text: str) -> str | None:
    """Return the first word that mixes Latin letters with letters of a look-alike script."""
    if text.isascii():
        return None
    for word in WORD.findall(text):
        if not word.isascii() and any(c.isascii() and c.isalpha() for c in word):
            scripts = {unicodedata.name(c, "").partition(" ")[0] for c in word if c.isalpha()}
            if scripts & set(LOOK_ALIKE_SCRIPTS) and "LATIN" in scripts:
                return str(word)
    return None
