"""Finding strings many at a time gives what walking them one by one gives."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguftools.io.gguf import strings
from gguftools.io.gguf.strings import find_strings
from quants.errors import FileError

ORDERS = {"little": "<Q", "big": ">Q"}


def store(items, byte_order="little"):
    return b"".join(struct.pack(ORDERS[byte_order], len(item)) + item for item in items)


def check(items, byte_order="little", before=b"", after=b""):
    raw = before + store(items, byte_order) + after
    found, end = find_strings(np.frombuffer(raw, np.uint8), len(before), len(items), byte_order, "x")
    assert end == len(raw) - len(after)
    assert [bytes(item) if isinstance(item, bytes) else item.encode() for item in found.tolist()] == items
    assert found.raw().tobytes() == store(items)


AWKWARD = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"", b"\0", bytes(7), bytes(8), bytes(9), bytes(40), b"\5" + bytes(7), b"ab" + bytes(15) + b"c"]),
    st.integers(240, 300).map(lambda n: b"y" * n),
)


@settings(max_examples=200)
@given(st.lists(AWKWARD, max_size=40), st.sampled_from(sorted(ORDERS)), st.binary(max_size=9), st.binary(max_size=40))
def test_any_strings(items, byte_order, before, after):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strings, "FEW_STRINGS", 1)
        patch.setattr(strings, "WINDOW", 64)
        patch.setattr(strings, "MANY_BREAKS", 3)
        check(items, byte_order, before, after)


@pytest.mark.parametrize("byte_order", ORDERS)
@pytest.mark.parametrize(
    "items",
    [
        [b"token"] * 70_000,
        [b""] * 70_000,
        [b"a" * (i % 300) for i in range(3000)],
        [b"\0" * (i % 20) for i in range(5000)],
        [b"a", b"b" * 400_000, *[b"c"] * 100, b"d" * 300_000, b"e"],
        [*[b"ordinary"] * 40_000, b"", *[b"tokens"] * 40_000],
    ],
    ids=["alike", "empty", "long", "zeros", "huge", "one empty"],
)
def test_large_arrays(items, byte_order):
    check(items, byte_order, b"abc", b"\0" * 100)


def test_items_are_decoded_when_asked():
    items = ["a", "ü", "", "日本"] * 50
    raw = np.frombuffer(store([item.encode() for item in items]), np.uint8)
    found, _ = find_strings(raw, 0, len(items), "little", "x")
    assert (len(found), found[1], found[-1], found[2:5]) == (200, "ü", "日本", ["", "日本", "a"])
    assert found == items
    assert found == tuple(items)
    assert found != items[1:]
    assert "日本" in found
    assert found.index("ü") == 1
    assert repr(found) == "StringArray(['a', 'ü', '', …], length 200)"
    with pytest.raises(IndexError):
        found[200]


def test_broken_text_stays_bytes():
    raw = np.frombuffer(store([b"ok", b"\xff"] * 50), np.uint8)
    found, _ = find_strings(raw, 0, 100, "little", "x")
    assert found[1] == b"\xff"
    assert found.tolist() == ["ok", b"\xff"] * 50


@pytest.mark.parametrize("count", [2, 100])
def test_strings_beyond_the_end(count):
    raw = store([b"abc"] * count)
    for cut in range(1, 20):
        with pytest.raises(FileError, match=r"^x: "):
            find_strings(np.frombuffer(raw[:-cut], np.uint8), 0, count, "little", "x")
    lying = raw[:-11] + struct.pack("<Q", 2**64 - 1) + b"abc"
    with pytest.raises(FileError, match="claims 18446744073709551615 bytes, the file has 3 left"):
        find_strings(np.frombuffer(lying, np.uint8), 0, count, "little", "x")
