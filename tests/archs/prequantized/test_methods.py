"""Every method by its definition, what stands beside the weights, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archs.config import normalized
from archs.plans.text import map_tensors
from archs.prequantized import METHODS, Unpacked, settings_of, unpacked, with_settings_file
from archs.prequantized.tensor_groups import groups_in_order
from archs.registry import by_hf_class
from quants.errors import FormatError, ModelError
from tests.archs.prequantized.writers import BLOCKS, CASES, Parts, awq, fp8, gptq, nvfp4, packed, stored

RNG = np.random.default_rng(11)
WEIGHT = (RNG.standard_normal((96, 256)) * RNG.random((96, 1))).astype(np.float32)
OTHERS = {"model.norm.weight": ("F32", np.ones(256, np.float32)), "lm_head.weight": ("F32", WEIGHT)}


def read(settings: dict[str, Any], parts: Parts, stem: str = "model.layers.0.mlp.up_proj.") -> Unpacked:
    """A checkpoint of one quantized weight among plain ones."""
    return unpacked({"quantization_config": settings}, stored({stem + k: v for k, v in parts.items()} | OTHERS))


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    settings, write = CASES[name]
    parts, values = write(WEIGHT)
    found = read(settings, parts).tensors
    assert list(found) == ["model.layers.0.mlp.up_proj.weight", *OTHERS]
    weight = found["model.layers.0.mlp.up_proj.weight"]
    assert (weight.shape, weight.format.name) == (WEIGHT.shape, BLOCKS.get(name, "F32"))
    np.testing.assert_array_equal(weight.float32(), values)
    raw = weight.raw()
    for start, stop in ((0, 0), (5, 6), (3, 77), (64, 96)):
        np.testing.assert_array_equal(weight.raw(start, stop), raw[start:stop])
    most = 1.0 if name.startswith("bitnet") else 0.5
    assert np.abs(values - WEIGHT).max() < np.abs(WEIGHT).max() * most  # the writer is not nonsense either


def test_all_methods_have_a_case() -> None:
    named = {settings.get("quant_method") for settings, _ in CASES.values()}
    assert set(METHODS) - named == {"mxfp4", "modelopt_fp4", "intel/auto-round"}


def test_settings_are_found_where_they_are_written(tmp_path: Path) -> None:
    assert settings_of({}) is None
    assert settings_of({"quantization_config": {}}) is None
    inside = normalized({"text_config": {"quantization_config": {"bits": 4}}, "quantization_config": None}, {})
    assert settings_of(inside) == {"bits": 4}
    assert settings_of({"compression_config": {"format": "dense"}}) == {"format": "dense"}
    assert with_settings_file(tmp_path, {"a": 1}) == {"a": 1}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert with_settings_file(tmp_path, {"quantization_config": {"bits": 4}}) == {"quantization_config": {"bits": 4}}
    found = with_settings_file(tmp_path, {"a": 1})
    assert found == {"a": 1, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    (tmp_path / "hf_quant_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"hf_quant_config\.json does not say"):
        with_settings_file(tmp_path, {})


@pytest.mark.parametrize("file", ["quantize_config.json", "quant_config.json"])
def test_older_exports_have_settings_in_a_file(tmp_path: Path, file: str) -> None:
    is_gptq = file == "quantize_config.json"
    settings = {"bits": 4, "group_size": 32} if is_gptq else {"w_bit": 4, "q_group_size": 64}
    (tmp_path / file).write_text(json.dumps(settings))
    config = with_settings_file(tmp_path, {})
    parts, values = (gptq() if is_gptq else awq)(WEIGHT)
    found = unpacked(config, stored({f"w.{key}": part for key, part in parts.items()})).tensors
    np.testing.assert_array_equal(found["w.weight"].float32(), values)


def test_what_only_activations_need_is_ignored() -> None:
    parts, values = fp8("tensor")(WEIGHT)
    parts["activation_scale"] = parts["k_scale"] = "F32", np.ones((), np.float32)
    found = read({"quant_method": "fp8"}, parts, "w.")
    assert found.ignored == ["w.activation_scale", "w.k_scale"]
    np.testing.assert_array_equal(found.tensors["w.weight"].float32(), values)


@pytest.mark.parametrize("name", ["gate_up_proj", "experts.weight"])
def test_stacked_experts_have_scales_of_their_own(name: str) -> None:
    experts = [fp8(block=64)(WEIGHT * factor) for factor in (1, 3, 0.5)]
    codes, scales = (np.stack([parts[key][1] for parts, _ in experts]) for key in ("weight", "weight_scale_inv"))
    tensors = stored({name: ("F8_E4M3", codes), f"{name}_scale_inv": ("F32", scales)})
    settings = {"quant_method": "fp8", "weight_block_size": [64, 64]}
    weight = unpacked({"quantization_config": settings}, tensors).tensors[name]
    wanted = np.stack([values for _, values in experts])
    np.testing.assert_array_equal(weight.float32(), wanted)
    np.testing.assert_array_equal(weight.float32(90, 200), wanted.reshape(-1, 256)[90:200])


def test_scales_of_columns_of_stacked_experts() -> None:
    """fbgemm stores fused experts as (in, out)."""
    codes, scales = RNG.integers(0, 100, (2, 8, 6), np.uint8), RNG.random((2, 1, 6)).astype(np.float32)
    tensors = stored({"e.up": ("F8_E4M3", codes), "e.up_scale": ("F32", scales), "e.one": ("F8_E4M3", codes)})
    plain = tensors.pop("e.one").float32()
    found = unpacked({"quantization_config": {"quant_method": "fbgemm_fp8"}}, tensors).tensors["e.up"]
    np.testing.assert_array_equal(found.float32(), plain * scales)


def test_stored_zero_points_wrap() -> None:
    """AutoGPTQ's zero point 0 is stored as the largest number."""
    parts, _ = gptq()(WEIGHT)
    parts["qzeros"] = "I32", np.full_like(parts["qzeros"][1], -1)
    bare = dict(parts, qzeros=("I32", np.zeros_like(parts["qzeros"][1])))
    wrapped = read({"quant_method": "gptq"}, parts, "w.").tensors["w.weight"].float32()
    plain = read({"quant_method": "gptq", "checkpoint_format": "gptq_v2"}, bare, "w.").tensors["w.weight"].float32()
    np.testing.assert_array_equal(wrapped, plain)
    assert wrapped.min() == 0


