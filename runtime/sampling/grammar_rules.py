"""The rules of a grammar's text, counted and ordered before llguidance reads them.

It converts GBNF in time that grows with the square of the depth of references, unless referenced rules come first; and
it compiles each rule within the one that refers to it, until the stack of its thread overflows, which ends the process.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quants.errors import OptionError
from quants.spelling import quote

MAX_CHARACTERS = 4 << 20
MAX_PARTS = 50_000  # rules and alternatives: llguidance numbers symbols with 16 bits
MANY_RULES = 200  # from here on they are ordered; errors in fewer rules keep the text's line numbers
MAX_DEPTH = 500  # of nested references
MAX_SCHEMA_DEPTH = 2000  # nesting of a schema's references, times the nesting of its objects
DEFINITIONS = ("$defs", "definitions")
# Parts that may contain names that are no rules: literals, classes, comments, tokens; in llguidance's notation
# expressions, too.
OPAQUE = r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|<[^<>\n]*>|#[^\n]*'
GBNF_RULE = re.compile(rf"{OPAQUE}|([\w-]+)[ \t]*::=|([\w-]+)|(\|)")
LARK_RULE = re.compile(rf"{OPAQUE}|//[^\n]*|/(?:\\.|[^/\\\n])+/|^[ \t]*[?!]?(\w+)[^\n:|]*:|(\w+)|(\|)", re.MULTILINE)


def check_gbnf(text: str) -> str:
    """Return a GBNF grammar with each rule after those that it refers to. Raises OptionError for one too large."""
    starts, references = _read(text, GBNF_RULE)
    order = list(_referred_first(references))
    if len(starts) < MANY_RULES:
        return text
    ends = [begin for _, begin in starts[1:]] + [len(text)]
    # the last of a name counts
    rules = {name: text[begin:end] for (name, begin), end in zip(starts, ends, strict=True)}
    return "\n".join([text[: starts[0][1]], *(rules[name] for name in order)])


def check_lark(text: str) -> None:
    """Raise OptionError for a grammar in llguidance's notation that is too large, or nests references too deep."""
    _, references = _read(text, LARK_RULE)
    for _ in _referred_first(references):
        pass


def check_schema(schema: Any) -> None:
    """Raise OptionError for a JSON schema whose nested references overflow the stack."""
    references, waiting, deepest = {"": list[str]()}, [("", 1, schema)], 1
    while waiting:
        place, depth, value = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(value, Mapping) and isinstance(pointer := value.get("$ref"), str):
            references[place].append(pointer)
            if pointer not in references:
                references[pointer] = []
                waiting.append((pointer, 1, _pointed_at(schema, pointer)))
        if place and value is schema:
            continue  # a reference to the root
        inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        waiting.extend((place, depth + 1, each) for key, each in inner if key not in DEFINITIONS)
    for _ in _referred_first(references, max(1, MAX_SCHEMA_DEPTH // deepest), "the schema's definitions"):
        pass


def _pointed_at(schema: Any, pointer: str) -> Any:
    for part in pointer.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        schema = schema.get(key) if isinstance(schema, Mapping) else None
    return schema


def _read(text: str, form: "re.Pattern[str]") -> tuple[list[tuple[str, int]], dict[str, list[str]]]:
    """Return the rules: each one's name and start; and by name the rules that it refers to."""
    if len(text) > MAX_CHARACTERS:
        raise OptionError(f"the grammar has {len(text):,} characters; at most {MAX_CHARACTERS:,} can be followed")
    starts, references, alternatives = list[tuple[str, int]](), dict[str, list[str]](), 0
    for match in form.finditer(text):
        if match[1]:
            starts.append((match[1], match.start()))
            references[match[1]] = []
        elif match[2] and starts:
            references[starts[-1][0]].append(match[2])
        alternatives += match[3] is not None
    if len(starts) + alternatives > MAX_PARTS:
        problem = f"the grammar has {len(starts):,} rules with {alternatives:,} signs of alternatives"
        raise OptionError(f"{problem}; at most {MAX_PARTS:,} together can be followed", "allow fewer texts")
    return starts, references


def _referred_first(
    references: Mapping[str, Sequence[str]], max_depth: int = MAX_DEPTH, what: str = "the grammar's rules"
) -> Iterator[str]:
    """Return names of rules, each after those that it refers to, unless these refer back to it."""
    seen = set[str]()
    for first in sorted(references, key=lambda name: name not in ("root", "start")):
        if first in seen:
            continue
        seen.add(first)
        path = [(first, iter(references[first]))]
        while path:
            name, rest = path[-1]
            following = next((each for each in rest if each in references and each not in seen), None)
            if following is None:
                path.pop()
                yield name
                continue
            seen.add(following)
            path.append((following, iter(references[following])))
            if len(path) > max_depth:
                problem = f"{what} refer to each other {len(path):,} deep, {quote(first)} to {quote(following)}"
                raise OptionError(f"{problem}; at most {max_depth:,} can be followed")
