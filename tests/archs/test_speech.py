"""Checkpoints of models that speak, damaged: one line says what does not fit, and nothing is lost in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gguftools
from quants.errors import ModelError

from . import checkpoints


def changed(rows: list[Any], name: str, shape: list[int] | None) -> list[Any]:
    """Rows of spec.json with another shape of one tensor, or without it."""
    assert name in {row[0] for row in rows}
    return [
        row if row[0] != name else [*row[:2], shape, *row[3:]] for row in rows if row[0] != name or shape is not None
    ]


@pytest.mark.parametrize(
    ("entry", "tensor", "shape", "said"),
    [
        ("qwen3-tts", "talker.text_projection.linear_fc1.bias", None, "the embedding is missing"),
        ("qwen3-tts", "talker.text_projection.linear_fc1.bias", [3], "other tensors have shapes"),
        ("qwen3-tts", "talker.model.codec_embedding.weight", [3072, 32], "rows of 64 values are expected"),
        ("qwen3-tts", "talker.codec_head.weight", [30, 64], "288 tokens of text and 3072 codes; .* codec_head 30"),
        ("pocket-tts", "flow_lm.bos_emb", [5], "flow_lm.bos_emb has 5 values"),
        ("pocket-tts", "flow_lm.bos_before_voice", [5], "has 5 values; the table"),
        ("wavtokenizer", "backbone.posnet.2.k.bias", None, "'posnet.2.attn_k.bias' is missing"),
        ("wavtokenizer", "backbone.embed.weight", [32, 24, 5], "conv1d.weight"),
    ],
)
def test_tensors_that_do_not_fit(entry: str, tensor: str, shape: list[int] | None, said: str, tmp_path: Path) -> None:
    checkpoints.build(entry, tmp_path / entry)
    rows = json.loads((checkpoints.FAMILIES / entry / "spec.json").read_text(encoding="utf-8"))["tensors"]
    checkpoints.write_tensors(tmp_path / entry / "model.safetensors", entry, changed(rows, tensor, shape))
    with pytest.raises(ModelError, match=said):
        gguftools.convert(tmp_path / entry, tmp_path / "x.gguf", "f32")
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize(
    ("tensor", "shape", "said"),
    [
        ("decoder.quantizer.rvq_rest.vq.layers.3._codebook.cluster_usage", None, "not the codebook's cluster_usage"),
        ("decoder.quantizer.rvq_rest.vq.layers.3._codebook.cluster_usage", [3], r"\[64, 16\].*\[3\]"),
        ("decoder.extra.weight", [3, 3], "speech_tokenizer.decoder.extra.weight"),
        ("decoder.decoder.1.block.7.weight", [3, 3], "speech_tokenizer.decoder.decoder"),
    ],
)
def test_what_makes_sound_of_codes_is_whole(tensor: str, shape: list[int] | None, said: str, tmp_path: Path) -> None:
    entry, folder = "qwen3-tts", "speech_tokenizer"
    checkpoints.build_encoder(entry, tmp_path / entry)
    spec = json.loads((checkpoints.ENCODERS / entry / "spec.json").read_text(encoding="utf-8"))
    rows = spec["folders"][folder]["tensors"]
    rows = rows if any(row[0] == tensor for row in rows) else [*rows, [tensor, "F32", [1], 0.0, 1.0]]
    weights = tmp_path / entry / folder / "model.safetensors"
    checkpoints.write_tensors(weights, f"{entry}/{folder}", changed(rows, tensor, shape))
    with pytest.raises(ModelError, match=said):
        gguftools.convert(tmp_path / entry, tmp_path / "x.gguf", "f16", part="mmproj")
    assert not (tmp_path / "x.gguf").exists()
