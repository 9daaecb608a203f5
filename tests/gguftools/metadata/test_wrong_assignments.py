"""Keys and values that no program reads are refused with a suggestion, unless they are asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import gguftools
from quants.errors import OptionError

from ..command_line import EXAMPLE, refused, run, typed


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    assert run("convert", EXAMPLE, "-o", path, cwd=path.parent).returncode == 0
    return path


@pytest.fixture
def model(original: Path, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.jinja").write_text("{{ messages[0].content }}")
    (tmp_path / "chat").write_text("{{ messages[0].content }}")
    return Path(shutil.copy(original, tmp_path / "model.gguf"))


def value(path: Path, key: str):
    return gguftools.open(path).metadata.get(key)


# What is set -> what the answer has.
REFUSED = {
    # keys
    "llama.contxt_length=4096": "llama.context_length",
    "llama.context-length=4096": "llama.context_length",
    "LLAMA.CONTEXT_LENGTH=4096": "llama.context_length",
    "qwen2.context_length=4096": "llama.context_length",  # the model is a llama
    "general.nmae=x": "general.name",
    "tokenizer.ggml.bos_id=1": "tokenizer.ggml.bos_token_id",
    "tokenizer.chat_templates_=x": "tokenizer.chat_template",
    "my.own.key=1": "--new",
    # names that no key has
    "llama.context_length = 4096": "spaces",
    "general.name\t=x": "printable ASCII",
    "général.name=x": "printable ASCII",
    "a\x1bb=1": "printable ASCII",
    # items of arrays
    "tokenizer.ggml.token_type[2048]=3": "2048",
    "tokenizer.ggml.token_type[0]=x": "not an integer",
    "tokenizer.ggml.token_type[0]=9": "known are",
    "tokenizer.ggml.token_typ[0]=3": "tokenizer.ggml.token_type",
    "llama.context_length[0]=3": "UINT32",
    "tokenizer.ggml.tokens[-1]=x": "--new",
    # values of enumerations
    "llama.rope.scaling.type=yarnn": "did you mean yarn?",
    "tokenizer.ggml.model=gpt3": "did you mean gpt2?",
    "tokenizer.ggml.pre=llama-bp": "did you mean llama-bpe",
    "general.type=modell": "did you mean model?",
    "general.architecture=lama": "did you mean llama",
    "general.file_type=6": "known are",
    "llama.pooling_type=9": "known are 0, 1, 2, 3, 4",
    "llama.expert_gating_func=9": "known are",
    "llama.hidden_activation=siluu": "did you mean silu",
    # a template's file without its @
    "tokenizer.chat_template=chat.jinja": "@chat.jinja",
    "tokenizer.chat_template.tool_use=chat.jinja": "@chat.jinja",
    "tokenizer.chat_template=absent.jinja": "@absent.jinja",
    "tokenizer.chat_template=chat": "@chat",
}


@pytest.mark.parametrize("assignment", REFUSED)
def test_what_nothing_reads_is_not_stored(assignment: str, model: Path):
    before = model.read_bytes()
    refused(typed("set-metadata", model, assignment), REFUSED[assignment])
    assert model.read_bytes() == before


def test_a_template_option_wants_its_at_sign_too(model: Path):
    refused(typed("set-metadata", model, "--chat-template", "absent.jinja"), "@absent.jinja")


def test_new_adds_a_key(model: Path):
    assert typed("set-metadata", model, "my.own.key=1", "--new").returncode == 0
    assert value(model, "my.own.key") == 1


def test_new_does_not_allow_spaces(model: Path):
    refused(typed("set-metadata", model, "my own key=1", "--new"), "spaces")


def test_a_key_is_not_renamed_to_one_that_nothing_reads(model: Path):
    refused(typed("set-metadata", model, "--rename", "general.name=general.nam"), "general.name", "--new")
    assert typed("set-metadata", model, "--rename", "general.name=general.nam", "--new").returncode == 0


def test_one_item_of_an_array_is_set(model: Path):
    types = list(value(model, "tokenizer.ggml.token_type"))
    done = typed("set-metadata", model, "tokenizer.ggml.token_type[2044]=3", "tokenizer.ggml.tokens[2044]=<|x|>")
    assert (done.returncode, done.stderr) == (0, "")
    types[2044] = 3
    assert list(value(model, "tokenizer.ggml.token_type")) == types
    assert value(model, "tokenizer.ggml.tokens")[2044] == "<|x|>"
    assert not [key for key in gguftools.open(model).metadata if "[" in key]


def test_values_that_mean_nothing_can_be_forced(model: Path):
    done = typed("set-metadata", model, "llama.rope.scaling.type=yarnn", "--force", "--json")
    assert any("yarnn" in warning for warning in json.loads(done.stdout)["warnings"])
    assert value(model, "llama.rope.scaling.type") == "yarnn"


def test_keys_of_a_json_file_and_of_python_are_checked_too(model: Path, tmp_path: Path):
    given = tmp_path / "values.json"
    given.write_text(json.dumps({"llama.contxt_length": 4096}))
    refused(typed("set-metadata", model, "--from-json", given), "llama.context_length")
    with pytest.raises(OptionError, match="contxt_length"):
        gguftools.set_metadata(model, {"llama.contxt_length": 4096})


@pytest.mark.parametrize(
    "words",
    [
        ["general.name=a", "general.name=b"],
        ["--type", "general.url=STRING", "--type", "general.url=INT8", "general.url=x"],
        ["--special-token", "eos=1", "--special-token", "eos=2"],
        ["--rename", "general.name=general.url", "--rename", "general.name=general.doi"],
    ],
)
def test_nothing_is_set_twice(words: list[str], model: Path):
    refused(typed("set-metadata", model, *words), "given twice")


@pytest.mark.parametrize(("pre", "meant"), [("nonsense", "hint: did you mean"), ("lama-bpe", "did you mean llama-bpe")])
def test_an_unknown_pre_tokenizer_is_refused(pre: str, meant: str, tmp_path: Path):
    refused(typed("convert", EXAMPLE, "-o", tmp_path / "x.gguf", "--pre", pre), "pre-tokenizer", meant)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("llama.contxt_length=int:4096", "llama.context_length"),
        ("llama.rope.scaling.type=str:yarnn", "yarn"),
        ("general.name x=str:y", "spaces"),
        ("llama.context_length=str:many", "UINT32"),
    ],
)
def test_quantizing_overrides_only_what_is_read(given: str, meant: str, model: Path):
    refused(typed("quantize", model, "Q8_0", "-o", "x.gguf", "--override-kv", given), meant)
