"""ComfyUI's files: every format by its definition, under every prefix, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from archs.prequantized.comfy import unpacked_weights
from archs.prequantized.comfy_formats import FORMATS
from archs.prequantized.tensor_groups import Unpacked
from quants.errors import ModelError

from . import comfy_writers as comfy
from .comfy_writers import CASES, ROTATED, as_bytes
from .writers import Parts, bitsandbytes_int8, gptq, nf4, stored

RNG = np.random.default_rng(36)
WEIGHT = RNG.standard_normal((140, 256)).astype(np.float32)
OTHERS: Parts = {"norm.weight": ("F32", np.ones(256, np.float32)), "final.weight": ("BF16", np.ones((4, 8), np.uint16))}
LAYER = "blocks.0.attn.qkv"
PADDED = ("mxfp8", "nvfp4", "nvfp4-power")


def layer(name: str, layer: str = LAYER, weight: np.ndarray = WEIGHT) -> tuple[dict[str, Any], Parts, np.ndarray]:
    """Settings, parts and values of a layer; padded rows have a bias."""
    settings, parts, values = CASES[name](weight)
    if name in PADDED:
        parts["bias"] = "F32", np.zeros(len(weight), np.float32)
    return settings, {f"{layer}.{key}": part for key, part in parts.items()}, values[: len(weight)]


def described(name: str, at: str = LAYER, weight: np.ndarray = WEIGHT) -> tuple[Parts, np.ndarray]:
    """Parts of a layer with settings of its own, and its values."""
    settings, parts, values = layer(name, at, weight)
    return parts | ({f"{at}.comfy_quant": as_bytes(settings)} if settings else {}), values


def read(parts: Parts, header: dict[str, str] | None = None) -> Unpacked:
    return unpacked_weights(stored(parts | OTHERS), header or {})


def header_of(**layers: Any) -> dict[str, str]:
    return {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})}


def check(name: str, weight: Any, values: np.ndarray) -> None:
    assert weight.shape == values.shape
    assert weight.format.name == {"nvfp4-power": "NVFP4", "plain": "F8_E4M3"}.get(name, "F32")
    if name in ROTATED:
        assert np.abs(weight.float32() - values).max() < 1e-6 * np.abs(values).max()
    else:
        np.testing.assert_array_equal(weight.float32(), values)
    raw = weight.raw()
    for start, stop in ((0, 0), (5, 6), (3, 77), (len(raw) - 20, len(raw)), (127, 128)):
        np.testing.assert_array_equal(weight.raw(start, stop), raw[start:stop])


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "text_encoders.t5xxl.transformer."])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, prefix: str) -> None:
    parts, values = described(name, prefix + LAYER)
    found = read(parts)
    assert set(found.tensors) - {f"{prefix}{LAYER}.bias"} == {f"{prefix}{LAYER}.weight", *OTHERS}
    weight = found.tensors[f"{prefix}{LAYER}.weight"]
    assert weight.name == f"{prefix}{LAYER}.weight"
    check(name, weight, values)
    errors = np.abs(values - WEIGHT)
    assert errors.max() < 0.45 * np.abs(WEIGHT).max()  # the writer is not nonsense either
    assert errors.mean() < 0.15 * np.abs(WEIGHT).mean()


def test_all_formats_have_a_case() -> None:
    assert {CASES[name](WEIGHT)[0].get("format") for name in CASES} - {None} == set(FORMATS)


@pytest.mark.parametrize("named", ["", "model.diffusion_model."])
@pytest.mark.parametrize("name", ["float8-rows", "int8-rotated", "nvfp4", "w4a8-codebook", "nf4"])
def test_settings_in_the_header(name: str, named: str) -> None:
    """Names are those of the file, or lack the model's prefix."""
    prefix = "model.diffusion_model."
    settings, parts, values = layer(name, prefix + LAYER)
    other = header_of(**{named + LAYER: settings, named + "blocks.7.absent": {"format": "nvfp4"}})
    check(name, read(parts, other).tensors[f"{prefix}{LAYER}.weight"], values)


