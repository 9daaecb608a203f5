"""Where chat templates run: a process of its own, with little time, memory and output, and jinja2's sandbox within.

A template is a program of a stranger, and one operation of it can ask for any time and memory (`9 ** 9 ** 9`): nothing
within the same process could stop it. This module is what that process runs, so it imports jinja2 and nothing large.
Where the system has no limits for a process (Windows), its time alone is bounded, by the process that started it.
"""

import contextlib
import io
import json
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TEXT = 1 << 20  # characters of a conversation
MAX_MEMORY = 512 << 20  # bytes of address space
MAX_MESSAGE = 200
NOTHING = ("RLIMIT_CORE", "RLIMIT_FSIZE", "RLIMIT_NPROC")  # should a template break out


class RefusedError(TemplateError):
    """The template itself called raise_exception."""


class Generation(Extension):
    """The blocks that mark what a model says: here they are what is in them."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """What `namespace()` gives a template: no names that begin with an underscore."""

    def __init__(self, /, *pairs: Any, **values: Any) -> None:
        super().__init__()
        for name, value in dict(*pairs, **values).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace takes no name like {name!r}")
        super().__setitem__(name, value)


class Environment(ImmutableSandboxedEnvironment):
    """The sandbox, in which a look at Python's internals is an error at once, not an undefined value."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        if attribute.startswith("_"):
            raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__} is unsafe")
        return super().unsafe_undefined(obj, attribute)


def environment(now: datetime | None = None) -> ImmutableSandboxedEnvironment:
    """Return the sandbox with what transformers gives templates. now: the time that they see; None for the real one."""
    made = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    made.filters["tojson"] = _tojson
    made.globals |= {"raise_exception": _refuse, "namespace": _Namespace}
    made.globals["strftime_now"] = lambda form: (now or datetime.now()).strftime(form)
    return made


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise RefusedError(message)


def serve() -> None:
    """Answer the one request on standard input: a line of JSON for each conversation, {"text": …} or {"error": …}."""
    request = bounded_request()
    now = request["now"] and datetime.fromisoformat(request["now"])
    for answer in _answers(request["template"], request["conversations"], now):
        tell(answer)


def bounded_request() -> dict[str, Any]:
    """Read the request from standard input; then limit the resources of this process."""
    request: dict[str, Any] = json.load(sys.stdin)
    try:
        import resource
    except ImportError:
        return request
    for name, maximum in (*((name, 0) for name in NOTHING), ("RLIMIT_AS", MAX_MEMORY)):
        resource_id = getattr(resource, name)
        _, hard = resource.getrlimit(resource_id)
        limit = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
        with contextlib.suppress(OSError, ValueError):  # macOS bounds no address space
            resource.setrlimit(resource_id, (limit, limit))
    signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # processor time; nothing handles the signal, so it kills
    return request


def tell(answer: Any) -> None:
    """Answer with a line of JSON."""
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


def _answers(template: str, conversations: list[dict[str, Any]], now: datetime | None) -> Iterator[dict[str, Any]]:
    made: Template | None = None
    for variables in conversations:
        try:
            made = made or environment(now).from_string(template)
            text = _render(made, variables)
            too_long = {"error": f"writes more than {MAX_TEXT} characters", "fatal": True}
            yield {"text": text} if len(text) <= MAX_TEXT else too_long
        except RefusedError as error:
            yield {"error": f"refuses it: {_line(error)}"}
        except TemplateSyntaxError as error:
            yield {"error": f"has an error in line {error.lineno}: {_line(error)}"}
        except SecurityError as error:
            yield {"error": f"does what the sandbox forbids: {_line(error)}", "fatal": True}
        except MemoryError:
            yield {"error": f"takes more than {MAX_MEMORY >> 20} MB of memory", "fatal": True}
        except RecursionError:
            yield {"error": "nests too deeply", "fatal": True}
        except Exception as error:  # whatever an expression of a template can raise
            yield {"error": f"fails: {_line(error) or type(error).__name__}"}


def _render(template: Template, variables: dict[str, Any]) -> str:
    """Return what a template writes, or the beginning of it that is too much."""
    text = io.StringIO()
    for piece in template.generate(**variables):
        text.write(piece)
        if text.tell() > MAX_TEXT:
            break
    return text.getvalue()


def _line(error: Exception) -> str:
    return " ".join(str(error)[: 4 * MAX_MESSAGE].split())[:MAX_MESSAGE]
