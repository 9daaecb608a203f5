"""Encoders of images and sounds: plain data that describes how they become an mmproj file, a GGUF file next to that of
the text model.

A module of `archs/multimodal` declares one or more `Encoder` values. Functions of the config receive config.json with
the keys "vision" and "audio" (the parts' configs), "text" (the text model's config as its family reads it),
"preprocessor" (preprocessor_config.json and processor_config.json), "shapes" (of tensors, by source name) and "folder".
"""

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quants import Tensor
from quants.errors import ModelError

from .config import lookup, required
from .spec import Computed, Config, Target, TensorMap, Tensors
from .typed_json import FieldType
from .wrapper import Wrapper

NAME = "clip"  # `general.architecture` of such files, and the prefix of their keys
GENERAL_TYPE = "mmproj"  # their `general.type`


@dataclass(frozen=True)
class Encoder:
    """The encoders of a model family, which share one mmproj file.

    hf_classes: values of `architectures` in config.json or in its vision part. model_types: of its vision or audio
        part, if classes with different encoders share a name (Llava); empty: any.
    metadata: GGUF key without "clip." (a leading "/": without any prefix), in the file's order → a path in the config
        that must be present, or a function of the config (None omits the key).
    tensors: source name → target, as `Architecture.tensors`, with full GGUF names.
    parts: paths in config.json of the configs of the parts "vision", "audio" and "speech" (which generates sound).
    defaults: the model type's defaults of config keys, by part.
    fixed: globs of GGUF names → their format in files of any type: F32, F16, or PATCHES.
    ignored: globs of source names → why no program reads them.
    spellings: prefixes of other versions' source names → those in `tensors`; "" removes the prefix.
    tokens: names → tokens whose ids the metadata needs, as `tokens.NAME` of the config.
    generated: tensors computed from the config; the first in the file.
    prepare: changes the tensors before the rules apply.
    keys: the types of the parts' config keys that differ from `archs.hparams.config_keys`.
    refused: paths in the config with a test of values that files cannot express.
    folders: subfolders with a config.json and a model.safetensors of their own: "FOLDER" in the config, and the prefix
        "FOLDER." of tensor names. Their tensors come first.
    claimed: globs of source names that belong to the encoders; the conversion of the text model skips them.
    no_way_back: why the encoders cannot be exported.
    wrappers: the classes that a text model and these encoders can be exported to. prepare_export: the inverse of
        `prepare`.
    """

    hf_classes: tuple[str, ...]
    metadata: Mapping[str, str | Computed]
    tensors: Mapping[str, Target]
    model_types: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=lambda: {"vision": "vision_config"})
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=dict)
    generated: tuple[Callable[[Config], Iterable[Tensor]], ...] = ()
    prepare: Callable[[Config, Tensors], Tensors] | None = None
    keys: Mapping[str, FieldType] = field(default_factory=dict)
    refused: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    claimed: tuple[str, ...] = ()
    no_way_back: str = ""
    folders: tuple[str, ...] = ()
    wrappers: tuple[Wrapper, ...] = ()
    prepare_export: Callable[[Config, Tensors], Tensors] | None = None


def projectors(encoder: Encoder) -> dict[str, str]:
    """Return the projector type of each part, which tells programs how to run it."""
    types, having = {}, {part: {"": True} for part in ("vision", "audio")}  # nothing else of a config matters here
    for part in encoder.parts:
        key = "gen.audio" if part == "speech" else part
        source = encoder.metadata.get(f"{key}.projector_type", encoder.metadata.get("projector_type"))
        if callable(source):
            types[part] = str(source(having))
    return types


def always_there(encoder: Encoder) -> set[str]:
    """Return the parts that every model of the family has."""
    keys = {part: encoder.metadata.get(f"{part}.projector_type") for part in encoder.parts}
    return {part for part, source in keys.items() if not isinstance(source, Having)}


PATCHES = "F16 or F32"  # F16 in a file of that type, else F32: the types that convolutions run in

# Formats of an encoder's tensors by their GGUF names; the first match counts. All vectors, norms and names that don't
# end with ".weight" are F32.
FIXED = {
    "*.patch_embd.weight": PATCHES,
    "*.patch_embd.weight.1": PATCHES,
    "*.patch_merger.weight": PATCHES,
    "[va].position_embd.weight": "F32",
}


def encoder_format(name: str, shape: tuple[int, ...], fixed: Mapping[str, str], outtype: str) -> str | None:
    """Return the format of an encoder's tensor in files of any type, or of one (F32, F16, …); None where the type
    decides.

    Every vector, norm and non-weight is F32, however large it is.
    """
    if len(shape) < 2 or name.endswith("_norm.weight"):
        return "F32"
    for pattern, form in fixed.items():
        if fnmatch.fnmatchcase(name, pattern):
            return form if form != PATCHES else "F16" if outtype == "F16" else "F32"
    return None if name.endswith(".weight") else "F32"


@dataclass(frozen=True)
class Always:
    """The same value for every config."""

    value: Any

    def __call__(self, config: Config) -> Any:
        return self.value


def always(value: Any) -> Computed:
    """Return the same value for every config."""
    return Always(value)