def test_several_models_in_one_file() -> None:
    model, of_model = described("nvfp4", "model.diffusion_model." + LAYER)
    encoder, of_encoder = described("old-float8", "text_encoders.t5.transformer." + LAYER)
    marker: Parts = {"text_encoders.t5.transformer.scaled_fp8": ("F8_E4M3", np.zeros(2, np.uint8))}
    words: Parts = {"text_encoders.t5.transformer.spiece_model": ("U8", np.zeros(99, np.uint8))}
    found = read(encoder | model | marker | words)
    check("nvfp4", found.tensors[f"model.diffusion_model.{LAYER}.weight"], of_model)
    check("old-float8", found.tensors[f"text_encoders.t5.transformer.{LAYER}.weight"], of_encoder)
    assert "text_encoders.t5.transformer.spiece_model" in found.tensors
    assert found.ignored == [
        "text_encoders.t5.transformer.scaled_fp8",
        f"text_encoders.t5.transformer.{LAYER}.scale_input",
    ]


def test_scales_of_activations_are_ignored() -> None:
    parts, values = described("float8-rows")
    parts[f"{LAYER}.input_scale"] = "F32", np.ones((), np.float32)
    found = read(parts)
    assert found.ignored == [f"{LAYER}.input_scale"]
    check("float8-rows", found.tensors[f"{LAYER}.weight"], values)


def test_scaled_float8_needs_no_settings() -> None:
    _, parts, values = layer("float8-rows")
    check("float8-rows", read(parts).tensors[f"{LAYER}.weight"], values)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (140,), (140, 1), (140, 1, 1)])
def test_shapes_of_scales(shape: tuple[int, ...]) -> None:
    _, parts, _ = layer("old-float8")
    scales = RNG.random(shape or (1,)).astype(np.float32).reshape(shape)
    unscaled = stored(parts)[f"{LAYER}.weight"].float32()
    weight = read(parts | {f"{LAYER}.scale_weight": ("F32", scales)}).tensors[f"{LAYER}.weight"]
    np.testing.assert_array_equal(weight.float32(), unscaled * scales.reshape(-1, 1))


def test_scales_of_convolutions() -> None:
    codes, scales = RNG.integers(0, 100, (6, 4, 3, 3), np.uint8), RNG.random((6, 1, 1, 1)).astype(np.float32)
    parts: Parts = {"conv.weight": ("F8_E4M3", codes), "conv.scale_weight": ("F32", scales)}
    plain = stored(parts)["conv.weight"].float32()
    weight = read(parts).tensors["conv.weight"]
    np.testing.assert_array_equal(weight.float32(), plain * scales)
    np.testing.assert_array_equal(weight.float32(7, 31), (plain * scales).reshape(-1, 3)[7:31])


