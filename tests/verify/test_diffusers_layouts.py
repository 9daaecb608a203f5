"""Published names made of diffusers' layout are what diffusers makes that layout of, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from archs.diffusion.detection import family_in_diffusers, family_of
from archs.plans.diffusion import plan_diffusion
from quants import Tensor, format_named
from quants.errors import ModelError

from .diffusers_layouts import RECORDS, recorded, stored
from .diffusers_models import SMALL, WAN, WAN_IMAGES, back, built, layout_of, tensors_of, torch_of

pytestmark = [pytest.mark.verify, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SMALL)
def test_diffusers_reads_the_published_names_as_the_same_tensors(name: str, dtype: str) -> None:
    import torch

    model = SMALL[name]
    whole = built(model)
    state = {key: value.to(getattr(torch, dtype)) for key, value in whole.state_dict().items()}
    published = {key: torch_of(tensor) for key, tensor in layout_of(model.layout)(tensors_of(state)).items()}
    converted = back(model, published, dict(whole.config))
    assert converted.keys() == state.keys()
    for key, tensor in state.items():
        assert converted[key].dtype == tensor.dtype
        assert torch.equal(converted[key], tensor), key


@pytest.mark.parametrize("name", SMALL)
def test_the_record_is_what_diffusers_does(name: str) -> None:
    assert stored(RECORDS)[name] == recorded(SMALL[name])


SMALL_QWEN = {"num_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2, "axes_dims_rope": (4, 4, 8)}
OTHERS = {  # class, options → family, and whether its names are published ones
    "SkyReelsV2Transformer3DModel": (WAN, "wan", False),
    "ChronoEditTransformer3DModel": (WAN_IMAGES, "wan", False),
    "QwenImageTransformer2DModel": (SMALL_QWEN, "qwen_image", True),
    "HiDreamImageTransformer2DModel": (
        {
            "patch_size": 2,
            "num_layers": 1,
            "num_single_layers": 1,
            "caption_channels": [16, 16],
            "llama_layers": [0, 1],
        },
        "hidream",
        True,
    ),
    "ErnieImageTransformer2DModel": ({"hidden_size": 32, "num_layers": 1, "ffn_hidden_size": 32}, "ernie_image", True),
    "Kandinsky5Transformer3DModel": ({"num_text_blocks": 1, "num_visual_blocks": 1}, "kandinsky5", True),
    "MochiTransformer3DModel": ({"num_layers": 1}, "", False),
    "SanaTransformer2DModel": ({"num_layers": 1}, "", False),
    "CogVideoXTransformer3DModel": ({"num_layers": 1}, "", False),
    "PixArtTransformer2DModel": ({"num_layers": 1, "caption_channels": 16}, "", False),
    "AllegroTransformer3DModel": ({"num_layers": 1}, "", False),
    "ControlNetModel": ({}, "", False),
}


@pytest.mark.parametrize("cls", OTHERS)
def test_classes_of_other_layouts(cls: str) -> None:
    import diffusers
    import torch

    config, name, is_published = OTHERS[cls]
    with torch.device("meta"):
        state = getattr(diffusers, cls)(**config).state_dict()
    shapes = {key: tuple(tensor.shape) for key, tensor in state.items()}
    found = (family_of(shapes), family_in_diffusers(shapes))
    assert [family.name if family else "" for family in found] == ([name, ""] if is_published else ["", name])


RELATIVES = {  # class → options, and what is wrong
    "FluxControlNetModel": ({"num_layers": 1, "num_single_layers": 1}, "controlnet_blocks.0"),
    "HunyuanVideoFramepackTransformer3DModel": (
        {"num_layers": 1, "num_single_layers": 1, "has_clean_x_embedder": True},
        "clean_x_embedder.proj",
    ),
    "BriaTransformer2DModel": ({"num_layers": 1, "num_single_layers": 1, "pooled_projection_dim": 16}, "LongCat"),
}


@pytest.mark.parametrize("cls", RELATIVES)
def test_relatives_with_the_same_names_are_refused(cls: str) -> None:
    import diffusers
    import torch

    config, problem = RELATIVES[cls]
    with torch.device("meta"):
        state = getattr(diffusers, cls)(**config).state_dict()
    tensors = {key: Tensor(key, tuple(each.shape), format_named("F32"), unread, key) for key, each in state.items()}
    with pytest.raises(ModelError, match=problem):
        plan_diffusion(tensors, {}, "model.safetensors", "F16")


def unread(start: int, stop: int) -> Any:
    raise AssertionError("read")
