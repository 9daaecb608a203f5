"""Plans of files of models in diffusers' layout."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from archs.plans.diffusion import plan_diffusion
from quants import Tensor, format_named
from quants.errors import ModelError
from tests.conftest import ROOT

RECORDS = ROOT / "tests" / "data" / "diffusers_layouts.json.gz"
RECORDED = json.loads(gzip.decompress(RECORDS.read_bytes()))


def shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a recorded model in diffusers' layout."""
    return {each: tuple(shape) for each, (shape, _, _) in RECORDED[name]["tensors"].items()}


def tensors(shapes: Mapping[str, tuple[int, ...]], form: str) -> dict[str, Tensor]:
    return {name: Tensor(name, shape, format_named(form), unread, name) for name, shape in shapes.items()}


def unread(start: int, stop: int) -> NDArray[np.uint8]:
    raise AssertionError("read")


def test_tensors_have_published_names_and_shapes() -> None:
    plan = plan_diffusion(tensors(shapes_of("flux"), "BF16"), {}, "transformer", "AUTO")
    assert plan.family.name == "flux"
    assert {name: list(tensor.shape) for name, tensor in plan.tensors.items()} == RECORDED["flux"]["published"]


@pytest.mark.parametrize(("reader", "form"), [("diffusers", "F32"), (None, "BF16")])
def test_convolutions_for_diffusers_are_not_bfloat16(reader: str | None, form: str) -> None:
    plan = plan_diffusion(tensors(shapes_of("sdxl"), "BF16"), {}, "unet", "AUTO", reader)  # type: ignore[arg-type]
    prefix = "model.diffusion_model." if reader == "diffusers" else ""  # its class looks for these names
    assert plan.tensors[f"{prefix}input_blocks.1.0.in_layers.2.weight"].format.name == form
    assert plan.tensors[f"{prefix}input_blocks.4.1.proj_in.weight"].format.name == "BF16"


def test_a_relative_of_the_same_names_is_refused() -> None:
    """Bria's names are LongCat-Image's in diffusers' layout; its text has another width."""
    shapes = shapes_of("longcat-image")
    (width,) = shapes["context_embedder.bias"]
    for text in (3584, 4096):
        own = tensors({**shapes, "context_embedder.weight": (width, text)}, "F16")
        if text == 3584:
            assert plan_diffusion(own, {}, "transformer", "F16").family.name == "longcat_image"
        else:
            with pytest.raises(ModelError, match="transformer: the tensors are like those of LongCat-Image"):
                plan_diffusion(own, {}, "transformer", "F16")


def test_a_model_without_its_end_is_refused() -> None:
    shapes = shapes_of("flux")
    del shapes["proj_out.weight"]
    with pytest.raises(ModelError, match=r"transformer: .* final_layer\.linear\.weight is missing"):
        plan_diffusion(tensors(shapes, "F16"), {}, "transformer", "F16")