@pytest.mark.parametrize("name", ["float8-rows", "int8", "mxfp8", "nvfp4", "w4a4", "w4a8-codebook"])
def test_experts_that_are_stacked(name: str) -> None:
    """Each expert has scales of its own; tiles begin anew."""
    written = [CASES[name](WEIGHT[:128] * factor) for factor in (1, 3, 0.5)]
    first = written[0][1]
    parts = {key: (dtype, np.stack([part[key][1] for _, part, _ in written])) for key, (dtype, _) in first.items()}
    if name == "w4a8-codebook":
        parts["weight_codebook"] = first["weight_codebook"]
    settings = written[0][0] | {"num_experts": 3}
    whole = {f"{LAYER}.{key}": part for key, part in parts.items()} | {f"{LAYER}.comfy_quant": as_bytes(settings)}
    weight, wanted = read(whole).tensors[f"{LAYER}.weight"], np.stack([values for _, _, values in written])
    assert weight.shape == wanted.shape
    np.testing.assert_allclose(weight.float32(), wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
    np.testing.assert_array_equal(weight.float32(100, 300), weight.float32().reshape(-1, 256)[100:300])


def test_rows_without_a_bias_stay_padded() -> None:
    parts, values = described("nvfp4")
    del parts[f"{LAYER}.bias"]
    weight = read(parts).tensors[f"{LAYER}.weight"]
    assert weight.shape == (144, 256)
    np.testing.assert_array_equal(weight.float32(0, 140), values)
    assert not weight.float32(140, 144).any()


@pytest.mark.parametrize("name", PADDED)
def test_the_original_shape_is_named(name: str) -> None:
    weight = WEIGHT[:, :250] if name == "mxfp8" else WEIGHT[:, :245]
    settings, parts, values = CASES[name](weight)
    whole: Parts = {f"{LAYER}.{key}": part for key, part in parts.items()}

    def with_shape(*shape: int) -> Any:
        named = as_bytes(settings | {"orig_shape": shape, "orig_dtype": "torch.float16"})
        quant: Parts = {f"{LAYER}.comfy_quant": named}
        return read(whole | quant).tensors[f"{LAYER}.weight"]

    found = with_shape(*weight.shape)
    assert found.shape == weight.shape
    np.testing.assert_array_equal(found.float32(), values[:140, : weight.shape[1]])
    np.testing.assert_array_equal(found.float32(3, 131), values[3:131, : weight.shape[1]])
    assert with_shape(140, values.shape[1]).format.name == ("NVFP4" if name == "nvfp4-power" else "F32")
    for wrong in ((140,), (140, 200), (120, 250), (140, 250, 1), (300, 250)):
        with pytest.raises(ModelError, match=r"; \[.*\] in multiples of (16|32) was expected"):
            with_shape(*wrong)
    whole[f"{LAYER}.bias"] = "F32", np.zeros(141, np.float32)
    with pytest.raises(ModelError, match=r"and a bias of \[141\]; \[140, 2.*\] in multiples"):
        with_shape(*weight.shape)


def test_rows_that_need_no_padding() -> None:
    """Not every writer pads rows."""
    parts, values = described("mxfp8", weight=WEIGHT[:128])
    for key in ("weight", "bias"):
        dtype, array = parts[f"{LAYER}.{key}"]
        parts[f"{LAYER}.{key}"] = dtype, array[:120]
    np.testing.assert_array_equal(read(parts).tensors[f"{LAYER}.weight"].float32(), values[:120])


def test_scales_in_tiles_that_are_flat_or_plain_bytes() -> None:
    for name in ("nvfp4", "nvfp4-power", "mxfp8"):
        parts, values = described(name)
        _, scales = parts[f"{LAYER}.weight_scale"]
        for form in (("U8", scales), ("F8_E4M3" if name != "mxfp8" else "F8_E8M0", scales.reshape(-1))):
            weight = read(parts | {f"{LAYER}.weight_scale": form}).tensors[f"{LAYER}.weight"]
            np.testing.assert_array_equal(weight.float32(), values)
            np.testing.assert_array_equal(weight.float32(127, 131), values[127:131])


def test_inputs_that_are_scaled_before_the_weight() -> None:
    parts, values = described("nvfp4")
    factors = RNG.random(256).astype(np.float32)
    weight = read(parts | {f"{LAYER}.pre_quant_scale": ("F32", factors)}).tensors[f"{LAYER}.weight"]
    np.testing.assert_array_equal(weight.float32(2, 9), values[2:9] * factors)


def test_rotations_without_a_format() -> None:
    """Nodes for INT8 wrote the rotation alone."""
    settings, parts, values = layer("int8-rotated")
    del settings["format"]
    quant: Parts = {f"{LAYER}.comfy_quant": as_bytes(settings | {"per_row": True})}
    check("int8-rotated", read(parts | quant).tensors[f"{LAYER}.weight"], values)


@pytest.mark.parametrize("write", [nf4(), nf4(nested=False), nf4(storage="BF16"), bitsandbytes_int8])
def test_bitsandbytes(write: Any) -> None:
    parts, values = write(WEIGHT)
    found = read({f"model.diffusion_model.{LAYER}.{key}": part for key, part in parts.items()})
    assert set(found.tensors) == {f"model.diffusion_model.{LAYER}.weight", *OTHERS}
    np.testing.assert_array_equal(found.tensors[f"model.diffusion_model.{LAYER}.weight"].float32(), values)


def test_convolutions_of_bitsandbytes() -> None:
    parts, values = nf4()(WEIGHT.reshape(140, 64, 2, 2))
    weight = read({f"conv.{key}": part for key, part in parts.items()}).tensors["conv.weight"]
    assert weight.shape == (140, 64, 2, 2)
    np.testing.assert_array_equal(weight.float32(), values)


def test_layers_that_were_never_scaled_stay_plain() -> None:
    """ComfyUI reads 8-bit floats without a scale as numbers; only blocks that are alike must be so."""
    parts, _ = described("old-float8", "blocks.0.mlp.0")
    codes = parts["blocks.0.mlp.0.weight"]
    found = read(parts | {"blocks.0.mlp.2.weight": codes, "txt_in.weight": codes, "blocks.1.norm.weight": codes})
    assert found.tensors["blocks.0.mlp.2.weight"].format.name == "F8_E4M3"
    with pytest.raises(ModelError, match=r"blocks\.7\.mlp\.0\.weight is F8_E4M3 .* which the same weights of other"):
        read(parts | {"blocks.7.mlp.0.weight": codes})


def test_plain_files_are_left_alone() -> None:
    tensors = stored(OTHERS)
    found = unpacked_weights(tensors, {"config": "{}"})
    assert (found.tensors, found.ignored) == (tensors, [])


REFUSED: dict[str, tuple[Parts, str]] = {
    "nunchaku": (
        {"b.0.qweight": ("I8", np.zeros((4, 8), np.int8)), "b.0.wscales": ("BF16", np.zeros((1, 4), np.uint16))},
        "nunchaku's SVDQuant",
    ),
    "gptq": ({f"b.0.{key}": part for key, part in gptq()(WEIGHT[:96])[0].items()}, "as GPTQ or AWQ pack them"),
    "quanto": ({"b.0.weight._data": ("I8", np.zeros((4, 8), np.int8))}, "optimum-quanto"),
    "sdnq": ({"b.0.weight": ("U8", np.zeros(8, np.uint8)), "b.0.svd_up": ("F32", np.ones(4, np.float32))}, "SDNQ"),
    "I8 alone": ({"b.0.weight": ("I8", np.zeros((4, 8), np.int8))}, r"is I8 \[4, 8\], without the scales"),
    "U8 alone": ({"b.0.weight": ("U8", np.zeros((4, 8), np.uint8))}, r"is U8 \[4, 8\], without the scales"),
    "F4 alone": ({"b.0.weight": ("F4", np.zeros((4, 8), "V1"))}, "is F4 .*, without the scales"),
    "I8 without settings": (layer("int8")[1], r"is I8 \[140, 256\], and neither .comfy_quant nor the header"),
    "U8 without settings": (layer("nvfp4")[1], r"is U8 \[144, 128\], and neither .comfy_quant nor the header"),
    "scaled BF16": (
        {"b.weight": ("BF16", np.ones((4, 8), np.uint16)), "b.scale_weight": ("F32", np.ones(1, np.float32))},
        r"b.weight is BF16 \[4, 8\], and 'b.scale_weight' does not go with it",
    ),
    "a scale alone": ({"b.weight_scale": ("F32", np.ones(1, np.float32))}, "belongs to 'b.weight', which is missing"),
    "an old scale alone": ({"b.scale_weight": ("F32", np.ones(1, np.float32))}, "belongs to 'b.weight', which is"),
    "absmax alone": ({"b.weight.absmax": ("F32", np.ones(1, np.float32))}, "belongs to 'b.weight', which is missing"),
    "settings alone": ({"b.comfy_quant": as_bytes({"format": "nvfp4"})}, "describes 'b.weight', which is missing"),
    "two scales": (
        layer("old-float8")[1] | {f"{LAYER}.weight_scale": ("F32", np.ones((), np.float32))},
        "weight is F8_E4M3 .* and .* does not go with it",
    ),
    "blocks": (
        layer("plain")[1] | {f"{LAYER}.weight_scale_inv": ("F32", np.ones((2, 2), np.float32))},
        "'blocks.0.attn.qkv.weight_scale_inv' does not go with it",
    ),
    "a marker alone": (
        layer("plain")[1] | {"scaled_fp8": ("F8_E4M3", np.zeros(2, np.uint8))},
        "is scaled, as 'scaled_fp8' says, and no '.scale_weight' is there",
    ),
    "one scale missing": (
        layer("old-float8")[1] | {"blocks.1.attn.qkv.weight": ("F8_E4M3", np.zeros((4, 8), np.uint8))},
        "blocks.1.attn.qkv.weight is F8_E4M3 .* without a scale, which the same weights of other blocks have",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    parts, message = REFUSED[name]
    with pytest.raises(ModelError, match=message) as caught:
        read(parts)
    assert "\n" not in str(caught.value)


SHAPES = [
    ("old-float8", "scale_weight", "F32", (2, 2), r"has shape \[2, 2\]; one number, or one for each output of \[140\]"),
    ("old-float8", "scale_weight", "F32", (0,), r"has shape \[0\]; one number"),
    ("old-float8", "scale_weight", "F32", (1, 140), r"has shape \[1, 140\]; one number"),
    ("old-float8", "scale_weight", "I32", (1,), "scale_weight is I32; F32, F16, BF16, F64 was expected"),
    ("float8-rows", "weight", "F8_E5M2", (140, 256), "is F8_E5M2 .*; a matrix of F8_E4M3 was expected for 'float8_e4"),
    ("float8-rows", "weight", "F8_E4M3", (140,), r"is F8_E4M3 \[140\]; a matrix of F8_E4M3"),
    ("float8-rows", "weight", "F8_E4M3", (0, 8), r"is F8_E4M3 \[0, 8\]; a matrix of F8_E4M3"),
    ("float8-wide", "weight_scale", "F32", (256,), r"has shape \[256\]; one number"),
    ("int8", "weight", "U8", (140, 256), r"is U8 .*; a matrix of I8 was expected for 'int8_tensorwise'"),
    ("int8", "weight_scale", "F32", (140, 2), "one number, or one for each output"),
    ("int8-rotated", "weight", "I8", (140, 96), "rotated groups of 64 columns in rows of 96"),
    ("mxfp8", "weight_scale", "F8_E8M0", (160, 8), r"is F8_E8M0 \[160, 8\]; F8_E8M0 or U8 \[256, 8\], in tiles"),
    ("mxfp8", "weight_scale", "F32", (256, 8), r"is F32 \[256, 8\]; F8_E8M0 or U8"),
    ("mxfp8", "weight", "F8_E4M3", (160, 40), "rows of 40 values; a multiple of 32"),
    ("mxfp8", "bias", "F32", (127,), r"\[160, 256\] and a bias of \[127\]; \[127, 256\] in multiples of 32"),
    ("nvfp4", "weight_scale", "F8_E4M3", (144, 16), r"is F8_E4M3 \[144, 16\]; F8_E4M3 or U8 \[256, 16\], in tiles"),
    ("nvfp4", "weight_scale_2", "F32", (3,), r"weight_scale_2 has shape \[3\]; one number"),
    ("nvfp4", "weight", "I8", (144, 128), "is I8 .*; a matrix of U8 was expected for 'nvfp4'"),
    ("nvfp4", "weight", "U8", (144, 4), "rows of 8 values; a multiple of 16"),
    ("nvfp4", "bias", "F32", (2, 70), r"\[144, 256\] and a bias of \[2, 70\]; \[140, 256\] in multiples of 16"),
    ("float8-squares", "weight_scale", "F32", (35, 63), r"\[35, 63\]; one number for each 4 x 4 of \[140, 256\]"),
    ("float8-squares", "weight_scale", "U8", (35, 64), "weight_scale is U8; F32"),
    ("float8-squares", "weight", "F8_E4M3", (140, 258), r"one number for each 4 x 4 of \[140, 258\] was expected"),
    ("int8-squares", "weight", "F8_E4M3", (140, 252), "a matrix of I8 was expected for 'int8_blockwise'"),
    ("w4a4", "weight_scale", "F32", (139,), r"one for each output of \[140\]"),
    ("w4a4", "weight", "I8", (140, 40), "rotated groups of 64 columns in rows of 80"),
    ("w4a8", "weight", "I8", (140, 120), "codes of 4 or 6 bits were expected"),
    ("w4a8", "weight_s_rel", "F8_E4M3", (139, 16), r"scales \[139, 16\] of groups of 16"),
    ("w4a8", "weight_s_rel", "F8_E4M3", (140, 0), r"scales \[140, 0\] of groups of 16"),
    ("w4a8", "weight_s_channel", "F32", (139,), r"one for each output of \[140\]"),
    ("w4a8-codebook", "weight_codebook", "F32", (15,), r"has shape \[15\]; \[16\] was expected"),
    ("w4a8-correction", "weight_correction", "F32", (140, 16), r"has shape \[140, 16\]; \[16, 140\] was expected"),
    ("w6a8", "weight_codebook", "F32", (16,), "they have neither a codebook nor a correction"),
    ("awq", "weight_zeros", "F32", (140, 8), r"has shape \[140, 8\]; \[8, 140\] was expected"),
    ("awq", "weight_scale", "I8", (8, 140), "weight_scale is I8; F32"),
    ("nf4", "weight_code", "F32", (17,), r"has shape \[17\]; \[16\] was expected"),
    ("nf4", "weight_scale", "F16", (560,), "weight_scale is F16; F32 was expected"),
    ("nf4", "weight", "U8", (99, 1), "has 99 bytes, 560 scales"),
]


@pytest.mark.parametrize(("name", "part", "dtype", "shape", "message"), SHAPES)
def test_parts_that_contradict_each_other(
    name: str, part: str, dtype: str, shape: tuple[int, ...], message: str
) -> None:
    size = {"F32": np.float32, "I32": np.int32, "F16": np.float16}.get(dtype, np.uint8)
    parts, _ = described(name)
    with pytest.raises(ModelError, match=message) as caught:
        read(parts | {f"{LAYER}.{part}": (dtype, np.zeros(shape, size))})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name](WEIGHT)[0]])
