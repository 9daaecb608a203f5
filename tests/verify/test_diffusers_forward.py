"""Diffusers computes with the files that are made of its folders what it computes with the folders.

The files are in published names, which diffusers reads by its own converters.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gguftools import ConvertOptions, convert

from .diffusers_models import SMALL, built, converter

pytestmark = [pytest.mark.verify, pytest.mark.filterwarnings("ignore")]

WIDE = {  # rows of 256 values and more, as formats in super-blocks need
    "flux": replace(
        SMALL["flux"],
        config=SMALL["flux"].config
        | {
            "in_channels": 64,
            "attention_head_dim": 128,
            "joint_attention_dim": 256,
            "pooled_projection_dim": 256,
            "axes_dims_rope": (16, 56, 56),
        },
        sizes={3072: 256},
    ),
    "sd3": replace(
        SMALL["sd3"],
        config=SMALL["sd3"].config
        | {
            "attention_head_dim": 64,
            "joint_attention_dim": 256,
            "caption_projection_dim": 256,
            "pooled_projection_dim": 256,
        },
    ),
    "wan": replace(
        SMALL["wan"], config=SMALL["wan"].config | {"attention_head_dim": 128, "text_dim": 256, "ffn_dim": 512}
    ),
}
# the root mean square of differences of outputs, in parts of that of outputs; twice of what the formats cost here
LIMITS = {"F16": 0.002, "BF16": 0.02, "Q8_0": 0.03, "Q4_K_M": 0.3}


def given(name: str) -> dict[str, Any]:
    """Return random inputs of a model."""
    import torch

    torch.manual_seed(5)
    if name == "flux":
        return {
            "hidden_states": torch.randn(1, 16, 64),
            "encoder_hidden_states": torch.randn(1, 6, 256),
            "pooled_projections": torch.randn(1, 256),
            "timestep": torch.tensor([0.4]),
            "guidance": torch.tensor([3.5]),
            "img_ids": torch.cat([torch.zeros(16, 1), torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0))], 1),
            "txt_ids": torch.zeros(6, 3),
        }
    if name == "sd3":
        return {
            "hidden_states": torch.randn(1, 4, 8, 8),
            "encoder_hidden_states": torch.randn(1, 6, 256),
            "pooled_projections": torch.randn(1, 256),
            "timestep": torch.tensor([400]),
        }
    return {
        "hidden_states": torch.randn(1, 16, 2, 4, 4),
        "encoder_hidden_states": torch.randn(1, 6, 256),
        "timestep": torch.tensor([400]),
    }


@pytest.mark.parametrize("outtype", LIMITS)
@pytest.mark.parametrize("name", WIDE)
def test_outputs_are_those_of_the_folder(
    name: str, outtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import diffusers
    import torch
    from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

    model = WIDE[name]
    whole = built(model)
    whole.save_pretrained(tmp_path / "folder")
    file = tmp_path / "model.gguf"
    convert(tmp_path / "folder", file, outtype, options=ConvertOptions(reader="diffusers"))
    monkeypatch.setitem(SINGLE_FILE_LOADABLE_CLASSES[model.cls], "checkpoint_mapping_fn", converter(model))
    loaded = getattr(diffusers, model.cls).from_single_file(
        str(file),
        config=str(tmp_path / "folder"),
        quantization_config=diffusers.GGUFQuantizationConfig(compute_dtype=torch.float32),
        torch_dtype=torch.float32,
    )
    with torch.no_grad():
        wanted = whole(**given(name), return_dict=False)[0]
        found = loaded(**given(name), return_dict=False)[0]
    error = float((found - wanted).square().mean().sqrt() / wanted.square().mean().sqrt())
    print(f"\n{name} {outtype}: {error:.5f}")
    assert LIMITS[outtype] / 100 < error < LIMITS[outtype]
