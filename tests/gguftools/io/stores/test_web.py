"""GGUF files in repositories of the hub, and at other web addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

import gguftools
from gguftools import convert, quantize
from gguftools.io.stores import block_cache, retries
from gguftools.quantization.options import QuantizeOptions
from quants.errors import FileError

from ....conftest import ROOT
from ...hub_server import Hub, serving

MODEL = ROOT / "examples" / "austen-4m"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A repository of GGUF files: one, and a split set."""
    path = tmp_path_factory.mktemp("gguf")
    convert(MODEL, path / "austen-bf16.gguf")
    (path / "split").mkdir()
    quantize(
        path / "austen-bf16.gguf", "Q8_0", path / "split" / "austen.gguf", options=QuantizeOptions(max_size=2_000_000)
    )
    return path


@pytest.fixture
def hub(monkeypatch, folder):
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(block_cache, "BLOCK", 1 << 19)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    with serving(Hub({"jane/austen": folder})) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        yield served


@pytest.mark.parametrize("revision", ["", "@main", "@refs/pr/1"])
def test_a_file_in_a_repository(hub, folder, tmp_path, revision):
    quantize(f"hf://jane/austen{revision}/austen-bf16.gguf", "Q4_K_M", tmp_path / "a.gguf")
    quantize(folder / "austen-bf16.gguf", "Q4_K_M", tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_a_split_set_in_a_folder_of_a_repository(hub, folder):
    shards = sorted((folder / "split").iterdir())
    assert len(shards) > 1
    with gguftools.open(f"hf://jane/austen/split/{shards[1].name}") as model, gguftools.open(shards[0]) as local:
        assert sorted(model.tensors) == sorted(local.tensors)
        for name, tensor in local.tensors.items():
            assert (model.tensors[name].raw() == tensor.raw()).all(), name


def test_copies_of_what_is_there(hub, folder, tmp_path):
    """Changed, split, merged and patched by range reads; nothing is written there."""
    local, there = folder / "austen-bf16.gguf", ("hf://jane/austen/austen-bf16.gguf", web(hub, "austen-bf16.gguf"))
    gguftools.set_metadata(local, {"general.name": "x"}, output=tmp_path / "local.gguf")
    gguftools.make_patch(local, tmp_path / "local.gguf", tmp_path / "delta.gguf")
    for number, url in enumerate(there):
        gguftools.set_metadata(url, {"general.name": "x"}, output=tmp_path / f"{number}.gguf")
        gguftools.apply_patch(url, tmp_path / "delta.gguf", tmp_path / f"p{number}.gguf")
        gguftools.make_patch(url, tmp_path / "local.gguf", tmp_path / f"d{number}.gguf")
        assert (tmp_path / f"{number}.gguf").read_bytes() == (tmp_path / "local.gguf").read_bytes()
        assert (tmp_path / f"p{number}.gguf").read_bytes() == (tmp_path / "local.gguf").read_bytes()
        assert (tmp_path / f"d{number}.gguf").read_bytes() == (tmp_path / "delta.gguf").read_bytes()
    shards = sorted((folder / "split").iterdir())
    gguftools.merge(shards[0], tmp_path / "whole.gguf")
    gguftools.merge(f"hf://jane/austen/split/{shards[1].name}", tmp_path / "merged.gguf")
    assert (tmp_path / "merged.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    for url in there:
        with pytest.raises(FileError, match=r"nothing is written to h[a-z]+:// addresses"):
            gguftools.set_metadata(url, {"general.name": "x"})
        with pytest.raises(FileError, match=r"nothing is written to h[a-z]+:// addresses"):
            gguftools.split(url)


def test_the_token_goes_to_the_hub_alone(hub, folder):
    hub.gated = True
    hub.cdn = hub.address.replace("127.0.0.1", "localhost")
    with gguftools.open("hf://jane/austen/austen-bf16.gguf") as model:
        assert model.architecture == "llama"
    assert hub.tokens
    assert set(hub.tokens) == {""}


@pytest.mark.parametrize("name", ["absent.gguf", "split.gguf", "split/absent.gguf"])
def test_a_file_that_is_not_there(hub, name):
    with pytest.raises(FileError, match=rf"hf://jane/austen has no file {name}"):
        gguftools.open(f"hf://jane/austen/{name}")


def web(hub: Hub, name: str) -> str:
    return f"{hub.address}/cdn/jane/austen/{name}"


def test_a_web_address(hub, folder, tmp_path):
    hub.breaks, hub.busy = [300_000, 70_000], [503]
    quantize(web(hub, "austen-bf16.gguf"), "Q8_0", tmp_path / "a.gguf")
    quantize(folder / "austen-bf16.gguf", "Q8_0", tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert set(hub.tokens) == {""}  # HF_TOKEN is not for others


def test_a_user_and_a_password_go_along_and_are_not_shown(hub):
    address = web(hub, "austen-bf16.gguf").replace("http://", "http://jane:sesame@")
    with gguftools.open(address) as model:
        assert str(model.path) == web(hub, "austen-bf16.gguf")
    assert set(hub.tokens) == {"Basic amFuZTpzZXNhbWU="}


def test_a_server_without_ranges_is_refused(hub):
    hub.ignores_ranges = True
    with pytest.raises(FileError, match=r"sends the whole of austen-bf16\.gguf where a part of it is asked for"):
        gguftools.open(web(hub, "austen-bf16.gguf"))


def test_addresses_of_other_things(hub, tmp_path):
    with pytest.raises(FileError, match="web servers do not list folders"):
        convert("https://example.org/model", tmp_path / "x.gguf")
    with pytest.raises(FileError, match="web servers do not list folders") as caught:
        convert("https://huggingface.co/org/model", tmp_path / "x.gguf")
    assert "hf://org/model" in caught.value.hint
