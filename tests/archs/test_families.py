"""Every checkpoint of the zoo: the reference's keys and tensors, and no keys beyond those and the listed ones.

Whole files, logits and tokenizers: tests/test_zoo.py.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archs.metadata import ValueType
from archs.plans.text import Plan, plan
from gguftools.io.checkpoint.folder import open_checkpoint
from runtime.graph import compiled
from runtime.mixers import compiled_attention, self_attention
from runtime.model import RunningModel
from tests.conftest import SHARED
from tests.zoo import CLOSE, logit_errors
from tests.zoo_build import build

ENTRIES = sorted(path.parent.name for path in SHARED.glob("zoo/*/spec.json"))

# Keys of the reference that are wrong, so that ours differ.
WRONG_KEYS = {("gpt2-ninner", "gpt2.feed_forward_length"): "the reference writes 4 * n_embd whatever n_inner is"}

# Keys that we add, without the architecture in front: what the reference drops though the model depends on it.
ADDED = {
    "attention.scale",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "logit_scale",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_truncate",
    "ssm.dt_b_c_rms_epsilon",
    "ssm.time_step_min",
}

# Written elsewhere: by the vocabulary (tests of its own), or for the output type.
ELSEWHERE = ("tokenizer.", "general.file_type", "general.quantization_version")


def planned(entry: str, shared: Path, folder: Path) -> Plan:
    build(shared / "zoo", entry, folder / entry)
    checkpoint = open_checkpoint(folder / entry)
    pre = json.loads((shared / "zoo" / entry / "spec.json").read_text()).get("tokenizer_pre")
    return plan(checkpoint.folder, checkpoint.config, checkpoint.tensors, checkpoint.generation_config, pre=pre)


@pytest.mark.parametrize("entry", ENTRIES)
def test_entry(entry: str, shared: Path, tmp_path: Path) -> None:
    made = planned(entry, shared, tmp_path)
    reference = json.loads((shared / "zoo" / entry / "ref.json").read_text()).get("f32") or {}
    if "kv" in reference:
        check_keys(entry, made, reference["kv"])
        check_tensors(made, reference["tensors"])


def test_falcon_with_alibi_added_twice(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its truth comes from transformers' eager attention, which for Falcon adds ALiBi to the mask and to the scores.

    Its default attention, and the code that the models were published with, add it once, and so do we. That this is
    the only difference shows where we add it twice.
    """
    once = self_attention.alibi_slopes

    def twice(network: Any, heads: int) -> Any:
        slopes = once(network, heads)
        return None if slopes is None else 2 * slopes

    for module in (self_attention, compiled_attention, compiled):
        monkeypatch.setattr(module, "alibi_slopes", twice)
    made = planned("falcon-rw-style", shared, tmp_path)
    truth = np.load(shared / "zoo" / "falcon-rw-style" / "logits.npz")
    errors = logit_errors(RunningModel(made.metadata, made.tensors), truth)
    assert max(error for error in errors if error is not None) < CLOSE


def check_keys(entry: str, made: Plan, reference: dict[str, Any]) -> None:
    wanted = {key: value for key, value in reference.items() if not key.startswith(ELSEWHERE)}
    found = {key for key in made.metadata if not key.startswith(ELSEWHERE)}
    assert set(wanted) <= found
    name = made.architecture.name
    assert {key.removeprefix(f"{name}.") for key in found - set(wanted)} <= ADDED
    for key, value in wanted.items():
        if (entry, key) not in WRONG_KEYS:
            assert described(made, key) == value, key


def described(made: Plan, key: str) -> dict[str, Any]:
    """A value as ref.json has it."""
    value = made.metadata.value(key)
    if value.type is not ValueType.ARRAY:
        return {"type": value.type.name, "value": as_stored(value.data, value.type)}
    assert value.element is not None
    data = [as_stored(item, value.element) for item in value.data]
    return {"type": "ARRAY", "elem": value.element.name, "len": len(data), "value": data}


def as_stored(data: Any, kind: ValueType) -> Any:
    return float(np.float32(data)) if kind is ValueType.FLOAT32 else data


def check_tensors(made: Plan, reference: list[dict[str, Any]]) -> None:
    assert {tensor["name"] for tensor in reference} == set(made.tensors)
    for tensor in reference:
        ours = made.tensors[tensor["name"]]
        assert list(ours.shape[::-1]) == tensor["shape"], ours.name
        if tensor["type"] == "F32":
            assert hashlib.sha256(ours.float32().tobytes()).hexdigest() == tensor["sha256"], ours.name
