"""Finding special tokens in text, before the rest of it is split into words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from archs.vocab.files import AddedToken

__all__ = ["Splitter"]


class Splitter:
    """Cuts a text at special tokens: the leftmost first, of several there the longest."""

    def __init__(self, tokens: Iterable[tuple[int, AddedToken]]) -> None:
        self._tokens = {token.content: (number, token) for number, token in tokens if token.content}
        starts: dict[str, list[str]] = {}
        for text in sorted(self._tokens, key=len, reverse=True):
            starts.setdefault(text[0], []).append(re.escape(text))
        # One pattern for each first character: tried only where a token can begin.
        self._at = {first: re.compile("|".join(texts)) for first, texts in starts.items()}
        self._first = re.compile("[" + re.escape("".join(starts)) + "]") if starts else None

    def split(self, text: str) -> Iterator[int | tuple[int, str]]:
        """Ids of special tokens and, as (offset, text), what stands between them."""
        done = 0
        for start, end, found in self._matches(text):
            number, token = self._tokens[found]
            between = text[done:start].rstrip() if token.lstrip else text[done:start]
            if between:
                yield done, between
            yield number
            done = end
            if token.rstrip:
                done += len(text[end:]) - len(text[end:].lstrip())
        if text[done:]:
            yield done, text[done:]

    def _matches(self, text: str) -> Iterator[tuple[int, int, str]]:
        position = 0
        while self._first is not None and (candidate := self._first.search(text, position)):
            start = candidate.start()
            match = self._at[text[start]].match(text, start)
            if match is None or (self._tokens[match[0]][1].single_word and not _alone(text, start, match.end())):
                position = start + 1
                continue
            yield start, match.end(), match[0]
            position = match.end()


def _alone(text: str, start: int, end: int) -> bool:
    """Whether no letter or digit touches the token."""
    before, after = text[:start][-1:], text[end : end + 1]
    return not re.match(r"\w", before) and not re.match(r"\w", after)
