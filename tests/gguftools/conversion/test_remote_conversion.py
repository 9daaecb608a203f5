"""Converting a repository gives the bytes of converting its folder, whatever the network does in between."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from gguftools.conversion.convert import convert
from gguftools.conversion.options import ConvertOptions
from gguftools.io.checkpoint.folder import open_checkpoint
from gguftools.io.stores import block_cache, retries
from gguftools.writing.options import WriteOptions
from quants import Tensor
from quants.errors import FileError, OptionError

from ...conftest import ROOT
from ..command_line import typed
from ..hub_server import Hub, serving

MODEL = ROOT / "examples" / "austen-4m"
NAME = "hf://jane/austen-4m"


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.01)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(Hub({"jane/austen-4m": MODEL})) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        yield served


@pytest.fixture
def short_blocks(monkeypatch):
    """A small model in many requests."""
    monkeypatch.setattr(block_cache, "BLOCK", 1 << 18)
    monkeypatch.setattr(block_cache, "OWN_BLOCKS", 1 << 16)
    monkeypatch.setattr(retries, "TRIES", 2)


def safetensors(tensors: list[Tensor]) -> bytes:
    """A file of these tensors, as they are stored."""
    header, data = {}, b""
    for tensor in tensors:
        raw = tensor.raw().tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[tensor.name] = {"dtype": tensor.format.name, "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_exact_transcoding_reads_twice_and_gives_the_same(hub, short_blocks, tmp_path) -> None:
    for source, name in ((MODEL, "local"), (NAME, "remote")):
        convert(source, tmp_path / f"{name}.gguf", "exact", options=ConvertOptions(fallback="q8_0"))
    assert (tmp_path / "local.gguf").read_bytes() == (tmp_path / "remote.gguf").read_bytes()


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> Path:
    """The same model in two shards with an index, and a model card that names it otherwise."""
    folder = Path(shutil.copytree(MODEL, tmp_path_factory.mktemp("sharded") / "Austen-4M-v2"))
    tensors = open_checkpoint(MODEL).tensors
    (folder / "model.safetensors").unlink()
    names = list(tensors)
    weight_map = {}
    for i, chosen in enumerate((names[::2], names[1::2])):
        file = f"model-{i + 1:05d}-of-00002.safetensors"
        (folder / file).write_bytes(safetensors([tensors[name] for name in chosen]))
        weight_map |= dict.fromkeys(chosen, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "README.md").write_text("---\nlicense: mit\nbase_model: jane/austen-4m\n---\n# Novels\n")
    return folder


@pytest.mark.parametrize("outtype", ["auto", "f32", "q8_0", "Q4_K_M"])
def test_bytes_are_those_of_the_folder(hub, tmp_path, outtype):
    convert(MODEL, tmp_path / "local.gguf", outtype)
    hub.breaks = [200_000, 10, 0, 500_000]
    convert(NAME, tmp_path / "remote.gguf", outtype)
    assert (tmp_path / "remote.gguf").read_bytes() == (tmp_path / "local.gguf").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["local.gguf", "remote.gguf"]


def test_shards_names_and_model_card(hub, sharded, tmp_path, monkeypatch):
    hub.repositories["Jane/Austen-4M-v2"] = sharded
    monkeypatch.chdir(tmp_path)
    report = convert("hf://Jane/Austen-4M-v2@main")
    assert report.outputs[0].file == Path("Austen-4M-v2-BF16.gguf")
    convert(sharded, "local.gguf")
    assert Path("Austen-4M-v2-BF16.gguf").read_bytes() == Path("local.gguf").read_bytes()


@pytest.mark.parametrize("outtype", ["f32", "Q4_K_M"])
def test_what_was_written_is_not_fetched_again(hub, short_blocks, tmp_path, outtype):
    hub.down_after = 3 << 20
    with pytest.raises(FileError, match="cannot be read on"):
        convert(NAME, tmp_path / "remote.gguf", outtype, write=WriteOptions(threads=1))
    assert (tmp_path / "remote.gguf.partial").exists()
    hub.down_after = None
    before = hub.weight_bytes
    report = convert(NAME, tmp_path / "remote.gguf", outtype, write=WriteOptions(resume=True))
    assert report.resumed_bytes > 1 << 20
    assert hub.weight_bytes - before < (MODEL / "model.safetensors").stat().st_size - (1 << 20)
    convert(MODEL, tmp_path / "local.gguf", outtype)
    assert (tmp_path / "remote.gguf").read_bytes() == (tmp_path / "local.gguf").read_bytes()


def test_another_commit_is_not_gone_on_with(hub, short_blocks, tmp_path):
    hub.down_after = 3 << 20
    with pytest.raises(FileError):
        convert(NAME, tmp_path / "remote.gguf", "f32", write=WriteOptions(threads=1))
    hub.down_after = None
    hub.commit = "2" * 40
    with pytest.raises(FileError, match="hf://jane/austen-4m was changed since") as caught:
        convert(NAME, tmp_path / "remote.gguf", "f32", write=WriteOptions(resume=True))
    assert "without `resume`" in caught.value.hint


def test_a_folder_is_gone_on_with_too(tmp_path):
    convert(MODEL, tmp_path / "once.gguf", "f16")
    convert(MODEL, tmp_path / "again.gguf", "f16", write=WriteOptions(resume=True))
    assert (tmp_path / "once.gguf").read_bytes() == (tmp_path / "again.gguf").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_adapters_need_a_folder(hub, tmp_path):
    with pytest.raises(OptionError, match="an adapter needs its base model in a folder"):
        convert(NAME, tmp_path / "out.gguf", part="lora", options=ConvertOptions(lora=tmp_path))


def test_command_line(hub, tmp_path):
    run = typed("convert", NAME, "-o", str(tmp_path / "out.gguf"))
    assert run.returncode == 0, run.stderr
    run = typed("convert", "hf://jane/lost", "-o", str(tmp_path / "lost.gguf"))
    assert run.returncode == 1
    assert f"hf://jane/lost: there is no such model at {hub.address}" in run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
