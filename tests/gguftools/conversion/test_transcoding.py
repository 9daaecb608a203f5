"""Exact transcoding: every weight that is integers times a scale becomes blocks that mean it, by any scheme."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import gguftools
from archs.prequantized import unpacked
from gguftools.conversion.convert import convert
from gguftools.conversion.options import ConvertOptions
from gguftools.io.checkpoint.safetensors import open_safetensors
from gguftools.writing.options import WriteOptions
from quants import decode, encode
from quants.errors import FormatError, OptionError
from quants.exact import exact_blocks, formats_that_fit
from runtime.model import RunningModel
from tests.archs.checkpoints import build
from tests.archs.prequantized.test_libraries import FILES, settings
from tests.archs.prequantized.writers import (
    CASES,
    Parts,
    Writer,
    bit_stream,
    compressed,
    gptq,
    packed,
    write_safetensors,
)
from tests.gguftools.conversion.test_packed_checkpoints import MODEL, TOKENS, checkpoint, checkpoints

from ..calls import options_of

# Scheme → the format of every weight of the first layer; none where a block of 32 has several scales, or a scale is no
# float16 (compressed-int8 and bitsandbytes have float32), or values are 8-bit floats.
EXPECTED = {
    "gptq-2": "Q4_0",
    "gptq-3": "Q4_0",
    "gptq-4": "Q5_0",
    "gptq-5": "Q8_0",
    "gptq-sym": "Q4_0",
    "gptq-v2": "Q5_0",
    "awq": "Q5_0",
    "auto-round": "Q5_0",
    "auto-round-v2": "Q5_0",
    "auto-round-awq": "Q5_0",
    "compressed-int4": "Q4_0",
    "compressed-int4-zero": "Q5_0",
    "compressed-int4-zero-i8": "Q5_0",
    "compressed-int3": "Q4_0",
    "compressed-int3-whole": "Q4_0",
    "compressed-mxfp4": "MXFP4",
    "bitnet-auto": "TQ1_0",
    "modelopt-nvfp4-one": "NVFP4",
    "modelopt-nvfp4-power": "NVFP4",
    **dict.fromkeys(
        (
            "gptq-3-act-order",
            "gptq-4-act-order",
            "compressed-int4-act-order",
            "gptq-8",
            "fp8-block",
            "fp8-block-e8m0",
            "fp8-tensor",
            "fbgemm",
            "compressed-fp8",
            "compressed-fp8-block",
            "compressed-int8",
            "bitnet",
            "bitnet-auto-plain",
            "nf4",
            "nf4-nested",
            "nf4-storage",
            "bitsandbytes-int8",
            "modelopt-fp8",
        ),
        "F32",
    ),
}


def layer_formats(file: Path) -> set[str]:
    tensors = gguftools.open(file).tensors
    return {tensor.format.name for name, tensor in tensors.items() if name.startswith("blk.") and "norm" not in name}


def assert_same_values(file: Path, folder: Path) -> None:
    """Each tensor's values are those of the checkpoint `folder`, which has the same weights as plain float32."""
    plain = file.with_name("plain.gguf")
    convert(folder, plain, "F32", write=WriteOptions(overwrite=True))
    found, wanted = gguftools.open(file).tensors, gguftools.open(plain).tensors
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        np.testing.assert_array_equal(found[name].float32(), tensor.float32(), name)


@pytest.mark.parametrize("name", CASES)
def test_every_value_of_every_scheme_is_kept(name: str, tmp_path: Path) -> None:
    folder, plain = checkpoints(tmp_path, name)
    report = convert(folder, tmp_path / "exact.gguf", "exact", options=ConvertOptions(fallback="f32"))
    assert_same_values(tmp_path / "exact.gguf", plain)
    assert not any(each.rounded for each in report.transcoding)
    if name in EXPECTED:
        assert layer_formats(tmp_path / "exact.gguf") == {EXPECTED[name]}


def test_logits_are_those_of_the_float_file(tmp_path: Path) -> None:
    folder, plain = checkpoints(tmp_path, "compressed-int4")
    convert(folder, tmp_path / "exact.gguf", "exact")
    convert(plain, tmp_path / "plain.gguf", "f32")
    models = (gguftools.open(tmp_path / f"{name}.gguf") for name in ("exact", "plain"))
    logits, wanted = (RunningModel(each.metadata, each.tensors, precision="exact").logits(TOKENS) for each in models)
    assert np.abs(logits - wanted).max() <= 1e-5 * wanted.std()


