"""Templates in their own process: what any of them comes to is an answer or one line, in bounded time and memory."""

from __future__ import annotations

import random

import pytest

from archs.metadata import Metadata
from gguftools.inspection.audits.templates import audit_template, audit_templates
from gguftools.metadata.chat_templates import render, try_template
from quants.errors import VocabularyError

MEMORY = "takes more than 512 MB of memory"
BOMBS = {
    "{% set x = [0] * 5 * 10**8 %}": MEMORY,
    "{{ '%*d' % (2000000000, 1) }}": MEMORY,
    "{{ '{:>2000000000}'.format('a') }}": MEMORY,
    "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}": MEMORY,
    "{{ cycler.__init__.__globals__.os }}": "the sandbox forbids",
    "{{ joiner.__init__.__globals__.os }}": "the sandbox forbids",
    "{{ lipsum.__globals__['os'] }}": "the sandbox forbids",
}
PIECES = (
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "for m in messages",
    "endfor",
    "if ",
    "endif",
    "set ns.s = ",
    "namespace(s='a')",
    "ns.s",
    " ~ ",
    " + ",
    " * ",
    " ** ",
    "9999999",
    "'a'",
    "[0]",
    "(",
    ")",
    "|join",
    "|list",
    "|string",
    "|replace('a', 'aa')",
    "range(99999)",
    "m.content",
    ".__class__",
    "|attr('__mro__')",
    "%99999999d",
    "macro f(x)",
    "endmacro",
    "f(",
    "{#",
    "\x1b",
)


@pytest.mark.parametrize("template", BOMBS)
def test_bombs(template: str) -> None:
    with pytest.raises(VocabularyError, match=BOMBS[template]):
        try_template(template, Metadata())


def test_answers_are_those_of_each_conversation() -> None:
    found = render("{{ x }}{{ raise_exception('two') if x == 2 }}", [{"x": 1}, {"x": 2}, {"x": "\udcff\n"}])
    assert [answer.text for answer in found] == ["1", None, "\udcff\n"]
    assert found[1].error == "refuses it: two"


def test_templates_at_random() -> None:
    pick = random.Random(7)
    for _ in range(20):
        text = "".join(pick.choices(PIECES, k=pick.randint(2, 40)))
        error = ""
        try:
            try_template(text, Metadata())
        except VocabularyError as refusal:
            error = str(refusal)
        assert not error or error.startswith("the chat template"), text
        assert "\n" not in error
        audit_template("t", text)


def test_findings_come_back_as_they_are() -> None:
    templates = {"a": "{{ ''.__class__ }}", "b": "{{ messages }}", "c": "{% if %}"}
    assert audit_templates(templates) == [found for key in templates for found in audit_template(key, templates[key])]
