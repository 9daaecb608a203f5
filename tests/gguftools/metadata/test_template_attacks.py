"""Chat templates that take any time or memory, or break out, are refused when set and reported by `audit`."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ..command_line import refused, run, typed

TOOK = ("takes more than 512 MB of memory", "does not end within", "nests too deeply", "breaks off", "writes more than")
DOUBLING = "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}"
BOMBS = {
    "multiplied text": "{{ 'a' * 10**10 }}",
    "multiplied list": "{% set x = [0] * 5 * 10**8 %}{{ messages[0].content }}",
    "indent": "{{ 'a\nb' | indent(10**10) }}",
    "width": "{{ '%2000000000d' % 1 }}",
    "precision": "{{ '%.1000000000f' % 1.0 }}",
    "width by a filter": "{{ '%2000000000d' | format(1) }}",
    "width by a star": "{{ '%*d' % (2000000000, 1) }}",
    "width in braces": "{{ '{:>2000000000}'.format('a') }}",
    "centred": "{{ 'a' | center(10**10) }}",
    "doubled": DOUBLING,
    "doubled list": DOUBLING.replace("'a'", "[1]").replace("ns.s ~", "ns.s +"),
    "replaced": "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}",
    "as JSON": "{{ ([0] * 10**8) | tojson }}",
    "batches": "{{ [1] | batch(10**10, 0) | list }}",
    "recursion": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "parentheses": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "negations": "{{ " + "not " * 50_000 + "1 }}",
    "conditions in conditions": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "filters": "{{ 'a'" + " | trim" * 3000 + " }}",
}
STOPPED = ("multiplied list", "width by a star", "width in braces", "doubled", "doubled list")  # then, too, if late
ENDLESS = {
    "power": "{{ (10**9) ** (10**7) }}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "two calls each": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
}
ESCAPES = {
    "an attribute": "{{ ''.__class__ }}",
    "an item": "{{ ''['__class__'] }}",
    "a filter": "{{ '' | attr('__class__') }}",
    "a name in pieces": "{{ '' | attr('__cl' ~ 'ass__') }}",
    "a name by its codes": r"{{ ''['\x5f\u005fclass\u005f\x5f'] }}",
    "a format": "{{ '{0.__class__}'.format('a') }}",
    "a format map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "map by attribute": "{{ [''] | map(attribute='__class__') | list }}",
    "map by filter": "{{ [''] | map('attr', '__class__') | list }}",
    "self": "{{ self._TemplateReference__context }}",
    "a function of ours": "{{ raise_exception.__globals__ }}",
}


def model(path: Path, template: str = "") -> Path:
    """A GGUF file with a chat template and nothing else."""
    values = [("general.architecture", "llama"), ("tokenizer.chat_template", template)][: 2 if template else 1]
    pairs = [_string(key) + struct.pack("<I", 8) + _string(value) for key, value in values]
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(pairs)
    path.write_bytes(header + bytes(-len(header) % 32))
    return path


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


@pytest.mark.parametrize("name", [name for name in BOMBS if name not in STOPPED])
def test_bombs_are_refused(name: str, tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    before = path.read_bytes()
    (tmp_path / "t").write_text(BOMBS[name])
    done = run("set-metadata", "m.gguf", "--chat-template", "@t", cwd=tmp_path, memory=4 << 30)
    said = refused(done, "the chat template")
    assert any(words in said for words in TOOK), said
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["power", *(pytest.param(name, marks=pytest.mark.slow) for name in [*ENDLESS][1:])])
def test_what_does_not_end_is_refused(name: str, tmp_path: Path) -> None:
    model(tmp_path / "m.gguf")
    (tmp_path / "t").write_text(ENDLESS[name])
    done = run("set-metadata", "m.gguf", "--chat-template", "@t", cwd=tmp_path)
    refused(done, "the chat template does not end within 4 s")


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes_are_refused(name: str, tmp_path: Path) -> None:
    done = typed("set-metadata", model(tmp_path / "m.gguf"), "--chat-template", ESCAPES[name])
    refused(done, "does what the sandbox forbids")


FOUND = {
    **{name: BOMBS[name] for name in ("width", "precision", "width by a filter", "width by a star", "width in braces")},
    **{name: BOMBS[name] for name in ("doubled", "doubled list", "recursion")},
    "list by a plain number": "{% set x = [0] * 5 * 500000000 %}",
    "two calls each": ENDLESS["two calls each"],
    "loops in loops": "{% for m in messages %}" * 15 + "{% endfor %}" * 15,
    "doubled by macros": "{% macro m0() %}x{% endmacro %}"
    + "".join(f"{{% macro m{i + 1}() %}}{{{{ m{i}() ~ m{i}() }}}}{{% endmacro %}}" for i in range(60))
    + "{{ m60() }}",
    "replaced again and again": "{% set ns = namespace(s='a') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s | replace('a', 'aaaa') %}{% endfor %}",
    "doubled under one name": "{% set a = 'x' %}" + "{% set a = a ~ a %}" * 60,
    "an attribute that is set": "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "a loop of itself": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "lists of lists as text": "{% set a0 = ['x', 'x'] %}"
    + "".join(f"{{% set a{i + 1} = [a{i}, a{i}] %}}" for i in range(60))
    + "{{ a60 | string }}",
}


@pytest.mark.parametrize("name", FOUND)
def test_audit_finds_them(name: str, tmp_path: Path) -> None:
    model(tmp_path / "m.gguf", FOUND[name])
    done = run("audit", "m.gguf", cwd=tmp_path, memory=4 << 30)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "medium" in done.stdout or "high" in done.stdout


@pytest.mark.slow
def test_audit_ends(tmp_path: Path) -> None:
    """Names that are made from each other thousands of times."""
    model(tmp_path / "m.gguf", "{% set a = b ~ messages[0].content %}{% set b = a %}" * 2500)
    done = run("audit", "m.gguf", cwd=tmp_path)
    assert done.returncode == 1
    assert "looking into it does not end within 5 s" in done.stdout
