"""LoRAs of image models, in all the names that they are published with, become exactly W + scale * B·A."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import gguftools
from archs.diffusion.families.flux import FLUX
from archs.diffusion.from_diffusers.rules import DiffusersLayout, halves, modules
from archs.diffusion.spec import DiffusionFamily
from archs.plans.image_adapters import image_adapter, merging, places_of
from gguftools.conversion.options import ConvertOptions
from quants import from_array
from quants.errors import FileError, GgufToolsError, ModelError, OptionError

from ..command_line import run
from ..image_checkpoints import WIDTH, Arrays, arrays, flux, whole_checkpoint

RANK = 4
QKV = "double_blocks.0.img_attn.qkv.weight"
LINEAR1 = "single_blocks.1.linear1.weight"
MODULATION = "final_layer.adaLN_modulation.1.weight"


def pair(rows: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    made = arrays({"a": (RANK, width), "b": (rows, RANK)}, np.float32, seed)
    return made["a"], made["b"]


def merged(tmp_path: Path, adapter: Arrays, scale: float = 1, header: dict[str, str] | None = None) -> Arrays:
    """Merge an adapter into Flux in float32; returns the weights that are not its own."""
    base = flux(dtype=np.float32)
    save_file(base, tmp_path / "flux.safetensors")
    save_file(adapter, tmp_path / "lora.safetensors", header)
    options = ConvertOptions(merge_lora=[(tmp_path / "lora.safetensors", scale)])
    gguftools.convert(tmp_path / "flux.safetensors", tmp_path / "x.gguf", "F32", options=options)
    with gguftools.open(tmp_path / "x.gguf") as model:
        assert set(model.tensors) == set(base)
        written = {name: np.array(each) for name, each in model.tensors.items()}
    (tmp_path / "x.gguf").unlink()
    return {name: each for name, each in written.items() if not np.array_equal(each, base[name])}


def added(name: str, difference: np.ndarray) -> np.ndarray:
    base = flux(dtype=np.float32)[name]
    return np.asarray(base + difference.reshape(base.shape), np.float32)


@pytest.mark.parametrize(
    ("stem", "down", "up"),
    [
        ("lora_unet_double_blocks_0_img_attn_qkv", "lora_down.weight", "lora_up.weight"),
        ("diffusion_model.double_blocks.0.img_attn.qkv", "lora_A.weight", "lora_B.weight"),
        ("double_blocks.0.img_attn.qkv", "lora.down.weight", "lora.up.weight"),
        ("base_model.model.double_blocks.0.img_attn.qkv", "lora_A.default.weight", "lora_B.default.weight"),
        ("double_blocks.0.img_attn.qkv", "lora_linear_layer.down.weight", "lora_linear_layer.up.weight"),
    ],
)
def test_published_names(tmp_path, stem, down, up):
    a, b = pair(3 * WIDTH, WIDTH)
    changed = merged(tmp_path, {f"{stem}.{down}": a, f"{stem}.{up}": b}, 0.5)
    assert list(changed) == [QKV]
    assert np.allclose(changed[QKV], added(QKV, np.float32(0.5) * (b @ a)), atol=1e-7)


def test_alpha_divides_by_the_rank(tmp_path):
    a, b = pair(3 * WIDTH, WIDTH)
    stem = "lora_unet_double_blocks_0_img_attn_qkv"
    adapter = {f"{stem}.lora_down.weight": a, f"{stem}.lora_up.weight": b, f"{stem}.alpha": np.array(1, np.float16)}
    assert np.allclose(merged(tmp_path, adapter, 2)[QKV], added(QKV, np.float32(2 / RANK) * (b @ a)), atol=1e-7)


def test_alpha_of_a_header(tmp_path):
    a, b = pair(3 * WIDTH, WIDTH)
    stem = "transformer.double_blocks.0.img_attn.qkv"
    settings = {"transformer.lora_alpha": 8, "transformer.alpha_pattern": {"img_attn.proj": 1}}
    header = {"lora_adapter_metadata": json.dumps(settings)}
    adapter = {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
    assert np.allclose(merged(tmp_path, adapter, 1, header)[QKV], added(QKV, np.float32(2) * (b @ a)), atol=1e-7)


@pytest.mark.parametrize("style", ["transformer.{}.lora_{}.weight", "lora_unet_{}.lora_{}.weight"])
def test_parts_of_fused_weights(tmp_path, style):
    """Queries and values of a double block, values and the MLP of a single one, and a modulation whose halves swap."""
    adapter: Arrays = {}
    pairs = {}
    for module, rows, width in (
        ("transformer_blocks.0.attn.to_q", WIDTH, WIDTH),
        ("transformer_blocks.0.attn.to_v", WIDTH, WIDTH),
        ("single_transformer_blocks.1.attn.to_k", WIDTH, WIDTH),
        ("single_transformer_blocks.1.proj_mlp", 4 * WIDTH, WIDTH),
        ("norm_out.linear", 2 * WIDTH, WIDTH),
    ):
        a, b = pair(rows, width, len(adapter))
        dotted = "lora_unet" not in style
        name = module if dotted else module.replace(".", "_")
        halves = ("A", "B") if dotted else ("down", "up")
        adapter |= {style.format(name, halves[0]): a, style.format(name, halves[1]): b}
        pairs[module.rpartition(".")[2]] = b @ a
    changed = merged(tmp_path, adapter)
    assert sorted(changed) == sorted([QKV, LINEAR1, MODULATION])
    none = np.zeros((WIDTH, WIDTH), np.float32)
    expected = {
        QKV: np.concatenate([pairs["to_q"], none, pairs["to_v"]]),
        LINEAR1: np.concatenate([none, pairs["to_k"], none, pairs["proj_mlp"]]),
        MODULATION: np.concatenate([pairs["linear"][WIDTH:], pairs["linear"][:WIDTH]]),
    }
    for name, difference in expected.items():
        assert np.allclose(changed[name], added(name, difference), atol=1e-7), name


def test_a_part_alone(tmp_path):
    a, b = pair(4 * WIDTH, WIDTH)
    stem = "transformer.single_transformer_blocks.1.proj_mlp"
    changed = merged(tmp_path, {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b})
    expected = np.concatenate([np.zeros((3 * WIDTH, WIDTH), np.float32), b @ a])
    assert np.allclose(changed[LINEAR1], added(LINEAR1, expected), atol=1e-7)


def test_differences_of_parameters():
    base = arrays({"blocks.0.modulation": (1, 6, 8), "norm.weight": (8,)}, np.float32)
    made = arrays({"modulation": (1, 6, 8), "norm": (8,)}, np.float32, 1)
    adapter = {
        "diffusion_model.blocks.0.modulation.diff": made["modulation"],
        "diffusion_model.norm.diff": made["norm"],
    }
    result = in_memory(base, adapter)
    assert np.array_equal(result["blocks.0.modulation"], base["blocks.0.modulation"] + made["modulation"])
    assert np.array_equal(result["norm.weight"], base["norm.weight"] + made["norm"])


def test_differences_as_a_whole(tmp_path):
    made = arrays({"w": (WIDTH, WIDTH), "b": (WIDTH,)}, np.float32)
    stem = "diffusion_model.double_blocks.0.img_attn.proj"
    changed = merged(tmp_path, {f"{stem}.diff": made["w"], f"{stem}.diff_b": made["b"]}, 0.5)
    weight, bias = (f"double_blocks.0.img_attn.proj.{end}" for end in ("weight", "bias"))
    assert sorted(changed) == [bias, weight]
    assert np.array_equal(changed[weight], added(weight, np.float32(0.5) * made["w"]))
    assert np.array_equal(changed[bias], added(bias, np.float32(0.5) * made["b"]))


UNET = DiffusionFamily("unet", "U-Net", "sd1", ((),), rearranged=True)


def in_memory(base: Arrays, adapter: Arrays, family: DiffusionFamily = UNET) -> Any:
    tensors = {name: from_array(name, values) for name, values in base.items()}
    opened = image_adapter("lora", {name: from_array(name, values) for name, values in adapter.items()}, {})
    return merging([(opened, 1.0)])(family, tensors)


def test_convolutions():
    base = arrays({"a.weight": (70, 8, 3, 3), "b.weight": (6, 8, 1, 1), "c.weight": (6, 8)}, np.float32)
    pairs: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "a": ((RANK, 8, 3, 3), (70, RANK, 1, 1)),
        "b": ((RANK, 8), (6, RANK)),
        "c": ((RANK, 8, 1, 1), (6, RANK, 1, 1)),
    }
    adapter: Arrays = {}
    for seed, (name, (down, up)) in enumerate(pairs.items()):
        made = arrays({"down": down, "up": up}, np.float32, seed)
        adapter |= {f"lora_unet_{name}.lora_{half}.weight": each for half, each in made.items()}
    result = in_memory(base, adapter)
    for name in pairs:
        a, b = (adapter[f"lora_unet_{name}.lora_{half}.weight"] for half in ("down", "up"))
        product = (b.reshape(len(b), RANK) @ a.reshape(RANK, -1)).reshape(base[f"{name}.weight"].shape)
        assert np.allclose(result[f"{name}.weight"].float32(), base[f"{name}.weight"] + product, atol=1e-7), name
        whole, tensor = result[f"{name}.weight"].float32(), result[f"{name}.weight"]
        rows = [tensor.float32(start, start + 1) for start in range(tensor.rows)]
        assert np.array_equal(np.concatenate(rows), whole.reshape(tensor.rows, tensor.width)), name  # bit by bit


def test_unets_by_the_names_of_diffusers():
    shapes: dict[str, tuple[int, ...]] = {"input_blocks.0.0.weight": (8, 4, 3, 3), "middle_block.1.norm.weight": (8,)}
    for number, attends in ((1, True), (2, True), (4, False), (5, False)):
        shapes[f"input_blocks.{number}.0.in_layers.0.weight"] = (8,)
        if attends:
            shapes[f"input_blocks.{number}.1.transformer_blocks.0.attn1.to_k.weight"] = (8, 8)
    shapes["input_blocks.3.0.op.weight"] = (8, 8, 3, 3)
    for number in range(6):
        shapes[f"output_blocks.{number}.0.in_layers.2.weight"] = (8, 8, 3, 3)
        shapes[f"output_blocks.{number}.0.in_layers.0.weight"] = (8,)
    shapes["output_blocks.2.1.conv.weight"] = (8, 8, 3, 3)
    for number in (3, 4, 5):
        shapes[f"output_blocks.{number}.1.norm.weight"] = (8,)
        shapes[f"output_blocks.{number}.1.transformer_blocks.0.attn1.to_k.weight"] = (8, 8)
    base = arrays(shapes, np.float32)
    block = "transformer_blocks_0_attn1_to_k"
    named = {
        f"lora_unet_down_blocks_0_attentions_1_{block}": "input_blocks.2.1",
        f"lora_unet_up_blocks_1_attentions_0_{block}": "output_blocks.3.1",
        "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor.to_k_lora": "input_blocks.1.1",
        f"lora_unet_output_blocks_5_1_{block}": "output_blocks.5.1",
    }
    adapter: Arrays = {}
    for seed, name in enumerate(named):
        made = arrays({"down": (RANK, 8), "up": (8, RANK)}, np.float32, seed)
        dot = "." if name.endswith("_lora") else ".lora_"
        adapter |= {f"{name}{dot}{half}.weight": each for half, each in made.items()}
    result = in_memory(base, adapter)
    changed = {name for name, each in result.items() if not np.array_equal(each.float32(), base[name])}
    assert changed == {f"{name}.transformer_blocks.0.attn1.to_k.weight" for name in named.values()}


def test_text_encoders_are_left_out_and_named(tmp_path):
    a, b = pair(3 * WIDTH, WIDTH)
    stem = "lora_unet_double_blocks_0_img_attn_qkv"
    adapter = {f"{stem}.lora_down.weight": a, f"{stem}.lora_up.weight": b}
    adapter |= {"lora_te1_text_model_encoder_layers_0_mlp_fc1.lora_down.weight": a}
    save_file(whole_checkpoint(), tmp_path / "all.safetensors")
    save_file(adapter, tmp_path / "lora.safetensors")
    done = run(
        "convert", "all.safetensors", "--merge-lora", "lora.safetensors=0.5", "-o", "x.gguf", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "1 of its tensors are left out" in done.stderr + done.stdout


BAD: dict[str, tuple[Arrays, str]] = {
    "DoRA": ({"lora_unet_x.dora_scale": np.ones(3, "f4")}, "is DoRA"),
    "LoHa": ({"lora_unet_x.hada_w1_a": np.ones((3, 3), "f4")}, "is LoHa"),
    "LoKr": ({"lora_unet_x.lokr_w1": np.ones((3, 3), "f4")}, "is LoKr"),
    "Tucker": ({"lora_unet_x.lora_mid.weight": np.ones((3, 3), "f4")}, "Tucker"),
    "nothing": ({"lora_te_x.lora_down.weight": np.ones((3, 3), "f4")}, "changes text encoders alone"),
    "unknown keys": ({"x.processor.qkv_lora1.odd": np.ones((3, 3), "f4")}, "no part of a LoRA: x.processor"),
    "unknown module": ({"lora_unet_x.diff": np.ones((3, 3), "f4")}, "1 modules that the model does not have"),
    "half": ({"lora_unet_img_in.lora_down.weight": np.ones((3, 64), "f4")}, "one half"),
    "shape": ({"lora_unet_img_in.diff": np.ones((64, WIDTH), "f4")}, r"is \[64, 256\], the weight is \[256, 64\]"),
    "ranks": (
        {
            "lora_unet_img_in.lora_down.weight": np.ones((3, 64), "f4"),
            "lora_unet_img_in.lora_up.weight": np.ones((WIDTH, 4), "f4"),
        },
        "don't multiply",
    ),
    "rank 0": (
        {
            "lora_unet_img_in.lora_down.weight": np.ones((0, 64), "f4"),
            "lora_unet_img_in.lora_up.weight": np.ones((WIDTH, 0), "f4"),
        },
        "don't multiply",
    ),
    "rows": (
        {
            "transformer_blocks.0.attn.to_q.lora_A.weight": np.ones((3, WIDTH), "f4"),
            "transformer_blocks.0.attn.to_q.lora_B.weight": np.ones((WIDTH + 1, 3), "f4"),
        },
        "the parts of",
    ),
    "alpha": (
        {
            "lora_unet_img_in.lora_down.weight": np.ones((3, 64), "f4"),
            "lora_unet_img_in.lora_up.weight": np.ones((WIDTH, 3), "f4"),
            "lora_unet_img_in.alpha": np.array(np.nan, "f4"),
        },
        "a number was expected",
    ),
    "no bias": ({"lora_unet_img_in.diff_b": np.ones(3, "f4")}, "difference of 'img_in.bias'"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_merged_is_refused(tmp_path, name):
    adapter, problem = BAD[name]
    with pytest.raises(ModelError, match=problem):
        merged(tmp_path, adapter)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flux.safetensors", "lora.safetensors"]


def test_sources_of_adapters(tmp_path):
    a, b = pair(3 * WIDTH, WIDTH)
    save_file(flux(), tmp_path / "flux.safetensors")
    folder = tmp_path / "lora"
    folder.mkdir()
    stem = "base_model.model.double_blocks.0.img_attn.qkv"
    options = ConvertOptions(merge_lora=[folder])
    with pytest.raises(FileError, match="has no LoRA"):
        gguftools.convert(tmp_path / "flux.safetensors", tmp_path / "x.gguf", options=options)
    save_file({f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}, folder / "adapter_model.safetensors")
    for config, problem in (
        ({"use_dora": True}, "use_dora"),
        ({"lora_alpha": -1}, "alpha -1"),
        ({"use_rslora": 1}, "rs"),
    ):
        (folder / "adapter_config.json").write_text(json.dumps(config))
        with pytest.raises(GgufToolsError, match=problem):
            gguftools.convert(tmp_path / "flux.safetensors", tmp_path / "x.gguf", options=options)
    (folder / "adapter_config.json").write_text(json.dumps({"lora_alpha": 8, "r": 4}))
    gguftools.convert(tmp_path / "flux.safetensors", tmp_path / "x.gguf", "F32", options=options)
    with gguftools.open(tmp_path / "x.gguf") as model:
        expected = flux()[QKV].astype(np.float32) + np.float32(2) * (b @ a)
        assert np.allclose(model.tensors[QKV], expected, atol=1e-7)
    with pytest.raises(OptionError, match="not merged into the part"):
        gguftools.convert(tmp_path / "flux.safetensors", tmp_path / "y.gguf", part="vae", options=options)


def test_halves_become_two_modules():
    """Ovis-Image: gate and up projection are one module in diffusers."""
    layout = DiffusersLayout(modules(halves("gate", "up", "both")), ())
    family = DiffusionFamily("two", "Two", "flux", ((),), from_diffusers=layout)
    base = arrays({"gate.weight": (6, 8), "up.weight": (6, 8)}, np.float32)
    made = arrays({"lora_A": (RANK, 8), "lora_B": (12, RANK)}, np.float32, 1)
    result = in_memory(base, {f"transformer.both.{name}.weight": each for name, each in made.items()}, family)
    product = made["lora_B"] @ made["lora_A"]
    assert np.allclose(result["gate.weight"].float32(), base["gate.weight"] + product[:6], atol=1e-7)
    assert np.allclose(result["up.weight"].float32(), base["up.weight"] + product[6:], atol=1e-7)


def test_names_of_flux_in_diffusers_have_places():
    tensors = {name: from_array(name, values) for name, values in flux().items()}
    places = places_of(FLUX, tensors)
    [place] = places["transformer_blocks.0.attn.add_k_proj"]
    assert place.part == 1
    [place] = places["transformer_blocks_0_attn_add_k_proj"]
    assert place.target == "double_blocks.0.txt_attn.qkv.weight"
    targets = {place.target for found in places.values() for place in found}
    assert targets == {name for name in tensors if not name.endswith(".bias")}