def written(folder: Path, write: Writer, config: dict[str, object]) -> tuple[Path, Path]:
    """The model's first layer by a writer, and what it means."""
    parts: Parts = {}
    plain: Parts = {}
    for name, tensor in open_safetensors(MODEL / "model.safetensors").items():
        if ".layers." in name and ".layers.0." not in name:
            continue
        if "_proj" in name:
            stored, values = write(tensor.float32())
            parts |= {name.removesuffix("weight") + part: array for part, array in stored.items()}
            plain[name] = "F32", values
        else:
            parts[name] = plain[name] = "BF16", tensor.elements().reshape(tensor.shape)
    return checkpoint(folder / "packed", parts, config), checkpoint(folder / "plain", plain, {})


@pytest.mark.parametrize(
    ("write", "config", "form"),
    [
        (packed(4, 128), compressed("pack-quantized", num_bits=4, group_size=128), "Q4_0"),
        (packed(5, 64), compressed("pack-quantized", num_bits=5, group_size=64), "Q5_0"),
        (packed(8, 32), compressed("pack-quantized", num_bits=8, group_size=32), "Q8_0"),
        (packed(2, 64), compressed("pack-quantized", num_bits=2, group_size=64), "Q2_0"),
        (packed(3, 256), compressed("pack-quantized", num_bits=3, group_size=256), "Q3_K"),
        (packed(6, 256), compressed("pack-quantized", num_bits=6, group_size=256), "Q6_K"),
        (gptq(4, 256), {"quant_method": "gptq", "bits": 4, "group_size": 256}, "Q4_K"),
        (gptq(2, 256), {"quant_method": "gptq", "bits": 2, "group_size": 256}, "Q2_0"),  # zero points 1 and 2
    ],
)
def test_other_widths_and_groups(write: Writer, config: dict[str, object], form: str, tmp_path: Path) -> None:
    folder, plain = written(tmp_path, write, config)
    convert(folder, tmp_path / "exact.gguf", "exact", options=ConvertOptions(fallback="F32"))
    assert_same_values(tmp_path / "exact.gguf", plain)
    assert layer_formats(tmp_path / "exact.gguf") == {form}


