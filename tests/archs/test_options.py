"""Random options of every family, converted and run: transformers' logits of them are in tests/data/options.jsonl.gz.

`tests.verify.record` wrote them; `make verify` draws others. No tokenizers here: the config and the tensors alone.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

from archs.config import normalized
from archs.model_type import own_keys
from archs.plans.text import architecture_metadata, map_tensors
from archs.registry import of_config
from archs.validation.model_validators import check_shapes
from quants import from_array
from runtime.model import RunningModel
from tests.archs import checkpoints
from tests.conftest import DATA
from tests.zoo import TOLERANCE

with gzip.open(DATA / "options.jsonl.gz", "rt", encoding="utf-8") as lines:
    CASES = [json.loads(line) for line in lines]
OF_EACH_TYPE = {case["config"]["model_type"]: case["config"] for case in CASES if "text_config" not in case["config"]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_logits_are_those_of_transformers(case: dict[str, Any]) -> None:
    model = converted(case)
    found = model.logits(case["ids"], case["decoder_ids"])[np.ix_(case["positions"], case["tokens"])]
    assert np.abs(found - np.array(case["logits"])).max() < TOLERANCE * case["std"]


@pytest.mark.parametrize("config", OF_EACH_TYPE.values(), ids=OF_EACH_TYPE)
def test_windows_are_switched_only_where_the_model_type_has_a_switch(config: dict[str, Any]) -> None:
    on = {**config, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "layer_types": None}
    architecture, written = of_config(config), []
    for said in (on, {**on, "use_sliding_window": False}):
        full = normalized(said, architecture.defaults, architecture.keys)
        written.append(repr(architecture_metadata(architecture, full)))
    kind = config["model_type"]
    spoken = own_keys(kind) | own_keys(f"{kind}_text")
    assert (written[0] != written[1]) == ("use_sliding_window" in spoken)


def converted(case: dict[str, Any]) -> RunningModel:
    """The model that the case's checkpoint becomes, in float32."""
    tensors = {
        name: from_array(name, checkpoints.values(case["name"], name, shape, mean, std).astype(np.float32))
        for name, _, shape, mean, std in case["tensors"]
    }
    architecture = of_config(case["config"])
    config = normalized(case["config"], architecture.defaults, architecture.keys, tensors)
    if architecture.prepare:
        config, arranged = architecture.prepare(config, tensors)
    else:
        arranged = tensors
    mapped = map_tensors(architecture, config, arranged)
    metadata = {"general.architecture": architecture.name, **mapped.metadata(architecture)}
    for key, value in architecture_metadata(architecture, config).items():
        metadata[key] = getattr(value, "data", value)
    check_shapes(architecture, metadata, mapped.tensors)
    return RunningModel(metadata, mapped.tensors)
