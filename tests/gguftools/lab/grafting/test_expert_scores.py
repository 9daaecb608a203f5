"""REAP's scores beside the formula, computed from what experts are given and what they give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools.lab.grafting.expert_scores import expert_scores
from gguftools.measurement.text_tokens import tokens_of
from quants.errors import ModelError, OptionError
from runtime.model import RunningModel
from tests.archs import checkpoints

from ....conftest import ROOT

TEXT = ROOT / "examples" / "persuasion.txt"


def model_of(entry: str, folder: Path) -> gguftools.Model:
    checkpoints.build(entry, folder / entry)
    gguftools.convert(folder / entry, folder / "m.gguf", "f32")
    return gguftools.open(folder / "m.gguf")


def softmax(x: np.ndarray) -> np.ndarray:
    made = np.exp(x - x.max(axis=1, keepdims=True))
    return made / made.sum(axis=1, keepdims=True)


def test_scores_are_reap_s(tmp_path: Path) -> None:
    """Of each layer from the inputs of its router, by hand: softmax, the best three, rescaled to a sum of one."""
    model = model_of("hunyuan-moe", tmp_path)
    found = expert_scores(model, TEXT, n_ctx=64, chunks=2)
    inputs: dict[str, list[np.ndarray]] = {}

    def observe(name: str, x: np.ndarray, expert: int, experts: int) -> None:
        if name.endswith("ffn_gate_inp.weight"):
            inputs.setdefault(name, []).append(np.array(x, np.float64))

    net = RunningModel(model.metadata, model.tensors, observe=observe)
    tokens, bos = tokens_of(model, TEXT)
    windows = np.array(tokens[:128]).reshape(2, 64)
    if bos is not None:
        windows[:, 0] = bos
    net.lazy_logits(windows)
    for layer in (0, 1):
        weights = {
            role: np.array(model.tensors[f"blk.{layer}.ffn_{role}.weight"], np.float64)
            for role in ("gate_inp", "gate_exps", "up_exps", "down_exps")
        }
        x = np.concatenate(inputs[f"blk.{layer}.ffn_gate_inp.weight"])
        scores = softmax(x @ weights["gate_inp"].T)
        chosen = np.argsort(-scores, axis=1)[:, :3]
        wanted, counts = np.zeros(8), np.zeros(8, int)
        for token, experts in enumerate(chosen):
            share = scores[token, experts] / scores[token, experts].sum()
            for expert, gate in zip(experts, share, strict=True):
                hidden = weights["gate_exps"][expert] @ x[token]
                hidden = hidden / (1 + np.exp(-hidden)) * (weights["up_exps"][expert] @ x[token])
                wanted[expert] += gate * np.linalg.norm(weights["down_exps"][expert] @ hidden)
                counts[expert] += 1
        np.testing.assert_array_equal(found.routed[layer], counts)
        np.testing.assert_allclose(found.scores[layer], wanted / np.maximum(counts, 1), rtol=1e-4)


def test_windows_at_once_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("glm4-moe-lite", tmp_path)
    told: list[tuple[int, int]] = []
    found = expert_scores(
        model, TEXT, n_ctx=64, chunks=3, with_mtp=True, progress=lambda done, total, _: told.append((done, total))
    )
    assert sorted(found.scores) == [1, 2, 3]  # the last one predicts a token further
    assert told[-1] == (3, 3)
    monkeypatch.setattr("gguftools.lab.grafting.expert_scores.windows_at_once", lambda model, n_ctx: 1)
    for layer, scores in expert_scores(model, TEXT, n_ctx=64, chunks=3, with_mtp=True).scores.items():
        np.testing.assert_allclose(scores, found.scores[layer], rtol=1e-5)
    assert sorted(expert_scores(model, TEXT, n_ctx=64, chunks=3).scores) == [1, 2]


def test_texts_and_models_that_will_not_do(tmp_path: Path) -> None:
    model = model_of("hunyuan-moe", tmp_path)
    (tmp_path / "short").write_text("Too short.")
    with pytest.raises(OptionError, match="windows"):
        expert_scores(model, tmp_path / "short")
    with pytest.raises(ModelError, match="no MTP layer"):
        expert_scores(model, TEXT, n_ctx=64, chunks=1, with_mtp=True)
