"""Conversion of a trained model against what the reference's converter writes, and of checkpoints that are wrong."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools.conversion.convert import convert
from quants.errors import GgufToolsError

from ...conftest import DATA, ROOT
from ..calls import options_of

MODEL = ROOT / "examples" / "austen-4m"
GOLDEN = json.loads((DATA / "golden" / "austen-4m.json").read_text(encoding="utf-8"))["convert"]


def plain(value):
    """An array as the golden file keeps it: long ones by length and hash."""
    if isinstance(value, (str, bool, int, float)):
        return value
    items = value.tolist() if hasattr(value, "tolist") else list(value)
    if len(items) <= 16:
        return items
    text = json.dumps(items, ensure_ascii=False, separators=(",", ":"))
    return {"length": len(items), "sha256": hashlib.sha256(text.encode()).hexdigest()}


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_whole_file_is_the_references(outtype, tmp_path):
    convert(MODEL, tmp_path / "model.gguf", outtype)
    golden = GOLDEN[outtype]
    opened = gguftools.open(tmp_path / "model.gguf")
    for name, (form, shape, digest) in golden["tensors"].items():
        tensor = opened.tensors[name]
        assert (tensor.format.name, list(tensor.shape)) == (form, shape)
        assert hashlib.sha256(tensor.raw().tobytes()).hexdigest() == digest, name
    for key, expected in golden["metadata"].items():
        value = opened.metadata.value(key)
        kind = value.type.name + (f"/{value.element.name}" if value.element is not None else "")
        assert (kind, plain(opened.metadata[key])) == (expected["type"], expected["value"]), key
    assert hashlib.sha256((tmp_path / "model.gguf").read_bytes()).hexdigest() == golden["file_sha256"]


def test_outtype_follows_the_checkpoint(tmp_path):
    report = convert(MODEL, tmp_path)
    assert report.outputs[0].file == tmp_path / "austen-4m-BF16.gguf"
    assert report.outputs[0].recipe == "BF16"


def test_straight_to_a_recipe_gives_the_bytes_of_two_steps(tmp_path):
    convert(MODEL, tmp_path / "direct.gguf", "Q4_K_M")
    convert(MODEL, tmp_path / "f32.gguf", "f32")
    gguftools.quantize(tmp_path / "f32.gguf", "Q4_K_M", tmp_path / "steps.gguf")
    direct, steps = gguftools.open(tmp_path / "direct.gguf"), gguftools.open(tmp_path / "steps.gguf")
    assert list(direct.tensors) == list(steps.tensors)
    for name, tensor in direct.tensors.items():
        assert np.array_equal(tensor.raw(), steps.tensors[name].raw()), name


@pytest.fixture
def broken(tmp_path) -> Path:
    """A copy of the model to spoil."""
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def refusal(folder: Path, **options) -> str:
    """The one line that a failed conversion says; nothing may be left under a final name."""
    target = folder.parent / "out.gguf"
    with pytest.raises(GgufToolsError) as caught:
        convert(folder, target, **options_of("convert", **options))
    assert not target.exists()
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]
    assert "\n" not in str(caught.value)
    return f"{caught.value} {caught.value.hint or ''}"


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def weights(folder: Path) -> tuple[dict, bytes]:
    raw = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def write_weights(folder: Path, header: dict, data: bytes) -> None:
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_missing_config(broken):
    (broken / "config.json").unlink()
    assert "config.json" in refusal(broken)


def test_unknown_class_suggests_the_nearest(broken):
    edit_config(broken, architectures=["LlamaForCasualLM"])
    message = refusal(broken)
    assert "LlamaForCasualLM" in message
    assert "LlamaForCausalLM" in message


def test_truncated_weights(broken):
    path = broken / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors" in refusal(broken)


def test_weights_that_are_cut_short_while_they_are_read(broken):
    def cut(done, total, what):
        os.truncate(broken / "model.safetensors", 100_000)

    message = refusal(broken, progress=cut, memory=1 << 16)
    assert re.search(r"model\.safetensors ends at byte \d+: it was cut short while it was read", message)


@pytest.mark.parametrize("recipe", ["bf16", "Q4_K_M"])
def test_weights_on_a_disk_that_fails(broken, monkeypatch, recipe):
    real, size = os.preadv, (broken / "model.safetensors").stat().st_size

    def failing(fd, buffers, offset):
        if os.fstat(fd).st_size == size and offset > size // 2:
            raise OSError(5, os.strerror(5))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(GgufToolsError, match=r"model\.safetensors: [\w.]+ cannot be read: Input/output error"):
        convert(broken, broken.parent / "out.gguf", recipe)
    assert not (broken.parent / "out.gguf").exists()


def test_index_names_an_absent_shard(broken):
    header, _ = weights(broken)
    (broken / "model.safetensors").rename(broken / "model-00001-of-00002.safetensors")
    names = {name: "model-00002-of-00002.safetensors" for name in header if name != "__metadata__"}
    (broken / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    assert "model-00002-of-00002.safetensors" in refusal(broken)


def test_tensor_of_the_wrong_shape(broken):
    header, data = weights(broken)
    header["model.layers.1.self_attn.q_proj.weight"]["shape"] = [128, 512]
    write_weights(broken, header, data)
    message = refusal(broken)
    assert "model.layers.1.self_attn.q_proj.weight" in message
    assert "[128, 512]" in message


def test_nan_is_named_with_its_place(broken):
    header, data = weights(broken)
    begin = header["model.layers.2.mlp.up_proj.weight"]["data_offsets"][0]
    spot = begin + 2 * (5 * 256 + 7)
    write_weights(broken, header, data[:spot] + b"\xc0\x7f" + data[spot + 2 :])
    message = refusal(broken)
    assert "blk.2.ffn_up.weight" in message
    assert "row 5, column 7" in message
    assert "NaN" in message


def test_tensor_without_a_rule_is_named(broken):
    header, data = weights(broken)
    header["model.layers.0.self_attn.surprise.weight"] = header.pop("model.layers.0.self_attn.q_proj.weight")
    write_weights(broken, header, data)
    assert "model.layers.0.self_attn.surprise.weight" in refusal(broken)


def test_missing_tensor_is_named(broken):
    header, data = weights(broken)
    begin, end = header.pop("model.layers.3.mlp.up_proj.weight")["data_offsets"]
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [offset - (end - begin) for offset in entry["data_offsets"]]
    write_weights(broken, header, data[:begin] + data[end:])
    message = refusal(broken)
    assert "layer 3" in message
    assert "ffn_up.weight" in message


def test_unknown_recipe_suggests_the_nearest(broken):
    assert "Q4_K_M" in refusal(broken, outtype="Q4_KM")


def test_missing_output_folder(tmp_path):
    with pytest.raises(GgufToolsError, match="nowhere"):
        convert(MODEL, tmp_path / "nowhere" / "out.gguf")
    assert not list(tmp_path.iterdir())
