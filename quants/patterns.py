"""Regular expressions from users or files, matched safely against names of tensors, keys and modules.

Python's `re` backtracks: `(a+)+$` can take practically forever. So an expression is parsed before it is used, and the
amount of backtracking is estimated. If it is small, `re` matches it. If it is large, an automaton follows all states
side by side, which takes time in proportion to the name and gives the same answer. Expressions that no automaton can
follow (look-around, back-references) are refused where they would take long.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .errors import GgufToolsError, OptionError

MAX_CHARACTERS = 10_000
MAX_DEPTH = 50  # of groups in groups
MAX_WIDE_CHARACTERS = 16  # outside ASCII: `re` compiles ranges of these slowly
MAX_STEPS = 1_000_000  # of `re` for one name: about 10 ms
MAX_STATES = 2_000
USUAL_NAME = 64  # characters that llama.cpp allows a name at most
FLAGS = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.ASCII
WITHOUT_CHOICES = re.compile(r"(?:[^\\()\[\]{}*+?|]|\\\W)*")
QUANTIFIER = re.compile(r"[*+?]|\{(?!\})(\d*)(,?)(\d*)\}")
ESCAPE = re.compile(r"\\(?:x..|u.{4}|U.{8}|N\{[^}]*\}|0[0-7]{0,2}|[1-3][0-7]{2}|[1-9]\d?|.)", re.DOTALL)
CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
REMARK = re.compile(r"\(\?#[^)]*\)")
GROUP = re.compile(r"\(\?(?:P=\w+\)|#[^)]*\)|P<\w+>|[:=!>]|<[=!]|\(\w+\)|[aiLmsux]+\)|[aiLmsux]*(?:-[imsx]+)?:)|\(")
ASSERTIONS = ("^", "$", r"\A", r"\Z", r"\z", r"\b", r"\B")
LOOK_AROUND, BACK_REFERENCE = "look-around", "a back-reference"


class Node(NamedTuple):
    """A part of an expression. type: char, assert, all (a sequence), any (alternatives), repeat, other.

    text: of one character or an assertion; for others the part's name. low, high: of a repeat; high None: no end.
    """

    type: str
    text: str = ""
    inner: tuple["Node", ...] = ()
    low: int = 0
    high: int | None = None


class Cost(NamedTuple):
    """How much `re` may backtrack: `factor` times the name's length to the power of `degree`; None is exponential."""

    factor: int
    degree: int | None

    def times(self, other: "Cost") -> "Cost":
        endless = self.degree is None or other.degree is None
        return Cost(self.factor * other.factor, None if endless else (self.degree or 0) + (other.degree or 0))

    def plus(self, other: "Cost") -> "Cost":
        endless = self.degree is None or other.degree is None
        return Cost(self.factor + other.factor, None if endless else max(self.degree or 0, other.degree or 0))

    def quick_up_to(self) -> int:
        """Return the name length up to which `re` is quick; -1 where it never is."""
        if self.degree is None or self.factor > MAX_STEPS:
            return -1
        return int((MAX_STEPS / self.factor) ** (1 / self.degree)) if self.degree else MAX_STEPS


@dataclass(frozen=True)
class Pattern:
    """A regular expression whose search takes bounded time; `what` it matches, for messages."""

    text: str
    what: str
    compiled: "re.Pattern[str]"
    tree: Node
    quick_up_to: int  # characters of a name that `re` is quick with
    _states: list["State"] = field(default_factory=list)

    def search(self, name: str) -> bool:
        """Return whether the expression matches anywhere in the name. Raises OptionError if that might take long."""
        if len(name) <= self.quick_up_to:
            return self.compiled.search(name) is not None
        if not self._states:
            self._states.extend(_states(self))
        return _follow(self._states, name)


