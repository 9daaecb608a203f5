"""Small files that would take much memory are refused: pickles, headers, JSON, zip lists; so are git-lfs pointers."""

from __future__ import annotations

import shutil
import struct
import zipfile
from pathlib import Path

import pytest

from ...command_line import EXAMPLE, refused, run, typed

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
PICKLES = {
    "lists": b"]" * 5_000_000,
    "dictionaries in a list": b"]" + b"}a" * 2_500_000,
    "a long text": b"X" + (70 << 20).to_bytes(4, "little") + b"a" * (70 << 20),
}


def folder(path: Path, *left_out: str) -> Path:
    """The example without some files."""
    shutil.copytree(EXAMPLE, path, ignore=shutil.ignore_patterns("README.md", *left_out))
    return path


@pytest.mark.parametrize("form", ["zip", "legacy"])
@pytest.mark.parametrize("name", PICKLES)
def test_pickles_that_would_fill_memory(name: str, form: str, tmp_path: Path) -> None:
    weights = folder(tmp_path / "ck", "*.safetensors") / "pytorch_model.bin"
    pickle = b"\x80\x02" + PICKLES[name] + b"."
    if form == "zip":
        with zipfile.ZipFile(weights, "w") as archive:
            archive.writestr("archive/data.pkl", pickle)
    else:
        weights.write_bytes(pickle)
    refused(typed("convert", tmp_path / "ck", "-o", tmp_path / "out.gguf"), "pytorch_model.bin: pickle", "weights need")


def test_a_pickle_of_lists_in_little_memory(tmp_path: Path) -> None:
    weights = folder(tmp_path / "ck", "*.safetensors") / "pytorch_model.bin"
    with zipfile.ZipFile(weights, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + b"]" * 20_000_000 + b".")
    done = run("convert", "ck", "-o", "out.gguf", cwd=tmp_path, memory=1 << 30)
    refused(done, "pytorch_model.bin: pickle", "more than weights need")


def test_a_zip_archive_of_a_million_members(tmp_path: Path) -> None:
    weights = folder(tmp_path / "ck", "*.safetensors") / "pytorch_model.bin"
    entry = struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0)
    members = b"".join(entry + b"%05x" % number for number in range(400_000))
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, len(members), 30, 0)
    weights.write_bytes(b"PK\x03\x04" + bytes(26) + members + end)
    refused(typed("convert", tmp_path / "ck", "-o", tmp_path / "out.gguf"), "lists its members in 20,400,000 bytes")


@pytest.mark.parametrize("item", ["[]", '{"":0}', "[1]"])
def test_a_safetensors_header_that_would_fill_memory(item: str, tmp_path: Path) -> None:
    weights = folder(tmp_path / "ck", "*.safetensors") / "model.safetensors"
    text = f'{{"a":[{",".join([item] * (20_000_000 // (len(item) + 1)))}]}}'.encode()
    weights.write_bytes(len(text).to_bytes(8, "little") + text)
    done = typed("convert", tmp_path / "ck", "-o", tmp_path / "out.gguf")
    refused(done, "model.safetensors: the header", "values, more than any file needs")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("text", ["[]," * 7_000_000 + "[]", "[" * 200 + "]" * 200], ids=["many", "deep"])
def test_json_that_would_fill_memory_or_the_stack(name: str, text: str, tmp_path: Path) -> None:
    (folder(tmp_path / "ck", "model.safetensors") / name).write_text(f'{{"a":[{text}]}}')
    if "index" not in name:
        shutil.copy(EXAMPLE / "model.safetensors", tmp_path / "ck")
    done = typed("convert", tmp_path / "ck", "-o", tmp_path / "out.gguf")
    refused(done, f"{name} is not valid JSON", "more than any file needs" if "," in text else "nests deeper than 64")


def test_values_from_json_that_nest(tmp_path: Path) -> None:
    run("convert", EXAMPLE, "-o", "m.gguf", cwd=tmp_path)
    (tmp_path / "values.json").write_text('{"general.name":' + "[" * 100_000 + "]" * 100_000 + "}")
    done = typed("set-metadata", tmp_path / "m.gguf", "--from-json", tmp_path / "values.json")
    refused(done, "values.json is not JSON", "nests deeper than 64 levels")


LEFT_OUT = {
    "config.json": ("config.json",),
    "tokenizer.json": ("tokenizer.json",),
    "tokenizer_config.json": ("tokenizer_config.json",),
    "model.safetensors": ("model.safetensors",),
    "model.safetensors.index.json": ("model.safetensors",),
    "pytorch_model.bin": ("model.safetensors",),
    "tokenizer.model": ("tokenizer.json",),
    "spiece.model": ("tokenizer.json",),
    "vocab.txt": ("tokenizer*",),
    "tekken.json": ("tokenizer*",),
    "some.tiktoken": ("tokenizer*",),
    "chat_template.jinja": ("tokenizer_config.json",),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_pointer_of_git_lfs_is_called_so(name: str, tmp_path: Path) -> None:
    (folder(tmp_path / "ck", *LEFT_OUT[name]) / name).write_bytes(POINTER)
    done = typed("convert", tmp_path / "ck", "-o", tmp_path / "out.gguf")
    assert "git lfs pull" in refused(done, name, "is a git-lfs pointer")


@pytest.mark.parametrize("command", ["show", "validate", "perplexity", "imatrix-info", "quantize"])
def test_a_pointer_in_the_place_of_a_gguf_file(command: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(POINTER)
    (tmp_path / "text").write_text("text")
    more = {"perplexity": ("-f", tmp_path / "text"), "quantize": ("Q8_0",)}.get(command, ())
    done = typed(command, tmp_path / "m.gguf", *more)
    assert done.returncode == 1
    assert "is a git-lfs pointer" in done.stdout + done.stderr