def test_missing_parts_are_named(name: str) -> None:
    settings, parts, _ = layer(name)
    for part in FORMATS[settings["format"]].needed:
        left = {key: value for key, value in parts.items() if key != f"{LAYER}.{part}"}
        quant: Parts = {f"{LAYER}.comfy_quant": as_bytes(settings)}
        with pytest.raises(ModelError, match=f"needs '{LAYER}.{part}', which is missing"):
            read(left | quant)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "svdquant_w4a4"}, "is quantized as 'svdquant_w4a4', which is not read"),
        ({"format": "mxfp4"}, "weight is quantized as 'mxfp4', which is not read"),
        ({}, "has settings without a format, which is not read"),
        ({"format": None, "group_size": 16}, "has settings without a format"),
        ({"format": 4}, '"format" is 4; a string'),
        ({"format": "x" * 200}, '"format" is .*; a string of at most 100 characters'),
        ({"format": "int8_tensorwise", "convrot": "yes"}, '"convrot" is "yes"; true or false'),
        ({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 0}, '"convrot_groupsize" is 0; a whole'),
        ({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 8}, "groups of 8 columns .* power of 4"),
        ({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 12}, "groups of 12 columns .* power of 4"),
        (
            {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 1024},
            "groups of 1024 columns in rows of",
        ),
        ({"format": "int8_tensorwise", "params": []}, '"params" is .*; an object'),
        ({"format": "nvfp4"}, "is I8 .*; a matrix of U8 was expected for 'nvfp4'"),
        ({"format": "int8_blockwise"}, "has no group_size in its settings"),
        ({"format": "nf4"}, "a shape and plain scales were expected"),
        ({"format": "nf4", "shape": [140, 256], "double_quant": True}, "a shape and plain scales were expected"),
        ({"format": "nf4", "shape": [0, 256]}, '"shape.0" is 0; a whole number'),
        ([], "is not a JSON object"),
        ("nvfp4", "is not a JSON object"),
    ],
)
def test_settings_that_lie(settings: Any, message: str) -> None:
    _, parts, _ = layer("int8")
    with pytest.raises(ModelError, match=message) as caught:
        read(parts | {f"{LAYER}.comfy_quant": as_bytes(settings)})
    assert "\n" not in str(caught.value)