def bfloat(values: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 numbers."""
    rounded: np.ndarray = decode("BF16", encode("BF16", values.astype(np.float32).reshape(1, -1))).reshape(values.shape)
    return rounded


def int8_rows(weight: np.ndarray) -> tuple[Parts, np.ndarray]:
    """As llm-compressor stores them: a bfloat16 scale a row."""
    scales = bfloat(np.abs(weight).max(1, keepdims=True) / 127)
    integers = np.clip(np.rint(weight / scales), -128, 127).astype(np.int8)
    bits = (scales.view(np.uint32) >> 16).astype(np.uint16)
    return {"weight": ("I8", integers), "weight_scale": ("BF16", bits)}, integers.astype(np.float32) * scales


def test_int8_with_a_scale_a_row(tmp_path: Path) -> None:
    folder, plain = written(tmp_path, int8_rows, compressed("int-quantized", num_bits=8, type="int"))
    convert(folder, tmp_path / "exact.gguf", "exact")
    assert layer_formats(tmp_path / "exact.gguf") == {"Q8_0"}
    assert_same_values(tmp_path / "exact.gguf", plain)


def int4_zero(zero: int, spoiled: bool = False) -> Writer:
    """Integers 0 … 15 minus a zero point, bfloat16 scales; spoiled: one group's is a float16, and its zero point 5."""

    def write(weight: np.ndarray) -> tuple[Parts, np.ndarray]:
        rows, width = weight.shape
        integers = np.random.default_rng(width).integers(0, 16, (rows, width))
        integers[:, ::32], integers[:, 1::32] = 0, 15
        scales = bfloat(np.abs(weight).reshape(rows, width // 64, 64).max(2) / 8)
        zeros = np.full(scales.shape, zero)
        if spoiled:
            scales[5, 1], zeros[5, 1] = (1 + 2**-10) / 64, 5
        each = np.repeat(scales, 64, axis=1)
        stored = {
            "weight_packed": ("I32", bit_stream(integers, 4)),
            "weight_shape": ("I64", np.array(weight.shape)),
            "weight_scale": ("F32", scales),
            "weight_zero_point": ("I8", (zeros - 8).astype(np.int8)),
        }
        return stored, (integers - np.repeat(zeros, 64, axis=1)).astype(np.float32) * each

    return write


@pytest.mark.parametrize(
    ("write", "form"),
    [(int4_zero(4), "Q4_1"), (int4_zero(8), "Q4_0"), (int4_zero(13), "Q4_1"), (int4_zero(4, True), "Q5_0")],
)
def test_zero_points(write: Writer, form: str, tmp_path: Path) -> None:
    """A bfloat16 times a zero point is a float16, or times 15 minus that; a float16 need not be, as in one group
    here.
    """
    folder, plain = written(tmp_path, write, compressed("pack-quantized", num_bits=4, group_size=64, symmetric=False))
    convert(folder, tmp_path / "exact.gguf", "exact")
    assert layer_formats(tmp_path / "exact.gguf") == {form}
    assert_same_values(tmp_path / "exact.gguf", plain)


def on_grid(name: str, weight: np.ndarray) -> np.ndarray:
    rows: np.ndarray = decode(name, encode(name, weight))
    return rows


def floats(folder: Path, form: str, dtype: str, spoil: str | None = None) -> Path:
    """The model with matrices that a format holds, as plain floats; one value of the matrix `spoil` is off."""
    tensors: Parts = {}
    for name, tensor in open_safetensors(MODEL / "model.safetensors").items():
        values = tensor.float32()
        if "_proj" in name:
            values = on_grid(form, values)
            if name == spoil:
                values[70, 40] = np.nextafter(values[70, 40], np.float32(9))
        if dtype == "BF16":
            rows = encode("BF16", values.reshape(-1, values.shape[-1]))
            tensors[name] = "BF16", rows.view("<u2").reshape(values.shape)
        else:
            tensors[name] = dtype, values.astype(np.float16 if dtype == "F16" else np.float32)
    made = checkpoint(folder, tensors, {})
    config = json.loads((made / "config.json").read_text())
    config["num_hidden_layers"] = json.loads((MODEL / "config.json").read_text())["num_hidden_layers"]
    (made / "config.json").write_text(json.dumps(config))
    return made


@pytest.mark.parametrize("form", ["Q4_0", "Q8_0", "Q5_0", "TQ1_0", "MXFP4"])
def test_models_trained_for_a_format_and_published_as_floats(form: str, tmp_path: Path) -> None:
    folder = floats(tmp_path / "plain", form, "F32")
    report = convert(folder, tmp_path / "exact.gguf", "exact")
    assert layer_formats(tmp_path / "exact.gguf") == {form}
    assert_same_values(tmp_path / "exact.gguf", folder)
    left = [each.name for each in report.transcoding if each.reason]
    assert left == ["output.weight", "token_embd.weight"][-len(left) :]


def test_a_file_that_was_exported_is_had_again(tmp_path: Path) -> None:
    convert(MODEL, tmp_path / "before.gguf", "Q4_0")
    gguftools.export(tmp_path / "before.gguf", tmp_path / "checkpoint", outtype="f32")
    convert(tmp_path / "checkpoint", tmp_path / "after.gguf", "exact")
    before, after = (gguftools.open(tmp_path / f"{name}.gguf").tensors for name in ("before", "after"))
    assert {name for name, tensor in after.items() if tensor.format.name == "Q4_0"} == {
        name for name, tensor in before.items() if tensor.format.name == "Q4_0"
    }
    for name, tensor in before.items():
        np.testing.assert_array_equal(after[name].float32(), tensor.float32())


def test_one_inexact_block_is_counted_and_its_tensor_falls_back(tmp_path: Path) -> None:
    folder = floats(tmp_path / "plain", "Q4_0", "F32", "model.layers.1.mlp.up_proj.weight")
    report = convert(folder, tmp_path / "exact.gguf", "exact")
    tensors = gguftools.open(tmp_path / "exact.gguf").tensors
    assert tensors["blk.1.ffn_up.weight"].format.name == "F32"
    assert tensors["blk.0.ffn_up.weight"].format.name == "Q4_0"
    [found] = [each for each in report.transcoding if each.name == "blk.1.ffn_up.weight"]
    assert (found.nearest, found.inexact, found.row, found.column) == ("Q4_0", 1, 70, 32)
    assert found.blocks == tensors["blk.1.ffn_up.weight"].size // 32
    assert found.reason == "not all of its blocks are exactly Q4_0"
    as_json = report.as_dict()
    [said] = [each for each in as_json["transcoding"] if each["inexact"] == 1]
    assert (said["name"], said["nearest"]) == ("blk.1.ffn_up.weight", "Q4_0")
    assert_same_values(tmp_path / "exact.gguf", folder)


def test_a_weight_on_no_grid_is_counted_in_its_first_rows(tmp_path: Path) -> None:
    folder, _ = checkpoints(tmp_path, "compressed-int8")  # whose scales are float32
    report = convert(folder, tmp_path / "exact.gguf", "exact")
    found = {each.name: each for each in report.transcoding}["blk.0.attn_q.weight"]
    assert found.reason == "no float16 scale makes integers of its values"
    assert found.nearest is not None
    assert 0 < found.blocks / 2 < found.inexact <= found.blocks


def test_exact_is_nothing_to_quantize_to(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="exact is no recipe") as error:
        gguftools.quantize(MODEL, "exact", tmp_path)
    assert "convert CHECKPOINT --outtype exact" in str(error.value.hint)


def test_what_a_fallback_rounds_is_said(tmp_path: Path) -> None:
    folder = floats(tmp_path / "plain", "Q4_0", "F32", "model.layers.1.mlp.up_proj.weight")
    report = convert(folder, tmp_path / "exact.gguf", "exact", options=ConvertOptions(fallback="bf16"))
    changed = {each.name: each.rounded for each in report.transcoding if each.rounded}
    assert list(changed) == ["blk.1.ffn_up.weight"]  # the head was BF16 before
    [warning] = report.warnings
    assert warning.startswith("blk.1.ffn_up.weight is rounded to BF16, ")
    assert "`fallback` f32 keeps them" in warning


def test_the_bytes_are_the_same_on_any_number_of_threads(tmp_path: Path) -> None:
    folder, _ = checkpoints(tmp_path, "gptq-4")
    files = [tmp_path / f"{threads}.gguf" for threads in (1, 2)]
    reports = [convert(folder, file, "exact", write=WriteOptions(threads=i + 1)) for i, file in enumerate(files)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert reports[0].transcoding == reports[1].transcoding


def test_quantize_leaves_such_tensors_as_they_are(tmp_path: Path) -> None:
    folder, _ = checkpoints(tmp_path, "compressed-int4")
    convert(folder, tmp_path / "exact.gguf", "exact")
    gguftools.quantize(tmp_path / "exact.gguf", "Q4_0", tmp_path / "q4.gguf")
    before, after = (gguftools.open(tmp_path / name).tensors for name in ("exact.gguf", "q4.gguf"))
    kept = [name for name, tensor in before.items() if tensor.format.name == "Q4_0"]
    assert len(kept) == 7
    for name in kept:
        np.testing.assert_array_equal(before[name].raw(), after[name].raw())


def test_a_tensor_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    from gguftools.conversion.transcoding import transcoded
    from gguftools.models.model import of_parts
    from gguftools.models.sources import of_checkpoint
    from gguftools.writing.options import WriteOptions
    from quants import from_array

    folder = floats(tmp_path / "plain", "Q4_0", "F32")
    model = of_parts(of_checkpoint(folder))
    values = np.array(model.tensors["blk.0.ffn_up.weight"].float32())
    model.tensors["blk.0.ffn_up.weight"] = from_array("blk.0.ffn_up.weight", values, "weights: here")
    _, tensors = transcoded(model, "F32", WriteOptions(threads=1))
    values[3, 4] += 1
    with pytest.raises(FormatError, match="weights: here changed after"):
        tensors["blk.0.ffn_up.weight"].raw()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"outtype": "exact", "fallback": "q4_k_m"}, "'q4_k_m' is no fallback type"),
        ({"outtype": "f16", "fallback": "f32"}, "fallback f32 has no effect for F16"),
        ({"outtype": "exact", "imatrix": "matrix.gguf"}, "the outtype exact is lossless"),
        ({"outtype": "exact", "part": "lora", "lora": "adapter"}, "an adapter cannot be EXACT|adapter"),
    ],
)
def test_options_that_mean_nothing(arguments: dict[str, str], problem: str, tmp_path: Path) -> None:
    with pytest.raises((OptionError, FormatError, gguftools.GgufToolsError), match=problem):
        convert(MODEL, tmp_path / "out.gguf", **options_of("convert", **arguments))
    assert not list(tmp_path.iterdir())


