"""How an object is cut into parts that a store copies, and parts that are sent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguftools.io.stores import pieces
from gguftools.io.stores.path import located
from gguftools.io.stores.pieces import ByteSource, Part, Piece, at_hand, plan_parts, traffic_of, zeros

LEAST = 5  # bytes instead of 5 MiB


def original(size: int = 1000, seed: int = 0) -> ByteSource:
    data = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    return ByteSource(located(f"s3://b/{seed}.gguf"), size, "v", lambda begin, end: data[begin:end])


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MIN_PART", LEAST)
    monkeypatch.setattr(pieces, "MAX_COPIED", 64)
    monkeypatch.setattr(pieces, "STEP", 7)


def planned(found: list[Piece], **more: int) -> list[Part]:
    return plan_parts(found, lambda each: each.is_stored, 16, LEAST, **more)


def shape(parts: list[Part]) -> list[tuple[int, str]]:
    return [(part.size, "copied" if part.is_copied else "sent") for part in parts]


def test_a_short_beginning_takes_what_follows():
    old = original()
    assert shape(planned([at_hand(b"abc"), Piece(old, 0, 60)])) == [(5, "sent"), (58, "copied")]
    assert shape(planned([at_hand(b"abcdefg"), Piece(old, 0, 60)])) == [(7, "sent"), (60, "copied")]


def test_what_is_short_between_takes_from_both_sides():
    old = original()
    found = planned([Piece(old, 0, 7), at_hand(b"x"), Piece(old, 7, 7), at_hand(b"yz"), Piece(old, 20, 40)])
    assert shape(found) == [(5, "copied"), (5, "sent"), (5, "copied"), (5, "sent"), (37, "copied")]


def test_what_is_at_the_end_may_be_short():
    old = original()
    assert shape(planned([Piece(old, 0, 20), at_hand(b"x")])) == [(20, "copied"), (1, "sent")]
    assert shape(planned([Piece(old, 0, 20), Piece(old, 30, 1)])) == [(20, "copied"), (1, "copied")]
    assert shape(planned([Piece(old, 0, 3)])) == [(3, "copied")]


def test_small_objects_are_not_copied():
    """S3 takes no ranges of objects of 5 MiB and less."""
    assert shape(planned([Piece(original(5), 0, 5)])) == [(5, "sent")]


def test_ranges_that_follow_each_other_are_one():
    old = original()
    assert shape(planned([Piece(old, 0, 3), Piece(old, 3, 3), zeros(0), Piece(old, 6, 4)])) == [(10, "copied")]


def test_large_ranges_are_several_parts():
    assert shape(planned([Piece(original(), 0, 150)])) == [(50, "copied")] * 3


def test_too_many_parts_are_fewer_and_longer():
    old = original(10_000)
    found = [Piece(old, 20 * i, 6) for i in range(100)]
    assert len(planned(found)) == 100
    fewer = planned(found, max_parts=40)
    assert len(fewer) <= 40
    assert sum(part.size for part in fewer) == 600


def test_a_huge_range_has_longer_parts():
    parts = planned([at_hand(b"abcde"), Piece(original(10_000), 0, 10_000)], max_parts=20)
    assert len(parts) <= 20
    assert traffic_of(parts).sent == 5


def fewest_sent(found: list[Piece]) -> int:
    """By trying all: bytes that must be sent at least."""
    units = [(piece.original, piece.begin + i) for piece in found for i in range(piece.size)]
    best = [0, *[10**9] * len(units)]
    for i in range(len(units)):
        is_range = True
        for j in range(i + 1, len(units) + 1):
            at = units[j - 1]
            is_range &= at[0].is_stored and (j == i + 1 or units[j - 2] == (at[0], at[1] - 1))
            if j - i >= LEAST or j == len(units):
                best[j] = min(best[j], best[i] + (0 if is_range else j - i))
    return best[-1]


@settings(max_examples=100)
@given(data=st.data())
def test_any_pieces(data: st.DataObject) -> None:
    """The bytes that were asked for, in parts as S3 wants them, of which hardly more are sent than must be."""
    olds, fresh = [original(seed=1), original(seed=2)], at_hand(bytes(range(100)))
    found = []
    for _ in range(data.draw(st.integers(1, 7))):
        size, begin = data.draw(st.integers(1, 30)), data.draw(st.integers(0, 60))
        piece = data.draw(st.sampled_from([fresh, *(Piece(old, 0, 1000) for old in olds)]))
        found.append(piece._replace(begin=begin, size=size))
    parts = planned(found)
    made, wanted = (
        [b"".join(data.tobytes() for piece in each for data in piece.read()) for each in group]
        for group in ([[piece for part in parts for piece in part.pieces]], [found])
    )
    assert made == wanted
    assert all(part.size >= LEAST for part in parts[:-1])
    assert all(len(part.pieces) == 1 and part.pieces[0].original.is_stored for part in parts if part.is_copied)
    assert traffic_of(parts).sent <= fewest_sent(found) + LEAST


def test_what_is_at_hand_is_not_read():
    old = original()
    old.beginning = old.fetch(0, 10)
    assert (old.read(5, 20) == old.fetch(5, 20)).all()
    assert old.fetched == 10
    assert (old.read(0, 10) == old.beginning).all()
    assert old.fetched == 10
    assert traffic_of([Part([Piece(old, 8, 6)], False)]).read == 4
    assert traffic_of([Part([Piece(ByteSource(Path("x"), 9, "", old.fetch), 0, 9)], False)]).read == 0
