"""Prompts that come from files: a line each, or one that takes several lines."""

from pathlib import Path

import pytest

from gguftools.metadata.prompts import conversations, prompts_of
from quants.errors import FileError, OptionError

ASKED = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("text", "prompts"),
    [
        ('"a"\n\n{"prompt": "b"}\n', ["a", "b"]),
        ('\ufeff{"messages": [{"role": "user", "content": "Hi"}]}', [ASKED]),
        ('{\n  "messages": [\n    {"role": "user",\n     "content": "Hi"}\n  ]\n}\n', [ASKED]),
        ('[\n  {"role": "user", "content": "Hi"}\n]', [ASKED]),
        ('{"messages": [{"role": "user", "content": "Hi"}]}\n"b"', [ASKED, "b"]),
    ],
)
def test_a_file_of_json(text: str, prompts: list[object], tmp_path: Path):
    (tmp_path / "prompts.json").write_text(text, encoding="utf-8")
    assert prompts_of(None, tmp_path / "prompts.json") == prompts
    if not any(isinstance(each, str) for each in prompts):
        assert conversations(tmp_path / "prompts.json") == prompts


def test_lines_that_an_editor_of_windows_wrote(tmp_path: Path):
    (tmp_path / "prompts.txt").write_bytes(b"\xef\xbb\xbfAnne\r\n\r\nThey\r\n")
    assert prompts_of(None, tmp_path / "prompts.txt") == ["Anne", "They"]
    (tmp_path / "prompts.jsonl").write_bytes(b'\xef\xbb\xbf"Anne"\r\n"They"\r\n')
    assert prompts_of(None, tmp_path / "prompts.jsonl") == ["Anne", "They"]


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_of_nothing_is_refused(text: str, tmp_path: Path):
    (tmp_path / "prompts.json").write_text(text)
    with pytest.raises(OptionError, match=r"prompts\.json has no prompts"):
        prompts_of(None, tmp_path / "prompts.json")
    with pytest.raises(OptionError, match=r"prompts\.json has no conversations"):
        conversations(tmp_path / "prompts.json")


def test_lines_that_are_wrong_are_named(tmp_path: Path):
    (tmp_path / "prompts.jsonl").write_text('"a"\n{"prompt": 3}\n')
    with pytest.raises(OptionError, match=r"line 2 of .*prompts\.jsonl is no prompt"):
        prompts_of(None, tmp_path / "prompts.jsonl")
    (tmp_path / "prompts.jsonl").write_text('"a"\n{"prompt": \n')
    with pytest.raises(FileError, match=r"line 2 of .*prompts\.jsonl is no JSON"):
        prompts_of(None, tmp_path / "prompts.jsonl")
    (tmp_path / "prompts.jsonl").write_text("[3]")
    with pytest.raises(OptionError, match=r"prompts\.jsonl is no prompt"):
        conversations(tmp_path / "prompts.jsonl")
