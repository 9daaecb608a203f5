"""Kinds of JSON values: what is taken, what it becomes, and what an error says."""

from __future__ import annotations

import math
from typing import Any

import pytest

from archs.typed_json import (
    Anything,
    Either,
    Fields,
    FieldType,
    Flag,
    ListOf,
    MapOf,
    Number,
    Place,
    Text,
    Whole,
    read_fields,
    shown,
)
from quants.errors import FileError, ModelError

AT = Place("config.json", "key")
SIZE = Whole(1, limit="rows")


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (Whole(), 0, 0),
        (Whole(1), 2.0, 2),
        (Number(), 3, 3.0),
        (Number(infinite=True), math.inf, math.inf),
        (Number(infinite=True), {"__float__": "Infinity"}, math.inf),
        (Flag(), False, False),
        (Text(), "", ""),
        (Text(form="[LG]+"), "LLLG", "LLLG"),
        (ListOf(Whole(), 2), [1, 2.0], [1, 2]),
        (MapOf(Flag()), {"a": True}, {"a": True}),
        (Fields({"a": Number()}), {"a": 1, "b": "free"}, {"a": 1.0, "b": "free"}),
        (Fields({"a": Number()}), {"a": None}, {"a": None}),
        (Either((Flag(), Whole())), 4, 4),
        (Either((ListOf(Whole()), Number())), 0.5, 0.5),
        (Anything(), {"x": [1]}, {"x": [1]}),
    ],
)
def test_what_is_taken(kind: FieldType, value: Any, found: Any) -> None:
    assert kind.read(value, AT) == found
    assert type(kind.read(value, AT)) is type(found)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Whole(), [None, True, "1", -1, 1.5, 1e300, math.nan, math.inf, 2**32, 10**30, [], {}]),
        (Number(0, 1), [None, False, "1", -0.1, 1.1, math.nan, math.inf, -(10**30), {"__float__": "Infinity"}]),
        (Number(infinite=True), [math.nan, {"__float__": "NaN"}, {"__float__": []}, {}]),
        (Flag(), [None, 0, 1, "true"]),
        (Text(("a", "b")), [None, "c", 1, ["a"]]),
        (Text(form="[LG]+"), ["", "LLX", "L\n"]),
        (ListOf(Whole(), 2), [[1], [1, 2, 3], [1, "2"], "12", {"0": 1, "1": 2}]),
        (MapOf(Flag(), r"\d+"), [{"a": True}, {"1": 1}, []]),
        (Fields({"a": Flag()}), [{"a": 0}, [], "a"]),
        (Either((Flag(), Whole())), [None, "auto", -1, []]),
    ],
)
def test_what_is_refused(kind: FieldType, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ModelError, match=r'^config\.json: "key'):
            kind.read(value, AT)


def test_errors_name_the_place_and_what_was_expected() -> None:
    table = {"outer": Fields({"inner": ListOf(Whole(1))})}
    with pytest.raises(FileError) as error:
        read_fields({"outer": {"inner": [1, "many"]}}, table, "some.json", FileError)
    assert str(error.value) == 'some.json: "outer.inner.1" is "many"; a whole number of at least 1 was expected'


def test_what_bounds_a_number_is_said() -> None:
    at = Place("config.json", "key", limits={"rows": 64})
    assert SIZE.read(64, at) == 64
    with pytest.raises(ModelError, match="a whole number from 1 to 64 was expected") as error:
        SIZE.read(65, at)
    assert "tensors" in str(error.value.hint)


def test_a_list_for_each_layer() -> None:
    kind = Either((ListOf(Whole(), per_layer=True), Whole()))
    assert kind.read([1, 2], AT) == [1, 2]
    with pytest.raises(ModelError, match="has 2 entries; one a layer, 3, was expected"):
        kind.read([1, 2], Place("config.json", "key", limits={"of layers": 3}))


@pytest.mark.parametrize("value", ["x" * 10**6, [1] * 10**6, {str(i): i for i in range(10**5)}, 10**1000, "\x1b[31m\n"])
def test_long_values_are_cut(value: Any) -> None:
    assert len(shown(value)) <= 60
    assert shown(value).isprintable()
