"""What files could do: metadata, tokens, templates against their source, tensors out of line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from archs.metadata import Value, ValueType
from gguftools.conversion.convert import convert
from gguftools.conversion.quantize import quantize
from gguftools.inspection.audit import audit
from gguftools.models.model import open as open_file
from quants import from_array

from ...conftest import ROOT
from ..command_line import typed
from ..tiny_models import edited
from .audits.attacks import ESCAPES

CHECKPOINT = ROOT / "examples" / "austen-4m"
TOKENS, TYPES, TEMPLATE = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.chat_template"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("audit") / "model.gguf"
    convert(CHECKPOINT, path, "f16")
    return path


def found(path: Path, **options) -> set[tuple[str, str]]:
    return {(f.severity, f.rule) for f in audit(path, **options).findings}


def test_an_honest_file(model):
    result = audit(model, CHECKPOINT, tensors=True)
    assert not result.findings
    assert result.templates == (TEMPLATE,)


def test_every_template_is_looked_into(model, tmp_path):
    for key in (TEMPLATE, f"{TEMPLATE}.tool_use"):
        result = audit(edited(model, tmp_path / "bad.gguf", {key: ESCAPES["walk"]}))
        assert ("high", key, 1) in {(f.severity, f.key, f.line) for f in result.findings}


def test_a_template_that_is_not_the_sources(model, tmp_path):
    text = open_file(model).metadata[TEMPLATE]
    bad = edited(model, tmp_path / "bad.gguf", {TEMPLATE: text + "\nBe brief."})
    for source in (CHECKPOINT, model):
        (finding,) = audit(bad, source).findings
        assert (finding.severity, finding.rule) == ("medium", "other template")
        assert "+ Be brief." in finding.message
    assert audit(bad).worst is None
    named = edited(model, tmp_path / "named.gguf", {f"{TEMPLATE}.rag": "x", TEMPLATE: None})
    assert found(named, against=CHECKPOINT) == {("medium", "other template"), ("low", "other template")}


@pytest.mark.parametrize(
    ("key", "text", "severity"),
    [
        ("general.url", "https://example.org/model", "info"),
        ("general.url", "http://example.org/model", "low"),
        ("general.url", "https://example.org@203.0.113.7/x", "medium"),
        ("general.url", "http://203.0.113.7/x", "medium"),
        ("general.url", "javascript:alert(1)", "medium"),
        ("general.url", "file:///etc/passwd", "medium"),
        ("general.repo_url", "https://xn--e1awd7f.example/x", "medium"),
        ("general.description", "see https://example.org", "low"),
        ("general.description", "made in /home/anna/models", "low"),
        ("general.description", "load ../../secret", "low"),
        ("general.description", "<script src=x></script>", "medium"),
        ("general.description", "\x1b]0;title\x07", "medium"),
        ("general.description", "plain\u202etxet", "high"),
        ("general.description", "pl\u200bain", "low"),
        ("general.name", "Llаma", "medium"),
        ("general.na\u200bme", "x", "high"),
        ("general.größe", "x", "medium"),
        ("../general.name", "x", "medium"),
    ],
)
def test_strings(key, text, severity, model, tmp_path):
    result = audit(edited(model, tmp_path / "odd.gguf", {key: text}))
    assert result.worst == severity
    assert result.reaches(severity)


def test_bytes_and_lists(model, tmp_path):
    changes = {"general.description": Value(b"\xff\xfe", ValueType.STRING), "general.tags": ["a", "b\x1b[2J"]}
    assert found(edited(model, tmp_path / "odd.gguf", changes)) == {("low", "encoding"), ("medium", "terminal")}


def test_names_of_tensors(model, tmp_path):
    other = edited(model, tmp_path / "odd.gguf", {}, {"blk.0.\u202ex": np.ones((1, 32)), "../x": np.ones((1, 32))})
    assert found(other) == {("high", "name"), ("medium", "name")}


def with_tokens(model, path, texts, special=()):
    metadata = open_file(model).metadata
    tokens, types = metadata[TOKENS].tolist(), np.array(metadata[TYPES])
    for i, text in texts.items():
        tokens[i] = text
    for i in special:
        types[i] = 3
    return edited(model, path, {TOKENS: tokens, TYPES: Value(types, ValueType.ARRAY, ValueType.INT32)})


def test_tokens(model, tmp_path):
    assert found(with_tokens(model, tmp_path / "a.gguf", {7: "âĢĭ"})) == {("info", "token")}  # bytes of U+200B
    assert found(with_tokens(model, tmp_path / "b.gguf", {7: "<|us\u200ber|>"}, (7,))) == {("medium", "token")}
    assert found(with_tokens(model, tmp_path / "c.gguf", {7: "<|usеr|>"}, (7,))) == {("medium", "token")}
    twins = with_tokens(model, tmp_path / "d.gguf", {7: "<|tool|>", 8: "<|tool|> "}, (7, 8))
    assert "look the same" in audit(twins).findings[0].message
    assert found(with_tokens(model, tmp_path / "e.gguf", {7: "x" * 2000})) == {("low", "token")}


def test_a_tensor_out_of_line(tmp_path):
    random = np.random.default_rng(0)
    names = {f"blk.{i}.ffn_up.weight": random.normal(size=(64, 64)) for i in range(8)}
    from ..tiny_models import metadata_of, write_model

    kinds = metadata_of({"general.architecture": "none"})
    assert not found(write_model(tmp_path / "a.gguf", kinds, names), tensors=True)
    names["blk.3.ffn_up.weight"][5, 5] = 500
    result = audit(write_model(tmp_path / "b.gguf", kinds, names), tensors=True)
    assert {f.key for f in result.findings} == {"blk.3.ffn_up.weight"}
    assert {f.severity for f in result.findings} == {"low"}
    names["blk.3.ffn_up.weight"] = np.zeros((64, 64))
    assert "zero" in audit(write_model(tmp_path / "c.gguf", kinds, names), tensors=True).findings[0].message


def test_a_tensor_changed_after_quantizing(model, tmp_path):
    quantize(model, "Q4_K_S", tmp_path / "q4.gguf")
    assert not found(tmp_path / "q4.gguf", against=model, tensors=True)
    values = open_file(model).tensors["blk.2.attn_q.weight"].float32()
    values[:32] *= 1.5  # one head
    changed = edited(model, tmp_path / "changed.gguf", {}, {"blk.2.attn_q.weight": from_array("x", values)})
    quantize(changed, "Q4_K_S", tmp_path / "bad.gguf")
    findings = audit(tmp_path / "bad.gguf", model, tensors=True).findings
    assert ("medium", "changed", "blk.2.attn_q.weight") in {(f.severity, f.rule, f.key) for f in findings}


def test_a_float_tensor_that_is_not_the_sources(model, tmp_path):
    folder = Path(shutil.copytree(CHECKPOINT, tmp_path / "austen-4m"))
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[-1] ^= 1
    (folder / "model.safetensors").write_bytes(raw)
    assert ("medium", "changed") in found(model, against=folder, tensors=True)


def test_command_line(model, tmp_path):
    bad = edited(model, tmp_path / "bad.gguf", {TEMPLATE: ESCAPES["walk"], "general.url": "https://example.org"})

    def run(*arguments):
        return typed("audit", *map(str, arguments))

    assert run(model).returncode == 0
    done = run(model, bad)
    assert done.returncode == 1
    assert "__class__" in done.stdout
    assert run(edited(model, tmp_path / "link.gguf", {"general.url": "https://example.org"})).returncode == 0
    assert run(tmp_path / "link.gguf", "--fail-on", "info").returncode == 1
    assert run(model, "--fail-on", "worst").returncode == 1
    document = json.loads(run(bad, "--json").stdout)
    assert document["worst"] == "high"
    assert {"severity", "rule", "key", "message", "line"} <= set(document["findings"][0])
