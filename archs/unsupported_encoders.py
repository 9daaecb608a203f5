"""Defaults of keys that an mmproj file lacks: one table, by projector type.

Source: llama.cpp b11434, tools/mtmd (`clip_model_loader::load_hparams`). Each value is llama.cpp's,
except those with a reason (`Because`): there llama.cpp refuses the file, or uses a value that no published model has.

If a file has limits of pixels, they apply, because they are those of the model's processor, even where llama.cpp uses a
constant (Qwen's types and GLM-4V: 8 to 4096 tokens; MiniMax: 8 to 576; Youtu: 62500; Kimi-VL: 1024; Muse Glimmer:
4096). Four types follow their processor, with or without a key: Pixtral (up to `image_size`; llama.cpp: 8 to 1024
tokens), Gemma 4 (the requested number of tokens, by default 280; llama.cpp: 70 to 1120), LFM2 (64 to 256 tokens, as
llama.cpp) and DeepSeek-OCR (tiles of 640 pixels, epsilon 1e-5, as llama.cpp).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quants.errors import ModelError

from .encoder import NAME
from .hparams.assumed import DEFAULT, Assumed

MERGE, SCALE = "vision.spatial_merge_size", "vision.projector.scale_factor"
MIN_PIXELS, MAX_PIXELS = "vision.image_min_pixels", "vision.image_max_pixels"
MIN_TILES, MAX_TILES = "vision.preproc_min_tiles", "vision.preproc_max_tiles"
LONGEST, FEATURES = "vision.preproc_image_size", "vision.feature_layer"
WINDOWS, HEADS_KV = "vision.n_wa_pattern", "vision.attention.head_count_kv"
QWEN25O = "qwen2.5o"  # projector types of Qwen 2.5 Omni for images and audio in files of spring 2025


@dataclass(frozen=True)
class Tokens:
    """The pixels of this many tokens."""

    count: int


@dataclass(frozen=True)
class SameAs:
    """The value of another key, plus an offset."""

    key: str
    more: int = 0


@dataclass(frozen=True)
class Because:
    """A value that differs from llama.cpp's. reason: why."""

    value: Any
    reason: str


def _pixels(minimum: int, maximum: int, reason: str) -> dict[str, Any]:
    return {MIN_PIXELS: Because(minimum, reason), MAX_PIXELS: Because(maximum, reason)}


def _tokens(minimum: int, maximum: int) -> dict[str, Any]:
    return {MIN_PIXELS: Tokens(minimum), MAX_PIXELS: Tokens(maximum)}


