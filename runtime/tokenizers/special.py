"""Match special tokens in text, before the rest of it is split into words."""

import re
import unicodedata
from collections.abc import Iterable, Iterator

from archs.vocab.files import AddedToken

# Unicode's White_Space, as in the `tokenizers` library; Python's `strip` also takes U+001C … U+001F.
WHITE_SPACE = "".join(filter(str.isspace, map(chr, {*range(0x3001)} - {*range(0x1C, 0x20)})))
CIRCLED = ((0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189))


class Splitter:
    """Splits a text at special tokens: the leftmost first, of several there the longest."""

    def __init__(self, tokens: Iterable[tuple[int, AddedToken]]) -> None:
        self._tokens = {token.content: (number, token) for number, token in tokens if token.content}
        starts: dict[str, list[str]] = {}
        for text in sorted(self._tokens, key=len, reverse=True):
            starts.setdefault(text[0], []).append(re.escape(text))
        # One pattern for each first character: tried only where a token can begin.
        self._at = {first: re.compile("|".join(texts)) for first, texts in starts.items()}
        self._first = re.compile("[" + re.escape("".join(starts)) + "]") if starts else None

    def split(self, text: str) -> Iterator[int | tuple[int, str]]:
        """Yield ids of special tokens and, as (offset, text), the text between them."""
        done = 0
        for start, end, content in self._matches(text):
            number, token = self._tokens[content]
            between = text[done:start].rstrip(WHITE_SPACE) if token.lstrip else text[done:start]
            if between:
                yield done, between
            yield number
            done = end
            if token.rstrip:
                done += len(text[end:]) - len(text[end:].lstrip(WHITE_SPACE))
        if text[done:]:
            yield done, text[done:]

    def _matches(self, text: str) -> Iterator[tuple[int, int, str]]:
        position = 0
        while self._first is not None and (candidate := self._first.search(text, position)):
            start = candidate.start()
            match = self._at[text[start]].match(text, start)
            position = start + 1 if match is None else match.end()
            if match and not (self._tokens[match[0]][1].single_word and not _alone(text, start, match.end())):
                yield start, match.end(), match[0]


def _alone(text: str, start: int, end: int) -> bool:
    """Return whether no letter or digit is next to the token."""
    return not any(map(_is_of_word, text[max(0, start - 1) : start] + text[end : end + 1]))


def _is_of_word(character: str) -> bool:
    """Return whether a character belongs to a word by Unicode's class, which differs from that of Python's `re`."""
    category, circled = unicodedata.category(character), any(a <= ord(character) <= b for a, b in CIRCLED)
    return category[:1] in "LM" or category in ("Nd", "Nl", "Pc") or circled or character in "\u200c\u200d"
