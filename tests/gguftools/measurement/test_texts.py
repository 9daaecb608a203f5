"""Texts by name, the ones of the package, and conversations of which the answers alone are scored."""

from __future__ import annotations

import json
import lzma
import re
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gguftools.measurement.texts import NamedText, TextWindows, default_texts, named_texts, windows_of
from gguftools.models.model import Model
from gguftools.models.model import open as open_model
from quants.errors import FileError, GgufToolsError, OptionError, VocabularyError

from ..inspection.audits.published import PUBLISHED

TURN = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
ASK = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
CHATML = "{% for m in messages %}" + TURN + "{% endfor %}" + ASK
REASONING = (  # an empty thought before the last answer alone
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}" + ASK
)
FORCED = CHATML.replace("assistant\n", "assistant\n<think>\n")  # a thought asked for, and not kept
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
SUMS = [
    {"role": "user", "content": "What is 2+2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "And 3+3?"},
    {"role": "assistant", "content": "\nThat is 6, of course.\n"},
    {"role": "user", "content": "Thanks."},
]


@pytest.fixture(scope="module", params=["qwen2"])
def model(request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return vocabulary(shared, request.param, tmp_path_factory.mktemp("vocabularies"))


def vocabulary(shared: Path, name: str, folder: Path) -> Model:
    path = folder / f"{name}.gguf"
    path.write_bytes(lzma.decompress((shared / f"vocabs/ggml-vocab-{name}.gguf.xz").read_bytes()))
    return open_model(path)


def measured(model: Model, template: str, *conversations: object, n_ctx: int = 512) -> TextWindows:
    path = Path(model.path).with_suffix(".jsonl")
    path.write_text("\n".join(map(json.dumps, conversations)))
    model.chat_template = template
    return windows_of(model, NamedText("chat", path, chat=True), n_ctx)


def answers(model: Model, found: TextWindows) -> list[str]:
    return ["".join(model.tokenizer.decode([i]) for i in each.targets) for each in found.windows]


def test_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x=y.txt").write_text("")
    found = named_texts(["novel=a.txt", "b/code.py", "x=y.txt", "odd=x=y.txt"])
    assert [(text.name, str(text.path)) for text in found] == [
        ("novel", "a.txt"),
        ("code", "b/code.py"),
        ("x=y", "x=y.txt"),
        ("odd", "x=y.txt"),
    ]
    with pytest.raises(OptionError, match="2 texts are called 'a'"):
        named_texts(["a.txt", "c/a.md"])
    for wrong in ("=a.txt", "novel="):
        with pytest.raises(OptionError, match="names no text"):
            named_texts([wrong])


def test_a_plain_text_is_cut_as_perplexity_does(model):
    text = next(iter(default_texts()))
    found = windows_of(model, text, 64, chunks=2)
    ids = model.tokenizer.encode(text.path.read_text(encoding="utf-8"))
    assert found.tokens == ids
    assert found.windows[1].inputs.tolist() == ids[64:128]
    assert found.windows[1].targets.tolist() == ids[97:128]
    assert found.scored == 62
    with pytest.raises(OptionError, match=rf"{text.name}: the text has .* 2 windows of 1000000 that are needed"):
        windows_of(model, text, 1000000)


def test_the_texts_of_the_package(model):
    texts = {text.name: text.path.read_text(encoding="utf-8") for text in default_texts()}
    assert list(texts) == [
        "code",
        "conversation",
        "documents",
        "encyclopedia",
        "fiction",
        "languages",
        "mathematics",
        "scripts",
    ]
    assert sum(len(text.encode()) for text in texts.values()) < 300_000
    assert all(len(windows_of(model, text).windows) >= 8 for text in default_texts())
    assert all(unicodedata.is_normalized("NFC", text) for text in texts.values())
    for text in texts.values():  # nothing is there twice to fill it up
        lines = [line for line in text.split("\n") if len(line) > 80]
        assert len(lines) == len(set(lines))
    letters = Counter(unicodedata.name(c).split()[0] for c in texts["scripts"] if c.isalpha())
    found = {script for script, count in letters.items() if count > 100}
    assert found >= {"CYRILLIC", "GREEK", "CJK", "HIRAGANA", "HANGUL", "ARABIC", "HEBREW", "DEVANAGARI", "THAI"}


@pytest.mark.parametrize("template", [CHATML, FORCED])
def test_answers_alone_are_scored(model, template):
    found = measured(model, template, SUMS, {"messages": SUMS[:2]})
    assert answers(model, found) == ["It is 4.<|im_end|>That is 6, of course.\n<|im_end|>", "It is 4.<|im_end|>"]
    assert not found.remarks
    first = found.windows[0]
    everything = [*first.inputs.tolist(), first.targets[-1]]
    assert [everything[i + 1] for i in first.scored] == first.targets.tolist()
    assert model.tokenizer.decode(everything).startswith("<|im_start|>user\nWhat is 2+2?<|im_end|>")
    assert everything[0] == model.tokenizer.encode("<|im_start|>", parse_special=True)[0]


def test_answers_that_are_rewritten_have_windows_of_their_own(model):
    found = measured(model, REASONING, SUMS)
    assert answers(model, found) == ["It is 4.<|im_end|>", "That is 6, of course.\n<|im_end|>"]
    texts = [model.tokenizer.decode(each.inputs) for each in found.windows]
    assert texts[0].endswith("assistant\n<think>\n\n</think>\n\nIt is 4.")
    assert "assistant\nIt is 4.<|im_end|>" in texts[1]
    assert found.remarks[0].endswith("rewrites earlier answers, so each has a window of its own")


@pytest.mark.parametrize(("name", "end"), [("llama-spm", "</s>"), ("llama-bpe", "<|end_of_text|>")])
def test_one_token_begins_a_text(name, end, shared, tmp_path):
    model = vocabulary(shared, name, tmp_path)
    (window,) = measured(model, LLAMA, SUMS[:2]).windows
    assert window.inputs.tolist().count(model.tokenizer.bos) == 1
    assert window.inputs[0] == model.tokenizer.bos
    assert model.tokenizer.decode([window.targets[-1]]) == end
    (window,) = measured(model, LLAMA.replace("{{ bos_token }}", ""), SUMS[:2]).windows
    assert window.inputs.tolist().count(model.tokenizer.bos) == 1


def test_a_long_conversation_is_cut(model):
    whole = measured(model, CHATML, SUMS)
    found = measured(model, CHATML, SUMS, SUMS[:2], n_ctx=24)
    assert answers(model, found) == ["It is 4.<|im_end|>", "It is 4.<|im_end|>"]
    assert len(found.windows[0].inputs) < 24 < len(whole.windows[0].inputs)
    assert found.remarks[0].endswith("1 of 2 windows are longer than 24 tokens, and cut there")
    with pytest.raises(OptionError, match="no answer begins within 8 tokens"):
        measured(model, CHATML, SUMS, n_ctx=8)


def test_what_ends_the_whole_is_no_answer(model):
    ending = CHATML + "{% if not add_generation_prompt %}{{ 'The end' }}{% endif %}"
    found = measured(model, ending, SUMS)
    assert answers(model, found) == ["It is 4.<|im_end|>That is 6, of course.\n<|im_end|>"]


def test_answers_that_are_not_written_are_left_out_and_counted(model):
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "sum", "arguments": {}}}]}
    silent = "{% for m in messages if m.content %}" + TURN + "{% endfor %}"
    found = measured(model, silent, [SUMS[0], call, {"role": "tool", "content": "4"}, SUMS[1]])
    assert [text.removeprefix("<|im_start|>assistant\n") for text in answers(model, found)] == ["It is 4.<|im_end|>"]
    assert found.remarks[0].endswith("1 answers are not found in what the chat template writes, and not measured")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates(model, name):
    """Whatever they do with thoughts and ends of texts, both answers are found, with at most one token behind each."""
    found = measured(model, PUBLISHED[name], SUMS[:4])
    wanted = ["It is 4.", "That is 6, of course."]
    texts = [text for each in measured_texts(model, found) for text in each]
    assert len(texts) == 2
    for text, content in zip(texts, wanted, strict=True):
        assert text.startswith(content[:-1]), text  # its last token may be one with what follows
        assert re.fullmatch(r"\.?\s*(<[^<>]*>?)?", text.removeprefix(content[:-1])), text


