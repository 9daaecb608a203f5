"""Large grammars are followed, or refused for what they are, in bounded time."""

from __future__ import annotations

import time

import numpy as np
import pytest

from quants.errors import OptionError
from runtime.sampling.grammar import Grammar, GrammarVocabulary, grammar_from_gbnf, grammar_from_json_schema
from runtime.sampling.grammar_rules import check_gbnf

pytest.importorskip("llguidance")
PIECES = [bytes([byte]) for byte in range(256)] + [b"<end>", b"<think>"]
VOCABULARY = GrammarVocabulary(PIECES, (256,), (257,))


def following(grammar: Grammar, text: bytes) -> set[bytes]:
    return {PIECES[token] for token in np.flatnonzero(grammar.allowed(list(text), len(PIECES)))}


def chain(rules: int, start: str = "::=") -> str:
    return "".join(f'r{i} {start} "{i % 10}" r{i + 1}\n' for i in range(rules)) + f'r{rules} {start} "x"\n'


def test_more_alternatives_than_llguidance_follows_by_itself() -> None:
    grammar = grammar_from_gbnf("root ::= " + " | ".join(f'"w{i}x"' for i in range(3000)), VOCABULARY)
    assert following(grammar, b"w") == {bytes([digit]) for digit in b"0123456789"}
    assert following(grammar, b"w299") == {b"x", *(bytes([digit]) for digit in b"0123456789")}
    assert following(grammar, b"w2999x") == {b"<end>"}


def test_a_text_that_is_too_complex_is_not_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.sampling.grammar.MAX_ITEMS_IN_ROW", 20)
    grammar = grammar_from_gbnf("root ::= " + " | ".join(f'"w{i}x"' for i in range(100)), VOCABULARY)
    for _ in range(2):
        with pytest.raises(OptionError, match=r"the grammar cannot be followed: .*Current row has 101 items"):
            grammar.allowed(list(b"w1"), len(PIECES))
    assert following(grammar, b"") == {b"w"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root ::= " + " | ".join(f'"w{i}x"' for i in range(200_000)), "199,999 signs of alternatives; at most 50,000"),
        ("root ::= " + " ".join(f"r{i}" for i in range(60_000)) + "\n" + chain(60_000), "60,002 rules"),
        ("root ::= r0\n" + chain(20_000), "refer to each other 501 deep, 'root' to 'r499'; at most 500"),
        ("%llguidance {}\nstart: r0\n" + chain(5000, ":"), "refer to each other 501 deep, 'start' to 'r499'"),
        ('root ::= "' + "x" * (5 << 20) + '"', "has 5,242,891 characters; at most 4,194,304"),
    ],
    ids=["alternatives", "rules", "chain", "lark", "characters"],
)
def test_what_is_too_large(text: str, message: str) -> None:
    start = time.process_time()
    with pytest.raises(OptionError, match=message):
        grammar_from_gbnf(text, VOCABULARY)
    assert time.process_time() - start < 5


def test_many_rules_are_put_in_order() -> None:
    text = "root ::= r0 | <think>\n" + chain(400) + 'r400 ::= "y" # not "::=" or r1\n'
    ordered = check_gbnf(text)
    assert ordered.index("r400 ::=") < ordered.index("r399 ::=") < ordered.index("r0 ::=") < ordered.index("root ::=")
    assert '"x"' not in ordered  # the last rule of a name holds
    grammar = grammar_from_gbnf(text, VOCABULARY)
    assert following(grammar, b"") == {b"0", b"<think>"}
    assert following(grammar, b"".join(b"%d" % (i % 10) for i in range(400))) == {b"y"}
    assert check_gbnf(few := "root ::= a\na ::= root | [r1]\n") == few


def test_references_of_schemas() -> None:
    def schema(count: int) -> dict[str, object]:
        chained = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(count)}
        return {"$ref": "#/$defs/d0", "$defs": {**chained, f"d{count}": {"type": "integer"}}}

    assert following(grammar_from_json_schema(schema(50), VOCABULARY), b"") == {b"["}
    with pytest.raises(OptionError, match=r"the schema's definitions refer to each other \d+ deep"):
        grammar_from_json_schema(schema(3000), VOCABULARY)
    recursive = {"type": "array", "items": {"$ref": "#"}}
    assert following(grammar_from_json_schema(recursive, VOCABULARY), b"[") >= {b"[", b"]"}


def test_many_tokens() -> None:
    grammar = grammar_from_gbnf("root ::= " + " ".join(["<think>"] * 2000), VOCABULARY)
    assert following(grammar, b"") == {b"<think>"}
