"""Opening checkpoint folders: order, shards, and what is said about a folder that is not one."""

import json
import shutil
import struct

import numpy as np
import pytest

from gguftools.io.checkpoint.folder import open_checkpoint
from quants.errors import FileError

from ....conftest import DATA, ROOT
from ....zoo_build import build

TORCH = DATA / "torch"


def weights(path, *names):
    places = [[8 * i, 8 * i + 8] for i in range(len(names))]
    header = {name: {"dtype": "F32", "shape": [1, 2], "data_offsets": p} for name, p in zip(names, places, strict=True)}
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + np.arange(2 * len(names), dtype=np.float32).tobytes())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


def shards(folder, parts, weight_map=None):
    files = [f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors" for i in range(len(parts))]
    for file, names in zip(files, parts, strict=True):
        weights(folder / file, *names)
    if weight_map is None:
        weight_map = {name: file for file, names in zip(files, parts, strict=True) for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return [folder / file for file in files]


def refused(folder, message):
    with pytest.raises(FileError) as caught:
        open_checkpoint(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value.hint or ""


def test_one_file(folder):
    weights(folder / "model.safetensors", "b.10", "b.2", "a")
    weights(folder / "consolidated.safetensors", "other")
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    opened = open_checkpoint(folder)
    assert list(opened.tensors) == ["a", "b.10", "b.2"]
    assert opened.config == {"model_type": "llama"}
    assert opened.generation_config == {"eos_token_id": 2}
    assert opened.files == [folder / "model.safetensors"]


def test_shards(folder):
    paths = shards(folder, [["z", "b"], ["a"]])
    opened = open_checkpoint(folder)
    assert list(opened.tensors) == ["b", "z", "a"]
    assert opened.files == paths
    assert opened.generation_config is None
    assert opened.tensors["a"].origin == f"{paths[1].name}: a"
    (folder / "model.safetensors.index.json").unlink()
    assert list(open_checkpoint(folder).tensors) == ["b", "z", "a"]


def test_pickles(folder):
    shutil.copy(TORCH / "tensors.bin", folder / "pytorch_model.bin")
    assert list(open_checkpoint(folder).tensors)[:2] == ["rows", "transposed"]
    (folder / "pytorch_model.bin").rename(folder / "pytorch_model-00001-of-00001.bin")
    assert len(open_checkpoint(folder).tensors) == 13
    index = {"weight_map": {"rows": "pytorch_model-00001-of-00001.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert open_checkpoint(folder).files == [folder / "pytorch_model-00001-of-00001.bin"]
    weights(folder / "model.safetensors", "preferred")
    assert list(open_checkpoint(folder).tensors) == ["preferred"]


def test_what_is_not_a_checkpoint(tmp_path):
    refused(tmp_path / "absent", "there is no folder")
    assert "download" in refused(tmp_path, "is empty")
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"GGUF" + bytes(20))
    assert "quantize" in refused(gguf, "m.gguf is a GGUF file; a checkpoint folder was expected")
    assert "GGUF files in it" in refused(tmp_path, "has no config.json")
    (tmp_path / "params.json").write_text("{}")
    gguf.unlink()
    assert "Hugging Face version" in refused(tmp_path, "has no config.json")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "adapter" in refused(tmp_path, "has no config.json")
    (tmp_path / "notes.txt").write_text("x")
    refused(tmp_path / "notes.txt", "notes.txt is a file; a checkpoint folder was expected")


@pytest.mark.parametrize(
    ("config", "message"),
    [("{", "is not valid JSON"), ("[1]", "holds list, not a JSON object"), ("\udcff", "is not valid JSON")],
)
def test_broken_config(folder, config, message):
    (folder / "config.json").write_bytes(config.encode("utf-8", "surrogateescape"))
    refused(folder, message)


def test_no_weights(folder):
    assert "weights" in refused(folder, "has no weights: neither model*.safetensors nor pytorch_model*.bin")


def test_index_and_shards_disagree(folder):
    paths = shards(folder, [["a"], ["b"]])
    paths[1].unlink()
    refused(folder, "names 2 files, 1 of which are not there: model-00002-of-00002.safetensors")
    (folder / "model.safetensors.index.json").unlink()
    refused(folder, "is one of 2 files, 1 of which are not there: model-00002-of-00002.safetensors")
    shards(folder, [["a", "c"], ["a", "b"]])
    refused(folder, "tensor 'a' is in two files: model-00001-of-00002.safetensors: a and model-00002")
    first = "model-00001-of-00002.safetensors"
    shards(folder, [["a"], ["b"]], {"a": first, "c": first, "b": "model-00002-of-00002.safetensors"})
    refused(folder, f"the index puts tensor 'c' in {first}, which does not have it")


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "", "..", "a\\b", 3, "a/../b", "x\0y"])
def test_index_leads_nowhere_else(folder, name):
    shards(folder, [["a"]], {"a": name})
    refused(folder, f"puts tensor 'a' in {name!r}, which is no name of a file in its folder")


def test_index_without_a_map(folder):
    for content in ("{}", '{"weight_map": []}', '{"weight_map": {}}'):
        (folder / "model.safetensors.index.json").write_text(content)
        refused(folder, "has no weight_map")


def test_truncated_shard(folder):
    paths = shards(folder, [["a", "b"], ["c"]])
    whole = paths[0].read_bytes()
    paths[0].write_bytes(whole[:-3])
    refused(folder, f"{paths[0]} is cut short: its header needs {len(whole)} bytes, the file has {len(whole) - 3}")


def test_order_is_the_reference_converter_s(shared):
    """Names map one to one, so the order of the converter's tensors shows the order it reads them in."""
    recorded = json.loads((shared / "golden" / "austen-4m.json").read_text())["convert"]["f32"]["tensors"]
    renamed = {
        "lm_head.weight": "output.weight",
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    parts = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.down_proj": "ffn_down",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
    }
    ours = []
    for name in open_checkpoint(ROOT / "examples" / "austen-4m").tensors:
        if name not in renamed:
            _, _, layer, part = name.removesuffix(".weight").split(".", 3)
            renamed[name] = f"blk.{layer}.{parts[part]}.weight"
        ours.append(renamed[name])
    assert ours == list(recorded)


@pytest.mark.parametrize("entry", ["llama-linear-sharded", "llama-nottied-f32-bin", "gpt-oss-mxfp4"])
def test_zoo(shared, tmp_path, entry):
    build(shared / "zoo", entry, tmp_path / entry)
    opened = open_checkpoint(tmp_path / entry)
    specified = {t["name"]: t for t in json.loads((shared / "zoo" / entry / "spec.json").read_text())["tensors"]}
    assert set(opened.tensors) == set(specified)
    for name, tensor in opened.tensors.items():
        assert list(tensor.shape) == specified[name]["shape"]
        assert tensor.format.name == specified[name]["dtype"]
        assert np.isfinite(tensor.float32()).all()
