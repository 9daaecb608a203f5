"""Multimodal models as one checkpoint: plain data by which a text model's file and its encoders' file become
config.json, tensors and a preprocessor's file again.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quants import Tensor
from quants.errors import ModelError, VocabularyError

from .spec import Tensors

TOKENS = "tokenizer.ggml.tokens"


@dataclass(frozen=True)
class Files:
    """Both files as a `Wrapper` reads them. keys: of the encoders' file, without "clip."; tensors: its own.

    text: the text model's metadata; its keys without the architecture's name are in `of_text`.
    """

    keys: Mapping[str, Any]
    tensors: Tensors
    text: Mapping[str, Any]

    @property
    def width(self) -> int:
        """Return the text model's width."""
        return int(self.of_text["embedding_length"])

    @property
    def of_text(self) -> dict[str, Any]:
        """Return the text model's keys without the architecture's name."""
        start = f"{self.text.get('general.architecture')}."
        return {key.removeprefix(start): value for key, value in self.text.items() if key.startswith(start)}

    def token(self, *texts: str) -> int:
        """Return the id of the first of these tokens that the vocabulary has. Raises VocabularyError."""
        tokens = list(self.text.get(TOKENS, ()))
        for text in texts:
            if text in tokens:
                return tokens.index(text)
        raise VocabularyError(
            f"the vocabulary has no {texts[0]}, which config.json has to name by its number",
            "the text model's file is not one of a model with encoders",
        )

    def has(self, *texts: str) -> bool:
        """Return whether the vocabulary has one of these tokens."""
        return not {*texts}.isdisjoint(self.text.get(TOKENS, ()))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor of the encoders; () if there is none."""
        return self.tensors[name].shape if name in self.tensors else ()


def key(name: str, otherwise: Any = None) -> Callable[[Files], Any]:
    """Return a function that reads a key of the encoders' file."""
    return lambda files: files.keys.get(name, otherwise)


def rows(name: str) -> Callable[[Files], int]:
    """Return a function that gives the first dimension of a tensor of the encoders."""
    return lambda files: _side(files, name, 0)


def columns(name: str) -> Callable[[Files], int]:
    """Return a function that gives the second dimension of a tensor of the encoders."""
    return lambda files: _side(files, name, 1)


def _side(files: Files, name: str, number: int) -> int:
    shape = files.shape(name)
    if len(shape) <= number:
        problem = f"has {name!r} of shape {shape}" if shape else f"has no {name!r}"
        raise ModelError(f"the encoders' file {problem}, by which config.json is found")
    return shape[number]


def has(name: str) -> Callable[[Files], bool]:
    """Return a function that tells whether the encoders have a tensor."""
    return lambda files: name in files.tensors


def inverse(name: str, otherwise: int = 1) -> Callable[[Files], float]:
    """Return a function that gives one over a key of the encoders' file."""
    return lambda files: 1 / int(files.keys.get(name, otherwise))


def square(name: str = "vision.image_size") -> Callable[[Files], dict[str, int]]:
    """Return a function that gives height and width, both a key of the encoders' file."""
    return lambda files: dict.fromkeys(("height", "width"), int(files.keys[name]))


def head_width(part: str = "vision") -> Callable[[Files], int]:
    """Return a function that gives the width of an encoder's heads."""
    return lambda files: int(files.keys[f"{part}.embedding_length"]) // int(files.keys[f"{part}.attention.head_count"])


def positions_side(files: Files) -> int:
    """Return the pixels a side of an image for which there are as many learned positions as patches."""
    return math.isqrt(files.shape("v.position_embd.weight")[0]) * int(files.keys["vision.patch_size"])


def edge(which: str, name: str = "vision.image_size") -> Callable[[Files], dict[str, int] | None]:
    """Return a function that gives one side, a key of the encoders' file; nothing where an older file lacks it."""
    return lambda files: {which: int(files.keys[name])} if name in files.keys else None


@dataclass(frozen=True)
class Wrapper:
    """A multimodal class that a text model's file and an encoders' file can be exported to.

    hf_class, model_type: of config.json.
    texts: GGUF names of the text models that this class can have; empty: any that can be exported.
    fits: a test of both files, if several classes have encoders of the same type.
    text_names, encoder_names: prefixes of tensor names in the text model's checkpoint, or in the `Encoder` → in this
        class; the first match counts.
    unused: globs of the `Encoder`'s source names that this class spells differently.
    of_text: globs of GGUF names of text tensors that are stored a second time among the encoders.
    optional: globs of GGUF names outside of layers, without suffix, that files of this class may lack. needed: names
        that must be present, though no rule of the `Encoder` has them. layers_alike: all layers have the same tensors.
    biased: GGUF names outside of layers that always have a bias.
    config: paths in config.json → the value, or a function of both files (None omits the key), in addition to what the
        `Encoder`'s keys give. Paths may begin with "text.", "vision.", "audio.".
    tokens: paths in config.json → the texts of the tokens whose ids they hold; the vocabulary must have the first one.
    text_in: where config.json has the text model's config; "": on the top level.
    inside, inside_type: the key of config.json that holds the parts, if they are not on the top level, and its model
        type.
    processor, image_processor, feature_extractor: classes in the preprocessor's file. preprocessor: its other keys, as
        `config`.
    made: tensors that the class has, files lack, and no output depends on.
    of_text_changed: changes the text model's tensors where they differ from those of a text checkpoint.
    positions: how many learned positions there are besides those of the patches, for encoders with one image size.
    read_otherwise: transformers' class renames config keys, so its filled-in config is not compared.
    tokenizer: names of tokens that the processor reads from the tokenizer's config → the tokens.
    """

    hf_class: str
    model_type: str
    texts: tuple[str, ...] = ()
    fits: Callable[[Files], bool] | None = None
    text_names: Mapping[str, str] = field(default_factory=dict)
    encoder_names: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    of_text: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    needed: Callable[[Files], Iterable[str]] | None = None
    layers_alike: bool = True
    biased: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    tokens: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    text_in: tuple[str, ...] = ("text_config",)
    inside: str = ""
    inside_type: str = ""
    processor: str = ""
    image_processor: str = ""
    feature_extractor: str = ""
    preprocessor: Mapping[str, Any] = field(default_factory=dict)
    made: Callable[[Files], Iterable[Tensor]] | None = None
    of_text_changed: Callable[[Files, Tensors], Tensors] | None = None
    positions: int | None = None
    read_otherwise: bool = False
    tokenizer: Mapping[str, str] = field(default_factory=dict)


def renamed(name: str, beginnings: Mapping[str, str]) -> str:
    """Return a name with another prefix, of the first prefix that it has."""
    for old, new in beginnings.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
