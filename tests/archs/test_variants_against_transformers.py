"""Variants of families that the zoo has no checkpoint of: converted, run, and compared with transformers.

Each case is a checkpoint of the zoo with another config.json and random weights: what transformers computes with the
folder, at once and token by token, our runtime must compute with the file made of it.

    python -m pytest -m verify tests/archs/test_variants_against_transformers.py
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from tests.zoo import CLOSE, step_by_step

DROP = object()  # an override that takes the key out of config.json
TOKENS = 40
WITHOUT_EAGER = ("falcon",)  # whose eager attention adds ALiBi twice

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip

# (zoo entry, what differs from its config.json), grouped by family
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama-yarn", {"rope_scaling": {**YARN, "attention_factor": 1.3, "beta_fast": 16, "beta_slow": 2}}),
    ("llama3-gqa-rope-tied", {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 16}),
    ("llama-bias-headdim", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
]


def case_name(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=lambda drop: "absent")


def write_checkpoint(zoo: Path, entry: str, overrides: Mapping[str, Any], folder: Path) -> None:
    """The entry's tokenizer, its config.json with `overrides`, and random weights of the shapes that these mean."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = json.loads((zoo / entry / "config.json").read_text(encoding="utf-8")) | dict(overrides)
    config = {key: value for key, value in config.items() if value is not DROP}
    text = json.dumps(config)
    full = AutoConfig.for_model(**config)  # which also writes into the mappings it is given
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(full, dtype=torch.float32)
    with torch.no_grad():
        for name, values in model.named_parameters():
            values += randoms(name, values)
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(text, encoding="utf-8")
    spec = json.loads((zoo / entry / "spec.json").read_text(encoding="utf-8"))
    for file in (*(zoo / "tokenizers" / spec["tokenizer"]).iterdir(), *(zoo / entry).glob("*token*")):
        if file.name != "encodings.json":
            shutil.copy(file, folder)


def randoms(name: str, values: Any) -> Any:
    """What is added to the initial values (norms of one or zero, biases of zero), so that all of them matter."""
    import torch

    return torch.randn_like(values) * (0.15 if values.ndim < 2 else 0.1)


def true_logits(folder: Path, ids: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    attention = "sdpa" if kind in WITHOUT_EAGER else "eager"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
    with torch.inference_mode():
        return model(torch.from_numpy(ids)[None], use_cache=False).logits[0].double().numpy()


def errors(folder: Path, file: Path) -> tuple[float, float]:
    """Largest |difference| of the logits over their std, at once and token by token."""
    gguftools.convert(folder, file, "f32")
    model = gguftools.load(file)
    ids = np.random.default_rng(2).integers(0, 250, TOKENS)
    truth = true_logits(folder, ids)
    found = [model.logits(ids), step_by_step(model, ids, model.new_cache())]
    at_once, cached = (float(np.abs(logits - truth).max() / truth.std()) for logits in found)
    return at_once, cached


@pytest.mark.verify
@pytest.mark.parametrize(("entry", "overrides"), CASES, ids=case_name)
def test_transformers_agrees(entry: str, overrides: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    write_checkpoint(shared / "zoo", entry, overrides, tmp_path / entry)
    at_once, cached = errors(tmp_path / entry, tmp_path / "f32.gguf")
    assert at_once < CLOSE
    scaling = overrides.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) not in ("dynamic", "longrope"):  # which depend on the whole text
        assert cached < CLOSE
