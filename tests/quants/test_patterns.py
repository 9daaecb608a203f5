"""Regular expressions of users and strangers: the same answers as `re`, in bounded time, or one line of refusal."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quants import patterns
from quants.errors import ModelError, OptionError
from quants.patterns import compile_pattern

ATOMS = ("a", "b", ".", "[ab]", "[^a]", "[]a]", r"\w", r"\d", r"\.", r"\x61", "^", "$", r"\b", r"\B", r"\A", "(?#x)")
QUANTIFIERS = ("", "", "", "*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "*?", "{a}", "{}")
EXPRESSIONS = st.recursive(
    st.tuples(st.sampled_from(ATOMS), st.sampled_from(QUANTIFIERS)).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(st.lists(inner, min_size=1, max_size=3), st.sampled_from(QUANTIFIERS)).map(
            lambda both: f"({'|'.join(both[0])}){both[1]}"
        ),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, st.text("abA1.\n", max_size=5), st.booleans())
def test_answers_of_re(text: str, name: str, ignore_case: bool) -> None:
    try:
        expected = re.compile(text, re.IGNORECASE if ignore_case else 0).search(name) is not None
    except re.error:
        with pytest.raises(OptionError, match="is not a regular expression"):
            compile_pattern(text, "rule", ignore_case)
        return
    pattern = compile_pattern(text, "rule", ignore_case)
    assert pattern.search(name) is expected
    if pattern.tree.inner:
        assert patterns._follow(list(patterns._states(pattern)), name) is expected


@pytest.mark.parametrize(
    ("text", "name", "is_found"),
    [
        (r"(a+)+$", "a" * 40 + "b", False),
        ("(a|a)" * 40 + "$", "a" * 40 + "b", False),
        ("a?" * 40 + "a" * 40, "a" * 40, True),
        (r"(\w+\s?)*!", "a" * 64, False),
        (".*a.*a.*a.*a.*a.*a.*b", "a" * 64, False),
        (r"(.*)*\.weight", "x" * 60, False),
        (r"^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 64, False),
        (".*.*.*x", "a" * 20_000, False),
        (r"(blk\.(1|2)\.)+(attn_(q|k))+", "blk.2.attn_q.weight", True),
    ],
)
def test_backtracking_ends(text: str, name: str, is_found: bool) -> None:
    start = time.process_time()
    assert compile_pattern(text, "rule").search(name) is is_found
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(" * 5000, r"rule '\(\(.* is not a regular expression that can be used: it nests too deep"),
        ("(", r"rule '\(' is not a regular expression: missing \)"),
        ("a{99999999999}", "not a regular expression: the repetition number is too large"),
        ("(?:" * 60 + "a" + ")" * 60, "groups nest deeper than 50"),
        ("x" * 10_001, "has 10,001 characters; at most 10,000"),
        ("[\u4e00-\u9fff]" * 9, "18 characters beyond ASCII"),
        ("(((a{1,30}){1,30}){1,30}){1,30}", "over 2,000 states"),
        (r"(a+)\1+$", "a back-reference beside"),
        ("(?=(a+)+$)b", "look-around beside"),
        ("(?x) a #", "verbose notation"),
        ("(?:(?i:a)+)+", "flags within it beside"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        compile_pattern(text, "rule")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", [r"^(?!.*shexp).*ffn_.*exps", r"(?<!v)_q", r"(q|k)\.\1", r"(?i)ATTN", "(?i:ATTN)_q"])
def test_whatever_re_knows_where_it_is_quick(text: str) -> None:
    for name in ("blk.0.ffn_up_exps.weight", "blk.0.ffn_up_shexp.weight", "blk.1.attn_q.weight", "q.q"):
        assert compile_pattern(text, "rule").search(name) is (re.search(text, name) is not None)


def test_long_names(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = compile_pattern(".*(?!x).*y", "rule")
    with pytest.raises(OptionError, match="look-around beside"):
        pattern.search("a" * 5000)
    with pytest.raises(ModelError, match="it"):
        compile_pattern("(", "it", error=ModelError)
