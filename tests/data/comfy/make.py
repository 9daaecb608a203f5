"""Write the files of this folder: small weights stored and decoded by comfy-kitchen, which defines ComfyUI's formats.

Each file has one layer `w` with its settings in w.comfy_quant; `expected` is what the library decodes, in float32.
Needs torch, safetensors and comfy-kitchen 0.2.40; tests don't run it. Without a GPU its plain torch code is used.

    python make.py
"""

import json
from dataclasses import replace
from pathlib import Path

import torch
from comfy_kitchen import tensor as layouts
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
LIBRARY = "comfy-kitchen 0.2.40"
torch.manual_seed(36)


def weight(rows: int, width: int) -> torch.Tensor:
    values = torch.randn(rows, width) * torch.rand(rows, 1) * 0.1
    values[1, ::17] *= 9
    values[2, 16:48] = 0
    return values


def save(name: str, settings: dict, parts: dict, expected: torch.Tensor, every: int = 1) -> None:
    """parts: the tensors of the layer by the ending of their names. every: of a long weight only so many rows."""
    blob = torch.tensor(list(json.dumps(settings).encode()), dtype=torch.uint8)
    found = {f"w.{key}": value.detach().clone().contiguous() for key, value in parts.items()}
    found |= {"w.comfy_quant": blob, "expected": expected[::every].float().contiguous()}
    save_file(found, HERE / f"{name}.safetensors", {"library": LIBRARY, "every": str(every)})
    print(name, {key: (tuple(value.shape), value.dtype) for key, value in found.items()})


def quantized(name: str, layout: type, settings: dict, values: torch.Tensor, every: int = 1, **options: object) -> None:
    data, params = layout.quantize(values, **options)
    parts = {f"weight{key}": value for key, value in layout.state_dict_tensors(data, params).items()}
    expected = layout.dequantize(data, replace(params, orig_dtype=torch.float32))
    rows, width = values.shape
    if expected.shape[0] != rows:
        parts["bias"] = torch.zeros(rows)
    save(name, settings, parts, expected[:rows, :width], every)


def eight_bits() -> None:
    values = weight(20, 96)
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        name = str(kind).removeprefix("torch.")
        scale = values.abs().max() / torch.finfo(kind).max
        quantized(name, layouts.TensorCoreFP8Layout, {"format": name}, values, scale=scale, dtype=kind)
    int8, settings = layouts.TensorWiseINT8Layout, {"format": "int8_tensorwise"}
    quantized("int8", int8, settings, values)
    quantized("int8-rows", int8, settings, values, per_channel=True)
    for size in (16, 64, 256):
        more = {"convrot": True, "convrot_groupsize": size}
        quantized(f"int8-convrot-{size}", int8, settings | more, weight(9, 512), per_channel=True, **more)
    quantized("mxfp8", layouts.TensorCoreMXFP8Layout, {"format": "mxfp8"}, weight(140, 96), every=5)


def four_bits() -> None:
    layout, settings = layouts.TensorCoreNVFP4Layout, {"format": "nvfp4"}
    quantized("nvfp4", layout, settings, weight(140, 96), every=5)
    quantized("nvfp4-power", layout, settings, 9 * torch.randn(144, 192), every=5, scale=torch.tensor(0.5))
    more = {"convrot_groupsize": 256}
    quantized("w4a4", layouts.TensorCoreConvRotW4A4Layout, {"format": "convrot_w4a4"} | more, weight(9, 512), **more)


def grouped() -> None:
    layout, name = layouts.AsymW4A8Int8Layout, "asym_w4a8_int8"
    for ending, size, options in (
        ("", 16, {}),
        ("-uniform", 32, {"codebook": False, "scale_dtype": torch.float32}),
        ("-asymmetric", 16, {"symmetric": False}),
    ):
        settings = {"format": name, "group_size": size, "convrot_groupsize": 64}
        more = {"group_size": size, "convrot_groupsize": 64}
        quantized(f"w4a8{ending}", layout, settings, weight(9, 256), **more, **options)
    quantized("w6a8", layout, {"format": name, "group_size": 16}, weight(9, 512), bits=6)


def awq() -> None:
    rows, width, size = 10, 192, 64
    packed = torch.randint(-128, 128, (rows, width // 2), dtype=torch.int8)
    scale, zeros = (torch.randn(width // size, rows).bfloat16() for _ in range(2))
    layout = layouts.TensorCoreAWQW4A16Layout
    params = layout.Params(
        scale=scale.float(), zeros=zeros.float(), group_size=size, orig_dtype=torch.float32, orig_shape=(rows, width)
    )
    parts = {"weight": packed, "weight_scale": scale, "weight_zeros": zeros}
    save("awq", {"format": "awq_w4a16", "group_size": size}, parts, layout.dequantize(packed, params))


eight_bits()
four_bits()
grouped()
awq()
