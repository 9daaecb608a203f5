"""Out of GGUF and back: tensors, and whole checkpoints of every architecture."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from archs.plans.export.generation import generation_config
from gguftools.conversion import export as exporting
from gguftools.conversion.convert import convert
from gguftools.conversion.export import _Writing, export
from gguftools.conversion.options import ConvertOptions
from gguftools.conversion.quantize import quantize
from gguftools.inspection.compare import diff
from gguftools.io.checkpoint.folder import open_checkpoint
from gguftools.io.checkpoint.safetensors import plan_safetensors
from gguftools.metadata.difference import compare_metadata
from gguftools.models.model import open as open_file
from gguftools.writing.options import WriteOptions
from quants.errors import FileError, ModelError, OptionError

from ...archs import checkpoints
from ...conftest import ROOT, SHARED
from ...zoo_build import build
from ..command_line import typed
from ..tiny_models import edited, metadata_of, write_model

CHECKPOINT = ROOT / "examples" / "austen-4m"
ENTRIES = sorted(path.parent.name for path in SHARED.glob("zoo/*/spec.json"))
# What a file does not hold: the classifier's pooler, masks.
NOT_IN_FILES = ("pooler.", ".attn.bias", ".attn.masked_bias")
# Values that a file holds after arithmetic that loses something; a conversion gives the same file again all the same.
APPROXIMATE = {
    "falcon-h1": "",
    "gemma": "norm",
    "gemma-sparse-config": "norm",
    "gemma2": "norm",
    "gemma2-scalar": "norm",
    "gemma3": "norm",
    "gemma3-linear": "norm",
    "gemma3-pattern2": "norm",
    "nemotron": "norm",
    "falcon-mamba": "A_log",
    "mamba": "A_log",
    "mamba2": "A_log",
    "jamba": "A_log",
    "granite-hybrid": "A_log",
    "nemotron-h": "A_log",
    "opt-125m": "embed_positions",
    "opt-galactica-style": "embed_positions",
    "opt-350m": "embed_positions",
    "roberta": "position_embeddings",
}
OTHER_TYPE = ("falcon-h1", "gpt-oss-mxfp4")  # weights that were scaled in float32; blocks that become floats


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("export") / "model.gguf"
    convert(CHECKPOINT, path, "f16")
    return path


@pytest.mark.parametrize("entry", ENTRIES)
def test_there_and_back(entry, shared, tmp_path):
    build(shared / "zoo", entry, tmp_path / entry)
    pre = json.loads((shared / "zoo" / entry / "spec.json").read_text()).get("tokenizer_pre")
    convert(tmp_path / entry, tmp_path / "first.gguf", options=ConvertOptions(pre=pre))
    done = export(tmp_path / "first.gguf", tmp_path / "back")
    assert not done.differing
    convert(tmp_path / "back", tmp_path / "second.gguf", options=ConvertOptions(pre=pre))
    changed = [tensor.kind for tensor in diff(tmp_path / "first.gguf", tmp_path / "second.gguf").different_tensors]
    assert set(changed) <= ({"rounded", "type"} if entry in OTHER_TYPE else set())
    check_values(entry, open_checkpoint(tmp_path / entry).tensors, open_checkpoint(tmp_path / "back").tensors)


def check_values(entry, source, back):
    """Tensor by tensor the source's values, under the source's names (but for the oldest spellings)."""
    absent = [name for name in source if name not in back and not name.endswith(("_blocks", "_scales"))]
    absent = [name for name in absent if not any(part in name for part in NOT_IN_FILES)]
    if entry not in ("gpt2", "opt-350m"):  # names as they are today: with a wrapper in front
        assert not [name for name in absent if "lm_head" not in name]
    for name in source.keys() & back.keys():
        approximate = entry in APPROXIMATE and APPROXIMATE[entry] in name
        ours, theirs = back[name].float32(), source[name].float32()
        if entry == "falcon-h1" or "embed_positions" in name or "position_embeddings" in name:
            continue  # multipliers are in the weights; rows that nothing reads are zero
        assert ours.shape == theirs.shape, name
        assert np.allclose(ours, theirs, atol=1e-6) if approximate else np.array_equal(ours, theirs), name


def test_chameleons_config_has_its_tokens(tmp_path):
    """Without them its class is not even made; which tokens are images it finds by their names."""
    checkpoints.build("chameleon", tmp_path / "chameleon")
    convert(tmp_path / "chameleon", tmp_path / "m.gguf")
    export(tmp_path / "m.gguf", tmp_path / "back")
    named = json.loads((tmp_path / "back" / "config.json").read_text())["vocabulary_map"]
    assert list(named) == open_file(tmp_path / "m.gguf").metadata["tokenizer.ggml.tokens"]
    assert list(named.values()) == list(range(len(named)))


def test_what_generation_goes_by_comes_back(tmp_path):
    """All ends of a text, barred tokens and advice on sampling: as transformers' own generation obeys them."""
    from transformers import GenerationConfig

    from runtime.tokenizer import tokenizer_from_metadata

    shutil.copytree(CHECKPOINT, tmp_path / "source")
    said = {
        "bos_token_id": 2044,
        "eos_token_id": [401, 403, 2045, 17, 18],
        "bad_words_ids": [[7], [8, 9]],
        "suppress_tokens": [5],
        "temperature": 0.5,
        "top_k": 20,
        "do_sample": True,
    }
    (tmp_path / "source" / "generation_config.json").write_text(json.dumps(said))
    convert(tmp_path / "source", tmp_path / "m.gguf")
    metadata = open_file(tmp_path / "m.gguf").metadata
    assert {401, 403, 2045, 17, 18} <= {*tokenizer_from_metadata(metadata).end_ids}
    assert metadata["tokenizer.ggml.suppress_tokens"].tolist() == [5, 7]
    export(tmp_path / "m.gguf", tmp_path / "back")
    found = GenerationConfig.from_pretrained(tmp_path / "back")
    assert found.eos_token_id == said["eos_token_id"]
    assert (found.bos_token_id, found.suppress_tokens, found.temperature, found.top_k) == (2044, [5, 7], 0.5, 20)
    assert found.do_sample
    named = json.loads((tmp_path / "back" / "special_tokens_map.json").read_text())
    assert named == json.loads((CHECKPOINT / "special_tokens_map.json").read_text())
    convert(tmp_path / "back", tmp_path / "again.gguf")
    differing = [each.key for each in compare_metadata(metadata, open_file(tmp_path / "again.gguf").metadata)]
    assert not [key for key in differing if key.startswith(("tokenizer.", "general.sampling."))]