# What the libraries themselves stored: the smallest format that holds it; none where scales are float32.
OF_LIBRARIES = {
    "auto-round-3": "Q4_0",
    "auto-round-4": "Q5_0",
    "auto-round-4_zp": "Q5_0",
    "auto-round-6": "Q8_0",
    "awq": "Q5_0",
    "gptq-2": "Q4_0",
    "gptq-3": "Q4_0",
    "gptq-4": "Q5_0",
    "compressed-mxfp4": "MXFP4",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_libraries_stored(path: Path) -> None:
    tensors = open_safetensors(path)
    expected = tensors.pop("expected").float32()
    weight = unpacked({"quantization_config": settings(path)}, tensors).tensors["w.weight"].float32()
    found = [form for form in formats_that_fit(weight.shape[1]) if not exact_blocks(form, weight)[1].any()]
    assert next((form.name for form in found if form.name != "Q8_0" or path.stem == "auto-round-6"), None) == (
        OF_LIBRARIES.get(path.stem)
    )
    for form in found:
        np.testing.assert_array_equal(form.decode(exact_blocks(form, weight)[0]), expected)


def test_grids_that_were_rounded_to_16_bits(tmp_path: Path) -> None:
    folder = floats(tmp_path / "plain", "Q4_0", "BF16")
    strict = convert(folder, tmp_path / "strict.gguf", "exact")
    assert layer_formats(tmp_path / "strict.gguf") == {"BF16"}
    assert not any(each.as_rounded for each in strict.transcoding)
    report = convert(folder, tmp_path / "exact.gguf", "exact", options=ConvertOptions(rounded_grids=True))
    assert layer_formats(tmp_path / "exact.gguf") == {"Q4_0"}
    assert all(0 < each.as_rounded <= each.blocks for each in report.transcoding if not each.reason)
    assert {each.source for each in report.outputs[0].tensors if each.format == "Q4_0"} == {"BF16"}
    convert(folder, tmp_path / "plain.gguf", "BF16")
    found, wanted = (gguftools.open(tmp_path / f"{name}.gguf").tensors for name in ("exact", "plain"))
    for name, tensor in wanted.items():  # the checkpoint, bit by bit, is what the blocks mean, rounded
        rounded = encode("BF16", found[name].float32().reshape(-1, tensor.width))
        np.testing.assert_array_equal(rounded, encode("BF16", tensor.float32().reshape(-1, tensor.width)))


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    folder = floats(tmp_path / "plain", "Q4_0", "F32")
    convert(folder, tmp_path / "whole.gguf", "exact")

    calls = 0

    def stop(done: int, total: int, name: str) -> None:
        nonlocal calls
        calls += done > total // 3
        if calls > 40:  # beyond the search
            raise KeyboardInterrupt

    target = tmp_path / "resumed.gguf"
    with contextlib.suppress(KeyboardInterrupt):
        convert(folder, target, "exact", write=WriteOptions(resume=True, progress=stop, threads=1))
    if not target.exists():
        convert(folder, target, "exact", write=WriteOptions(resume=True))
    assert target.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "resumed.gguf", "whole.gguf"]


