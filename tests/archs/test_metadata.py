"""Typed metadata: plain data gets the schema's type, a key keeps its own, and equality is that of what is stored."""

from __future__ import annotations

import numpy as np
import pytest

from archs.metadata import GgufType, Metadata, Value, ValueType
from quants.errors import OptionError

ARRAY, INT32, UINT32, FLOAT32 = ValueType.ARRAY, ValueType.INT32, ValueType.UINT32, ValueType.FLOAT32


@pytest.mark.parametrize(
    ("key", "data", "name"),
    [
        ("llama.context_length", 4096, "UINT32"),
        ("qwen9.context_length", 4096, "UINT32"),
        ("llama.rope.freq_base", 10_000, "FLOAT32"),
        ("llama.attention.head_count_kv", 4, "UINT32"),
        ("llama.attention.head_count_kv", [4, 2], "ARRAY/INT32"),
        ("llama.attention.head_count_kv", (), "ARRAY/INT32"),
        ("llama.attention.sliding_window_pattern", [True, False], "ARRAY/BOOL"),
        ("llama.attention.sliding_window_pattern", 6, "UINT32"),
        ("general.tags", [], "ARRAY/STRING"),
        ("tokenizer.ggml.token_type", [1], "ARRAY/INT32"),
        ("tokenizer.ggml.fim_x_token_id", 1, "UINT32"),
        ("tokenizer.chat_template.tools", "x", "STRING"),
        ("general.base_model.0.name", "x", "STRING"),
        ("unknown", -1, "INT32"),
        ("unknown", 1 << 40, "INT64"),
        ("unknown", [[1], [2]], "ARRAY/ARRAY/UINT32"),
        ("unknown", np.zeros(2, np.float64), "ARRAY/FLOAT64"),
        ("unknown", np.float32(1), "FLOAT32"),
    ],
)
def test_plain_data_gets_the_type_of_the_schema(key, data, name):
    assert Metadata({key: data}).value(key).gguf_type == GgufType.named(name)


def test_a_key_keeps_its_type():
    metadata = Metadata({"llama.context_length": Value(64, ValueType.UINT64)})
    metadata["llama.context_length"] = 128
    assert metadata.value("llama.context_length") == Value(128, ValueType.UINT64)


@pytest.mark.parametrize(
    ("key", "data", "message"),
    [
        ("llama.context_length", "x", "'llama.context_length' is UINT32: 'x' is not an integer"),
        ("llama.context_length", -1, "-1 is not from 0 to 4294967295"),
        ("llama.context_length", [1], "is not a single value"),
        ("general.tags", "x", "'x' is not an array"),
        ("general.tags", [1], "1 is not a string"),
        ("unknown", [], "could be of any type"),
        ("unknown", {"a": 1}, "has no GGUF type"),
        ("unknown", None, "None has no GGUF type"),
    ],
)
def test_data_that_a_key_cannot_have(key, data, message):
    with pytest.raises(OptionError, match=message):
        Metadata({key: data})


def test_it_says_what_it_is():
    assert repr(Metadata({"general.architecture": "llama", "x": 1})) == "<Metadata: 2 keys of a llama model>"


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (Value(0.1, FLOAT32), Value(float(np.float32(0.1)), FLOAT32), True),
        (Value(float("nan"), FLOAT32), Value(float("nan"), FLOAT32), True),
        (Value(1, UINT32), Value(1, INT32), False),
        (Value([1, 2], ARRAY, INT32), Value(np.array([1, 2], np.int32), ARRAY, INT32), True),
        (Value(["a"], ARRAY, ValueType.STRING), Value(("a",), ARRAY, ValueType.STRING), True),
        (Value([1], ARRAY, INT32), Value([1, 2], ARRAY, INT32), False),
        (Value(1, UINT32), 1, False),
    ],
)
def test_values_are_equal_that_are_stored_alike(a, b, same):
    assert (a == b) == same
