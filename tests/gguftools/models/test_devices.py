"""What is said of devices that cannot be used, without torch and with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import gguftools
from gguftools.models.devices import DeviceOptions, torch_device_for
from quants.errors import OptionError

from ..command_line import EXAMPLE, refused, typed


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("devices")
    gguftools.convert(EXAMPLE, folder / "austen.gguf", "f32")
    model = gguftools.open(folder / "austen.gguf")
    model.chat_template = "{% for each in messages %}{{ each.content }}\n{% endfor %}"
    model.save(folder / "chat.gguf")
    return folder / "chat.gguf"


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("runtime.device")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)


def test_torch_is_not_needed_without_a_device(path: Path, no_torch: None) -> None:
    model = gguftools.open(path)
    assert torch_device_for(None) is None
    assert len(model.embed("a text", pooling="mean").vectors)
    assert list(model.generate("It is", max_tokens=2, temperature=0))


@pytest.mark.parametrize("command", ["generate", "chat", "embed", "evaluate"])
def test_without_torch(command: str, path: Path, no_torch: None) -> None:
    tasks = path.with_name("tasks.txt")
    tasks.write_text("She\n0\nwent to Bath\nrained\nwas\nmarried a man of fortune\n")
    own = {"generate": ["-p", "x"], "embed": ["-p", "x"], "evaluate": ["--hellaswag", tasks], "chat": []}
    done = typed(command, path, *own[command], "--device", "cuda")
    refused(done, "device 'cuda' needs torch, which is not installed", 'pip install "gguftools[device]"')


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "", 3])
def test_names_that_are_none(name: object, path: Path) -> None:
    with pytest.raises(OptionError, match="auto, cpu, cuda"):
        DeviceOptions(name)  # type: ignore[arg-type]
    with pytest.raises(OptionError):
        gguftools.open(path).generate("x", device=name)
