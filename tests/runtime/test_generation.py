"""Texts token by token: characters, stop strings, and where it ends."""

import pytest

from runtime.generation import Pieces


def text_of(pieces: list[bytes], stop: tuple[str, ...] = ()) -> list[str]:
    reader = Pieces(stop)
    return [*(reader.add(piece) for piece in pieces), reader.add(b"", last=True)]


def test_characters_come_whole():
    assert text_of([b"a\xe2", b"\x82", b"\xacb"]) == ["a", "", "€b", ""]


def test_half_a_character_at_the_end_is_replaced():
    assert text_of([b"a\xf0\x9f"]) == ["a", "\ufffd"]


def test_bytes_that_are_no_character_are_replaced_when_that_is_sure():
    assert text_of([b"\xf0\x9f", b"a"]) == ["", "\ufffda", ""]


def test_what_may_be_a_stop_string_is_held_back():
    assert text_of([b"one <", b"|", b"x"], ("<|end|>",)) == ["one ", "", "<|x", ""]
    assert text_of([b"one <", b"|en"], ("<|end|>",)) == ["one ", "", "<|en"]


def test_a_stop_string_over_tokens_ends_the_text():
    assert text_of([b"one <|", b"end|> two", b"three"], ("<|end|>",)) == ["one ", "", "", ""]


@pytest.mark.parametrize("stop", [("bc", "b"), ("b", "bc")])
def test_the_first_stop_string_counts(stop: tuple[str, ...]):
    reader = Pieces(stop)
    assert reader.add(b"ab") + reader.add(b"c") == "a"


def test_stop_strings_of_several_bytes_a_character():
    assert text_of(["€€".encode()[:4], "€€".encode()[4:], b"x"], ("€x",)) == ["", "€", "", ""]
