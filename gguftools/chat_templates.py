"""Chat templates tried out: sample conversations are rendered in jinja2's sandbox, as transformers does it."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import FrameType
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from archs.metadata import Metadata
from quants.errors import VocabularyError

from .known_keys import SPECIAL_TOKENS, TOKENS

SECONDS = 5.0  # a template that takes longer for a few messages never ends
MAX_TEXT = 1 << 20
LOOKS_SPECIAL = re.compile(r"<\|[^\s|<>]{1,40}\|>")

QUESTION = {"role": "user", "content": "What is 2 + 2?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather", "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip
CALL = {"type": "function", "id": "call00001", "function": {"name": "weather", "arguments": {"city": "Bath"}}}
SAMPLES: dict[str, dict[str, Any]] = {
    "a question": {"messages": [QUESTION]},
    "a conversation": {
        "messages": [QUESTION, {"role": "assistant", "content": "4"}, {"role": "user", "content": "And 3 + 3?"}]
    },
    "a system message": {"messages": [{"role": "system", "content": "Answer briefly."}, QUESTION]},
    "a tool": {
        "messages": [
            {"role": "user", "content": "Does it rain in Bath?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "rain"},
        ],
        "tools": [WEATHER],
    },
}


class RefusedError(TemplateError):
    """The template itself called raise_exception."""


@dataclass(frozen=True)
class Rendering:
    """A sample conversation through a template. error: why there is no text, in one line."""

    sample: str
    text: str | None
    error: str | None = None


class Generation(Extension):
    """The blocks that mark what a model says: here they are what is in them."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """What `namespace()` gives a template: no names that begin with an underscore."""

    def __init__(self, /, *pairs: Any, **values: Any) -> None:
        given = dict(*pairs, **values)
        for name in given:
            _Namespace._check(name)
        super().__init__(given)

    def __setitem__(self, name: str, value: Any) -> None:
        _Namespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace takes no name like {name!r}")


def environment() -> ImmutableSandboxedEnvironment:
    """The sandbox with what transformers gives templates."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = _tojson
    made.globals |= {"raise_exception": _refuse, "strftime_now": _now, "namespace": _Namespace}
    return made


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise RefusedError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def render(template: str, variables: Mapping[str, Any], seconds: float = SECONDS) -> str:
    """The text that a template makes. Raises VocabularyError, in one line, for one that fails or does not end."""
    try:
        with _deadline(seconds):
            compiled = environment().from_string(template)
            pieces, size = [], 0
            for piece in compiled.generate(**variables):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_TEXT:
                    raise VocabularyError(f"the chat template writes more than {MAX_TEXT} characters")
            return "".join(pieces)
    except RefusedError as error:
        raise VocabularyError(f"the chat template refuses it: {_line(error)}") from error
    except TemplateSyntaxError as error:
        raise VocabularyError(f"the chat template has an error in line {error.lineno}: {_line(error)}") from error
    except SecurityError as error:
        raise VocabularyError(f"the chat template does what the sandbox forbids: {_line(error)}") from error
    except _TooSlowError as error:
        raise VocabularyError(f"the chat template does not end within {seconds:g} s") from error
    except Exception as error:  # whatever an expression of a template can raise
        raise VocabularyError(f"the chat template fails: {_line(error) or type(error).__name__}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


class _TooSlowError(Exception):
    """Raised within a template when its time is over."""


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise _TooSlowError in the running Python code, whatever it is doing, when the time is over."""
    end, before = time.monotonic() + seconds, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if time.monotonic() > end:
            raise _TooSlowError
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def special_texts(metadata: Metadata) -> dict[str, str]:
    """bos_token, eos_token, … as templates know them."""
    found = {"bos_token": "", "eos_token": ""}  # which llama.cpp always gives
    for role in ("bos", "eos", "unk", "pad", "sep", "cls", "mask"):
        number, tokens = metadata.get(SPECIAL_TOKENS[role]), metadata.get(TOKENS, ())
        if isinstance(number, int) and 0 <= number < len(tokens):
            found[f"{role}_token"] = tokens[number] if isinstance(tokens[number], str) else ""
    return found


def try_template(template: str, metadata: Metadata) -> list[Rendering]:
    """Every sample through the template; the first must come through.

    Raises VocabularyError where it does not, or where any breaks out of the sandbox.
    """
    found: list[Rendering] = []
    common = {"tools": None, "documents": None, "add_generation_prompt": True, **special_texts(metadata)}
    for name, sample in SAMPLES.items():
        try:
            found.append(Rendering(name, render(template, common | sample)))
        except VocabularyError as error:
            if not found or isinstance(error.__cause__, SecurityError):
                raise
            found.append(Rendering(name, None, str(error).removeprefix("the chat template ")))
    return found


def remarks(renderings: list[Rendering], metadata: Metadata) -> Iterator[str]:
    """What is odd about a template that works."""
    for rendering in renderings:
        if rendering.error:
            yield f"with {rendering.sample}, the chat template {rendering.error}"
    if QUESTION["content"] not in (renderings[0].text or ""):
        yield "the chat template drops what the user says"
    written = {token for each in renderings for token in LOOKS_SPECIAL.findall(each.text or "")}
    if written and TOKENS in metadata:
        for token in sorted(written - set(metadata[TOKENS])):
            yield f"the chat template writes {token!r}, which is no token of this vocabulary"
