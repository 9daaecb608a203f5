"""Characters that terminals obey are shown as escapes wherever text of a file, its name or a hub is printed."""

from __future__ import annotations

import json
import os
import pty
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ...conftest import ROOT
from ..command_line import run, typed

EVIL = "\x1b[31m\x07\x9b2J\x9d0;title\x9c\u202eabc\u202c\u200b\u2028\r\x7f\x08é"
NAME = "m\x1b]0;x\x07\n\u202e.gguf"
UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u2028\u202a-\u202e\ud800-\udfff]")


def string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def model(path: Path, more: str = "") -> Path:
    """A GGUF file whose keys, values, tokens and tensor's name hold EVIL."""
    values = [
        string(key) + struct.pack("<I", 8) + string(value)
        for key, value in (
            ("general.architecture", "llama"),
            ("general.name", f"n{EVIL}{more}"),
            (f"k{EVIL}", f"v{EVIL}"),
            ("tokenizer.chat_template", f"{{{{ messages }}}}{EVIL}\nline{more}"),
            (f"tokenizer.chat_template.{EVIL}", "{% if %}"),
            ("general.url", f"https://{EVIL}"),
        )
    ]
    tokens = struct.pack("<IIQ", 9, 8, 2) + string(f"t{EVIL}") + string("\udcff")
    values.append(string("tokenizer.ggml.tokens") + tokens)
    tensors = b"".join(string(f"{name}{EVIL}") + struct.pack("<IQIQ", 1, 8, 0, 32 * (name == "u")) for name in "tu")
    header = b"GGUF" + struct.pack("<IQQ", 3, 2, len(values)) + b"".join(values) + tensors
    path.write_bytes(header + bytes(-len(header) % 32) + bytes(64 + len(more)))
    return path


def assert_seen(text: str, *allowed: str) -> None:
    found = [match[0] for match in UNSEEN.finditer(text) if match[0] not in allowed]
    assert not found, f"{found[0]!r} in {text[max(0, text.index(found[0]) - 40) :][:80]!r}"


CALLS: dict[str, tuple[str, ...]] = {
    "show": ("show", "A"),
    "show as Markdown": ("show", "A", "--markdown"),
    "show as JSON": ("show", "A", "--json"),
    "show as text": ("show", "A", "--text"),
    "show a key as JSON": ("show", "A", "--key", f"k{EVIL}", "--json"),
    "validate": ("validate", "A"),
    "validate as JSON": ("validate", "A", "--json"),
    "diff": ("diff", "A", "B", "--all"),
    "diff as JSON": ("diff", "A", "B", "--json"),
    "diff of vocabularies": ("diff", "A", "B", "--vocab"),
    "audit": ("audit", "A"),
    "audit against another": ("audit", "A", "--against", "B"),
    "audit as JSON": ("audit", "A", "--json"),
    "hash": ("hash", "A"),
    "hash as JSON": ("hash", "A", "--json"),
    "set-metadata": ("set-metadata", "A", "general.name=x", "--dry-run"),
    "set a value like that": ("set-metadata", "A", f"general.name={EVIL}", "--dry-run"),
    "set a template": ("set-metadata", "A", "--chat-template", f"{{{{ messages[0].content }}}}{EVIL}", "--dry-run"),
    "set a template that fails": ("set-metadata", "A", "--chat-template", "{{ raise_exception('\x1b[31m') }}"),
    "quantize": ("quantize", "A", "Q8_0", "--dry-run"),
    "split": ("split", "A", "--max-tensors", "1", "--dry-run"),
    "imatrix-info": ("imatrix-info", "A"),
    "convert-endian": ("convert-endian", "A", "big", "-o", "OUT"),
    "a file that is not there": ("show", "A\x1b[31m"),
    "a folder that is not there": ("convert", f"/{EVIL}"),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_unseen_in_what_is_printed(name: str, tmp_path: Path) -> None:
    paths = {
        "A": str(model(tmp_path / NAME)),
        "B": str(model(tmp_path / "b.gguf", "!")),
        "OUT": str(tmp_path / f"o{EVIL}"),
    }
    done = typed(*(paths.get(word, word) for word in CALLS[name]))
    assert_seen(done.stdout, "\t" if "--text" in CALLS[name] else "")
    assert_seen(done.stderr)
    if "--json" in CALLS[name]:
        json.loads(done.stdout)
    else:
        assert "\\x1b" in done.stdout + done.stderr


@pytest.mark.parametrize("name", [NAME, b"\xff\xfe.gguf".decode("utf-8", "surrogateescape"), "a\\nb.gguf", "a\tb.gguf"])
def test_manifests_of_files_with_odd_names_can_be_checked(name: str, tmp_path: Path) -> None:
    model(tmp_path / name)
    lines = run("hash", name, "--sha256", cwd=tmp_path)
    assert lines.returncode == 0, lines.stderr
    assert_seen(lines.stdout)
    assert len(lines.stdout.splitlines()) == 3
    (tmp_path / "printed").write_text(lines.stdout)
    assert run("hash", name, "--sha256", "-o", "written", cwd=tmp_path).returncode == 0
    for manifest in ("printed", "written"):
        checked = run("hash", name, "--check", manifest, cwd=tmp_path)
        assert checked.returncode == 0, checked.stderr
        assert "3 hashes checked" in checked.stdout
    found = run("hash", name, "--check", "printed", "--json", cwd=tmp_path)
    assert json.loads(found.stdout)[0]["checked"] == 3


def test_a_value_is_whole_in_a_pipe_and_harmless_on_a_terminal(tmp_path: Path) -> None:
    model(tmp_path / "m.gguf")
    template = f"{{{{ messages }}}}{EVIL}\nline"
    done = subprocess.run(
        [sys.executable, "-m", "gguftools", "show", "m.gguf", "--key", "tokenizer.chat_template"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.decode() == f"{template}\n"
    said = on_a_terminal("show", "m.gguf", "--key", "tokenizer.chat_template", cwd=tmp_path)
    assert "\\x1b[31m" in said
    assert_seen(said.replace("\r\n", "\n"))


def on_a_terminal(*arguments: str, cwd: Path) -> str:
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-m", "gguftools", *arguments],
        cwd=cwd,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
    )
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 1 << 16):
            said += piece
    except OSError:  # the other end was closed
        pass
    os.close(ours)
    command.wait()
    return said.decode()
