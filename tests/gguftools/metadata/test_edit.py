"""Editing metadata: types kept to the bit, impossible values refused, chat templates tried, interrupted edits ended."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

import gguftools
from archs.metadata import GgufType, Metadata, Value, ValueType
from gguftools.cli.arguments import parse_assignment, read_json_values
from gguftools.cli.edits import operations_of
from gguftools.io import locks
from gguftools.io.gguf import journal
from gguftools.io.gguf.journal import journal_path
from gguftools.io.gguf.reader import open_gguf
from gguftools.io.gguf.writer import TensorInfo, plan_file
from gguftools.metadata import edit
from gguftools.metadata.text import ArgumentText
from gguftools.writing.options import WriteOptions
from quants import format_named
from quants.errors import FileError, OptionError, VocabularyError

from ...conftest import ROOT
from ..test_cli import gguftools as run_gguftools
from ..tiny_models import create_gguf

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}\n{%- if add_generation_prompt %}\n{{ '<|im_start|>assistant\n' }}\n{%- endif %}"
)
TOKENS = ["<unk>", "<|im_start|>", "<|im_end|>", "a", "b", "7"]


def model(path, reserve=0, **keys):
    metadata = Metadata()
    metadata["general.architecture"] = "llama"
    metadata["general.name"] = "old"
    for key, value in {"block_count": 2, "context_length": 64, "embedding_length": 32}.items():
        metadata[f"llama.{key}"] = value
    metadata["llama.attention.head_count"] = 4
    metadata["llama.attention.head_count_kv"] = 2
    metadata["llama.rope.freq_base"] = 10000.0
    metadata["tokenizer.ggml.model"] = "gpt2"
    metadata["tokenizer.ggml.tokens"] = TOKENS
    metadata.set("tokenizer.ggml.token_type", [2, 3, 3, 1, 1, 1], ValueType.ARRAY, ValueType.INT32)
    metadata["tokenizer.ggml.eos_token_id"] = 0
    metadata["tokenizer.chat_template"] = CHATML
    for key, value in keys.items():
        metadata[key.replace("__", ".")] = value
    infos = [TensorInfo("token_embd.weight", (6, 32), format_named("F32"))]
    with create_gguf(path, plan_file(metadata, infos, reserve=reserve)) as output:
        output.write(0, 0, np.random.default_rng(4).integers(0, 256, (6, 128), np.uint8))
    return path


@pytest.fixture
def path(tmp_path):
    return model(tmp_path / "m.gguf", reserve=4096)


def tensor_hash(path):
    return hashlib.sha256(open_gguf(path).tensors["token_embd.weight"].raw().tobytes()).hexdigest()


def stored(path, key):
    value = open_gguf(path).metadata.value(key)
    return value.type, value.element, list(value.data) if value.type is ValueType.ARRAY else value.data


SCALARS = {
    "UINT8": ("255", 255),
    "INT8": ("-128", -128),
    "UINT16": ("65535", 65535),
    "INT16": ("-5", -5),
    "UINT32": ("0x10", 16),
    "INT32": ("-7", -7),
    "UINT64": (str(2**64 - 1), 2**64 - 1),
    "INT64": (str(-(2**63)), -(2**63)),
    "FLOAT32": ("1e-3", float(np.float32(1e-3))),
    "FLOAT64": ("0.1", 0.1),
    "BOOL": ("true", True),
    "STRING": ("1 é", "1 é"),
}


@pytest.mark.parametrize("name", SCALARS)
def test_every_type_from_text_and_data(path, name):
    text, data = SCALARS[name]
    gguftools.set_metadata(
        path,
        [gguftools.Set("k", ArgumentText(text), name), gguftools.Set("d", data, name)],
        options=gguftools.EditOptions(new=True),
    )
    assert stored(path, "k") == stored(path, "d") == (ValueType[name], None, data)
    report = gguftools.set_metadata(path, {"k": ArgumentText(text), "d": data})
    assert (report.changes, report.bytes_written) == ([], 0)
    array = json.dumps([data, data])
    gguftools.set_metadata(
        path, [gguftools.Set("a", ArgumentText(array), f"ARRAY/{name}")], options=gguftools.EditOptions(new=True)
    )
    assert stored(path, "a") == (ValueType.ARRAY, ValueType[name], [data, data])
    gguftools.set_metadata(path, {"a": [data]})
    assert stored(path, "a") == (ValueType.ARRAY, ValueType[name], [data])
    gguftools.set_metadata(path, {"a": ArgumentText("[]")})
    assert stored(path, "a") == (ValueType.ARRAY, ValueType[name], [])


def test_nested_arrays(path):
    gguftools.set_metadata(
        path,
        [gguftools.Set("n", ArgumentText("[[1, 2], []]"), "ARRAY/ARRAY/INT8")],
        options=gguftools.EditOptions(new=True),
    )
    gguftools.set_metadata(path, {"n": [[3], [-4, 5]]})
    value = open_gguf(path).metadata.value("n")
    assert [(item.element, item.data.tolist()) for item in value.data] == [
        (ValueType.INT8, [3]),
        (ValueType.INT8, [-4, 5]),
    ]


def test_type_from_the_text_where_nothing_else_says(path):
    texts = {"a": "true", "b": "12", "c": "-12", "d": "1.5", "e": "[1, -2]", "f": '["x"]', "g": "1.5.2", "h": "[x"}
    texts["i"] = str(2**40)
    gguftools.set_metadata(
        path, {key: ArgumentText(text) for key, text in texts.items()}, options=gguftools.EditOptions(new=True)
    )
    kinds = {key: (v := open_gguf(path).metadata.value(key)).element or v.type for key in texts}
    names = ["BOOL", "UINT32", "INT32", "FLOAT32", "INT32", "STRING", "STRING", "STRING", "INT64"]
    assert [kind.name for kind in kinds.values()] == names
    texts = {"general.version": ArgumentText("1.5"), "llama.rope.scaling.factor": ArgumentText("2")}
    gguftools.set_metadata(path, texts)
    assert stored(path, "general.version") == (ValueType.STRING, None, "1.5")
    assert stored(path, "llama.rope.scaling.factor") == (ValueType.FLOAT32, None, 2.0)


def test_plain_strings_are_not_parsed(path):
    gguftools.set_metadata(path, {"general.name": "true", "other": "5"}, options=gguftools.EditOptions(new=True))
    assert (stored(path, "general.name")[2], stored(path, "other")) == ("true", (ValueType.STRING, None, "5"))


BAD_VALUES = {
    "300": ("UINT8", "300 is not from 0 to 255"),
    "x": ("INT32", "'x' is not an integer"),
    "[1, true]": ("ARRAY/INT8", "True is not an integer"),
    "[1, 300]": ("ARRAY/INT8", "-128 to 127"),
    "1e39": ("FLOAT32", "too large"),
    "yes": ("BOOL", "neither true nor false"),
    "{}": ("ARRAY/STRING", "not a JSON array"),
    "[": ("ARRAY/STRING", "not a JSON array"),
    "[1]": ("ARRAY/STRING", "1 is not a string"),
}


@pytest.mark.parametrize("text", BAD_VALUES)
def test_values_that_the_type_cannot_hold(path, text):
    kind, message = BAD_VALUES[text]
    before = path.read_bytes()
    with pytest.raises(OptionError, match=message) as caught:
        gguftools.set_metadata(
            path, [gguftools.Set("k", ArgumentText(text), kind)], options=gguftools.EditOptions(new=True)
        )
    assert "'k' is " in str(caught.value)
    assert path.read_bytes() == before


def test_unknown_types():
    for text in ("UINT", "ARRAY", "INT8/ARRAY", "ARRAY/ARRAY/ARRAY/ARRAY/ARRAY/INT8", ""):
        with pytest.raises(OptionError, match="is not a type of values"):
            GgufType.named(text)


REFUSED = {
    "llama.attention.head_count=0": "is 0; 1 or more",
    "llama.attention.head_count=3": "3 heads cannot share 2",
    "llama.attention.head_count_kv=[1,2,2]": "has 3 items; the model has 2 layers",
    "llama.rope.freq_base=-1": "more than 0",
    "llama.rope.freq_base=nan": "finite",
    "tokenizer.ggml.eos_token_id=6": "the tokens 0 to 5",
    "tokenizer.ggml.token_type=[1,1]": "has 2 items; the vocabulary has 6",
    'tokenizer.ggml.tokens=["a"]': "has 1 items, but",
    "general.alignment=48": "a power of two",
    "split.count=2": "split and merge write it",
    "gguf.pad=[0]": "given by `reserve`",
}


@pytest.mark.parametrize("assignment", REFUSED)
def test_impossible_values_need_force(path, assignment):
    before = path.read_bytes()
    with pytest.raises(OptionError, match=REFUSED[assignment]) as caught:
        gguftools.set_metadata(path, dict([parse_assignment(assignment)]))
    assert "`force`" in (caught.value.hint or "")
    assert path.read_bytes() == before
    if not assignment.startswith(("general.alignment", "split.", "gguf.")):
        report = gguftools.set_metadata(
            path, dict([parse_assignment(assignment)]), options=gguftools.EditOptions(force=True)
        )
        assert report.warnings
        assert len(report.changes) == 1


def test_wrong_type_needs_force(path):
    with pytest.raises(OptionError, match="is read as UINT32, not UINT64"):
        gguftools.set_metadata(path, [gguftools.SetType("llama.block_count", "UINT64")])
    gguftools.set_metadata(
        path, [gguftools.SetType("llama.block_count", "UINT64")], options=gguftools.EditOptions(force=True)
    )
    assert stored(path, "llama.block_count") == (ValueType.UINT64, None, 2)
    gguftools.set_metadata(path, {"llama.block_count": 2})  # a type that the file has is left as it is


def test_keys_that_shape_tensors_warn(path):
    report = gguftools.set_metadata(path, {"llama.embedding_length": 64, "llama.context_length": 128})
    assert report.warnings == ["llama.embedding_length shapes tensors; those of this file were made for 32"]
    report = gguftools.set_metadata(path, {"general.architecture": "qwen2"})
    assert report.warnings == [
        "another architecture expects other tensors, and 6 keys that begin with 'llama.' will not be read"
    ]


def test_remove_and_rename(path):
    before = list(open_gguf(path).metadata)
    report = gguftools.set_metadata(
        path, [gguftools.Remove("llama.rope.freq_base"), gguftools.Rename("general.name", "general.basename")]
    )
    after = list(open_gguf(path).metadata)
    assert after.index("general.basename") == before.index("general.name")
    assert "llama.rope.freq_base" not in after
    assert [line for change in report.changes for line in change.lines()] == [
        '- general.name  STRING  "old"',
        '+ general.basename  STRING  "old"',
        "- llama.rope.freq_base  FLOAT32  10000",
    ]


NOTHING = {"values": {}, "types": {}, "remove": [], "rename": {}, "chat_template": None, "special_tokens": {}}
CONTRADICTIONS = [
    ({"remove": ["general.nam"]}, "there is no key 'general.nam'"),
    ({"rename": {"absent": "b"}}, "there is no key 'absent'"),
    ({"rename": {"general.name": "llama.block_count"}}, "there is a 'llama.block_count' already"),
    ({"rename": {"general.name": "x", "llama.rope.freq_base": "x"}}, "cannot be renamed to 'x'"),
    ({"values": {"general.name": "x"}, "remove": ["general.name"]}, "both removed and set"),
    ({"values": {"general.name": "x"}, "rename": {"general.name": "y"}}, "both renamed and set"),
    ({"types": {"absent": "INT8"}}, "no key 'absent' to give a type"),
    ({"values": {"": "x"}}, "a key needs a name"),
    ({"remove": ["general.architecture"]}, "no program loads a model without"),
    ({"chat_template": CHATML, "values": {"tokenizer.chat_template": CHATML}}, "is given twice"),
]


@pytest.mark.parametrize(("options", "message"), CONTRADICTIONS)
def test_contradictions(path, options, message):
    before = path.read_bytes()
    with pytest.raises(OptionError, match=message):
        gguftools.set_metadata(path, operations_of(**NOTHING | options))
    assert path.read_bytes() == before


def test_special_tokens(path):
    report = gguftools.set_metadata(
        path,
        [
            gguftools.SetSpecialToken("eos", "<|im_end|>"),
            gguftools.SetSpecialToken("bos", 1),
            gguftools.SetSpecialToken("pad", "3"),
        ],
    )
    ids = [stored(path, f"tokenizer.ggml.{role}_token_id") for role in ("eos", "bos", "padding")]
    assert ids == [(ValueType.UINT32, None, 2), (ValueType.UINT32, None, 1), (ValueType.UINT32, None, 3)]
    assert report.warnings == ["token 3, 'a', is an ordinary one, not a control token"]
    with pytest.raises(VocabularyError, match=r"no token of the vocabulary is '<\|im_and\|>'") as caught:
        gguftools.set_metadata(path, [gguftools.SetSpecialToken("eos", "<|im_and|>")])
    assert "<|im_end|>" in caught.value.hint
    with pytest.raises(VocabularyError, match="there is no token 6"):
        gguftools.set_metadata(path, [gguftools.SetSpecialToken("eos", 6)])
    with pytest.raises(OptionError, match="no special token 'end'"):
        gguftools.set_metadata(path, [gguftools.SetSpecialToken("end", 1)])


def test_chat_template_is_previewed_as_transformers_renders_it(path):
    from transformers.utils.chat_template_utils import render_jinja_template

    from gguftools.metadata.chat_templates import SAMPLES

    template = CHATML + "{{ messages | tojson }}{% generation %}g{% endgeneration %}"
    report = gguftools.set_metadata(path, [gguftools.SetChatTemplate(template)])
    rendered, _ = render_jinja_template(
        [SAMPLES["a conversation"]["messages"]], chat_template=template, add_generation_prompt=True
    )
    assert report.preview == rendered[0]
    assert report.warnings == []
    assert stored(path, "tokenizer.chat_template")[2] == template


BAD_TEMPLATES = {
    "{% for m in messages %}": "has an error in line 1",
    "a\n{{ x": "has an error in line 2",
    "{{ messages[0].content.nothing.more }}": "fails: .* has no attribute",
    "{{ raise_exception('never') }}": "refuses it: never",
    "{{ ''.__class__.__mro__ }}": "the sandbox forbids",
    "{% set ns = namespace(__init__=1) %}": "the sandbox forbids",
    "{{ messages.append(1) }}": "the sandbox forbids",
    "{% for i in range(10**9) %}{% endfor %}": "fails|forbids",
}


@pytest.mark.parametrize("template", BAD_TEMPLATES)
def test_templates_that_do_not_work(path, template):
    with pytest.raises(VocabularyError, match=BAD_TEMPLATES[template]) as caught:
        gguftools.set_metadata(path, {"tokenizer.chat_template": template})
    assert "\n" not in str(caught.value)
    assert gguftools.set_metadata(
        path, {"tokenizer.chat_template.x": template}, options=gguftools.EditOptions(force=True)
    ).warnings


def test_a_template_without_end_is_stopped():
    from gguftools.metadata.chat_templates import render

    loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(VocabularyError, match="does not end"):
        render(loops, [{}], seconds=0.2)
    with pytest.raises(VocabularyError, match="writes more than"):
        render("{% for i in range(99999) %}{{ 'x' * 999 }}{% endfor %}", [{}], seconds=20)


def test_odd_templates_warn(path):
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}<|endoftext|>"
    assert gguftools.set_metadata(path, [gguftools.SetChatTemplate(template)]).warnings == [
        "with a system message, the chat template refuses it: no system",
        "the chat template drops what the user says",
        "the chat template writes '<|endoftext|>', which is no token of this vocabulary",
    ]


def test_dry_run_changes_nothing_and_tells_how(path):
    before = path.read_bytes()
    values = {"general.name": "n" * 100, "tokenizer.ggml.tokens": [*TOKENS[:5], "8"]}
    report = gguftools.set_metadata(path, values, dry_run=True)
    assert (report.in_place, report.dry_run, report.bytes_written) == (True, True, 0)
    assert [line for change in report.changes for line in change.lines()][2:] == [
        "- tokenizer.ggml.tokens  ARRAY/STRING  [" + ", ".join(f'"{t}"' for t in TOKENS) + "]",
        "+ tokenizer.ggml.tokens  ARRAY/STRING  [" + ", ".join(f'"{t}"' for t in [*TOKENS[:5], "8"]) + "]",
    ]
    assert not gguftools.set_metadata(path, {"general.name": "n" * 9000}, dry_run=True).in_place
    assert path.read_bytes() == before


def test_changes_are_told_after_the_file_was_overwritten(path):
    gguftools.set_metadata(
        path, {"k": list(range(50)), "s": [f"text {i}" for i in range(50)]}, options=gguftools.EditOptions(new=True)
    )
    report = gguftools.set_metadata(path, {"k": [*range(49), 7], "s": ["other", *(f"text {i}" for i in range(1, 50))]})
    assert report.in_place
    assert [line for change in report.changes for line in change.lines()] == [
        "  k  ARRAY/UINT32  1 of 50 items differ",
        "- [49] 49",
        "+ [49] 7",
        "  s  ARRAY/STRING  1 of 50 items differ",
        "- [0] 'text 0'",
        "+ [0] 'other'",
    ]


def test_long_texts_are_compared_by_lines(path):
    gguftools.set_metadata(path, {"general.description": "one\ntwo\nthree"})
    report = gguftools.set_metadata(path, {"general.description": "one\n2\nthree"})
    assert list(report.changes[0].lines())[2:] == ["  one", "- two", "+ 2", "  three"]


def test_in_place_copy_and_output(path, tmp_path):
    old, whole = tensor_hash(path), path.read_bytes()
    report = gguftools.set_metadata(path, {"general.name": "x"}, output=tmp_path / "n.gguf")
    assert (path.read_bytes(), report.path, report.in_place) == (whole, tmp_path / "n.gguf", False)
    with pytest.raises(FileError, match="already exists"):
        gguftools.set_metadata(path, {"general.name": "y"}, output=tmp_path / "n.gguf")
    gguftools.set_metadata(path, {"general.name": "y"}, output=tmp_path / "n.gguf", overwrite=True)
    assert stored(tmp_path / "n.gguf", "general.name")[2] == "y"
    steps = []
    report = gguftools.set_metadata(path, {"general.name": "n" * 9000}, progress=lambda *step: steps.append(step))
    assert not report.in_place
    assert steps
    report = gguftools.set_metadata(path, {"general.name": "z"}, options=gguftools.EditOptions(reserve=20_000))
    assert gguftools.set_metadata(path, {"general.name": "z" * 20_000}).in_place
    assert tensor_hash(path) == tensor_hash(tmp_path / "n.gguf") == old


def test_split_set(tmp_path):
    paths = [tmp_path / f"m-{i + 1:05d}-of-00002.gguf" for i in range(2)]
    for i, path in enumerate(paths):
        metadata = Metadata()
        metadata["general.name"] = "old"
        for key, number in {"no": i, "count": 2}.items():
            metadata.set(f"split.{key}", number, ValueType.UINT16)
        with create_gguf(path, plan_file(metadata, [TensorInfo(f"t{i}", (1, 4), format_named("F32"))])) as output:
            output.write(0, 0, np.zeros((1, 16), np.uint8))
    report = gguftools.set_metadata(paths[1], {"general.name": "new"})
    assert report.path == paths[0]
    assert gguftools.open(paths[1]).metadata["general.name"] == "new"


def test_another_program_edits_meanwhile(path, monkeypatch):
    def slow(*arguments):
        monkeypatch.undo()
        with pytest.raises(FileError, match="is being changed by another program"):
            gguftools.set_metadata(path, {"general.name": "of the other"})
        return real(*arguments)

    real = edit._check
    monkeypatch.setattr(edit, "_check", slow)
    monkeypatch.setattr(locks, "WAIT", 0.01)
    gguftools.set_metadata(path, {"general.name": "ours"})
    assert stored(path, "general.name")[2] == "ours"


class Crash(BaseException):
    """Stands for a process that ends without a word."""


@pytest.mark.parametrize("roll_back", [False, True])
def test_recover(path, monkeypatch, roll_back):
    def crash(fd, data, offset):
        real(fd, data[:5], offset)
        raise Crash

    real, before = journal.write_at, path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(journal, "write_at", crash)
        with pytest.raises(Crash):
            gguftools.set_metadata(path, {"general.name": "something new"})
    with pytest.raises(FileError, match="was interrupted"):
        gguftools.set_metadata(path, {"general.name": "x"})
    shown = run_gguftools("show", path, cwd=path.parent)
    assert (shown.returncode, len(shown.stderr.splitlines())) == (1, 2)
    assert "was interrupted" in shown.stderr
    assert "set-metadata --recover" in shown.stderr
    options = ["--roll-back"] if roll_back else ["--recover"]
    done = run_gguftools("set-metadata", path, *options, cwd=path.parent)
    assert done.returncode == 0, done.stderr
    assert ("rolled back" if roll_back else "completed") in done.stderr
    assert not journal_path(path).exists()
    assert (path.read_bytes() == before) == roll_back
    assert stored(path, "general.name")[2] == ("old" if roll_back else "something new")
    report = gguftools.set_metadata(path, {"general.name": "third"}, options=gguftools.EditOptions(recover=True))
    assert (report.recovered, stored(path, "general.name")[2]) == ("nothing to recover", "third")


def test_from_files(path, tmp_path):
    (tmp_path / "t.txt").write_text("line 1\nline 2\n")
    assert parse_assignment(f"a.b=@{tmp_path}/t.txt") == ("a.b", "line 1\nline 2\n")
    assert parse_assignment("a.b=@@me=you") == ("a.b", "@me=you")
    with pytest.raises(OptionError, match="not of the form KEY=VALUE"):
        parse_assignment("a.b")
    with pytest.raises(FileError, match="cannot be read"):
        parse_assignment("a=@absent")
    shown = json.loads(run_gguftools("show", path, "--json", cwd=tmp_path).stdout)
    del shown["metadata"]["gguf.pad"]  # a long array: only its beginning is shown
    (tmp_path / "v.json").write_text(json.dumps(shown))
    values, types = read_json_values(tmp_path / "v.json")
    assert (
        gguftools.set_metadata(
            path, [gguftools.Set(key, value, types.get(key)) for key, value in values.items()]
        ).changes
        == []
    )
    (tmp_path / "v.json").write_text('{"a": {"length": 9, "first": []}}')
    with pytest.raises(OptionError, match="expected a plain value, or 'type' and 'value'"):
        read_json_values(tmp_path / "v.json")
    for text in ("[1]", "{", "\xff"):
        (tmp_path / "v.json").write_text(text, encoding="latin-1")
        with pytest.raises(FileError):
            read_json_values(tmp_path / "v.json")


def test_command_line(path, tmp_path):
    (tmp_path / "t.jinja").write_text(CHATML + "{# new #}")
    (tmp_path / "v.json").write_text('{"general.tags": ["x"], "i8": {"type": "ARRAY/INT8", "value": [-1]}}')
    done = run_gguftools(
        "set-metadata",
        path,
        "general.name=New",
        "k=[1,2]",
        "--type",
        "k=ARRAY/INT16",
        "--from-json",
        "v.json",
        "--rename",
        "llama.rope.freq_base=other",
        "--remove",
        "llama.attention.head_count_kv",
        "--chat-template",
        "@t.jinja",
        "--special-token",
        "eos=<|im_end|>",
        "--new",
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for text in (
        '- general.name  STRING  "old"',
        "+ k  ARRAY/INT16  [1, 2]",
        "+ i8  ARRAY/INT8  [-1]",
        "| <|im_start|>user",
        "was changed in place",
        "+ tokenizer.ggml.eos_token_id  UINT32  2",
    ):
        assert text in done.stdout
    assert stored(path, "k") == (ValueType.ARRAY, ValueType.INT16, [1, 2])
    done = run_gguftools("set-metadata", path, "general.name=X", "--dry-run", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["changes"] == [{"key": "general.name", "old": 'STRING "New"', "new": 'STRING "X"'}]
    done = run_gguftools("set-metadata", path, "--chat-template", "t.jinja", cwd=tmp_path)
    assert (done.returncode, "@t.jinja" in done.stderr) == (1, True)
    done = run_gguftools("set-metadata", path, "llama.attention.head_count=0", cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 2)


def test_the_command_starts_without_what_it_does_not_need(path):
    arguments = ["gguftools", "set-metadata", str(path), "general.name=x"]
    script = f"import sys; sys.argv = {arguments}\nimport gguftools.__main__ as m\n"
    script += "try: m.main()\nexcept SystemExit: pass\n"
    script += "assert not {'gguf', 'numba', 'jinja2', 'transformers', 'rich'} & set(sys.modules)\n"
    script += "import gguf, archs.metadata as a; assert a.ValueType is gguf.GGUFValueType; gguf.GGUFReader(sys.argv[2])"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=path.parent)
    assert stored(path, "general.name")[2] == "x"


def test_other_readers_open_edited_files(path):
    gguf = pytest.importorskip("gguf")
    values = {"general.name": "n" * 3000, "i8": Value([-1, 2], ValueType.ARRAY, ValueType.INT8)}
    gguftools.set_metadata(path, values, options=gguftools.EditOptions(new=True))
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.name"].contents() == "n" * 3000
    assert reader.fields["i8"].types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT8]
    assert hashlib.sha256(reader.tensors[0].data.tobytes()).hexdigest() == tensor_hash(path)


@pytest.mark.verify
def test_libllama_loads_edited_files(tmp_path):
    llama_cpp = pytest.importorskip("llama_cpp")
    path = tmp_path / "a.gguf"
    gguftools.convert(ROOT / "examples" / "austen-4m", path, "f16", write=WriteOptions(reserve=2000))
    assert gguftools.set_metadata(
        path, [gguftools.Set("general.name", "n" * 500), gguftools.SetSpecialToken("eos", 2047)]
    ).in_place
    assert not gguftools.set_metadata(path, {"general.tags": ["t" * 5000]}).in_place
    model = llama_cpp.Llama(str(path), verbose=False, n_ctx=64)
    assert model.metadata["general.name"] == "n" * 500
    assert model.token_eos() == 2047
