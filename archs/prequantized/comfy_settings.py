"""How the layers of a file are quantized: JSON next to each weight, or for all layers in the file's header.

    X.comfy_quant             U8: {"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256}
    _quantization_metadata    {"format_version": "1.0", "layers": {"X": {"format": "nvfp4"}, …}}

The header names layers as in the file, or without the prefix that the file gives to the model's tensors.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from quants import Tensor
from quants.errors import ModelError

from ..small_files import parse_json
from ..spec import Tensors
from ..typed_json import Fields, Flag, ListOf, MapOf, Place, Text, Whole
from .tensor_groups import Settings

ENDING = ".comfy_quant"
HEADER = "_quantization_metadata"
MAX_TENSOR = 1 << 16  # bytes of a layer's settings, which have a hundred
MAX_LAYERS = 1 << 16
MAX_DIMENSIONS = 8

OPTIONS = {"convrot": Flag(), "convrot_groupsize": Whole(4, 1 << 16), "group_size": Whole(2, 1 << 16)}
LAYER = Fields(
    {
        **OPTIONS,
        "format": Text(max_length=100),
        "params": Fields(OPTIONS),
        "shape": ListOf(Whole(1), max_items=MAX_DIMENSIONS),
        "orig_shape": ListOf(Whole(1), max_items=MAX_DIMENSIONS),
        "blocksize": Whole(2, 1 << 16),
        "double_quant": Flag(),
    }
)
ALL_LAYERS = Fields({"layers": MapOf(LAYER)})


def layer_settings(tensors: Tensors, header: Mapping[str, str]) -> dict[str, Settings]:
    """Return the settings of each layer that has some, by its name in the file.

    Raises ModelError for settings of another form, and where tensor and header contradict each other.
    """
    result: dict[str, Settings] = {
        name.removesuffix(ENDING): _of_tensor(tensors, tensor)
        for name, tensor in tensors.items()
        if name.endswith(ENDING)
    }
    if HEADER not in header:
        return result
    named = _of_header(header[HEADER])
    prefix = _prefix(named, tensors) if named else ""
    for layer, settings in named.items():
        name = prefix + layer
        if f"{name}.weight" not in tensors:
            continue  # of a part that the file lacks; scales without a weight are refused elsewhere
        ours = result.get(name, {})
        for key in ("format", *OPTIONS):
            ways = option(ours, key), option(settings, key)
            if None not in ways and ways[0] != ways[1]:
                problem = f"{key} {ways[0]!r} by {name + ENDING!r} and {ways[1]!r} by the file's {HEADER}"
                raise ModelError(f"{tensors[f'{name}.weight'].where} has {problem}", hint="fetch the file again")
        result[name] = {**settings, **{key: value for key, value in ours.items() if value is not None}}
    return result


def option(settings: Settings, key: str, default: Any = None) -> Any:
    """Return an option of a layer, which may be inside its "params"."""
    inside = settings.get("params") or {}
    candidates = (each[key] for each in (settings, inside) if each.get(key) is not None)
    return next(candidates, default)


def _of_tensor(tensors: Tensors, tensor: Tensor) -> Settings:
    weight = tensor.name.removesuffix(ENDING) + ".weight"
    if weight not in tensors:
        raise ModelError(f"{tensor.where} describes {weight!r}, which is missing", hint="a shard may be missing")
    if tensor.format.name != "U8" or tensor.nbytes > MAX_TENSOR:
        stored = f"{tensor.format.name} with {tensor.nbytes:,} bytes"
        raise ModelError(f"{tensor.where} is {stored}; JSON in at most {MAX_TENSOR:,} bytes was expected")
    settings: Settings = LAYER.read(_parsed(tensor.raw().tobytes(), tensor.where), Place(tensor.where))
    return settings


def _of_header(text: str) -> dict[str, Settings]:
    content = ALL_LAYERS.read(_parsed(text, HEADER), Place(HEADER))
    layers: dict[str, Settings] | None = content.get("layers")
    if layers is None:
        raise ModelError(f'{HEADER} has no "layers"; settings by the name of the layer were expected')
    if len(layers) > MAX_LAYERS:
        raise ModelError(f"{HEADER} has {len(layers):,} layers; at most {MAX_LAYERS:,} were expected")
    return layers


def _parsed(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        value = parse_json(text, unique=True)
    except ValueError as error:
        raise ModelError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{where} is not a JSON object")
    return value


def _prefix(named: Mapping[str, object], tensors: Tensors) -> str:
    """Return what stands before the header's names in the file: the prefix under which most of them are found."""
    weights = (name.removesuffix(".weight") for name in tensors if name.endswith(".weight"))
    candidates = Counter(layer.removesuffix(name) for layer in weights for name in _endings(layer) if name in named)
    if not candidates:
        raise ModelError(f"{HEADER} describes {next(iter(named))!r} and others; the file has none of these layers")
    (prefix, most), *others = candidates.most_common(2)
    if others and others[0][1] == most:
        raise ModelError(f"{HEADER} describes layers that are there twice: after {prefix!r} and {others[0][0]!r}")
    return prefix


def _endings(name: str) -> Iterator[str]:
    """Return a name, and what is left of it after each of its points."""
    yield name
    for at, letter in enumerate(name):
        if letter == ".":
            yield name[at + 1 :]