def test_biases_that_autogptq_added_are_dropped() -> None:
    parts, _ = gptq()(WEIGHT)
    parts["bias"] = "F16", np.zeros(96, np.float16)
    found = read({"quant_method": "gptq"}, parts, "w.")
    assert "w.bias" not in found.tensors
    assert found.ignored == ["w.bias"]
    parts["bias"][1][3] = 1
    assert "w.bias" in read({"quant_method": "gptq"}, parts, "w.").tensors


def test_inputs_scaled_before_the_weight() -> None:
    parts, values = nvfp4()(WEIGHT)
    factors = RNG.random(256).astype(np.float32)
    parts["pre_quant_scale"] = "F32", factors
    weight = read({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, parts, "w.").tensors["w.weight"]
    np.testing.assert_array_equal(weight.float32(2, 9), values[2:9] * factors)


@pytest.mark.parametrize("factor", [2.0**-40, 2.0**20, 0.75, np.inf])
def test_nvfp4_whose_scales_cannot_take_in_the_factor_is_decoded(factor: float) -> None:
    parts, _ = nvfp4(1.0)(WEIGHT)
    scales, parts["weight_scale_2"] = parts["weight_scale"][1], ("F32", np.float32([factor]))
    weight = read({"quant_method": "modelopt"}, parts, "w.").tensors["w.weight"]
    assert weight.format.name == "F32"
    plain = dict(parts, weight_scale_2=("F32", np.float32([1])), weight_scale=("F8_E4M3", scales))
    if np.isfinite(factor):
        whole = read({"quant_method": "modelopt"}, plain, "w.").tensors["w.weight"].float32()
        np.testing.assert_allclose(weight.float32(), whole * np.float32(factor), rtol=1e-6)


def test_rows_that_ggml_has_no_whole_blocks_for_are_decoded() -> None:
    parts, values = nvfp4(1.0)(WEIGHT[:, :48])
    weight = read({"quant_method": "modelopt"}, parts, "w.").tensors["w.weight"]
    assert weight.format.name == "F32"
    np.testing.assert_array_equal(weight.float32(), values)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "hqq"}, "with hqq, which is not read"),
        ({"quant_method": "aqlm"}, "with aqlm, which is not read"),
        ({"bits": 4}, "with an unnamed method, which"),
        ({"quant_method": "awq", "version": "gemv"}, r"awq \(version 'gemv'\), which is not read"),
        ({"quant_method": "awq", "bits": 8}, r"awq \(8 bits\)"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"quant_method": "gptq", "is_marlin_format": True}, "checkpoint_format 'marlin'"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:llm_compressor"}, "'auto_round:llm_compressor'"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "format 'marlin-24'"),
        (
            {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparse weights in format 'sparse-24-bitmask'",
        ),
    ],
)
def test_other_methods_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read(settings, {})
    assert "docs/convert.md" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("settings", "parts", "missing"),
    [
        ({"quant_method": "gptq"}, gptq()(WEIGHT)[0], "qzeros"),
        ({"quant_method": "awq"}, awq(WEIGHT)[0], "scales"),
        ({"quant_method": "compressed-tensors"}, packed()(WEIGHT)[0], "weight_shape"),
        ({"quant_method": "compressed-tensors"}, nvfp4(divide=True)(WEIGHT)[0], "weight_global_scale"),
        ({"quant_method": "modelopt"}, nvfp4()(WEIGHT)[0], "weight_scale"),
        (CASES["nf4"][0], CASES["nf4"][1](WEIGHT)[0], "weight.absmax"),
        (CASES["nf4-nested"][0], CASES["nf4-nested"][1](WEIGHT)[0], "weight.nested_absmax"),
    ],
)
def test_missing_parts_are_named(settings: dict[str, Any], parts: Parts, missing: str) -> None:
    with pytest.raises(ModelError, match=rf"needs 'w\.{missing}', which is missing"):
        read(settings, {name: part for name, part in parts.items() if name != missing}, "w.")


