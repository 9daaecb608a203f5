"""Repositories on a server that behaves, or doesn't: what is read, what is said when it can't be."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from gguftools.io.checkpoint import remote
from gguftools.io.checkpoint.folder import open_checkpoint
from gguftools.io.checkpoint.remote import open_remote
from gguftools.io.stores import retries
from quants.errors import FileError

from ....conftest import ROOT
from ...hub_server import COMMIT, Hub, serving

MODEL = ROOT / "examples" / "austen-4m"
NAME = "hf://jane/austen-4m"


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.01)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with serving(Hub({"jane/austen-4m": MODEL})) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        yield served


def read_all(name: str = NAME) -> dict[str, np.ndarray]:
    with open_remote(name) as checkpoint:
        pass
    assert not checkpoint.folder.exists()
    return {tensor: found.raw() for tensor, found in checkpoint.tensors.items()}


def assert_same(found: dict[str, np.ndarray], folder: Path = MODEL) -> None:
    local = open_checkpoint(folder).tensors
    assert list(found) == list(local)
    for name, raw in found.items():
        assert np.array_equal(raw, local[name].raw()), name


def refusal(name: str = NAME) -> tuple[str, str]:
    with pytest.raises(FileError) as caught, open_remote(name):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value), caught.value.hint or ""


def test_values_are_the_folders_and_travel_once(hub):
    found = read_all()
    assert_same(found)
    size = (MODEL / "model.safetensors").stat().st_size
    assert hub.weight_bytes <= size + remote.FIRST_READ


def test_small_files_and_names(hub):
    with open_remote(f"{NAME}@refs/pr/1") as checkpoint:
        assert checkpoint.remote == (f"{NAME}@refs/pr/1", COMMIT)
        assert checkpoint.folder.parts[-2:] == ("jane", "austen-4m")
        assert checkpoint.config == open_checkpoint(MODEL).config
        assert (checkpoint.folder / "tokenizer.json").read_bytes() == (MODEL / "tokenizer.json").read_bytes()
        assert (checkpoint.folder / "model.safetensors").stat().st_size == 0
    assert checkpoint.files == []


def test_chat_templates_of_a_folder_are_fetched(hub, tmp_path):
    folder = Path(shutil.copytree(MODEL, tmp_path / "model"))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("{{ messages }}")
    (folder / "empty.txt").touch()
    hub.repositories["jane/austen-4m"] = folder
    with open_remote(NAME) as checkpoint:
        assert (checkpoint.folder / "additional_chat_templates" / "rag.jinja").read_text() == "{{ messages }}"


def test_a_long_header_is_fetched_whole(hub, monkeypatch):
    monkeypatch.setattr(remote, "FIRST_READ", 100)
    assert_same(read_all())


def test_broken_connections_go_on_where_they_broke(hub):
    hub.breaks = [1000, 0, 70_000, 5, 300_000, 0, 0, 0, 1]
    assert_same(read_all())
    assert not hub.breaks
    size = (MODEL / "model.safetensors").stat().st_size
    assert hub.weight_bytes <= size + remote.FIRST_READ + 9 * (1 << 14)  # what a client had not handed on yet


def test_a_busy_server_is_asked_again(hub):
    hub.busy = [429, 503, 500, 502]
    assert_same(read_all())
    assert not hub.busy


def test_a_dead_server_is_given_up(hub, monkeypatch):
    monkeypatch.setattr(retries, "TRIES", 3)
    hub.down_after = 2 << 20
    with pytest.raises(FileError, match=r"model.safetensors cannot be read on from byte \d+: .") as caught:
        read_all()
    assert "`resume`" in caught.value.hint
    assert isinstance(caught.value.__cause__, OSError)


def test_no_such_model(hub):
    message, hint = refusal("hf://jane/austen-5m")
    assert message == f"hf://jane/austen-5m: there is no such model at {hub.address}, or it is private"
    assert "HF_TOKEN" in hint


def test_no_such_model_with_a_token(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert "there is no such model" in refusal("hf://jane/austen-5m")[0]


def test_no_such_revision(hub):
    message, hint = refusal(f"{NAME}@v2")
    assert message == f"{NAME}@v2: jane/austen-4m has no such revision"
    assert "branch" in hint


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("hf_wrong", 403)])
def test_gated(hub, monkeypatch, token, status):
    hub.gated = True
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    message, hint = refusal()
    assert message == f"{NAME} may not be read: {hub.address} answers with status {status}"
    assert hint == f"accept the terms at {hub.address}/jane/austen-4m, then run `hf auth login` or set HF_TOKEN"


def test_gated_with_the_right_token(hub, monkeypatch):
    hub.gated = True
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert_same(read_all())


def test_no_network(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    message, hint = refusal()
    assert message.startswith(f"{NAME}: http://127.0.0.1:9 cannot be reached: ")
    assert "HF_ENDPOINT" in hint


@pytest.mark.parametrize("name", ["hf://gpt2", "hf://jane/austen-4m/onnx"])
def test_not_a_name(hub, name):
    message, hint = refusal(name)
    assert message == f"{name} does not name a model"
    assert hint == "write hf://ORG/MODEL, or hf://ORG/MODEL@REVISION"
    assert not hub.requests


def test_a_name_that_the_hub_forbids(hub):
    assert refusal("hf://jane/austen..4m")[0].startswith("hf://jane/austen..4m does not name a model: ")


def test_pickles_are_refused(hub, tmp_path):
    folder = Path(shutil.copytree(MODEL, tmp_path / "model"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    hub.repositories["jane/austen-4m"] = folder
    message, hint = refusal()
    assert message == f"{NAME}/pytorch_model.bin is a pickle, which can't be read in parts"
    assert "gguftools fetch jane/austen-4m" in hint


def test_problems_of_the_folder_name_the_repository(hub, tmp_path):
    folder = Path(shutil.copytree(MODEL, tmp_path / "model"))
    (folder / "config.json").unlink()
    hub.repositories["jane/austen-4m"] = folder
    assert refusal()[0] == f"{NAME} has no config.json"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" * 9, b"\xff\xff\0\0\0\0\0\0{}"])
def test_weights_that_are_none(hub, tmp_path, content):
    folder = Path(shutil.copytree(MODEL, tmp_path / "model"))
    (folder / "model.safetensors").write_bytes(content)
    hub.repositories["jane/austen-4m"] = folder
    assert refusal()[0].startswith(f"{NAME}/model.safetensors is ")


def test_a_server_that_knows_no_ranges(hub):
    hub.ignores_ranges = True
    with pytest.raises(FileError, match=r"sends the whole of model\.safetensors where a part of it is asked for"):
        read_all()