def test_settings_that_are_not_json() -> None:
    _, parts, _ = layer("int8")
    for raw, message in (
        (b"{'a'", "is not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b'{"a":1,"a":2}', "appears twice"),
    ):
        with pytest.raises(ModelError, match=message):
            read(parts | {f"{LAYER}.comfy_quant": ("U8", np.frombuffer(raw, np.uint8))})
    with pytest.raises(ModelError, match="is U8 with 70,000 bytes; JSON in at most 65,536"):
        read(parts | {f"{LAYER}.comfy_quant": ("U8", np.zeros(70_000, np.uint8))})
    with pytest.raises(ModelError, match="is F32 with 4 bytes; JSON"):
        read(parts | {f"{LAYER}.comfy_quant": ("F32", np.zeros(1, np.float32))})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "_quantization_metadata is not valid JSON"),
        ("[" * 1000, "_quantization_metadata is not valid JSON"),
        ("[]", "_quantization_metadata is not a JSON object"),
        ("{}", '_quantization_metadata has no "layers"'),
        ('{"layers": []}', '"layers" is .*; an object was expected'),
        ('{"layers": {"a": "nvfp4"}}', '"layers.a" is "nvfp4"; an object was expected'),
        ('{"layers": {"a": {"format": "nvfp4"}}}', "describes 'a' and others; the file has none of these layers"),
        ('{"layers": {"qkv": {"format": "nvfp4"}}}', "layers that are there twice"),
    ],
)
def test_headers_that_are_refused(text: str, message: str) -> None:
    parts = layer("int8", "one.qkv")[1] | layer("int8", "two.qkv")[1]
    with pytest.raises(ModelError, match=message) as caught:
        read(parts, {"_quantization_metadata": text})
    assert "\n" not in str(caught.value)