def test_codes_without_scales_are_not_taken_for_numbers() -> None:
    codes = RNG.integers(0, 100, (4, 8), np.uint8)
    for method, dtype in (("fp8", "F8_E4M3"), ("bitsandbytes", "U8"), ("compressed-tensors", "I8")):
        with pytest.raises(ModelError, match=f"w.weight is {dtype}, without the scales"):
            read({"quant_method": method}, {"weight": (dtype, codes.view(np.int8) if dtype == "I8" else codes)}, "w.")


@pytest.mark.parametrize(
    ("settings", "parts", "change", "message"),
    [
        ({"quant_method": "fp8"}, fp8()(WEIGHT)[0], ("weight_scale_inv", (5, 2)), r"\[5, 2\], which does not fit"),
        ({"quant_method": "gptq"}, gptq()(WEIGHT)[0], ("scales", (7, 96)), "don't belong together"),
        ({"quant_method": "gptq"}, gptq()(WEIGHT)[0], ("qzeros", (96,)), r"is I32 \[96\]; a matrix of I32"),
        ({"quant_method": "awq"}, awq(WEIGHT)[0], ("scales", (4, 95)), "don't belong together"),
        (CASES["compressed-int4"][0], packed()(WEIGHT)[0], ("weight_packed", (96, 40)), "has 40 words for 256"),
        (CASES["compressed-int4"][0], packed()(WEIGHT)[0], ("weight_packed", (95, 32)), "the weight is 96 x 256"),
        ({"quant_method": "modelopt"}, nvfp4()(WEIGHT)[0], ("weight_scale", (96, 15)), "a scale for each 16"),
        (CASES["nf4"][0], CASES["nf4"][1](WEIGHT)[0], ("weight", (96, 127)), "needs 12288 and 384"),
    ],
)
def test_parts_that_contradict_each_other(
    settings: dict[str, Any], parts: Parts, change: tuple[str, tuple[int, ...]], message: str
) -> None:
    name, shape = change
    dtype, array = parts[name]
    with pytest.raises(ModelError, match=message):
        read(settings, {**parts, name: (dtype, np.zeros(shape, array.dtype))}, "w.")