@dataclass(frozen=True)
class Maybe:
    """The value at a path of the config if it is there; the inverse writes it back."""

    path: str
    otherwise: Any = None

    def __call__(self, config: Config) -> Any:
        return self.otherwise if (value := lookup(config, self.path)) is None else value


def maybe(path: str, otherwise: Any = None) -> Computed:
    """Return the value at a path of the config, if it is there."""
    return Maybe(path, otherwise)


@dataclass(frozen=True)
class Side:
    """The side of a square that the config may give by both sides."""

    path: str

    def __call__(self, config: Config) -> Any:
        value = required(config, self.path)
        if isinstance(value, list) and len(set(value)) > 1:
            raise ModelError(f"config.json has {self.path} = {value}; files of encoders know only squares")
        return value[0] if isinstance(value, list) and value else value


def side(path: str) -> Computed:
    """Return the side of a square that the config may give by both sides."""
    return Side(path)


@dataclass(frozen=True)
class Activation:
    """Whether the config names an activation that has this key."""

    path: str
    key: str
    flags: Mapping[str, str]

    def __call__(self, config: Config) -> bool | None:
        name = lookup(config, self.path)
        if name not in self.flags:
            raise ModelError(f"{self.path} = {name!r} in config.json is not one of {', '.join(self.flags)}")
        return True if self.flags[name] == self.key else None

    @property
    def name(self) -> str:
        """Return the first activation with this key."""
        return next(name for name, key in self.flags.items() if key == self.key)


def activation(path: str, **flags: str) -> dict[str, Computed]:
    """Return a key `use_…` for the activation that the config names. flags: activations → the keys of these.

    Raises ModelError for another one.
    """
    return {key: Activation(path, key, flags) for key in dict.fromkeys(flags.values())}


LAYERS = "num_hidden_layers|n_layers|n_layer|num_layers|depth|layers|encoder_layers"


def _within(part: str, keys: str) -> str:
    return "|".join(f"{part}.{key}" for key in keys.split("|"))


VISION: dict[str, str | Computed] = {  # keys that every vision encoder writes, in llama.cpp's order
    "has_vision_encoder": always(True),
    "vision.projection_dim": "text.hidden_size|text.n_embd",
    "vision.image_size": side("vision.image_size"),
    "vision.patch_size": side("vision.patch_size"),
    "vision.embedding_length": _within("vision", "hidden_size|width"),
    "vision.feed_forward_length": "vision.intermediate_size",
    "vision.block_count": _within("vision", LAYERS),
    "vision.attention.head_count": _within("vision", "num_attention_heads|num_heads|heads"),
    "vision.image_mean": "preprocessor.image_mean",
    "vision.image_std": "preprocessor.image_std",
}
AUDIO: dict[str, str | Computed] = {  # the same for audio
    "has_audio_encoder": always(True),
    "audio.projection_dim": "text.hidden_size|text.n_embd",
    "audio.embedding_length": _within("audio", "hidden_size|d_model"),
    "audio.feed_forward_length": _within("audio", "intermediate_size|encoder_ffn_dim"),
    "audio.block_count": _within("audio", LAYERS),
    "audio.attention.head_count": _within("audio", "num_attention_heads|encoder_attention_heads"),
}


@dataclass(frozen=True)
class Having:
    """What is written where the config has a part."""

    part: str
    source: str | Computed

    def __call__(self, config: Config) -> Any:
        if not config[self.part]:
            return None
        return self.source(config) if callable(self.source) else required(config, self.source)


def having(part: str, metadata: Mapping[str, str | Computed]) -> dict[str, Computed]:
    """Return keys that are written where the config has a part, such as "audio"."""
    return {key: Having(part, source) for key, source in metadata.items()}


def at(source: str, name: str, targets: Mapping[str, Target]) -> dict[str, Target]:
    """Return targets with prefixes: `source` before source names, `name` before GGUF names."""

    def full(target: Target) -> Target:
        if isinstance(target, tuple):
            return tuple(each for single in target if isinstance(each := full(single), TensorMap))
        if isinstance(target, TensorMap) and isinstance(target.name, str):
            return TensorMap(f"{name}{target.name}", target.transform, target.stack)
        return f"{name}{target}" if isinstance(target, str) else target

    return {f"{source}{each}": full(target) for each, target in targets.items()}


# Parts of layers as several models name them.
QKV = {f"self_attn.{letter}_proj": f"attn_{letter}" for letter in "qkv"}
GATED_NET = {f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}
LLAMA_ATTENTION = {"input_layernorm": "ln1", "post_attention_layernorm": "ln2", **QKV, "self_attn.o_proj": "attn_out"}
WHISPER_ATTENTION = {"self_attn_layer_norm": "ln1", "final_layer_norm": "ln2", **QKV, "self_attn.out_proj": "attn_out"}
FUSED_ATTENTION = {"norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out"}
CLIP_LAYER: dict[str, Target] = {
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    **QKV,
    "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
CLIP_VISION: dict[str, Target] = {  # after "vision_model." or another prefix
    **at("encoder.layers.{i}.", "v.blk.{i}.", CLIP_LAYER),
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "post_layernorm": "v.post_ln",
}
