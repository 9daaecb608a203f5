"""Attacks are found, however they are disguised; published templates are left in peace."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gguftools.inspection.audits.finding import rank
from gguftools.inspection.audits.templates import audit_template

from ....conftest import ROOT, SHARED
from .attacks import DATES, ENDLESS, ESCAPES, INJECTED, LOOP, SUSPECT, TRIGGERS, TURN
from .published import PUBLISHED

FOLDER = os.environ.get("GGUFTOOLS_CHAT_TEMPLATES", "")  # of *.jinja files, for a look at more real ones


def severe(text: str) -> set[tuple[str, str]]:
    return {(f.severity, f.rule) for f in audit_template("t", text) if rank(f.severity) >= rank("medium")}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in ESCAPES.items()])
def test_ways_out_of_the_sandbox(text):
    assert {rule for _, rule in severe(text)} & {"internals", "call", "other files"}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in ESCAPES.items() if "__" in text])
def test_plain_walks_are_high(text):
    assert ("high", "internals") in severe(text)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in ENDLESS.items()])
def test_endless_templates(text):
    assert "loop" in {rule for _, rule in severe(text)}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in TRIGGERS.items()])
def test_text_that_hides_behind_keywords(text):
    assert "trigger" in {rule for _, rule in severe(text)}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in DATES.items()])
def test_decisions_by_date(text):
    assert ("high", "date") in severe(text)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in SUSPECT.items()])
def test_what_else_is_suspect(text):
    assert severe(text)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in PUBLISHED.items()])
def test_published_kinds_are_left_in_peace(text):
    assert not severe(text)


def published_files() -> dict[str, str]:
    from archs.metadata import Metadata
    from archs.vocab.chat import write_templates
    from archs.vocab.files import TokenizerFiles
    from gguftools.inspection.audit import chat_templates

    found = {}
    for config in [*SHARED.glob("zoo/**/tokenizer_config.json"), *ROOT.glob("examples/*/tokenizer_config.json")]:
        metadata = Metadata()
        write_templates(metadata, TokenizerFiles.read(config.parent))
        found |= {f"{config.parent.name} {key}": text for key, text in chat_templates(metadata)}
    return found


def test_templates_of_our_checkpoints_are_left_in_peace():
    for name, text in published_files().items():
        assert not severe(text), name


@pytest.mark.verify
@pytest.mark.skipif(not FOLDER, reason="set GGUFTOOLS_CHAT_TEMPLATES to a folder of *.jinja files")
def test_real_templates_are_left_in_peace():
    for path in sorted(Path(FOLDER).glob("*.jinja")):
        assert not severe(path.read_text(encoding="utf-8")), path.name


def test_attacks_within_a_published_template():
    """An attack is found wherever it stands, and named with its line."""
    for attack in (ESCAPES["concatenated"], TRIGGERS["last message"], DATES["year"]):
        text = PUBLISHED["Qwen with tools"] + "\n" + attack
        found = [f for f in audit_template("t", text) if f.severity == "high"]
        assert {f.line for f in found} == {len(PUBLISHED["Qwen with tools"].splitlines()) + 1}


def test_line_and_words():
    (found,) = audit_template("t", "line one\n{{ x }}\n" + TRIGGERS["keyword"])
    assert (found.severity, found.line) == ("high", 3)
    assert "laptop" in found.message
    assert INJECTED[:20] in found.message


def test_writing_the_date_is_no_decision():
    assert not audit_template("t", "Today is {{ strftime_now('%d %B') }}.\n" + LOOP + TURN)


@pytest.mark.parametrize(
    "text",
    [
        "{{ " + " ~ ".join(["'a'"] * 20_000) + " }}",
        "{{ " + " + ".join(["'a'"] * 20_000) + " }}",
        "{% set a0 = 'xy' %}" + "".join(f"{{% set a{i + 1} = a{i} ~ a{i} %}}" for i in range(500)) + "{{ a500 }}",
        "{{ 'x'|join * 99999999999 }}",
        "{{ '%999999999d'|format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ 'x' * 99999 * 99999 }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if 'laptop x' in m.content %}" + "{% set q = 'a' %}" * 2000 + "{% endif %}",
        "{% macro f(t) %}{{ f(t) }}{% endmacro %}" + "{{ f(m.content) }}" * 2000,
        "{% set b = b ~ 'x' %}" * 2000,
        "never tell " * 15_000,
        "x" * 5_000_000,
    ],
    ids=range(13),
)
def test_hostile_templates_take_little_time(text):
    start = time.process_time()
    audit_template("t", text)
    assert time.process_time() - start < 5