def compile_pattern(
    text: str, what: str, ignore_case: bool = False, error: type[GgufToolsError] = OptionError
) -> Pattern:
    """Compile an expression. what: its name in errors, such as "tensor rule".

    Raises `error` for text that is no regular expression, is too long, or may take too long to match.
    """
    shown = f"{what} {text if len(text) <= 200 else text[:197] + '...'!r}"
    if len(text) > MAX_CHARACTERS:
        raise error(f"{shown} has {len(text):,} characters; at most {MAX_CHARACTERS:,} are allowed")
    wide = sum(character > "\x7f" for character in text) + text.count("\\u") + text.count("\\U") + text.count("\\N")
    if wide > MAX_WIDE_CHARACTERS:
        raise error(f"{shown} has {wide} characters beyond ASCII; at most {MAX_WIDE_CHARACTERS} are allowed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # future warnings of `re`
            compiled = re.compile(text, re.IGNORECASE if ignore_case else 0)
    except RecursionError:
        raise error(f"{shown} is not a regular expression that can be used: it nests too deep") from None
    except (re.error, OverflowError) as problem:
        raise error(f"{shown} is not a regular expression: {problem}") from problem
    try:
        if WITHOUT_CHOICES.fullmatch(text):
            return Pattern(text, shown, compiled, Node("all"), MAX_STEPS)
        tree = _Reader(text, bool(compiled.flags & re.VERBOSE)).read()
        cost = _cost(tree) if _is_anchored(tree) else _cost(tree).times(Cost(1, 1))
        pattern = Pattern(text, shown, compiled, tree, cost.quick_up_to())
        if pattern.quick_up_to < USUAL_NAME:
            pattern._states.extend(_states(pattern))
    except OptionError as problem:
        raise error(str(problem), problem.hint) from None
    except _TooComplexError as problem:
        raise error(f"{shown} may take too long to match: {problem}", _HINT) from None
    return pattern


_HINT = "write it with fewer repeats, and without repeats in repeats"


class _TooComplexError(Exception):
    """The expression is too complex to be tried."""


class _Reader:
    """Parse an expression that `re` has accepted into its parts."""

    def __init__(self, text: str, verbose: bool) -> None:
        if verbose:
            raise _TooComplexError("it is in the verbose notation (x)")
        self.text, self.at = text, 0

    def read(self) -> Node:
        return self._choices(0)

    def _take(self, form: "re.Pattern[str]") -> str:
        match = form.match(self.text, self.at)
        if match is None:
            raise _TooComplexError(f"what begins at character {self.at} is not understood")
        self.at = match.end()
        return match[0]

    def _choices(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise _TooComplexError(f"its groups nest deeper than {MAX_DEPTH}")
        choices, parts = [], list[Node]()
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] == "|":
                self.at += 1
                choices.append(Node("all", inner=tuple(parts)))
                parts = []
            else:
                parts.append(self._repeated(self._part(depth)))
        choices.append(Node("all", inner=tuple(parts)))
        return choices[0] if len(choices) == 1 else Node("any", inner=tuple(choices))

    def _part(self, depth: int) -> Node:
        first = self.text[self.at]
        if first == "(":
            return self._group(depth)
        if first == "[":
            return Node("char", self._take(CLASS))
        if first == "\\":
            text = self._take(ESCAPE)
            if text[1] in "123456789" and len(text) < 4:
                return Node("other", BACK_REFERENCE)
            return Node("assert" if text in ASSERTIONS else "char", text)
        self.at += 1
        return Node("assert" if first in "^$" else "char", first if first in ".^$" else re.escape(first))

    def _group(self, depth: int) -> Node:
        begin = self._take(GROUP)
        if begin.startswith("(?#") or (begin.endswith(")") and begin[2:3] in "aiLmsux"):
            return Node("all")  # a comment, or flags of the whole expression
        if begin.startswith("(?P="):
            return Node("other", BACK_REFERENCE)
        if begin.startswith("(?("):
            raise _TooComplexError("it has a condition")
        inner = self._choices(depth + 1)
        self.at += 1  # the closing parenthesis
        if begin in ("(?=", "(?!", "(?<=", "(?<!"):
            return Node("other", LOOK_AROUND, (inner,))
        if begin == "(?>":
            return Node("other", "an atomic group", (inner,))
        flagged = begin not in ("(", "(?:") and not begin.startswith("(?P<")
        return Node("other", "flags within it", (inner,)) if flagged else inner

    def _repeated(self, node: Node) -> Node:
        """Return the node with its quantifiers; comments may stand between both."""
        while remark := REMARK.match(self.text, self.at):
            self.at = remark.end()
        while (match := QUANTIFIER.match(self.text, self.at)) is not None:
            self.at = match.end()
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(match[0], (0, 0))
            if match[0][0] == "{":
                low = int(match[1] or 0)
                high = (int(match[3]) if match[3] else None) if match[2] else low
            node = Node("repeat", inner=(node,), low=low, high=high)
            following = self.text[self.at : self.at + 1]
            if following in ("?", "+"):
                self.at += 1
            if following == "+":
                node = Node("other", "a possessive repeat", (node,))
        return node


def _single(node: Node) -> bool:
    """Return whether a node matches a single character."""
    while node.type == "all" and len(node.inner) == 1:
        node = node.inner[0]
    return node.type == "char"


def _is_anchored(tree: Node) -> bool:
    while tree.type == "all" and tree.inner:
        tree = tree.inner[0]
    return tree.type == "assert" and tree.text in ("^", r"\A")


def _cost(node: Node) -> Cost:
    """Return how much `re` may backtrack to a node, or within it."""
    if node.type == "repeat":
        return _repeat_cost(node)
    costs = [_cost(each) for each in node.inner]
    total = costs[0] if costs else Cost(1, 0)
    for each in costs[1:]:
        total = total.plus(each) if node.type == "any" else total.times(each)
    return total


def _repeat_cost(node: Node) -> Cost:
    [inner] = node.inner
    each, low, high = _cost(inner), node.low, node.high
    if _single(inner):
        return Cost(1, 1) if high is None else Cost(high - low + 1, 0)
    if high is None or high > 4:
        return Cost(1, None)
    total, power = Cost(1, 0), Cost(1, 0)
    for _ in range(high):
        power = power.times(each)
        total = total.plus(power)
    return total


# The automaton that follows states side by side


class State(NamedTuple):
    """A state of the automaton. test: what must hold to go on; takes: whether that reads the character.

    nexts: numbers of the next states. Without a test it goes on at once; the last one, the end, has no nexts.
    """

    test: Callable[[str, int], Any] | None
    takes: bool
    nexts: tuple[int, ...]


def _states(pattern: Pattern) -> list[State]:
    states = list[State]()
    for test, takes, steps in _compiled(pattern.tree, pattern):
        if len(states) >= MAX_STATES:
            raise OptionError(f"{pattern.what} may take too long to match: it has over {MAX_STATES:,} states", _HINT)
        states.append(State(test, takes, tuple(len(states) + step for step in steps)))
    return [*states, State(None, False, ())]


Step = tuple[Callable[[str, int], Any] | None, bool, tuple[int, ...]]  # as State, nexts counted from itself


def _compiled(node: Node, pattern: Pattern) -> Iterator[Step]:
    """Yield the states of a node; the state after the last one continues."""
    if node.type in ("char", "assert"):
        yield re.compile(node.text, pattern.compiled.flags & FLAGS).match, node.type == "char", (1,)
    elif node.type == "all":
        for each in node.inner:
            yield from _compiled(each, pattern)
    elif node.type == "any":
        yield from _compiled_choice([_bounded(each, pattern) for each in node.inner])
    elif node.type == "repeat":
        yield from _compiled_repeat(node, pattern)
    else:
        problem = f"{pattern.what} may take too long to match: it has {node.text} beside repeats or choices"
        raise OptionError(problem, f"{_HINT}; or without {node.text}")


def _bounded(node: Node, pattern: Pattern) -> list[Step]:
    steps = list[Step]()
    for step in _compiled(node, pattern):
        steps.append(step)
        if len(steps) > MAX_STATES:
            problem = f"{pattern.what} may take too long to match: it has over {MAX_STATES:,} states"
            raise OptionError(problem, _HINT)
    return steps


def _compiled_choice(choices: list[list[Step]]) -> Iterator[Step]:
    # states up to the end; each alternative has one before and one after it
    rest = sum(len(each) + 2 for each in choices)
    for i, each in enumerate(choices):
        last = i == len(choices) - 1
        yield None, False, (1,) if last else (1, len(each) + 2)
        yield from each
        rest -= len(each) + 2
        yield None, False, (rest + 1,)


def _compiled_repeat(node: Node, pattern: Pattern) -> Iterator[Step]:
    steps = _bounded(node.inner[0], pattern)
    count = len(steps)
    if (node.high or node.low) * count > MAX_STATES:
        raise OptionError(f"{pattern.what} may take too long to match: it has over {MAX_STATES:,} states", _HINT)
    for _ in range(node.low):
        yield from steps
    if node.high is None:
        yield None, False, (1, count + 2)
        yield from steps
        yield None, False, (-count - 1,)
    else:
        for left in range(node.high - node.low, 0, -1):
            yield None, False, (1, left * (count + 1))
            yield from steps


def _follow(states: list[State], name: str) -> bool:
    """Return whether the states lead from the first to the last anywhere in the name."""
    current, last = set[int](), len(states) - 1
    for place in range(len(name) + 1):
        _enter(states, 0, name, place, current)
        if last in current:
            return True
        following = set[int]()
        for number in current if place < len(name) else ():
            state = states[number]
            if state.takes and state.test is not None and state.test(name, place):
                _enter(states, state.nexts[0], name, place + 1, following)
        current = following
    return False


def _enter(states: list[State], number: int, name: str, place: int, into: set[int]) -> None:
    """Add a state to a set, and the states that it reaches at this place of the name without reading."""
    waiting = [number]
    while waiting:
        number = waiting.pop()
        if number in into:
            continue
        into.add(number)
        state = states[number]
        if not state.takes and (state.test is None or state.test(name, place)):
            waiting.extend(state.nexts)