def test_encoders_have_no_generation_config():
    assert generation_config({"architectures": ["BertModel"], "pad_token_id": 0}, {}) == {}
    seq2seq = {"architectures": ["T5ForConditionalGeneration"], "decoder_start_token_id": 0, "eos_token_id": 1}
    assert generation_config(seq2seq, {}) == {"eos_token_id": 1, "decoder_start_token_id": 0}


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16"])
def test_whole_file_comes_back(outtype, tmp_path):
    convert(CHECKPOINT, tmp_path / "first.gguf", outtype)
    export(tmp_path / "first.gguf", tmp_path / "austen-4m")
    convert(tmp_path / "austen-4m", tmp_path / "second.gguf", outtype)
    found = diff(tmp_path / "first.gguf", tmp_path / "second.gguf")
    assert not found.different_tensors
    assert all(key.key.startswith("general.") for key in found.keys)  # from the model card, which is not written


def test_transformers_reads_it(model, tmp_path):
    transformers = pytest.importorskip("transformers")
    export(model, tmp_path / "back")
    ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    theirs = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    text = "It is a truth universally acknowledged,\n that… 123"
    assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    chat = [{"role": "user", "content": "Hello"}]
    assert ours.apply_chat_template(chat, tokenize=False) == theirs.apply_chat_template(chat, tokenize=False)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "back")
    wanted = transformers.AutoConfig.from_pretrained(CHECKPOINT)
    for key in ("model_type", "hidden_size", "num_hidden_layers", "num_key_value_heads", "vocab_size", "rms_norm_eps"):
        assert getattr(config, key) == getattr(wanted, key)


def test_quantized_files_are_decoded(model, tmp_path):
    quantize(model, "Q4_K_M", tmp_path / "q4.gguf")
    export(tmp_path / "q4.gguf", tmp_path / "back", outtype="BF16")
    back = open_checkpoint(tmp_path / "back").tensors["model.layers.1.mlp.up_proj.weight"]
    assert back.format.name == "BF16"
    values = open_file(tmp_path / "q4.gguf").tensors["blk.1.ffn_up.weight"].float32()
    assert np.allclose(back.float32(), values, rtol=2**-8)


def test_shards_with_an_index(model, tmp_path):
    done = export(model, tmp_path / "back", max_size=2_000_000)
    assert len([name for name in done.files if name.endswith(".safetensors")]) > 3
    convert(tmp_path / "back", tmp_path / "second.gguf", "f16")
    assert not diff(model, tmp_path / "second.gguf").different_tensors


def test_safetensors(model, tmp_path):
    done = export(model, tmp_path / "all.safetensors")
    found = load_file(tmp_path / "all.safetensors")
    tensors = open_file(model).tensors
    assert done.tensors == len(found) == len(tensors)
    for name, values in found.items():
        assert values.dtype == tensors[name].format.elements
        assert np.array_equal(values, tensors[name].float32()), name


def test_what_the_library_refuses_gets_no_name(model, tmp_path, monkeypatch):
    def with_a_gap(*planned):
        header = plan_safetensors(*planned)
        return header.replace(b'"data_offsets":[0,', b'"data_offsets":[1,', 1)

    monkeypatch.setattr(exporting, "plan_safetensors", with_a_gap)
    with pytest.raises(FileError, match="would be refused by the safetensors library"):
        export(model, tmp_path / "t.safetensors", tensors="norm")
    with pytest.raises(FileError, match="would be refused by the safetensors library"):
        export(model, tmp_path / "folder")
    assert not list(tmp_path.iterdir())


