"""Names in messages: quoted, and what someone who mistyped one may have meant."""

import re
from collections.abc import Iterable
from typing import Any

MOST_CHARACTERS = 200  # comparing takes the product of two lengths


def nearest(word: str, known: Iterable[str], count: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the known words most like this one, best first; one that differs in case and punctuation alone is the only
    one.

    cutoff: how alike they must be, from 0 to 1.
    """
    import difflib  # here, because few calls go wrong

    folded: dict[str, list[str]] = {}
    for each in known:
        folded.setdefault(_fold(each), []).append(each)
    wanted = _fold(word)
    if wanted in folded:
        return folded[wanted][:count]
    near = difflib.get_close_matches(wanted, folded, count, cutoff)
    return [each for fold in near for each in folded[fold]][:count]


def did_you_mean(word: str, known: Iterable[str], otherwise: str | None = None, cutoff: float = 0.6) -> str | None:
    """Return the hint for a name that does not exist; `otherwise` where none that does is like it."""
    near = nearest(word, known, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def _fold(word: str) -> str:
    return re.sub(r"[-_. ]", "", word[:MOST_CHARACTERS]).casefold()


def quote(value: Any) -> str:
    """Return a name from a file for a message: quoted, and cut where it is long."""
    text = repr(value[:100] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= 100 else f"{text[:100]}…"
