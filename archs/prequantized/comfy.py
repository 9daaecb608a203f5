"""Single files of diffusion models as ComfyUI reads them: every quantized weight under its own name, in its own shape.

X is a layer's name under any prefix; a file may hold several models.

    X.weight F8_E4M3, F8_E5M2                    plain numbers where nothing scales them
    X.scale_weight, X.scale_input, scaled_fp8    older scaled FP8: weight * scale_weight; the last marks the file
    X.weight_scale, X.comfy_quant                JSON in bytes names the format: see `comfy_formats`
    __metadata__._quantization_metadata          the same JSON for all layers, in the file's header
    X.weight.absmax, X.weight.quant_state…       bitsandbytes, see there

A weight is read if names, types and JSON say what it means. Anything else is refused: codes read as numbers are noise.
"""

import re
from collections.abc import Mapping

from quants import Tensor
from quants.errors import ModelError

from ..spec import Tensors
from . import bitsandbytes
from .comfy_eight_bits import float8
from .comfy_formats import FORMATS
from .comfy_layer import Layer
from .comfy_settings import layer_settings
from .tensor_groups import Unpacked, refused, replaced

MARKER = "scaled_fp8"
ACTIVATIONS = (".input_scale", ".scale_input")  # scales of a layer's input, which no weight needs
OLD_SCALE, SCALE = ".scale_weight", ".weight_scale"
FLOAT8 = ("F8_E4M3", "F8_E5M2")
CODES = ("U8", "I8", "U16", "I16", "U32", "I32", "F4", "F8_E8M0")
COMPANIONS = (  # endings of tensors that mean nothing without their weight
    ".comfy_quant",
    OLD_SCALE,
    SCALE,
    ".weight_scale_2",
    ".weight_scale_inv",
    ".weight_s_rel",
    ".weight_s_channel",
    ".weight_codebook",
    ".weight_correction",
    ".weight_zeros",
    ".weight_code",
    ".pre_quant_scale",
    ".weight.absmax",
    ".weight.quant_map",
    ".weight.nested_absmax",
    ".weight.nested_quant_map",
)
OTHER_METHODS = {  # ending of a name → what stores weights so
    ".wscales": "nunchaku's SVDQuant",
    ".smooth_factor": "nunchaku's SVDQuant",
    ".qweight": "integers packed as GPTQ or AWQ pack them",
    ".weight_packed": "compressed-tensors",
    "._data": "optimum-quanto",
    ".svd_up": "SDNQ",
}


def unpacked_weights(tensors: Tensors, header: Mapping[str, str]) -> Unpacked:
    """Return a file's tensors with each quantized weight as one. header: the file's `__metadata__`.

    Raises ModelError for formats that are not read, and for parts that are missing or don't belong together.
    """
    _refuse_other_methods(tensors)
    packed = any(bitsandbytes.STATE in name or name.endswith(".SCB") for name in tensors)
    plain = bitsandbytes.unpacked({}, tensors) if packed else Unpacked(dict(tensors))
    settings = layer_settings(plain.tensors, header)
    wholes = [_described(Layer(name, suffixes, plain.tensors)) for name, suffixes in settings.items()]
    wholes += [
        (float8(Layer(name, {}, plain.tensors), suffix), [f"{name}.weight", name + suffix])
        for name, suffix in _scaled_layers(plain.tensors, settings).items()
    ]
    markers = [name for name in plain.tensors if name == MARKER or name.endswith(f".{MARKER}")]
    activations = [name for name in plain.tensors if name.endswith(ACTIVATIONS)]
    result = replaced(plain.tensors, wholes, [*markers, *activations])
    _check_markers(markers, plain.tensors)
    _check_rest(result.tensors, {whole.name for whole, _ in wholes}, plain.tensors)
    return Unpacked(result.tensors, [*plain.ignored, *result.ignored])


def _refuse_other_methods(tensors: Tensors) -> None:
    for ending, method in OTHER_METHODS.items():
        name = next((name for name in tensors if name.endswith(ending)), None)
        if name is not None:
            raise refused(method, f"{name!r}")


