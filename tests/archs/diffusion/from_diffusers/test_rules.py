"""Rules from diffusers' layout: every tensor has a place, every published tensor has all parts, shapes fit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from archs.diffusion.from_diffusers.flux import FLUX
from archs.diffusion.from_diffusers.rules import (
    DiffusersLayout,
    Source,
    flat,
    halves,
    joined,
    modules,
    of_channels,
    parameters,
    swapped,
)
from archs.diffusion.from_diffusers.sd3 import SD3
from archs.diffusion.from_diffusers.unet import SDXL
from archs.diffusion.from_diffusers.wan import WAN
from quants import Tensor, format_named, from_array
from quants.errors import ModelError

Floats = NDArray[np.float32]


def numbers(*shape: int) -> Floats:
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


def tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {name: from_array(name, numbers(*shape), f"model.safetensors: {name}") for name, shape in shapes.items()}


def made(entries: Mapping[str, Source], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    """Return what a layout of single tensors makes of numbered values."""
    layout = DiffusersLayout(parameters(entries), ())
    return {name: each.float32() for name, each in layout(tensors(shapes)).items()}


def test_halves_of_rows_are_exchanged() -> None:
    result = made({"x": swapped("a"), "y": swapped("b")}, {"a": (4, 2), "b": (6,)})
    assert np.array_equal(result["x"], numbers(4, 2)[[2, 3, 0, 1]])
    assert np.array_equal(result["y"], [3, 4, 5, 0, 1, 2])


def test_halves_become_tensors() -> None:
    result = made(halves("x", "y", "a"), {"a": (4, 2)})
    assert np.array_equal(result["x"], numbers(4, 2)[:2])
    assert np.array_equal(result["y"], numbers(4, 2)[2:])


def test_parts_are_joined_in_the_order_of_the_rule() -> None:
    result = made({"x": ("b", "a"), "y": joined("d", "c")}, {"a": (2, 3), "b": (2, 3), "c": (1, 3), "d": (2, 3)})
    assert np.array_equal(result["x"], np.concatenate([numbers(2, 3), numbers(2, 3)]))
    assert np.array_equal(result["y"], np.concatenate([numbers(2, 3), numbers(1, 3)]))


def test_shapes_are_changed() -> None:
    result = made({"x": flat("a"), "y": of_channels("b")}, {"a": (6, 2), "b": (5,)})
    assert np.array_equal(result["x"], numbers(12))
    assert np.array_equal(result["y"], numbers(1, 5, 1, 1))


def test_nothing_is_read_before_rows_are() -> None:
    def read(start: int, stop: int) -> NDArray[np.uint8]:
        raise AssertionError("read")

    shapes = {
        "transformer_blocks.0.attn.to_q.weight": (8, 8),
        "transformer_blocks.0.attn.to_k.weight": (8, 8),
        "transformer_blocks.0.attn.to_v.weight": (8, 8),
        "norm_out.linear.weight": (16, 8),
    }
    source = {name: Tensor(name, shape, format_named("BF16"), read, name) for name, shape in shapes.items()}
    published = FLUX(source)
    assert {name: (tensor.shape, tensor.format.name) for name, tensor in published.items()} == {
        "double_blocks.0.img_attn.qkv.weight": ((24, 8), "BF16"),
        "final_layer.adaLN_modulation.1.weight": ((16, 8), "BF16"),
    }


def test_bits_are_kept_where_parts_have_one_format() -> None:
    bits = np.array([[0x7E01, 0xFE00, 0x7C00, 0x8000]], np.uint16)  # NaNs with payloads, infinity, -0
    source = {name: from_array(name, bits.view(np.float16)) for name in ("a", "b")}
    (tensor,) = DiffusersLayout(parameters({"x": ("a", "b")}), ())(source).values()
    assert tensor.raw().tobytes() == bits.tobytes() * 2


def test_parts_of_different_formats_become_float32() -> None:
    a, b = numbers(2, 4).astype("float16"), numbers(2, 4) + np.float32(1e-6)
    source = {"a": from_array("a", a), "b": from_array("b", b)}
    (tensor,) = DiffusersLayout(parameters({"x": ("a", "b")}), ())(source).values()
    assert tensor.format.name == "F32"
    assert np.array_equal(tensor.float32(), np.concatenate([a.astype("float32"), b]))


def test_rules_of_the_last_block_come_first() -> None:
    shapes = {f"transformer_blocks.{i}.norm1_context.linear.weight": (4, 2) for i in (0, 9, 10)}
    published = SD3(tensors(shapes))
    name = "joint_blocks.{}.context_block.adaLN_modulation.1.weight".format
    assert np.array_equal(published[name(0)].float32(), numbers(4, 2))
    assert np.array_equal(published[name(9)].float32(), numbers(4, 2))
    assert np.array_equal(published[name(10)].float32(), numbers(4, 2)[[2, 3, 0, 1]])


def test_norms_of_wan_are_in_the_order_of_definition() -> None:
    published = WAN(tensors({"blocks.7.norm2.weight": (8,)}))
    assert list(published) == ["blocks.7.norm3.weight"]


@pytest.mark.parametrize(
    "name",
    [
        "transformer_blocks.0.attn.to_q.scale",
        "transformer_blocks.0.attn.to_q",
        "transformer_blocks.00.attn.to_out.0.weight",
        "transformer_blocks.1234567.attn.to_out.0.weight",
        "transformer_blocks.².attn.to_out.0.weight",
        "transformer_blocks.0.attn.to_out.1.weight",
        "xtransformer_blocks.0.attn.to_out.0.weight",
        "controlnet_blocks.0.weight",
        "",
    ],
)
def test_a_tensor_without_a_rule_is_named(name: str) -> None:
    with pytest.raises(ModelError) as raised:
        FLUX(tensors({name: (4, 4)}))
    assert str(raised.value) == f"no published name is known for the tensor {name!r} of a model in diffusers' layout"


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        (
            {"transformer_blocks.3.attn.to_q.bias": (4,), "transformer_blocks.3.attn.to_v.bias": (4,)},
            "'double_blocks.3.img_attn.qkv.bias' needs 'transformer_blocks.3.attn.to_k.bias', which is missing",
        ),
        (
            {f"transformer_blocks.0.attn.{name}.weight": (4, 4) for name in ("to_q", "to_k")}
            | {"transformer_blocks.0.attn.to_v.weight": (2, 4)},
            "'double_blocks.0.img_attn.qkv.weight' is made of tensors of one shape, but "
            "model.safetensors: transformer_blocks.0.attn.to_q.weight has [4, 4] and "
            "model.safetensors: transformer_blocks.0.attn.to_v.weight has [2, 4]",
        ),
        (
            {f"single_transformer_blocks.0.attn.{name}.weight": (4, 4) for name in ("to_q", "to_k", "to_v")}
            | {"single_transformer_blocks.0.proj_mlp.weight": (8, 3)},
            "'single_blocks.0.linear1.weight' is made of tensors of one width, but "
            "model.safetensors: single_transformer_blocks.0.attn.to_q.weight has [4, 4] and "
            "model.safetensors: single_transformer_blocks.0.proj_mlp.weight has [8, 3]",
        ),
        (
            {f"transformer_blocks.0.attn.{name}.bias": () for name in ("to_q", "to_k", "to_v")},
            "model.safetensors: transformer_blocks.0.attn.to_q.bias is a single number; rows were expected",
        ),
        (
            {"norm_out.linear.weight": (5, 4)},
            "model.safetensors: norm_out.linear.weight has the shape [5, 4]; two halves were expected",
        ),
        (
            {"norm_out.linear.bias": ()},
            "model.safetensors: norm_out.linear.bias has the shape []; two halves were expected",
        ),
    ],
)
def test_wrong_parts_are_named(shapes: Mapping[str, tuple[int, ...]], problem: str) -> None:
    with pytest.raises(ModelError) as raised:
        FLUX(tensors(shapes))
    assert str(raised.value) == problem


def test_two_tensors_of_one_published_name_are_refused() -> None:
    layout = DiffusersLayout((*modules({"x": "a"}), *modules({"x": "b"})), ())
    with pytest.raises(ModelError, match=r"several tensors become 'x\.weight': model\.safetensors: a\.weight, "):
        layout(tensors({"a.weight": (2, 2), "b.weight": (2, 2)}))


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["down_blocks.0.resnets.1.conv1.weight"], "the U-Net lacks down_blocks.0.resnets.0"),
        (["down_blocks.1.resnets.0.conv1.weight"], "the U-Net lacks down_blocks.0.resnets.0"),
        (
            ["up_blocks.0.resnets.0.conv1.weight", "up_blocks.0.resnets.2.conv1.weight"],
            "the U-Net lacks up_blocks.0.resnets.1",
        ),
        (["down_blocks.0.resnets.0.conv3.weight"], "no published name is known for the tensor"),
    ],
)
def test_gaps_of_a_u_net_are_named(names: list[str], problem: str) -> None:
    with pytest.raises(ModelError, match=f"^{problem}"):
        SDXL(tensors(dict.fromkeys(names, (4, 4, 1, 1))))
