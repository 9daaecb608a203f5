"""Quantized checkpoints: the tensors that together store a weight become that weight.

A method is a function `(settings, tensors) -> Unpacked` in a module of this package that is imported when a checkpoint
needs it. Weights are read by row ranges: float32, or blocks of ggml's if the values carry over without loss. Layers
that the method left unquantized (`modules_to_not_convert`, `ignore`) are recognised by their plain tensors.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quants.errors import GgufToolsError, ModelError

from ..config import changed
from ..hparams.config_keys import QUANTIZATION
from ..small_files import read_json_object
from ..spec import Tensors
from ..typed_json import read_fields
from .fp4 import gpt_oss
from .tensor_groups import Settings, Unpacked, refused

METHODS = {  # `quant_method` → module and function
    "fp8": "scaled.fp8",
    "fbgemm_fp8": "scaled.fp8",
    "gptq": "gptq.gptq",
    "awq": "gptq.awq",
    "bitsandbytes": "bitsandbytes.unpacked",
    "compressed-tensors": "compressed_tensors.unpacked",
    "modelopt": "scaled.modelopt",
    "modelopt_fp4": "scaled.modelopt",
    "mxfp4": "fp4.gpt_oss",
    "auto-round": "gptq.auto_round",
    "intel/auto-round": "gptq.auto_round",
    "bitnet": "bitnet.unpacked",
}
KEYS = ("quantization_config", "compression_config")

WEIGHTS = ("weight", "weight_packed", "qweight")
CODES = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "F4", "I8", "U8", "I16", "I32")

# Files next to a config.json without settings: file → method, and where the settings are in it.
SETTINGS_FILES = {
    "hf_quant_config.json": ("modelopt", "quantization"),
    "quantize_config.json": ("gptq", ""),
    "quant_config.json": ("awq", ""),
}


def settings_of(config: Mapping[str, Any]) -> Settings | None:
    """Return how a checkpoint's weights are quantized, by its normalized config; None for plain weights."""
    return next((config[key] for key in KEYS if isinstance(config.get(key), Mapping) and config[key]), None)


def method_of(settings: Settings) -> str:
    """Return the method's name in lower case; older configs lack it, but have keys of their own."""
    named = str(settings.get("quant_method") or "").lower()
    if named and named != "none":
        return named
    if "config_groups" in settings:
        return "compressed-tensors"
    return "bitsandbytes" if settings.get("load_in_4bit") or settings.get("load_in_8bit") else "an unnamed method"


def with_settings_file(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config with the settings that older exports wrote into a separate file. Raises ModelError for a broken
    one.
    """
    if settings_of(config):
        return config
    for name, (method, inside) in SETTINGS_FILES.items():
        path = folder / name
        if not path.is_file():
            continue
        try:
            content = read_json_object(path)
            settings = read_fields(content.get(inside) if inside else content, QUANTIZATION, str(path))
        except GgufToolsError as error:
            raise ModelError(f"{path} does not say how the weights are quantized: {error}") from error
        return changed(config, **{KEYS[0]: {"quant_method": method, **settings}})
    return config


def unpacked(config: Mapping[str, Any], tensors: Tensors) -> Unpacked:
    """Return a checkpoint's tensors with each quantized weight as one tensor.

    config: as `archs.config.normalized` gives it. Raises ModelError for an unsupported method, and for parts that are
    missing or don't belong together.
    """
    settings = settings_of(config)
    if settings is None:
        return gpt_oss({}, tensors)
    method = method_of(settings)
    if method not in METHODS:
        raise refused(method)
    module, _, function = METHODS[method].partition(".")
    result: Unpacked = getattr(importlib.import_module(f"{__name__}.{module}"), function)(settings, tensors)
    for name, tensor in result.tensors.items():  # codes would be taken for numbers
        if len(tensor.shape) > 1 and name.endswith(WEIGHTS) and tensor.format.name in CODES:
            raise refused(method, f"{name} is {tensor.format.name}, without the scales that are known")
    return result
