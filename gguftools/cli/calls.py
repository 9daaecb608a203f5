"""Take a call of the command line apart into options with their values and arguments, to correct and print it.

A hint that shows a call is made by changing the words that are wrong: every other word stays as it was typed.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Arity = Callable[[str], int | None]  # number of values of an option, None for an unknown one
UNBOUNDED = -1  # values up to the next option
GATHERED = "\0"  # joins the values of an option that takes several; no word contains it


@dataclass(frozen=True)
class Part:
    """An option with its values, or an argument."""

    words: tuple[str, ...]  # as they were typed
    option: str = ""  # the option's name without its value; empty for an argument
    value: str | None = None  # of an option that has one value

    @property
    def is_argument(self) -> bool:
        return not self.option


@dataclass(frozen=True)
class Call:
    """`gguftools [GLOBAL OPTIONS] COMMAND WORDS…`."""

    command: str
    parts: tuple[Part, ...]
    before: tuple[str, ...] = ()  # options in front of the command

    @property
    def words(self) -> list[str]:
        """Return the words after the command."""
        return [word for part in self.parts for word in part.words]

    @property
    def arguments(self) -> list[str]:
        return [part.words[0] for part in self.parts if part.is_argument]

    def line(self) -> str:
        """Return the call as one types it in a shell."""
        return shlex.join(["gguftools", *self.before, self.command, *self.words])

    def gives(self, spellings: Collection[str]) -> bool:
        return any(part.option in spellings for part in self.parts)

    def value_of(self, spellings: Collection[str]) -> str | None:
        return next((part.value for part in self.parts if part.option in spellings), None)

    def with_parts(self, parts: Iterable[Part]) -> "Call":
        return replace(self, parts=tuple(parts))

    def with_arguments(self, arguments: Sequence[str]) -> "Call":
        """Return the call with other arguments: they replace the present ones in order; additional ones follow them."""
        return self.with_parts(_replaced(self.parts, arguments))

    def with_option(self, *words: str) -> "Call":
        """Return the call with one more option, at its end but before `--`."""
        end = next((i for i, part in enumerate(self.parts) if part.words == ("--",)), len(self.parts))
        added = Part(words, words[0], words[1] if words[1:] else None)
        return self.with_parts((*self.parts[:end], added, *self.parts[end:]))


def _replaced(parts: Sequence[Part], arguments: Sequence[str]) -> Iterator[Part]:
    rest = [Part((word,)) for word in arguments]
    last = max((i for i, part in enumerate(parts) if part.is_argument), default=-1)
    for i, part in enumerate(parts):
        if not part.is_argument:
            yield part
        elif rest:
            yield rest.pop(0)
        if i == last:
            yield from rest
            rest = []
    yield from rest


def no_option(option: str) -> None:
    return None


def parse_call(
    command: str, words: Sequence[str], own: Mapping[str, int], foreign: Arity = no_option, before: Sequence[str] = ()
) -> Call:
    """Take the words after a command apart, as the command's parser does. own: how many values its options have;
    foreign: how many those of other programs have.
    """
    return Call(command, tuple(_parts(list(words), own, foreign)), tuple(before))


def _parts(rest: list[str], own: Mapping[str, int], foreign: Arity) -> Iterator[Part]:
    def arity(option: str) -> int | None:
        return own[option] if option in own else foreign(option)

    while rest:
        word = rest.pop(0)
        if word == "--":
            yield Part((word,), word)
            yield from (Part((each,)) for each in rest)
            return
        if not word.startswith("-") or word == "-":
            yield Part((word,))
            continue
        option, value = _split(word, arity)
        count = arity(option)
        if not count or (value is not None and count != UNBOUNDED):
            yield Part((word,), option, value)
            continue
        taken = _taken(rest, count, option in own)
        values, rest[:taken] = rest[:taken], []
        yield Part((word, *values), option, value or (values[0] if values else None))


def _taken(rest: Sequence[str], count: int, is_own: bool) -> int:
    """Return how many of the words that follow are an option's values; of a foreign one none that may be an option."""
    if count == UNBOUNDED or not is_own:
        next_option = next((i for i, word in enumerate(rest) if re.match(r"--?[A-Za-z]", word)), len(rest))
        return next_option if count == UNBOUNDED else min(count, next_option)
    return min(count, len(rest))


def _split(word: str, arity: Arity) -> tuple[str, str | None]:
    """Return an option's name, and its value where that is in the same word: --threads=8, -j8, -qj8."""
    option, sign, value = word.partition("=")
    if arity(option) is not None or word.startswith("--"):
        return option, value if sign else None
    short = word
    for i in range(1, len(word)):
        short = f"-{word[i]}"
        count = arity(short)
        if count is None:
            break
        if count:
            return short, word[i + 1 :] or None
    else:
        return short, None
    return option, value if sign else None


def arities(command: Any, several: Collection[str] = ()) -> dict[str, int]:
    """Return how many values each option of a command has. several: those with all words up to the next option."""
    counts: dict[str, int] = {}
    for option in command.params:
        if option.param_type_name == "option":
            for spelling in (*option.opts, *option.secondary_opts):
                counts[spelling] = 0 if option.is_flag else UNBOUNDED if spelling in several else option.nargs
    return counts | {"--help": 0, "-h": 0}


def spellings(command: Any, name: str) -> tuple[str, ...]:
    """Return all spellings of the option that has this one; none where the command has no such option."""
    for option in command.params:
        if option.param_type_name == "option" and name in (*option.opts, *option.secondary_opts):
            return (*option.opts, *option.secondary_opts)
    return ()


def capacity(command: Any) -> int | None:
    """Return how many arguments a command takes; None for any number."""
    counts = [each.nargs for each in command.params if each.param_type_name == "argument"]
    return None if -1 in counts else sum(counts)


def renamed(part: Part, names: Sequence[str], value: str | None) -> Part:
    """Return an option under another name: the last of `names`, which has the value; the others are flags."""
    words = (*names, value) if value is not None else tuple(names)
    return Part(words, names[-1], value)
