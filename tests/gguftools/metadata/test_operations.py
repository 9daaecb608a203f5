"""Operations: each does its part in order, and what is wrong with one is said of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import gguftools
from archs.metadata import GgufType, Metadata, Value, ValueType
from quants.errors import GgufToolsError

TOKENS = ["<unk>", "<|im_end|>", "a"]


def metadata():
    return Metadata(
        {
            "general.architecture": "llama",
            "general.name": "old",
            "llama.block_count": 2,
            "llama.context_length": 64,
            "llama.rope.freq_base": 10000.0,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": TOKENS,
            "tokenizer.ggml.token_type": [2, 3, 1],
        }
    )


def model():
    return SimpleNamespace(metadata=metadata(), tensors={}, path="a model")


def test_operations_are_applied_in_order():
    changed = model()
    report = gguftools.set_metadata(
        changed,
        [
            gguftools.Set("general.url", "u"),
            gguftools.Set("llama.context_length", 128),
            gguftools.Rename("general.name", "general.basename"),
            gguftools.Set("general.name", "new"),
            gguftools.Remove("general.url"),
            gguftools.SetItem("tokenizer.ggml.token_type", 2, 4),
            gguftools.SetSpecialToken("eos", "<|im_end|>"),
            gguftools.Set("llama.attention.head_count_kv", [1, 2]),
            gguftools.SetType("llama.context_length", "UINT64"),
        ],
        options=gguftools.EditOptions(force=True),
    )
    found = changed.metadata
    assert list(found)[1] == "general.basename"
    assert (found["general.basename"], found["general.name"], "general.url" in found) == ("old", "new", False)
    assert found.value("llama.context_length") == Value(128, ValueType.UINT64)
    assert found.value("llama.attention.head_count_kv").gguf_type == GgufType.named("ARRAY/INT32")
    assert list(found["tokenizer.ggml.token_type"]) == [2, 3, 4]
    assert found.value("tokenizer.ggml.eos_token_id") == Value(1, ValueType.UINT32)
    assert [(each.old_key, each.key, each.kind) for each in report.changes[:2]] == [
        ("general.name", "general.basename", "changed"),
        (None, "llama.context_length", "type"),
    ]
    assert [each["key"] for each in report.as_dict()["changes"]].count("general.name") == 1


def test_a_model_stays_as_it_is_where_something_is_wrong_or_for_show():
    unchanged = model()
    with pytest.raises(GgufToolsError, match="there is no key"):
        gguftools.set_metadata(unchanged, [gguftools.Set("general.url", "x"), gguftools.Remove("general.nam")])
    assert gguftools.set_metadata(unchanged, {"general.url": "x"}, dry_run=True).changes
    assert unchanged.metadata == metadata()


WRONG = [
    ({"source": 5}, "source is 5; the path of a GGUF file or a Model"),
    ({"changes": 5}, "changes is 5; values by key, or operations"),
    ({"changes": "general.name"}, "changes is 'general.name'; values by key"),
    ({"changes": {5: "a"}}, "changes is .* texts as keys"),
    ({"changes": {"a[0]": 1, "a": [1]}}, "'a' is set as a whole and by items"),
    ({"changes": {"a[0]": 1}}, "there is no key 'a' to set an item of"),
    ({"changes": [gguftools.SetSpecialToken("eos", 1.5)]}, "1.5 was given as a token"),
    ({"changes": [gguftools.Remove(5)]}, "5 was given as a key; a text"),
    ({"changes": [gguftools.SetType("general.name", 5)]}, "'5' is not a type of values"),
    ({"changes": ["general.name"]}, "changes has 'general.name'; gguftools.Set"),
    ({"changes": [gguftools.Set(5, "a")]}, "5 was given as a key; a text"),
    ({"changes": [gguftools.Set("general.name", None)]}, "'general.name' is STRING: None is not a string"),
    ({"changes": [gguftools.Set("llama.block_count", "x")]}, "'llama.block_count' is UINT32: 'x' is not an integer"),
    ({"changes": [gguftools.SetItem("tokenizer.ggml.tokens", "0", "x")]}, "has no item 0"),
    ({"changes": [gguftools.SetItem("general.name", 0, "x")]}, "items are set of arrays"),
    ({"changes": [gguftools.SetType("absent", "INT8")]}, "no key 'absent' to give a type"),
    ({"changes": [gguftools.Rename("general.name", "llama.block_count")]}, "there is a 'llama.block_count' already"),
    ({"output": "x.gguf"}, "a Model is written by its save"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_input_is_named(arguments, message):
    with pytest.raises(GgufToolsError, match=message):
        gguftools.set_metadata(**{"source": model(), **arguments})