def test_a_run_without_resume_leaves_nothing_when_it_is_stopped(tmp_path: Path) -> None:
    folder = floats(tmp_path / "plain", "Q4_0", "F32")

    def stop(done: int, total: int, name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(folder, tmp_path / "out.gguf", "exact", write=WriteOptions(progress=stop))
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_experts_packed_one_by_one_are_stacked_as_integers(tmp_path: Path) -> None:
    """As Kimi-K2 has them: 4 bits in groups of 32. Of the attention, a matrix is split in two, and one half turned."""
    build("glm4-moe-lite", tmp_path / "packed")
    shutil.copytree(tmp_path / "packed", tmp_path / "plain")
    parts: Parts = {}
    plain: Parts = {}
    for name, tensor in open_safetensors(tmp_path / "plain" / "model.safetensors").items():
        values = tensor.float32()
        if "_proj.weight" in name and not tensor.width % 32:
            stored, values = packed(4, 32)(values)
            parts |= {name.removesuffix("weight") + part: array for part, array in stored.items()}
        else:
            parts[name] = "F32", values
        plain[name] = "F32", values
    for folder, tensors in (("packed", parts), ("plain", plain)):
        write_safetensors(tmp_path / folder / "model.safetensors", tensors)
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    config["quantization_config"] = compressed("pack-quantized", num_bits=4, group_size=32)
    (tmp_path / "packed" / "config.json").write_text(json.dumps(config))
    convert(tmp_path / "packed", tmp_path / "exact.gguf", "exact", options=ConvertOptions(fallback="f32"))
    tensors = gguftools.open(tmp_path / "exact.gguf").tensors
    assert {tensor.format.name for name, tensor in tensors.items() if "_exps.weight" in name} == {"Q4_0"}
    turned = {tensor.format.name for name, tensor in tensors.items() if "attn_k_b" in name}
    assert turned == {"F32"}
    assert_same_values(tmp_path / "exact.gguf", tmp_path / "plain")
