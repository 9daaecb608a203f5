"""Names in messages: quoting, and suggestions for mistyped ones."""

import re
from collections.abc import Iterable
from typing import Any

MAX_CHARACTERS = 200  # comparing takes time in the product of both lengths


def nearest(word: str, known: Iterable[str], count: int = 3, cutoff: float = 0.6) -> list[str]:
    """Return the known words most similar to this one, best first; one that differs only in case and punctuation comes
    alone.

    cutoff: required similarity, from 0 to 1.
    """
    import difflib  # imported here because it is rarely needed

    folded: dict[str, list[str]] = {}
    for each in known:
        folded.setdefault(_fold(each), []).append(each)
    wanted = _fold(word)
    if wanted in folded:
        return folded[wanted][:count]
    near = difflib.get_close_matches(wanted, folded, count, cutoff)
    return [each for fold in near for each in folded[fold]][:count]


def did_you_mean(word: str, known: Iterable[str], otherwise: str | None = None, cutoff: float = 0.6) -> str | None:
    """Return the hint for a name that does not exist; `otherwise` if no known name is similar."""
    near = nearest(word, known, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def _fold(word: str) -> str:
    return re.sub(r"[-_. ]", "", word[:MAX_CHARACTERS]).casefold()


def quote(value: Any) -> str:
    """Return a name from a file for a message: quoted, and cut if it is long."""
    text = repr(value[:100] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= 100 else f"{text[:100]}…"