REFUSED = "llama.cpp refuses files without it; it is what published models have"
NO_FIT = "with llama.cpp's 1 the projector of no published model fits"
CONSTANT = "what the model's processor takes; llama.cpp goes by a constant whether there is a key or not"
QWEN, QWEN3 = (56 * 56, 12_845_056), (256 * 256, 4096 * 4096)
COMMON: dict[str, Any] = {HEADS_KV: SameAs("vision.attention.head_count")}
AUDIO_EPS = "audio.attention.layer_norm_epsilon"
SOUNDS: dict[str, dict[str, Any]] = {  # of Whisper's layers
    **{
        encoder_type: {AUDIO_EPS: Because(1e-5, REFUSED)}
        for encoder_type in (
            "qwen2a",
            QWEN25O,
            "qwen3a",
            "voxtral",
            "ultravox",
            "musicflamingo",
            "glma",
            "meralion",
            "dots3note_a",
            "mimo_audio",
        )
    },
    "granite_speech": {"audio.feature_layer": ()},
}
ABSENT: dict[str, dict[str, Any]] = {
    "qwen2vl_merger": {MERGE: 2, WINDOWS: 0, **_pixels(*QWEN, CONSTANT)},
    "qwen2.5vl_merger": {MERGE: 2, **_pixels(*QWEN, CONSTANT)},
    QWEN25O: {MERGE: 2, **_pixels(*QWEN, CONSTANT)},
    "qwen3vl_merger": {MERGE: 2, **_pixels(*QWEN3, CONSTANT)},
    "ling3vl": {MERGE: 2, **_pixels(*QWEN3, CONSTANT)},
    "glm4v": {MERGE: 2, **_pixels(112 * 112 // 2, 28 * 28 * 15_000 // 2, CONSTANT)},  # half of those of two frames
    "minimax_m3": {MERGE: 2, **_pixels(4 * 28 * 28, 672 * 672, CONSTANT)},
    "exaone4_5": {MERGE: 2, WINDOWS: 0, **_pixels(*QWEN, REFUSED)},
    "mimovl": {MERGE: 2, **_pixels(*QWEN, REFUSED)},
    "glm5v": {MERGE: 2},
    "paddleocr": {MERGE: 2, **_pixels(384 * 384, 1536 * 1536, REFUSED)},
    "dots_ocr": {SCALE: Because(2, REFUSED), **_pixels(56 * 56, 11_289_600, REFUSED)},
    "dots3note_v": {MERGE: Because(2, REFUSED), **_pixels(56 * 56, 11_289_600, REFUSED)},
    "hunyuanvl": {MERGE: 2, **_tokens(256, 16_384)},
    "muse-glimmer": {MERGE: 2, MAX_PIXELS: Tokens(4096)},
    "youtuvl": {MERGE: 2, MAX_PIXELS: Because(Tokens(9216), CONSTANT)},
    "kimivl": {SCALE: Because(2, NO_FIT), MAX_PIXELS: Tokens(1024)},
    "kimik25": {SCALE: Because(2, NO_FIT), MAX_PIXELS: Tokens(4096)},
    "nemotron_v2_vl": {
        SCALE: Because(2, NO_FIT),
        MIN_TILES: Because(1, "llama.cpp cuts nothing"),
        MAX_TILES: Because(12, "llama.cpp cuts nothing"),
    },
    "internvl": {SCALE: 1, MIN_TILES: 1, MAX_TILES: 12},
    "idefics3": {SCALE: 1, LONGEST: 0},
    "llama4": {SCALE: 1},
    "lfm2": {SCALE: 1},
    "minicpmv4_6": {SCALE: 4, "vision.wa_layer_indexes": (0,)},
    "gemma3": {SCALE: 4},
    "gemma3nv": {SCALE: 1},
    "gemma4v": {SCALE: 3},
    "gemma4uv": {SCALE: 3},
    "step3vl": {SCALE: 4, LONGEST: 3024},
    "pixtral": {MERGE: 1},
    "lightonocr": {MERGE: 1, LONGEST: SameAs("vision.image_size")},
    "deepseekocr": {MERGE: 4, MIN_TILES: 2, MAX_TILES: 9},
    "deepseekocr2": {MERGE: 4, MIN_TILES: 2, MAX_TILES: 6},
    "resampler": {"minicpmv_version": 2},
    "mlp": {FEATURES: SameAs("vision.block_count", -1)},  # the last layer's output is not read
}
SCALED = (
    "lfm2",
    "llama4",
    "gemma4v",
    "minicpmv4_6",
    "step3vl",
    "nemotron_v2_vl",
    "gemma4uv",
    "kimivl",
    "kimik25",
    "dots_ocr",
)
TILES_NOTE = "images are read in one size, not in tiles as LLaVA 1.6 cuts them"
UNREAD = {"mlp": dict.fromkeys(("vision.image_grid_pinpoints", "vision.mm_patch_merge_type"), TILES_NOTE)}


def projector_type(metadata: Mapping[str, Any], part: str) -> Any:
    """Return the projector type of a part ("vision", "audio"); the key of the whole file goes before the part's."""
    return metadata.get(f"{NAME}.projector_type") or metadata.get(f"{NAME}.{part}.projector_type")


def absent_value(encoder_type: str, key: str, metadata: Mapping[str, Any]) -> Any:
    """Return the default of a key (without "clip."); None for nothing. encoder_type: the projector type."""
    own = SOUNDS if key.startswith("audio.") else ABSENT
    rule = own.get(encoder_type, {}).get(key, COMMON.get(key))
    return _resolved(encoder_type, rule.value if isinstance(rule, Because) else rule, metadata)


def merged_key(encoder_type: str) -> str:
    """Return the key (without "clip.") of how many patches a side become a token, of types for images of any size or in
    tiles.
    """
    return SCALE if encoder_type in SCALED else MERGE


def merged(encoder_type: str, metadata: Mapping[str, Any]) -> int:
    """Return how many patches a side become a token."""
    key = merged_key(encoder_type)
    return int(_value(encoder_type, key, metadata) or 1)


def _value(encoder_type: str, key: str, metadata: Mapping[str, Any]) -> Any:
    stored = metadata.get(f"{NAME}.{key}")
    return absent_value(encoder_type, key, metadata) if stored is None else stored


def _resolved(encoder_type: str, rule: Any, metadata: Mapping[str, Any]) -> Any:
    if isinstance(rule, SameAs):
        value = _value(encoder_type, rule.key, metadata)
        return value if value is None else value + rule.more
    if isinstance(rule, Tokens):
        side = metadata.get(f"{NAME}.vision.patch_size")
        return None if side is None else rule.count * (side * merged(encoder_type, metadata)) ** 2
    return rule


def assumed(metadata: Mapping[str, Any]) -> Iterator[Assumed]:
    """Return the defaults of keys that a file lacks and its encoders use."""
    for part in ("vision", "audio"):
        encoder_type = projector_type(metadata, part)
        if not metadata.get(f"{NAME}.has_{part}_encoder") or not isinstance(encoder_type, str):
            continue
        for key, rule in (SOUNDS if part == "audio" else ABSENT).get(encoder_type, {}).items():
            value = absent_value(encoder_type, key, metadata)
            if f"{NAME}.{key}" not in metadata and value not in (None, ()):
                doubtful = isinstance(rule, Because)
                yield Assumed(f"{NAME}.{key}", value, f"absent: {rule.reason}" if doubtful else DEFAULT, doubtful)


def unread(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return keys of a file that its encoder ignores, with the effect."""
    for key, meaning in UNREAD.get(str(projector_type(metadata, "vision")), {}).items():
        if f"{NAME}.{key}" in metadata:
            yield f"{NAME}.{key}", meaning


def activation(metadata: Mapping[str, Any]) -> str:
    """Return the activation of an encoder's nets. Raises ModelError for a file that names two."""
    named = [name for name in ("silu", "gelu") if metadata.get(f"{NAME}.use_{name}")]
    if len(named) > 1:
        raise ModelError(f"{NAME}.use_gelu and {NAME}.use_silu are both true; one at most is expected")
    return named[0] if named else "gelu_quick"
