"""Diffusers' own GGUF loader gets from our files what the model has, or fails where `validate` says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gguftools
from gguftools import ConvertOptions

from .diffusers_models import SMALL, SmallModel, back, built, converter, layout_of, tensors_of, torch_of

pytestmark = [pytest.mark.verify, pytest.mark.filterwarnings("ignore")]
# Models whose published names diffusers itself cannot load, for lack of a class or of places in its converter; then
# those whose small sizes are no published ones.
NOT_LOADED = (
    *("cosmos1", "ltx2.3", "wan-flf2v", "hunyuan-video-1.5", "hunyuan-image"),
    *("sd1", "sd2-unclip", "sdxl-refiner", "longcat-image"),
)
LOADED = [name for name in SMALL if name not in NOT_LOADED]
FLUX = {"num_attention_heads": 4, "attention_head_dim": 64, "axes_dims_rope": (16, 24, 24), "joint_attention_dim": 128}
SD3 = {"num_attention_heads": 4, "attention_head_dim": 64, "caption_projection_dim": 256, "joint_attention_dim": 128}


def published(folder: Path, model: SmallModel) -> Any:
    """Write a small model in diffusers' layout to a folder, and its published names to a file. Return it."""
    from safetensors.torch import save_file

    whole = built(model)
    whole.save_pretrained(folder / "whole")
    names = layout_of(model.layout)(tensors_of(whole.state_dict()))
    save_file({name: torch_of(tensor).contiguous() for name, tensor in names.items()}, folder / "model.safetensors")
    return whole


def loaded(folder: Path, model: SmallModel, file: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the model that diffusers makes of a GGUF file."""
    import diffusers
    import torch
    from diffusers.loaders import single_file_model

    entry = single_file_model.SINGLE_FILE_LOADABLE_CLASSES[model.cls]
    monkeypatch.setitem(entry, "checkpoint_mapping_fn", converter(model))
    options = diffusers.GGUFQuantizationConfig(compute_dtype=torch.float32)
    config = {"config": str(folder / "whole"), "quantization_config": options, "torch_dtype": torch.float32}
    return getattr(diffusers, model.cls).from_single_file(str(file), **config).eval()


def error_of(got: Any, whole: Any) -> float:
    """Return the largest error of a tensor over its size."""
    from diffusers.quantizers.gguf.utils import dequantize_gguf_tensor

    expected, errors = whole.state_dict(), [0.0]
    for name, tensor in got.state_dict().items():
        values = dequantize_gguf_tensor(tensor).float()
        assert values.shape == expected[name].shape, name
        errors.append(float((values - expected[name]).norm() / expected[name].norm()))
    return max(errors)


@pytest.mark.parametrize(("outtype", "limit"), [("f32", 0.0), ("bf16", 0.004)])
@pytest.mark.parametrize("name", LOADED)
def test_diffusers_loads_what_validate_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, outtype: str, limit: float
) -> None:
    whole = published(tmp_path, SMALL[name])
    file = tmp_path / "model.gguf"
    gguftools.convert(tmp_path / "model.safetensors", file, outtype, options=ConvertOptions(reader="diffusers"))
    assert gguftools.validate(file, reader="diffusers").ok
    assert error_of(loaded(tmp_path, SMALL[name], file, monkeypatch), whole) <= limit


@pytest.mark.parametrize(
    ("outtype", "limit"), [("f32", 1e-5), ("bf16", 0.02), ("q8_0", 0.05), ("q6_k", 0.1), ("q4_k_s", 0.4)]
)
@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_a_forward_pass_is_that_of_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, outtype: str, limit: float
) -> None:
    """Hidden size 256, so that K formats have blocks. limit: of the error of the recipe; our decoded weights in the
    original model give nearly the same, as diffusers multiplies scales in half precision.
    """
    import torch

    small = SMALL[name]
    wider = FLUX if name == "flux" else SD3
    model = SmallModel(small.cls, small.layout, small.converter, {**small.config, **wider}, {3072: 256})
    whole = published(tmp_path, model)
    file = tmp_path / "model.gguf"
    gguftools.convert(tmp_path / "model.safetensors", file, outtype, options=ConvertOptions(reader="diffusers"))
    got = loaded(tmp_path, model, file, monkeypatch)
    torch.manual_seed(3)
    inputs: dict[str, Any] = {"timestep": torch.tensor([0.5]), "encoder_hidden_states": torch.randn(1, 6, 128)}
    inputs["pooled_projections"] = torch.randn(1, 16)
    if name == "flux":
        places = {"img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(6, 3), "guidance": torch.tensor([3.5])}
        inputs |= {"hidden_states": torch.randn(1, 16, 4), **places}
    else:
        inputs["hidden_states"] = torch.randn(1, 4, 8, 8)
    with torch.no_grad():
        expected, result = whole(**inputs).sample, got(**inputs).sample
        with gguftools.open(file) as opened:
            values = {
                name: torch.from_numpy(each.float32()).reshape(each.shape) for name, each in opened.tensors.items()
            }
        whole.load_state_dict(back(model, values, dict(whole.config)))
        decoded = whole(**inputs).sample
    assert float((result - decoded).norm() / decoded.norm()) <= (0.03 if "q" in outtype else 1e-5)
    error = float((result - expected).norm() / expected.norm())
    print(f"{name} {outtype}: error of the output {error:.2e}")
    assert error <= limit