def test_groups_that_do_not_exist() -> None:
    parts, _ = gptq(act_order=True)(WEIGHT)
    parts["g_idx"][1][5] = 99
    weight = read({"quant_method": "gptq"}, parts, "w.").tensors["w.weight"]
    with pytest.raises(FormatError, match="names group 99; there are 8 groups"):
        weight.float32(0, 1)
    assert groups_in_order(10, 3, 4).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    for count in (0, 3):
        with pytest.raises(ModelError, match=f"rows of 10 values have {count} scales"):
            groups_in_order(10, count, None)


def test_a_quantization_state_that_is_not_json() -> None:
    parts = CASES["nf4"][1](WEIGHT)[0]
    for text, message in ((b"no", "is not valid JSON"), (b"[]", "says no shape"), (b'{"shape": [0]}', "says no shape")):
        parts["weight.quant_state.bitsandbytes__nf4"] = "U8", np.frombuffer(text, np.uint8)
        with pytest.raises(ModelError, match=message):
            read(CASES["nf4"][0], parts, "w.")


@pytest.mark.parametrize("name", ["gptq-4", "bitsandbytes-int8", "nf4-nested"])
def test_weights_of_layers_that_were_stored_as_inputs_by_outputs(name: str) -> None:
    """A GPT-2's weights are (in, out); quantized, they are a linear layer's, the usual way round."""
    settings, write = CASES[name]
    parts, values = write(WEIGHT)
    plain = {"wte.weight": ("F32", np.ones((4, 256), np.float32)), "h.0.attn.c_proj.weight": ("F32", WEIGHT[:, :64])}
    tensors = stored({"h.0.mlp.c_fc." + k: v for k, v in parts.items()} | plain)
    config = normalized({"n_layer": 1, "n_embd": 256, "quantization_config": settings}, {})
    mapped = map_tensors(by_hf_class(["GPT2LMHeadModel"]), config, tensors).tensors
    np.testing.assert_array_equal(mapped["blk.0.ffn_up.weight"].float32(), values)
    np.testing.assert_array_equal(mapped["blk.0.attn_output.weight"].float32(), WEIGHT[:, :64].T)


def test_bitnet_that_is_still_to_be_rounded() -> None:
    settings = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
    found = read(settings, {"weight": ("F32", WEIGHT)}).tensors["model.layers.0.mlp.up_proj.weight"].float32()
    scale = np.abs(WEIGHT).mean(dtype=np.float64)
    np.testing.assert_allclose(found, np.clip(np.rint(WEIGHT / scale), -1, 1) * scale, rtol=1e-6)


def test_what_bitnet_cannot_be() -> None:
    parts, _ = CASES["bitnet"][1](WEIGHT)
    for settings, message in (
        ({"use_rms_norm": True}, "a norm before"),
        ({"linear_class": "autobitlinear"}, "has a bias"),
    ):
        beside = {**parts, "bias": ("F32", np.ones(96, np.float32))}
        with pytest.raises(ModelError, match=message):
            read({"quant_method": "bitnet", **settings}, beside)
    for name, wrong, message in (
        ("weight_scale", ("F32", np.zeros(1, np.float32)), "one number other than 0"),
        ("weight_scale", ("F32", np.ones(2, np.float32)), "one number other than 0"),
        ("weight", ("I8", np.zeros((24, 256), np.int8)), "U8, or plain floats"),
        ("weight", ("U8", np.zeros(256, np.uint8)), "a matrix was expected"),
    ):
        with pytest.raises(ModelError, match=message):
            read({"quant_method": "bitnet"}, {**parts, name: wrong})