def test_some_tensors(model, tmp_path):
    export(model, tmp_path / "some.safetensors", tensors=r"blk\.0\.attn_[qk]", outtype="F32")
    found = load_file(tmp_path / "some.safetensors")
    assert set(found) == {"blk.0.attn_q.weight", "blk.0.attn_k.weight"}
    assert {values.dtype for values in found.values()} == {np.dtype(np.float32)}
    with pytest.raises(OptionError, match="no tensor"):
        export(model, tmp_path / "none.safetensors", tensors="nothing")


def test_npy(model, tmp_path):
    tensors = open_file(model).tensors
    export(model, tmp_path / "one.npy", tensors=r"blk\.2\.ffn_down")
    assert np.array_equal(np.load(tmp_path / "one.npy"), tensors["blk.2.ffn_down.weight"].float32())
    (tmp_path / "many").mkdir()
    export(model, tmp_path / "many", tensors="norm")
    assert np.array_equal(np.load(tmp_path / "many/output_norm.weight.npy"), tensors["output_norm.weight"].float32())
    with pytest.raises(OptionError, match="one tensor"):
        export(model, tmp_path / "two.npy", tensors="norm")


def test_blocks_are_decoded(model, tmp_path):
    quantize(model, "Q4_K_M", tmp_path / "q4.gguf")
    export(tmp_path / "q4.gguf", tmp_path / "one.npy", tensors=r"blk\.2\.ffn_up")
    wanted = open_file(tmp_path / "q4.gguf").tensors["blk.2.ffn_up.weight"].float32()
    assert np.array_equal(np.load(tmp_path / "one.npy"), wanted)


def test_nothing_is_overwritten_unasked(model, tmp_path):
    (tmp_path / "x.safetensors").write_text("mine")
    with pytest.raises(FileError, match="exists"):
        export(model, tmp_path / "x.safetensors")
    export(model, tmp_path / "x.safetensors", write=WriteOptions(overwrite=True))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("mine")
    with pytest.raises(FileError, match="exists"):
        export(model, tmp_path / "folder")
    assert (tmp_path / "folder" / "config.json").read_text() == "mine"


def test_a_checkpoint_replaces_another_whole_and_at_last(model, tmp_path, monkeypatch):
    """In parts of other names; what is no part of a checkpoint stays, and nothing is lost to an interruption."""
    folder = tmp_path / "folder"
    export(model, folder)
    (folder / "README.md").write_text("mine")
    (folder / "chat_template.jinja").write_text("another's")
    (folder / "config.json").write_text("another's")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def stop(self, path, named):
        assert {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()} == before
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_Writing, "safetensors", stop)
        with pytest.raises(KeyboardInterrupt):
            export(model, folder, write=WriteOptions(overwrite=True))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    report = export(model, folder, max_size=50_000, write=WriteOptions(overwrite=True))
    assert {path.name for path in folder.iterdir()} == {*report.files, "README.md"}
    assert "model.safetensors" in before
    assert "model.safetensors" not in report.files


def test_a_checkpoint_is_not_replaced_by_itself(tmp_path):
    before = {path.name: path.read_bytes() for path in CHECKPOINT.iterdir()}
    shutil.copytree(CHECKPOINT, tmp_path / "folder")
    with pytest.raises(OptionError, match="is read"):
        export(tmp_path / "folder", tmp_path / "folder", write=WriteOptions(overwrite=True))
    assert {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()} == before


def test_what_cannot_become_a_checkpoint(model, tmp_path):
    unknown = metadata_of({"general.architecture": "none"})
    strange = write_model(tmp_path / "a.gguf", unknown, {"w.weight": np.ones((2, 32))})
    with pytest.raises(ModelError, match="'none'"):
        export(strange, tmp_path / "a")
    more = edited(model, tmp_path / "b.gguf", {}, {"surprise.weight": np.ones((2, 32))})
    with pytest.raises(ModelError, match="surprise"):
        export(more, tmp_path / "b")
    less = edited(model, tmp_path / "c.gguf", {}, {"blk.1.attn_k.weight": None})
    with pytest.raises(ModelError):
        export(less, tmp_path / "c")
    hostile = edited(model, tmp_path / "d.gguf", {}, {"../up.weight": np.ones((2, 32))})
    (tmp_path / "d").mkdir()
    with pytest.raises(FileError, match="file its name"):
        export(hostile, tmp_path / "d", tensors="up")


def test_command_line(model, tmp_path):
    def run(*arguments):
        return typed("export", *map(str, arguments))

    done = run(model, "-o", tmp_path / "back")
    assert done.returncode == 0
    assert "LlamaForCausalLM" in done.stdout
    assert run(model, "-o", tmp_path / "back").returncode == 1
    document = json.loads(run(model, "-o", tmp_path / "x.safetensors", "--tensors", "norm", "--json").stdout)
    assert document["tensors"] == 9
    assert run(model, "-o", tmp_path / "y.safetensors", "--outtype", "q4_0").returncode == 1