def test_header_and_tensor_that_contradict_each_other() -> None:
    parts, values = described("int8")
    check("int8", read(parts, header_of(**{LAYER: {"format": "int8_tensorwise"}})).tensors[f"{LAYER}.weight"], values)
    with pytest.raises(ModelError, match=r"has format 'int8_tensorwise' by .*comfy_quant' and 'nvfp4' by the file"):
        read(parts, header_of(**{LAYER: {"format": "nvfp4"}}))
    assert read(parts, {"_quantization_metadata": '{"layers": {}}'}).tensors
    turned, of_turned = described("int8-rotated")
    found = read(turned, header_of(**{LAYER: {"format": "int8_tensorwise"}}))  # the other has more to say
    check("int8-rotated", found.tensors[f"{LAYER}.weight"], of_turned)
    with pytest.raises(ModelError, match=r"has convrot_groupsize 64 by .* and 256 by"):
        read(turned, header_of(**{LAYER: {"params": {"convrot_groupsize": 256}}}))


def test_a_large_weight_is_read_in_parts() -> None:
    """Rows are read from the file that are asked for, and the tiles around them."""
    parts, _ = described("nvfp4", weight=np.tile(WEIGHT, (4, 1)))
    asked: list[int] = []
    tensors = stored(parts)
    for name, tensor in tensors.items():
        read_rows = tensor.read

        def counted(start: int, stop: int, read_rows: Any = read_rows) -> Any:
            rows = read_rows(start, stop)
            asked.append(rows.nbytes)
            return rows

        tensors[name] = type(tensor)(name, tensor.shape, tensor.format, counted)
    weight = unpacked_weights(tensors, {}).tensors[f"{LAYER}.weight"]
    asked.clear()
    weight.float32(130, 134)
    assert sum(asked) <= 4 * 128 + 128 * 16 + 4


def test_rotations_are_those_of_the_definition() -> None:
    for size in (4, 16, 64, 256, 1024):
        matrix = comfy.rotation(size)
        np.testing.assert_allclose(matrix @ matrix, np.eye(size), atol=1e-12)