def measured_texts(model: Model, found: TextWindows) -> list[list[str]]:
    """Of each window the answers apart: runs of predictions without a gap."""
    split = [np.flatnonzero(np.diff(each.scored) > 1) + 1 for each in found.windows]
    return [
        [model.tokenizer.decode(run) for run in np.split(each.targets, gaps)]
        for each, gaps in zip(found.windows, split, strict=True)
    ]


def test_the_day_changes_nothing(model):
    today = measured(model, "{{ strftime_now('%d %b %Y') }} " + CHATML, SUMS)
    assert model.tokenizer.decode(today.windows[0].inputs).startswith("01 Jan 2026 ")


def test_a_call_of_a_tool_is_an_answer(model):
    tool = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls|tojson if m.tool_calls }};{% endfor %}"
    call = {"role": "assistant", "content": "Well.", "tool_calls": [{"function": {"name": "sum", "arguments": {}}}]}
    found = measured(model, tool, [SUMS[0], call])
    assert answers(model, found) == ['assistant: Well.[{"function": {"name": "sum", "arguments": {}}}];']


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "line 2 of .* is no JSON"),
        ("[" * 100000, "line 2 of .* is no JSON"),
        ("{}", "line 2 of .* has no messages"),
        ("3", "line 2 of .* has no messages"),
        ('["a"]', "message 1 in line 2 of .* has no role"),
        ('[{"role": "user"}]', "message 1 in line 2 of .* has no content"),
        ('[{"role": "user", "content": "a"}]', "line 2 of .* has no answer"),
        ('[{"role": "assistant", "content": "a"}]', "line 2 of .* has no answer"),
    ],
)
def test_lines_that_are_no_conversation(model, line, error, tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps(SUMS) + "\n" + line)
    model.chat_template = CHATML
    with pytest.raises(GgufToolsError, match=error):
        windows_of(model, NamedText("chat", path, chat=True))


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ raise_exception('no') }}", "line 1 of .*: the chat template refuses it: no"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}{{ messages|length }}", "hides the answers of .*; none is"),
        ("{% for i in range(10**9) %}{% endfor %}", "the chat template does not end|takes|fails"),
        ("", "hides the answers of .*; none is found"),
    ],
)
def test_templates_that_hide_the_answers(model, template, error):
    with pytest.raises(VocabularyError, match=error):
        measured(model, template, SUMS)


def test_no_template_no_conversation(model, tmp_path):
    (tmp_path / "chat.jsonl").write_text(json.dumps(SUMS))
    model.chat_template = None
    with pytest.raises(VocabularyError, match="has no chat template"):
        windows_of(model, NamedText("chat", tmp_path / "chat.jsonl", chat=True))
    model.chat_template = CHATML
    with pytest.raises(FileError, match="cannot be read"):
        windows_of(model, NamedText("chat", tmp_path / "absent.jsonl", chat=True))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(OptionError, match="has no conversations"):
        windows_of(model, NamedText("chat", tmp_path / "empty.jsonl", chat=True))
