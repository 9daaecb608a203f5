"""What a config means by a key that it leaves out: the same as transformers' config class of its model type."""

from __future__ import annotations

import json
from typing import Any

import pytest

from archs.config import normalized
from archs.plans.text import architecture_metadata
from archs.registry import of_config
from quants.errors import ModelError

from .options import Base, Config, bases

# Keys that are worked out from others, or stand for others; those of rotation are by kind of layer in some classes.
WORKED_OUT = {
    "num_key_value_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "ffn_hidden_size",
    "time_step_rank",
    "mamba_dt_rank",
    "num_decoder_layers",
    "scale_decoder_outputs",
    "layers_block_type",
    "layer_types",
    "sliding_window",
    "num_local_experts",
    "text_config",
    "per_layer_config",
    "rope_parameters",
    "architectures",
    "model_type",
    "quantization_config",
    "num_nextn_predict_layers",
    "dtype",
    "torch_dtype",
}


@pytest.mark.verify
@pytest.mark.parametrize("base", bases(), ids=lambda base: base.name)
def test_absent_keys_mean_what_the_model_type_means(base: Base) -> None:
    from transformers import AutoConfig

    inner = next((key for key in ("text_config", "llm_config") if isinstance(base.config.get(key), dict)), None)
    full = AutoConfig.for_model(**json.loads(json.dumps(base.config)))
    kind = type(getattr(full, inner) if inner else full)
    defaults: Config = json.loads(kind().to_json_string(use_diff=False))
    if "rope_theta" in (defaults.get("rope_parameters") or ()):
        defaults["rope_theta"] = defaults["rope_parameters"]["rope_theta"]
    text = base.config[inner] if inner else base.config
    differing = {}
    for key in defaults.keys() - WORKED_OUT:
        if isinstance(defaults[key], list):
            continue
        absent = {other: value for other, value in text.items() if other != key}
        if key == "rope_theta":
            absent = {other: value for other, value in absent.items() if not other.startswith("rope_")}
        said = absent | {key: defaults[key]}
        left_out, given = (keys({**base.config, inner: part} if inner else part) for part in (absent, said))
        if left_out != given:
            differing[key] = defaults[key]
    assert not differing


def keys(config: Config) -> dict[str, Any] | str:
    """The metadata that a config means, or why it means none."""
    try:
        architecture = of_config(config)
        full = normalized(config, architecture.defaults, architecture.keys)
        if architecture.prepare:
            full, _ = architecture.prepare(full, {})
        return {key: getattr(value, "data", value) for key, value in architecture_metadata(architecture, full).items()}
    except ModelError as error:
        return str(error)