def _described(layer: Layer) -> tuple[Tensor, list[str]]:
    """Return the weight of a layer with settings, and the names of its parts."""
    name = layer.settings.get("format")
    if name is None and "convrot" in layer.settings and layer.weight.format.name == "I8":
        name = "int8_tensorwise"  # nodes for INT8 write the rotation alone
    form = FORMATS.get(name or "")
    if form is None:
        what = f"is quantized as {name!r}" if name else "has settings without a format"
        known = f"known formats: {', '.join(FORMATS)}"
        raise ModelError(f"{layer.weight.where} {what}, which is not read", hint=f"fetch it in 16 bits; {known}")
    names = ("weight", "comfy_quant", *form.needed, *form.optional)
    return form.read(layer), [f"{layer.name}.{each}" for each in names]


def _scaled_layers(tensors: Tensors, settings: Mapping[str, object]) -> dict[str, str]:
    """Return the layers that have a scale and no settings, with the scale's ending. Only 8-bit floats need no more."""
    suffixes: dict[str, str] = {}
    for name in tensors:
        suffix = next((each for each in (OLD_SCALE, SCALE) if name.endswith(each)), None)
        layer = name.removesuffix(suffix) if suffix else ""
        weight = tensors.get(f"{layer}.weight")
        if suffix and layer not in settings and weight is not None and weight.format.name in FLOAT8:
            suffixes.setdefault(layer, suffix)
    return suffixes


def _check_markers(markers: list[str], tensors: Tensors) -> None:
    """Raise ModelError for a marker of scaled weights in a model that has 8-bit floats and no scale."""
    for marker in markers:
        prefix = marker.removesuffix(MARKER)
        inside = [name for name in tensors if name.startswith(prefix)]
        codes = [name for name in inside if name.endswith(".weight") and tensors[name].format.name in FLOAT8]
        if codes and not any(name.endswith((OLD_SCALE, SCALE)) for name in inside):
            problem = f"{tensors[codes[0]].where} is scaled, as {marker!r} says, and no {OLD_SCALE!r} is there"
            raise ModelError(problem, hint="the tool that wrote the file lost the scales: fetch the original")


def _check_rest(tensors: Tensors, read: set[str], stored_tensors: Tensors) -> None:
    """Raise ModelError for what belongs to a quantized weight and was not read, and for codes without scales."""
    for name, tensor in tensors.items():
        if ending := next((each for each in COMPANIONS if name.endswith(each)), None):
            raise _unused(stored_tensors, tensor, ending)
    alike = {_role(name) for name in read}
    for name, tensor in tensors.items():
        if name in read or not name.endswith(".weight"):
            continue
        stored = f"{tensor.where} is {tensor.format.name} {list(tensor.shape)}"
        if tensor.format.name in CODES:
            raise ModelError(f"{stored}, without the scales that are known", hint="fetch it in 16 bits")
        if tensor.format.name in FLOAT8 and len(tensor.shape) > 1 and _role(name) in alike:
            problem = f"{stored}, without a scale, which the same weights of other blocks have"
            raise ModelError(problem, hint="the file is incomplete: fetch it again")


def _unused(tensors: Tensors, companion: Tensor, ending: str) -> ModelError:
    """Return the error for a part of a quantized weight that no weight was read with."""
    name = companion.name.removesuffix(ending) + ".weight"
    weight = tensors.get(name)
    if weight is None:
        return ModelError(f"{companion.where} belongs to {name!r}, which is missing", hint="a shard may be missing")
    stored = f"{weight.where} is {weight.format.name} {list(weight.shape)}"
    if weight.format.name in CODES:
        problem = f"{stored}, and neither .comfy_quant nor the header's _quantization_metadata says its format"
        return ModelError(problem, hint="fetch it in 16 bits")
    return ModelError(f"{stored}, and {companion.name!r} does not go with it", hint="fetch the original file")


def _role(name: str) -> str:
    """Return a weight's name without the number of its block, the first in the name."""
    return re.sub(r"\.\d+\.", ".#.", name, count=1)
