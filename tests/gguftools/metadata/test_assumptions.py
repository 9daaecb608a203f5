"""What a file leaves out is shown, checked and exported; a note says where it is read otherwise than by llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from archs.hparams.deviations import DEVIATIONS
from archs.plans.export import plan_export
from archs.registry import architectures, drafts
from archs.schema import MODEL
from gguftools.metadata.assumptions import assumed_values, deliberate_differences, notes
from tests.archs.test_options import CASES, converted

from ...conftest import ROOT
from ..command_line import typed
from ..tiny_models import metadata_of, write_model

SIZES = {
    "block_count": 6,
    "embedding_length": 64,
    "attention.head_count": 4,
    "context_length": 256,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
}
BASE = "gemma3.rope.freq_base_swa"
MEANING = "10000  (absent: llama.cpp's default)"


def metadata(name: str, **keys: Any) -> dict[str, Any]:
    own = {f"{name}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return {"general.architecture": name, **{f"{name}.{key}": value for key, value in SIZES.items()}, **own}


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gemma 3 without the base of windowed layers."""
    made = converted(next(each for each in CASES if each["name"] == "gemma3-linear-7-0"))
    path = tmp_path_factory.mktemp("assumptions") / "gemma3.gguf"
    gguftools.Model({key: value for key, value in made.metadata.items() if key != BASE}, dict(made.tensors)).save(path)
    return path


def test_show_marks_what_is_assumed(gemma3: Path) -> None:
    ran = typed("show", str(gemma3), "--markdown")
    line = next(line for line in ran.stdout.splitlines() if BASE in line)
    assert MEANING in line
    assert "FLOAT32" in line
    document = json.loads(typed("show", str(gemma3), "--json").stdout)
    assert document["assumed"] == {
        BASE: {"type": "FLOAT32", "value": 10_000.0, "reason": "absent: llama.cpp's default"}
    }
    assert BASE not in document["metadata"]


def test_validate_lists_what_is_assumed(gemma3: Path) -> None:
    found = {each.where: each for each in gguftools.validate(gemma3, data=False).problems}
    assert (found[BASE].severity, found[BASE].message) == ("note", "is absent, which means 10000 (llama.cpp's default)")


def test_export_writes_what_is_assumed(gemma3: Path) -> None:
    with gguftools.open(gemma3) as model:
        exported = plan_export({**model.metadata, "gemma3.rope.freq_base": 1e6}, model.tensors)
    kinds = exported.config.get("rope_parameters", exported.config)
    assert 10_000.0 in (kinds.get("rope_local_base_freq"), kinds.get("sliding_attention", {}).get("rope_theta"))
    assert BASE not in exported.differing


@pytest.mark.parametrize(
    ("name", "keys", "hit"),
    [
        ("minicpm", {}, {"logit_scale"}),
        ("minicpm", {"logit_scale": 9.0}, set()),
        ("phi3", {"attention__sliding_window": 2047}, {"attention.sliding_window"}),
        ("phi3", {}, set()),
        ("smallthinker", {"attention__sliding_window": 4096}, set()),
        ("smallthinker", {"attention__sliding_window": 8}, {"attention.sliding_window"}),
        ("exaone4", {"attention__sliding_window": 8}, {"attention.sliding_window"}),
        ("exaone4", {"attention__sliding_window": 8, "block_count": 64}, set()),
        ("bert", {}, {"attention.causal"}),
        ("bert", {"attention__causal": False}, set()),
        ("grok", {}, {"router_logit_softcapping"}),
        ("baichuan", {}, {"attention.max_alibi_bias"}),
        ("baichuan", {"block_count": 40}, set()),
        ("llama", {"rope__dimension_count": 8}, {"rope.dimension_count"}),
        ("deepseek2", {"expert_count": 8, "expert_group_count": 4}, {"expert_group_count"}),
        ("deepseek2", {"attention__temperature_scale": 0.1}, {"attention.temperature_length"}),
        (
            "llama",
            {"rope__scaling__type": "yarn", "rope__scaling__yarn_beta_fast": 8.0},
            {"rope.scaling.yarn_beta_fast"},
        ),
        ("grok", {"rope__scaling__type": "yarn", "rope__scaling__yarn_beta_fast": 8.0}, {"router_logit_softcapping"}),
        ("gpt-oss", {"rope__scaling__yarn_truncate": False}, {"rope.scaling.yarn_truncate"}),
        (
            "deepseek2",
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0},
            {"rope.scaling.yarn_log_multiplier"},
        ),
        ("deepseek2", {"rope__scaling__factor": 4.0}, {"rope.scaling.yarn_log_multiplier", "rope.scaling.type"}),
        ("qwen3moe", {"expert_count": 8, "expert_weights_norm": False}, {"expert_weights_norm"}),
        ("gemma3n", {"block_count": 30, "attention__shared_kv_layers": 10}, set()),
        ("gemma3n", {"block_count": 30, "attention__shared_kv_layers": 5}, {"attention.shared_kv_layers"}),
    ],
)
def test_deliberate_differences_that_a_file_hits(name: str, keys: dict[str, Any], hit: set[str]) -> None:
    found = metadata(name, **keys)
    assert {each.key for each in deliberate_differences(found)} == hit
    assert len([*notes(found)]) == len(hit)


def test_every_difference_is_of_known_keys_and_architectures_and_documented() -> None:
    names = {each.name for each in (*architectures(), *drafts())}
    page = (ROOT / "docs" / "absent-keys.md").read_text(encoding="utf-8")
    for each in DEVIATIONS:
        assert each.key in MODEL
        assert set(each.architectures) <= names, set(each.architectures) - names
        assert f"`{each.key}`" in page or each.key in ("router_logit_softcapping", "expert_router_jitter"), each.key


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"general.architecture": 3},
        {"general.architecture": "nobody"},
        {"general.architecture": "gemma3"},
        metadata("gemma3", block_count="six"),
        metadata("gemma3", block_count=-1),
        metadata("gemma3n", block_count=(1 << 32) - 1),
        metadata("gemma3", attention__sliding_window=[8]),
        metadata("gemma3n", block_count=0),
        {**metadata("gemma3"), "general.type": "imatrix"},
        {"general.architecture": "clip", "general.type": "mmproj"},
    ],
)
def test_nothing_is_said_of_files_that_are_not_sound(wrong: dict[str, Any]) -> None:
    assert (assumed_values(wrong), deliberate_differences(wrong)) == ((), ())


def test_a_note_stands_in_front_of_results(tmp_path: Path) -> None:
    keys = {**metadata("minicpm"), "tokenizer.ggml.model": "none"}
    tensors = {"token_embd.weight": np.zeros((4, 64), np.float32)}
    path = write_model(tmp_path / "minicpm.gguf", metadata_of(keys), tensors)
    (tmp_path / "a.txt").write_text("so", encoding="utf-8")
    ran = typed("perplexity", str(path), "-f", str(tmp_path / "a.txt"))
    assert "note: minicpm.logit_scale: divides by embedding_length / 256; llama.cpp: divides logits by" in ran.stderr
