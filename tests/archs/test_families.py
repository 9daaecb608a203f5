"""Every checkpoint of the zoo: the reference's keys and tensors, and the original model's logits."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from archs.metadata import ValueType
from archs.plan import Plan, plan
from gguftools.files.checkpoint import open_checkpoint
from runtime import graph
from runtime.cache import KVCache
from runtime.model import Model
from tests.conftest import SHARED

ENTRIES = sorted(path.parent.name for path in SHARED.glob("zoo/*/spec.json"))
TOLERANCE = 1e-3  # of the logits' standard deviation; what we reach is 1e-5
OURS = 2e-5

# Keys of the reference that are wrong, so that ours differ.
WRONG_KEYS = {
    ("gpt2-ninner", "gpt2.feed_forward_length"): "the reference writes 4 * n_embd whatever n_inner is",
}

# Keys that we add, without the architecture in front: what the reference drops though the model depends on it.
ADDED = {
    "attention.scale", "attention.sliding_window", "attention.sliding_window_pattern", "logit_scale",
    "rope.scaling.original_context_length", "rope.scaling.yarn_truncate", "ssm.dt_b_c_rms_epsilon",
    "ssm.time_step_min",
}  # fmt: skip

# Written elsewhere: by the vocabulary (tests of its own), or for the output type.
ELSEWHERE = ("tokenizer.", "general.file_type", "general.quantization_version")


@pytest.fixture(scope="session")
def build(shared: Path) -> ModuleType:
    """The zoo's own program that writes a checkpoint."""
    spec = importlib.util.spec_from_file_location("zoo_build", shared / "zoo/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def planned(entry: str, shared: Path, build: ModuleType, folder: Path) -> Plan:
    build.build(shared / "zoo", entry, folder / entry)
    checkpoint = open_checkpoint(folder / entry)
    pre = json.loads((shared / "zoo" / entry / "spec.json").read_text()).get("tokenizer_pre")
    return plan(checkpoint.folder, checkpoint.config, checkpoint.tensors, checkpoint.generation_config, pre=pre)


@pytest.mark.parametrize("entry", ENTRIES)
def test_entry(entry: str, shared: Path, build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(entry, shared, build, tmp_path)
    reference = json.loads((shared / "zoo" / entry / "ref.json").read_text()).get("f32") or {}
    if "kv" in reference:
        check_keys(entry, made, reference["kv"])
        check_tensors(made, reference["tensors"])
    if entry == "falcon-rw-style":
        add_alibi_twice(monkeypatch)
    check_logits(made, np.load(shared / "zoo" / entry / "logits.npz"))


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


def add_alibi_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The truth comes from transformers' eager attention, which for Falcon adds ALiBi to the mask and to the scores.

    Its default attention, and the code that the models were published with, add it once, and so do we.
    """
    once = graph.alibi_slopes

    def twice(model: Model, heads: int) -> Any:
        slopes = once(model, heads)
        return None if slopes is None else 2 * slopes

    monkeypatch.setattr(graph, "alibi_slopes", twice)


def check_logits(made: Plan, truth: Any) -> None:
    model = Model(made.metadata, made.tensors)
    worst = 0.0
    for prompt in "01":
        ids, wanted = truth[f"ids{prompt}"], truth[f"logits{prompt}"]
        for found in runs(model, ids, truth.get(f"dec{prompt}")):
            difference = np.abs(found[-len(wanted) :].astype(np.float64) - wanted).max() / wanted.std()
            worst = max(worst, float(difference))
    print(f"largest |logit difference| / std: {worst:.1e}")
    assert worst < TOLERANCE
    assert worst < OURS


def runs(model: Model, ids: Any, decoder_ids: Any) -> Iterator[Any]:
    """The prompt's logits at once and, where a cache can be used, token by token."""
    if decoder_ids is not None:
        yield model.logits(ids, decoder_ids)
        yield step_by_step(model, decoder_ids, model.encode(ids))
        return
    yield model.logits(ids)
    if model.architecture.block.causal:
        yield step_by_step(model, ids, model.new_cache())


def step_by_step(model: Model, ids: Any, cache: KVCache) -> Any:
    return np.concatenate([model.forward(ids[i : i + 1], cache) for i in range(len(ids))])
