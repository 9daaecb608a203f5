"""Each layout of diffusers becomes the published one, as diffusers' own converters read it back."""

from __future__ import annotations

import gzip
import importlib
import json
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from archs.diffusion import from_diffusers
from archs.diffusion.detection import family_in_diffusers, family_of
from archs.diffusion.from_diffusers import flux, ideogram
from archs.diffusion.from_diffusers.rules import DiffusersLayout
from quants import Tensor, from_array
from tests.conftest import ROOT

RECORDS = ROOT / "tests" / "data" / "diffusers_layouts.json.gz"


@cache
def records() -> dict[str, Any]:
    """Return what `tests.verify.diffusers_layouts` recorded: places of diffusers' tensors in published ones."""
    loaded: dict[str, Any] = json.loads(gzip.decompress(RECORDS.read_bytes()))
    return loaded


NAMES = sorted(records())


def layout_of(name: str) -> Any:
    module, _, attribute = records()[name]["layout"].partition(".")
    return getattr(importlib.import_module(f"{from_diffusers.__name__}.{module}"), attribute)


def random_tensors(name: str) -> dict[str, Tensor]:
    draw = np.random.default_rng(len(name))
    shapes = {each: shape for each, (shape, _, _) in records()[name]["tensors"].items()}
    return {each: from_array(each, draw.normal(size=shape).astype("float16"), each) for each, shape in shapes.items()}


@pytest.mark.parametrize("name", NAMES)
def test_values_are_where_diffusers_takes_them_from(name: str) -> None:
    source = random_tensors(name)
    published = layout_of(name)(source)
    assert {each: list(tensor.shape) for each, tensor in published.items()} == records()[name]["published"]
    assert all(tensor.name == each for each, tensor in published.items())
    flat = {each: tensor.raw().tobytes() for each, tensor in published.items()}
    for each, (_, origin, ranges) in records()[name]["tensors"].items():
        taken = b"".join(flat[origin][2 * start : 2 * stop] for start, stop in ranges)
        assert taken == source[each].raw().tobytes(), each
    assert sum(tensor.size for tensor in published.values()) == sum(tensor.size for tensor in source.values())


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_read_a_few_at_a_time(name: str) -> None:
    for tensor in layout_of(name)(random_tensors(name)).values():
        whole = tensor.raw()
        for start in range(0, tensor.rows, step := max(1, tensor.rows // 3)):
            stop = min(tensor.rows, start + step)
            assert np.array_equal(tensor.raw(start, stop), whole[start:stop])


def all_layouts() -> dict[str, tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]]:
    """Return the signatures and the absent names of all layouts, by "module.NAME"."""
    modules = [
        importlib.import_module(f"{from_diffusers.__name__}.{info.name}")
        for info in pkgutil.iter_modules(from_diffusers.__path__)
    ]
    return {
        f"{module.__name__.rpartition('.')[2]}.{attribute}": (value.signatures, value.absent)
        for module in modules
        for attribute, value in vars(module).items()
        if isinstance(value, DiffusersLayout)
    }


def matching(names: Mapping[str, Any]) -> list[str]:
    """Return the layouts that a model with tensors of these names has."""
    return [
        layout
        for layout, (signatures, absent) in all_layouts().items()
        if any(all(name in names for name in one) for one in signatures) and not any(name in names for name in absent)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_of_one_layout(name: str) -> None:
    record = records()[name]
    assert matching(record["tensors"]) == [record["layout"]]
    assert not matching(record["published"])


@pytest.mark.parametrize("name", NAMES)
def test_the_family_is_found_in_both_layouts(name: str) -> None:
    record = records()[name]
    shapes = {each: tuple(shape) for each, (shape, _, _) in record["tensors"].items()}
    family = family_in_diffusers(shapes)
    assert family is not None
    assert family.from_diffusers is layout_of(name)
    assert family_of(shapes) is None
    published = record["published"]
    assert any(all(each in published for each in names) for names in family.signatures)
    assert not any(each in published for each in family.absent)


def test_every_layout_is_recorded() -> None:
    assert {*all_layouts()} - {record["layout"] for record in records().values()} == {
        "flux.OVIS_IMAGE",
        "ideogram.IDEOGRAM_4",
    }


def test_ideogram_joins_queries_keys_and_values() -> None:
    draw = np.random.default_rng(4)
    names = ("to_q", "to_k", "to_v")
    parts = {f"layers.3.attention.{name}.weight": draw.normal(size=(4, 8)).astype("float32") for name in names}
    others = {name: np.ones((8, 4), "f4") for name in ("layers.3.attention.to_out.0.weight", "adaln_proj.weight")}
    published = ideogram.IDEOGRAM_4({name: from_array(name, values) for name, values in {**parts, **others}.items()})
    assert sorted(published) == ["adaln_proj.weight", "layers.3.attention.o.weight", "layers.3.attention.qkv.weight"]
    joined = published["layers.3.attention.qkv.weight"].float32()
    assert np.array_equal(joined, np.concatenate(list(parts.values())))


def test_ovis_has_gates_of_their_own() -> None:
    values = np.random.default_rng(5).normal(size=(6, 4)).astype("float32")
    published = flux.OVIS_IMAGE(
        {
            "transformer_blocks.2.ff.net.0.proj.weight": from_array("a", values),
            "transformer_blocks.2.ff_context.net.0.proj.bias": from_array("b", values[:, 0]),
        }
    )
    assert {name: tensor.float32().tolist() for name, tensor in published.items()} == {
        "double_blocks.2.img_mlp.up_proj.weight": values[:3].tolist(),
        "double_blocks.2.img_mlp.gate_proj.weight": values[3:].tolist(),
        "double_blocks.2.txt_mlp.up_proj.bias": values[:3, 0].tolist(),
        "double_blocks.2.txt_mlp.gate_proj.bias": values[3:, 0].tolist(),
    }
