"""Sound files are found sound, and each kind of damage is found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from archs.metadata import Value, ValueType
from gguftools.conversion.convert import convert
from gguftools.conversion.options import ConvertOptions
from gguftools.conversion.quantize import quantize
from gguftools.inspection.validation import validate
from gguftools.models.model import open as open_file
from gguftools.writing.finiteness import not_finite
from quants import decode, format_named
from quants.format import formats

from ...conftest import ROOT
from ...zoo_build import build
from ..command_line import typed
from ..tiny_models import edited

TOKENS = "tokenizer.ggml.tokens"
QUANTIZED = [name for name, form in formats().items() if form.is_quantized and form.has_codec]
ZOO = (
    "llama2-spm",
    "qwen2",
    "mamba",
    "opt-350m",
    "deepseek-v2-lite",
    "gemma3",
    "t5",
    "bert",
    "gpt-oss-mxfp4",
    "falcon-40b-style",
    "jamba",
    "phi3-longrope",
    "olmo",
    "qwen3-moe",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("validation") / "model.gguf"
    convert(ROOT / "examples" / "austen-4m", path, "f16")
    return path


def errors(path: Path, **options) -> dict[str, str]:
    return {p.where: p.message for p in validate(path, **options).problems if p.severity == "error"}


def warnings(path: Path) -> dict[str, str]:
    return {p.where: p.message for p in validate(path).problems if p.severity == "warning"}


def test_a_sound_file(model, tmp_path):
    assert not validate(model).problems
    quantize(model, ["Q4_K_M", "IQ4_XS", "Q8_0"], tmp_path)
    for path in tmp_path.glob("*.gguf"):
        assert not validate(path).problems


@pytest.mark.parametrize("entry", ZOO)
def test_every_architecture(entry, shared, tmp_path):
    build(shared / "zoo", entry, tmp_path / entry)
    pre = json.loads((shared / "zoo" / entry / "spec.json").read_text()).get("tokenizer_pre")
    convert(tmp_path / entry, tmp_path / "model.gguf", options=ConvertOptions(pre=pre))
    assert not errors(tmp_path / "model.gguf")


def test_broken_structure_is_a_problem(model, tmp_path):
    (tmp_path / "short.gguf").write_bytes(model.read_bytes()[:-1000])
    found = errors(tmp_path / "short.gguf")
    assert "needs" in found["structure"]
    assert "fetch it again" in found["structure"]


def test_bytes_after_the_last_tensor(model, tmp_path):
    (tmp_path / "long.gguf").write_bytes(model.read_bytes() + bytes(100))
    assert warnings(tmp_path / "long.gguf") == {"long.gguf": "100 bytes follow the last tensor"}


@pytest.mark.parametrize(
    ("changes", "where", "message"),
    [
        ({"llama.context_length": None}, "llama.context_length", "missing"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "model", "epsilon"),
        ({"llama.block_count": 5}, "blk.4", "no tensors"),
        ({"llama.block_count": 3}, "blk.3", "past"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count", "0"),
        ({"llama.attention.head_count": 3}, "llama.attention.head_count", "share"),
        ({"llama.embedding_length": 128}, "blk.0.attn_q.weight", "128 (width)"),
        ({"llama.rope.freq_base": Value("high", ValueType.STRING)}, "llama.rope.freq_base", "read as"),
        ({"general.architecture": None}, "general.architecture", "missing"),
        ({"tokenizer.ggml.eos_token_id": 2048}, "tokenizer.ggml.eos_token_id", "0 to 2047"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges", "missing"),
        ({"tokenizer.ggml.merges": ["a b", "ab"]}, "tokenizer.ggml.merges", "item 1"),
        ({"tokenizer.ggml.pre": "none-such"}, "tokenizer.ggml.pre", "none-such"),
        ({"llama.vocab_size": 2047}, TOKENS, "vocab_size is 2047"),
        ({TOKENS: None}, TOKENS, "no tokens"),
        ({TOKENS: ["a", "b"]}, TOKENS, "2048 rows"),
        (
            {"tokenizer.ggml.token_type": Value(np.ones(7, np.int32), ValueType.ARRAY, ValueType.INT32)},
            "tokenizer.ggml.token_type",
            "7 items",
        ),
        (
            {"tokenizer.ggml.token_type": Value(np.full(2048, 9, np.int32), ValueType.ARRAY, ValueType.INT32)},
            "tokenizer.ggml.token_type",
            "type 9",
        ),
    ],
)
def test_wrong_metadata(changes, where, message, model, tmp_path):
    found = errors(edited(model, tmp_path / "wrong.gguf", changes), data=False)
    assert message in found[where]


@pytest.mark.parametrize(
    ("tensors", "where"),
    [
        ({"token_embd.weight": None}, "token_embd.weight"),
        ({"output_norm.weight": None}, "output_norm.weight"),
        ({"blk.1.ffn_up.weight": None}, "blk.1.ffn_up.weight"),
        ({f"blk.{i}.attn_v.weight": None for i in range(4)}, "blk.*.attn_v.weight"),
        ({"blk.0.attn_k.weight": np.ones((32, 256))}, "blk.0.attn_k.weight"),
    ],
)
def test_wrong_tensors(tensors, where, model, tmp_path):
    assert where in errors(edited(model, tmp_path / "wrong.gguf", {}, tensors), data=False)


def test_a_tensor_of_no_known_name(model, tmp_path):
    path = edited(model, tmp_path / "more.gguf", {}, {f"blk.{i}.surprise.weight": np.ones((2, 32)) for i in range(4)})
    assert "no tensor of this name" in warnings(path)["blk.0.surprise.weight"]


def test_keys_of_another_architecture(model, tmp_path):
    assert "qwen2.*" in warnings(edited(model, tmp_path / "more.gguf", {"qwen2.block_count": 4}))


def test_doubtful_tokens(model, tmp_path):
    tokens = open_file(model).metadata[TOKENS].tolist()
    tokens[500] = tokens[501] = "twice"
    found = warnings(edited(model, tmp_path / "twice.gguf", {TOKENS: tokens}))
    assert "'twice' is token 500, 501" in found[TOKENS]


def test_bytes_of_sentencepiece(model, tmp_path):
    tokens = [f"<0x{i:02X}>" for i in range(256)] + [f"token {i}" for i in range(2048 - 256)]
    types = np.array([6] * 256 + [1] * 1792, np.int32)
    changes = {
        "tokenizer.ggml.model": "llama",
        TOKENS: tokens,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.token_type": Value(types, ValueType.ARRAY, ValueType.INT32),
        "tokenizer.ggml.scores": Value(np.zeros(2048, np.float32), ValueType.ARRAY, ValueType.FLOAT32),
    }
    assert not errors(edited(model, tmp_path / "good.gguf", changes), data=False)
    tokens[65] = "A"
    found = errors(edited(model, tmp_path / "bad.gguf", changes), data=False)
    assert "1 bytes have no token" in found[TOKENS]
    assert "token 65" in found["tokenizer.ggml.token_type"]


def test_nan_in_floats_and_in_scales(model, tmp_path):
    for name, form in (("f16", "F16"), ("q4", "Q4_K")):
        source = model
        if form != "F16":
            source = tmp_path / f"source-{name}.gguf"
            quantize(model, "Q4_K_S", source)
        raw = bytearray(source.read_bytes())
        opened = open_file(source)
        tensor = opened.tensors["blk.2.ffn_up.weight"]
        assert tensor.format.name == form
        at = opened.file.offsets[tensor.name] + 5 * tensor.row_bytes
        raw[at : at + 2] = b"\x00\x7e"
        (tmp_path / f"{name}.gguf").write_bytes(raw)
        found = errors(tmp_path / f"{name}.gguf", threads=2)
        assert list(found) == ["blk.2.ffn_up.weight"]
        assert "0 of row 5" in found["blk.2.ffn_up.weight"]
        assert not errors(tmp_path / f"{name}.gguf", data=False)


@pytest.mark.parametrize("name", QUANTIZED)
def test_fast_check_agrees_with_decoding(name):
    """On random bytes: what the scales say is what the decoded values are."""
    form = format_named(name)
    raw = np.random.default_rng(7).integers(0, 256, (4000, form.block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        finite = np.isfinite(decode(name, raw)).all(axis=1)
    wrong = not_finite(form, raw)
    if name == "NVFP4":  # the reference reads the scale that is NaN as 0
        assert wrong is None
        assert finite.all()
    elif name == "MXFP4":  # and the one of MXFP4 as a large number
        assert np.array_equal(wrong, raw[:, 0] == 255)
    else:
        assert 10 < np.count_nonzero(wrong) < 1000
        assert np.array_equal(wrong, ~finite)


def test_command_line(model, tmp_path):
    broken = edited(model, tmp_path / "wrong.gguf", {"llama.context_length": None})
    done = typed("validate", str(model), str(broken), "--header")
    assert done.returncode == 1
    assert f"{model} is sound" in done.stdout.replace("\n", "")
    done = typed("validate", str(broken), "--json")
    assert json.loads(done.stdout)["problems"][0]["where"] == "llama.context_length"
    assert typed("validate", str(model)).returncode == 0
