"""Write the files of this folder: small weights stored and decoded by the libraries that define the formats.

Each file is a checkpoint of one layer `w`; its `expected` is what the library decodes, in float32, and its metadata
holds `quantization_config` and which library it was. Needs torch, safetensors, auto-gptq 0.7.1, autoawq 0.2.7,
bitsandbytes 0.50.2, compressed-tensors 0.20.0, nvidia-modelopt 0.47.0, auto-round 0.16.1 and transformers 5.23; tests
don't run it.

    python make.py [FOLDER OF THE LIBRARIES]
"""

import importlib.util
import json
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import torch
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
LIBRARIES = Path(sys.argv[1] if len(sys.argv) > 1 else next(p for p in sys.path if p.endswith("site-packages")))
sys.path.insert(0, str(LIBRARIES))
torch.manual_seed(5)


def load(path: str):
    """A module of a library without the package around it, which needs CUDA or an older transformers."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, LIBRARIES / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def save(name: str, tensors: dict, expected: torch.Tensor, settings: dict, library: str) -> None:
    found = {f"w.{key}": value.contiguous() for key, value in tensors.items()}
    found["expected"] = expected.float().contiguous()
    metadata = {"quantization_config": json.dumps(settings), "library": library}
    save_file(found, HERE / f"{name}.safetensors", metadata)
    print(name, {key: (tuple(value.shape), value.dtype) for key, value in found.items()})


def gptq() -> None:
    module = load("auto_gptq/nn_modules/qlinear/qlinear_cuda.py")
    width, out = 96, 64
    for bits in (2, 3, 4, 8):
        for act_order in (False, True):
            layer = module.QuantLinear(bits, 32, width, out, False)
            groups = torch.arange(width) // 32
            if act_order:
                groups = groups[torch.randperm(width)]
            scales = (torch.rand(out, 3) / 10 + 0.01).half().float()
            zeros = torch.randint(1, 2**bits, (out, 3)).float()
            integers = torch.randint(0, 2**bits, (out, width))
            linear = torch.nn.Linear(width, out, bias=False).half()
            linear.weight.data = scales[:, groups] * (integers - zeros[:, groups])
            layer.pack(linear, scales, zeros, groups.int())
            layer.scales = layer.scales.half()
            state = dict(layer.state_dict())
            if not act_order:
                del state["g_idx"]
            layer = layer.float()
            expected = layer(torch.eye(width)).T
            settings = {"quant_method": "gptq", "bits": bits, "group_size": 32, "desc_act": act_order, "sym": False}
            save(f"gptq-{bits}{'-act-order' if act_order else ''}", state, expected, settings, "auto-gptq 0.7.1")


def auto_round() -> None:
    sys.modules["auto_round"] = package("auto_round")
    sys.modules["auto_round.utils"] = package("auto_round/utils")
    sys.modules["auto_round.utils"].get_packing_device = lambda device: "cpu"
    sys.modules["auto_round_extension"] = package("auto_round_extension")
    width, out = 64, 32
    for bits, kind in ((3, ""), (4, ""), (6, ""), (4, "_zp")):
        module = load(f"auto_round_extension/torch/qlinear_torch{kind}.py")
        layer = module.QuantLinear(bits, 32, width, out, False)
        scales = (torch.rand(out, 2) / 10 + 0.01).half().float()
        zeros = torch.randint(1, 2**bits, (out, 2)).float()
        linear = torch.nn.Linear(width, out, bias=False)
        integers = torch.randint(0, 2**bits, (out, width))
        linear.weight.data = scales.repeat_interleave(32, 1) * (integers - zeros.repeat_interleave(32, 1))
        layer.device = torch.device("cpu")
        layer.pack(linear, scales, zeros, None, device="cpu")
        state = dict(layer.state_dict())
        layer = layer.float()
        expected = layer(torch.eye(width)).T
        packing = "auto_round:auto_gptq" if kind else "auto_round"
        settings = {"quant_method": "auto-round", "bits": bits, "group_size": 32, "packing_format": packing}
        save(f"auto-round-{bits}{kind}", state, expected, settings, "auto-round 0.16.1")


def package(path: str):
    """A package without what its __init__ does."""
    found = types.ModuleType(path.replace("/", "."))
    found.__path__ = [str(LIBRARIES / path)]
    return found


def awq() -> None:
    module = load("awq/utils/packing_utils.py")
    for name in ("awq", "awq/modules", "awq/modules/linear", "awq/utils"):
        sys.modules[name.replace("/", ".")] = package(name)
    sys.modules["accelerate"] = MagicMock()
    from awq.modules.linear.gemm import WQLinear_GEMM

    width, out, group = 64, 32, 32
    scales = (torch.rand(2, out) / 10 + 0.01).half().float()
    zeros = torch.randint(0, 16, (2, out)).float()
    integers = torch.randint(0, 16, (out, width))
    linear = torch.nn.Linear(width, out, bias=False)
    linear.weight.data = scales.T.repeat_interleave(group, 1) * (integers - zeros.T.repeat_interleave(group, 1))
    layer = WQLinear_GEMM.from_linear(linear, 4, group, False, scales, zeros.int())
    expected = module.dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, group).T
    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    save("awq", dict(layer.state_dict()), expected, settings, "autoawq 0.2.7.post3")


def bitsandbytes() -> None:
    import bitsandbytes.functional as library
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute

    def decode(packed, state):
        """The portable decoder: that for processors (0.50.2) mixes up blocks where they don't end with rows."""
        absmax = state.absmax
        if state.nested:
            absmax = library.dequantize_blockwise(absmax, state.state2) + state.offset
        return _dequantize_4bit_compute(packed.reshape(-1), absmax, state.code, 64, state.shape, torch.float32)

    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            weight = torch.randn(48, 80) * torch.rand(48, 1)
            packed, state = library.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type=kind)
            parts = {"weight": packed} | {f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}
            name = f"bitsandbytes-{kind}{'-nested' if nested else ''}"
            save(name, parts, decode(packed, state), settings, "bitsandbytes 0.50.2")
    weight = torch.randn(1280, 64)  # 1280 blocks: five of the nested statistics
    packed, state = library.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    storage = packed.reshape(-1).view(torch.bfloat16).reshape(-1, 1)
    parts = {"weight": storage} | {f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}
    every = decode(packed, state)
    save("bitsandbytes-nf4-storage", parts, every[::160], settings, "bitsandbytes 0.50.2")
    weight = torch.randn(16, 40)
    integers, scb, _ = library.int8_vectorwise_quant(weight.half())
    parts = {"weight": integers, "SCB": scb, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    expected = library.int8_vectorwise_dequant(integers, scb)
    settings = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    save("bitsandbytes-int8", parts, expected, settings, "bitsandbytes 0.50.2")


def compressed_tensors() -> None:
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    from compressed_tensors.compressors.naive_quantized.base import NaiveQuantizationCompressor
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    def case(name, form, compressor, shape, scale, zero=None, global_scale=None, **arguments):
        args = QuantizationArgs(**arguments)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        weight = torch.randn(*shape)
        state = {"weight": weight, "weight_scale": scale}
        if zero is not None:
            state["weight_zero_point"] = zero
        if global_scale is not None:
            state["weight_global_scale"] = global_scale
        packed = compressor.compress(state, scheme)
        expected = compressor.decompress(dict(packed), scheme)["weight"]
        if global_scale is not None:  # the compressor computes in bfloat16
            codes = unpack_fp4_from_uint8(packed["weight_packed"], *shape, dtype=torch.float32)
            scale = packed["weight_scale"].float()
            expected = dequantize(codes, scale, args=args, dtype=torch.float32, global_scale=global_scale)
        weights = json.loads(args.model_dump_json())
        settings = {
            "quant_method": "compressed-tensors",
            "format": form,
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head"],
        }
        save(f"compressed-{name}", packed, expected, settings, "compressed-tensors 0.20.0")

    def some(*shape):
        return torch.rand(*shape) / 10 + 0.01

    def zeros(*shape, bits):
        return torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), shape).to(torch.int8)

    naive, pack = NaiveQuantizationCompressor, PackedQuantizationCompressor
    case("int8-channel", "int-quantized", naive, (24, 40), some(24, 1), strategy="channel")
    case("int8-tensor", "int-quantized", naive, (24, 40), some(1), strategy="tensor")
    case("int8-group", "int-quantized", naive, (24, 64), some(24, 2), strategy="group", group_size=32)
    zero = zeros(24, 1, bits=8)
    case("int8-zero", "int-quantized", naive, (24, 40), some(24, 1), zero, strategy="channel", symmetric=False)
    float8 = {"type": "float", "num_bits": 8}
    case("fp8-tensor", "float-quantized", naive, (24, 40), some(1), strategy="tensor", **float8)
    case("fp8-channel", "float-quantized", naive, (24, 40), some(24, 1), strategy="channel", **float8)
    blocks = {"strategy": "block", "block_structure": [8, 16]}
    case("fp8-block", "float-quantized", naive, (20, 40), some(3, 3), **blocks, **float8)
    for bits in (3, 4, 8):
        grouped = {"num_bits": bits, "strategy": "group", "group_size": 32}
        case(f"int{bits}-packed", "pack-quantized", pack, (20, 96), some(20, 3), **grouped)
        zero = zeros(20, 3, bits=bits)
        case(f"int{bits}-packed-zero", "pack-quantized", pack, (20, 96), some(20, 3), zero, symmetric=False, **grouped)
    case("int4-packed-channel", "pack-quantized", pack, (20, 36), some(20, 1), num_bits=4, strategy="channel")
    four = {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
    for name, whole in (("nvfp4", 37.5), ("nvfp4-power", 0.25)):
        scale = (torch.rand(16, 8) * 5 + 0.1).to(torch.float8_e4m3fn).float()
        whole = torch.tensor([whole])
        case(name, "nvfp4-pack-quantized", NVFP4PackedCompressor, (16, 128), scale, global_scale=whole, **four)
    scale = torch.exp2(torch.randint(-6, 2, (16, 4)).float())
    thirty_two = {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}
    case("mxfp4", "mxfp4-pack-quantized", MXFP4PackedCompressor, (16, 128), scale, **thirty_two)


def keep_parts(self, shape, dtype, data) -> None:
    self.metadata, self._quantized_data = {"shape": shape, "dtype": dtype}, data


def modelopt() -> None:
    for name in ("", "/torch", "/torch/quantization", "/torch/quantization/utils", "/torch/quantization/qtensor"):
        sys.modules[f"modelopt{name}".replace("/", ".")] = package(f"modelopt{name}")
    sys.modules["modelopt.torch.quantization.qtensor.base_qtensor"] = base = MagicMock()
    sys.modules["modelopt.torch.quantization.backends"] = backends = MagicMock()
    sys.modules["modelopt.torch.quantization.backends.utils"] = backends
    base.BaseQuantizedTensor = type("BaseQuantizedTensor", (), {"__init__": keep_parts})
    utils = sys.modules["modelopt.torch.quantization.utils"]
    utils.reduce_amax = lambda x: x.abs().amax()
    utils.reduce_block_padding = lambda x, block_sizes: x
    utils.reduce_block_amax = lambda x, block_sizes: x.reshape(len(x), -1, block_sizes[-1]).abs().amax(-1)
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    weight = torch.randn(16, 128)
    packed, scale, second = NVFP4QTensor.quantize(weight, 16)
    expected = packed.dequantize(torch.float32, scale=scale, double_scale=second, block_sizes={-1: 16})
    parts = {"weight": packed._quantized_data, "weight_scale": scale, "weight_scale_2": second}
    settings = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    save("modelopt-nvfp4", {**parts, "input_scale": torch.tensor(0.5)}, expected, settings, "nvidia-modelopt 0.47.0")


def fp8() -> None:
    from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

    weight = torch.randn(136, 144).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 2) / 10
    expected = _dequantize_fp8_weight(weight, scale, (128, 128), torch.float32)
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    save("fp8-block", {"weight": weight, "weight_scale_inv": scale}, expected, settings, "transformers 5.23.0")


if __name__ == "__main__":
    for make in (gptq, auto_round, awq, bitsandbytes, compressed_tensors, modelopt, fp8):
        if len(sys.argv) < 3 or make.__name__ in sys.argv[2:]:
            make()
