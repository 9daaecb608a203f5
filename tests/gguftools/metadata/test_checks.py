"""Every key that families write, the runtime reads, or the gguf package names is known; what is none is not."""

from __future__ import annotations

import re

import pytest
from gguf.constants import Keys

from archs.metadata import Metadata, Value, ValueType
from archs.registry import architectures
from archs.schema import ELSEWHERE, MODEL, find
from archs.small_files import parse_json
from archs.spec import COMMON
from gguftools.metadata.checks import check_new_keys, is_known, strange_choice
from quants.errors import OptionError

from ...conftest import ROOT
from ..tiny_models import metadata_of

READ = re.compile(r"""(?:keys\.\w+|keys|\bget|flag|number|count)\(\s*f?"([a-z_]+(?:\.[a-z_]+)*)["\s,]""")


def named(owner: type = Keys) -> list[str]:
    """The keys of the gguf package."""
    members = [value for name, value in vars(owner).items() if not name.startswith("_")]
    inner = [key for each in members if isinstance(each, type) for key in named(each)]
    return [each for each in members if isinstance(each, str)] + inner


def test_what_families_write_is_known():
    for architecture in architectures():
        for key in {**COMMON, **architecture.metadata}:
            whole = key in ELSEWHERE or key.startswith(("general.", "tokenizer."))
            full = key if whole else f"{architecture.name}.{key}"
            assert find(full, architecture.name) is not None, full


def test_what_the_runtime_reads_is_known():
    found = {key for path in (ROOT / "runtime").rglob("*.py") for key in READ.findall(path.read_text("utf-8"))}
    keys = {key for key in found if "." in key and not key.startswith(("tokenizer.", "general."))}
    assert len(keys) > 15
    assert not {key for key in keys if key not in MODEL and not is_known(key, ["llama"])}
    assert not {key for key in found - keys if "." in key and not is_known(key, ["llama"])}


@pytest.mark.parametrize("key", named())
def test_what_the_gguf_package_names_is_known(key):
    for number in (2, 3):
        filled = key.format(arch="llama", id=0, name="tool_use", dense=f"dense_{number}")
        assert is_known(filled, ["llama"])
        if key.startswith("{arch}."):
            assert find(filled, "llama") is not None, "its type is not known"


def test_no_key_is_there_twice():
    parse_json((ROOT / "archs" / "schema.json").read_text("utf-8"), unique=True)


@pytest.mark.parametrize("key", ["llama.contxt_length", "qwen2.context_length", "context_length", "x", "general.nam"])
def test_other_keys_are_not(key):
    assert not is_known(key, ["llama"])
    with pytest.raises(OptionError, match=re.escape(repr(key))) as error:
        check_new_keys([key], metadata_of({"general.architecture": "llama"}), None, new=False)
    assert "`new`" in str(error.value.hint)
    check_new_keys([key], metadata_of({"general.architecture": "llama"}), None, new=True)


def test_keys_of_an_architecture_that_is_set_in_the_same_call_are_known():
    check_new_keys(["qwen2.block_count"], metadata_of({"general.architecture": "llama"}), "qwen2", new=False)


def test_a_key_that_is_there_may_be_called_anything():
    check_new_keys(["my key"], metadata_of({"my key": 1}), None, new=False)
    with pytest.raises(OptionError, match="printable ASCII"):
        check_new_keys(["my key"], Metadata(), None, new=True)


@pytest.mark.parametrize(
    ("key", "value", "strange"),
    [
        ("general.type", "model", False),
        ("general.type", "modell", True),
        ("general.name", "anything", False),
        ("tokenizer.ggml.pre", "qwen2", False),
        ("tokenizer.ggml.pre", "qwen9", True),
        ("general.architecture", "opt", False),
        ("general.architecture", "mamba2", False),
        ("general.architecture", "llamma", True),
        ("general.file_type", 15, False),
        ("general.file_type", 5, True),
        ("general.file_type", 1024 + 15, False),
    ],
)
def test_values_that_mean_something_are_known(key, value, strange):
    kind = ValueType.STRING if isinstance(value, str) else ValueType.UINT32
    assert (strange_choice(key, Value(value, kind), "llama") is not None) == strange


def test_what_is_of_another_type_is_not_compared():
    assert strange_choice("tokenizer.ggml.pre", Value([1], ValueType.ARRAY, ValueType.INT32), "llama") is None
