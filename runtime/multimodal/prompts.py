"""Prompts with images or audio: the texts that a model's processor writes around and in place of each.

Sources: transformers `models/*/processing_*.py`, and for names of tokens the published models' vocabularies.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from archs.unsupported_encoders import absent_value
from quants.errors import ModelError, OptionError

from ..images import EmbeddedImage
from ..tokenizer import Tokenizer
from .places import Embedded, places

MARKER = "<__media__>"  # the place of an image or audio, as in programs of llama.cpp
MARKS = {"image": "<__image__>", "audio": "<__audio__>"}  # the same for one type only, for prompts with both


@dataclass(frozen=True)
class Seen:
    """An image in embeddings: of each tile, and how many rows and columns of tiles there are (see `Tiles`). number: of
    those in the prompt.
    """

    embedded: tuple[Embedded, ...]
    rows: int = 0
    columns: int = 0
    number: int = 0

    @property
    def tokens(self) -> int:
        return sum(len(each.embeddings) for each in self.embedded)


Parts = list[str | int]  # of a prompt: texts, and how many tokens of an image


@dataclass(frozen=True)
class Wording:
    """How prompts of an encoder type represent images or audio.

    token: repeated for each embedding. marker: written by chat templates for an image. alone: the marker with the texts
    that templates write around it. written: the marker's replacement.
    """

    token: str
    marker: str
    alone: str
    written: Callable[[Seen], Parts]


def _plain(seen: Seen) -> Parts:
    return [seen.tokens]


def _gemma3(seen: Seen) -> Parts:
    each = [("\n\n<start_of_image>", len(one.embeddings), "<end_of_image>\n\n") for one in seen.embedded]
    if len(each) == 1:
        return [*each[0]]
    parts: Parts = ["Here is the original image ", *each[0], " and here are some crops to help you see better"]
    for one in each[1:]:
        parts += [" ", *one]
    return parts


def _gemma4(seen: Seen) -> Parts:
    return ["<|image>", seen.tokens, "<image|>"]


def _janus(seen: Seen) -> Parts:
    return ["<begin_of_image>", seen.tokens, "<end_of_image>"]


def _pixtral(seen: Seen) -> Parts:
    rows, columns = seen.embedded[0].grid or (1, seen.tokens)
    parts: Parts = [part for _ in range(rows) for part in (columns, "[IMG_BREAK]")]
    return [*parts[:-1], "[IMG_END]"]


def _idefics3(seen: Seen) -> Parts:
    around, counts = "<fake_token_around_image>", [len(each.embeddings) for each in seen.embedded]
    parts: Parts = []
    for i, count in enumerate(counts[:-1]):
        row, column = divmod(i, seen.columns)
        end = "\n" if column == seen.columns - 1 else ""
        parts += [f"{around}<row_{row + 1}_col_{column + 1}>", count, end]
    return [*parts, "\n" if parts else "", f"{around}<global-img>", counts[-1], around]


def _internvl(seen: Seen) -> Parts:
    return ["<img>", seen.tokens, "</img>"]


def _lfm2(seen: Seen) -> Parts:
    counts = [len(each.embeddings) for each in seen.embedded]
    parts: Parts = ["<|image_start|>"]
    for i, count in enumerate(counts[:-1]):
        row, column = divmod(i, seen.columns)
        parts += [f"<|img_row_{row + 1}_col_{column + 1}|>", count]
    return [*parts, "<|img_thumbnail|>" if counts[1:] else "", counts[-1], "<|image_end|>"]


def _llama4(seen: Seen) -> Parts:
    counts = [len(each.embeddings) for each in seen.embedded]
    parts: Parts = ["<|image_start|>"]
    for i, count in enumerate(counts[:-1]):
        last = i % seen.columns == seen.columns - 1
        parts += [count, "<|tile_y_separator|>" if last else "<|tile_x_separator|>"]
    return [*parts, "<|image|>", counts[-1], "<|image_end|>"]


def _step3(seen: Seen) -> Parts:
    counts = [len(each.embeddings) for each in seen.embedded]
    parts: Parts = []
    for i, count in enumerate(counts[:-1]):
        parts += ["<patch_start>", count, "<patch_end>"]
        if (i + 1) % seen.columns == 0 and i + 1 < seen.rows * seen.columns:
            parts.append("<patch_newline>")
    return [*parts, "<im_start>", counts[-1], "<im_end>"]


def _minicpm(seen: Seen) -> Parts:
    parts = _minicpm_tiles(seen, "<slice>", "</slice>")
    return [f"<image_id>{seen.number}</image_id>", *parts]


def _minicpm_25(seen: Seen) -> Parts:
    parts = _minicpm_tiles(seen, "<image>", "</image>")
    return [*parts[:3], "<slice>", *parts[3:], "</slice>"] if parts[3:] else parts


def _minicpm_tiles(seen: Seen, before: str, after: str) -> Parts:
    """Return the whole image, then rows of tiles."""
    counts = [len(each.embeddings) for each in seen.embedded]
    parts: Parts = ["<image>", counts[0], "</image>"]
    for i, count in enumerate(counts[1:]):
        parts += ["\n"] if i and i % seen.columns == 0 else []
        parts += [before, count, after]
    return parts


def _around(before: str, after: str) -> Callable[[Seen], Parts]:
    return lambda seen: [before, seen.tokens, after]


QWEN = Wording("<|image_pad|>", "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", _plain)
GLM = Wording("<|image|>", "<|image|>", "<|begin_of_image|><|image|><|end_of_image|>", _plain)
HY = "<｜hy_place▁holder▁no▁{}｜>"
WORDINGS = {
    "gemma3nv": Wording("<image_soft_token>", "<image_soft_token>", "<image_soft_token>", _gemma3),
    "gemma3": Wording("<image_soft_token>", "<start_of_image>", "<start_of_image>", _gemma3),
    "gemma4v": Wording("<|image|>", "<|image|>", "<|image|>", _gemma4),
    "mlp": Wording("<image>", "<image>", "<image>", _plain),
    "pixtral": Wording("[IMG]", "[IMG]", "[IMG]", _pixtral),
    "idefics3": Wording("<image>", "<image>", "<image>", _idefics3),
    "internvl": Wording("<IMG_CONTEXT>", "<IMG_CONTEXT>", "<IMG_CONTEXT>", _internvl),
    "qwen2vl_merger": QWEN,
    "qwen2.5vl_merger": QWEN,
    "qwen3vl_merger": QWEN,
    "qwen2.5o": Wording("<|IMAGE|>", "<|IMAGE|>", "<|vision_bos|><|IMAGE|><|vision_eos|>", _plain),
    "exaone4_5": Wording("<|image_pad|>", "<|image_pad|>", "<|image_pad|>", _plain),
    "janus_pro": Wording("<image_placeholder>", "<image_placeholder>", "<image_placeholder>", _janus),
    # CogVLM 2's; it has no token of its own for it
    "cogvlm": Wording("<|reserved_special_token_0|>", "<image>", "<image>", _plain),
    "mimovl": QWEN,
    "youtuvl": QWEN,
    "ling3vl": Wording(QWEN.token, QWEN.alone, QWEN.alone, _around("<|vision_start|>", "<|vision_end|>\n")),
    **dict.fromkeys(("glm4v", "glm5v"), GLM),
    **dict.fromkeys(
        ("dots_ocr", "dots3note_v"), Wording("<|imgpad|>", "<|imgpad|>", "<|img|><|imgpad|><|endofimg|>", _plain)
    ),
    "kimivl": Wording(
        "<|media_pad|>", "<|media_pad|>", "<|media_start|>image<|media_content|><|media_pad|><|media_end|>", _plain
    ),
    "kimik25": Wording(
        "<|media_pad|>", "<|media_pad|>", "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>", _plain
    ),
    "minimax_m3": Wording(
        "]<]image[>[", "]<]image[>[", "]<]image[>[", _around("]<]start of image[>[", "]<]end of image[>[")
    ),
    "muse-glimmer": Wording("<|patch|>", "<|patch|>", "<|patch|>", _around("<|image_start|>", "<|image_end|>")),
    "hunyuanvl": Wording(HY.format(102), HY.format(102), "".join(map(HY.format, (100, 102, 101))), _plain),
    "paddleocr": Wording(
        "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>", _plain
    ),
    "lightonocr": Wording("<|image_pad|>", "<|image_pad|>", "<|image_pad|>", _plain),
    "lfm2": Wording("<image>", "<image>", "<image>", _lfm2),
    "llama4": Wording("<|patch|>", "<|image|>", "<|image|>", _llama4),
    "gemma4uv": Wording("<|image|>", "<|image|>", "<|image|>", _gemma4),
    "step3vl": Wording("<im_patch>", "<im_patch>", "<im_patch>", _step3),
    "nemotron_v2_vl": Wording("<image>", "<image>", "<image>", _internvl),
    "minicpmv4_6": Wording("<|image_pad|>", "<|image_pad|>", "<|image_pad|>", _minicpm),
    "resampler": Wording("<unk>", "(<image>./</image>)", "(<image>./</image>)", _minicpm),
    **dict.fromkeys(
        ("granite4_vision", "deepseekocr", "deepseekocr2"), Wording("<image>", "<image>", "<image>", _plain)
    ),
    "phi4": Wording("<|dummy_0|>", "<image>", "<image>", _plain),  # its vocabulary has no token for it
}

OTHERS = {  # for text models whose vocabulary lacks the usual token
    "kimik25": GLM,
    "cogvlm": Wording("<unk>", "<image>", "<image>", _plain),
}
MINICPM_25 = Wording("<unk>", "(<image>./</image>)", "(<image>./</image>)", _minicpm_25)


def wording_of(projector: str, metadata: Mapping[str, Any], tokenizer: Tokenizer) -> Wording:
    """Return the wording of an encoder's image prompts. metadata: of the mmproj file. tokenizer: of the text model."""
    version = metadata.get("clip.minicpmv_version") or absent_value(projector, "minicpmv_version", metadata)
    if projector == "resampler" and version == 2:
        return MINICPM_25
    usual, other = WORDINGS[projector], OTHERS.get(projector)
    unknown = len(tokenizer.encode(usual.token, add_special=False, parse_special=True)) != 1
    return other if other is not None and unknown else usual


def _sound(token: str, before: str = "", after: str = "") -> Wording:
    return Wording(token, token, f"{before}{token}{after}", _plain)


AUDIO_WORDINGS = {
    **dict.fromkeys(("qwen2a", "qwen2.5o"), _sound("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")),
    "qwen3a": _sound("<|audio_pad|>", "<|audio_start|>", "<|audio_end|>"),
    "voxtral": _sound("[AUDIO]", "[BEGIN_AUDIO]"),
    "ultravox": _sound("<|reserved_special_token_0|>"),  # its own vocabulary, Llama 3's, has no token for it
    "musicflamingo": _sound("<sound>"),
    "glma": _sound("<|pad|>", "<|begin_of_audio|>", "<|end_of_audio|>"),
    "meralion": _sound("<SpeechHere>"),
    "granite_speech": _sound("<|audio|>"),
    **dict.fromkeys(
        ("gemma4a", "gemma4ua"),
        Wording("<|audio|>", "<|audio|>", "<|audio|>", lambda heard: ["<|audio>", heard.tokens, "<audio|>"]),
    ),
    "gemma3na": Wording(
        "<audio_soft_token>",
        "<audio_soft_token>",
        "<audio_soft_token>",
        lambda heard: ["\n\n<start_of_audio>", heard.tokens, "<end_of_audio>\n\n"],
    ),
    "lfm2a": _sound("<|pad|>"),  # the model has no token for it, nor any around audio
    "mimo_audio": _sound("<|audio_pad|>", "<|mimo_audio_start|>", "<|mimo_audio_end|>"),
    "dots3note_a": _sound("<|audio_comp_pad|>", "<|audio_comp_start|>", "<|audio_comp_end|>"),
}


def marked(text: str, wording: Wording, count: int, what: str = "images", marks: Sequence[str] = (MARKER,)) -> str:
    """Return a text with a marker for each of `count` images: where it has them, or else in front.

    what: "images" or "sounds". marks: spellings of the marker. Raises OptionError if the text has another number of
    markers.
    """
    for mark in marks:
        text = text.replace(mark, wording.alone)
    in_prompt = text.count(wording.marker)
    if in_prompt not in (0, count):
        raise OptionError(f"{in_prompt} {what} are marked in the prompt; {count} are given")
    return text if in_prompt else wording.alone * count + text


def placeholder(wording: Wording, tokenizer: Tokenizer) -> int:
    """Return the token that stands for an embedding. Raises ModelError if the vocabulary lacks it."""
    token = tokenizer.encode(wording.token, add_special=False, parse_special=True)
    if len(token) != 1:
        raise ModelError(
            f"the vocabulary has no token {wording.token!r}, which stands for an image or audio",
            hint="the mmproj file is of another model",
        )
    return token[0]


@dataclass(frozen=True)
class Media:
    """A prompt's images, or its audio, in the order of their markers. token: repeated for each embedding."""

    wording: Wording
    token: int
    seen: Sequence[Seen]


def with_media(
    text: str, given: Sequence[Media], encode: Callable[[str], list[int]]
) -> tuple[list[int], list[EmbeddedImage]]:
    """Return ids of a text that has a marker for each image and audio, and these with their places.

    encode: the tokenizer of a whole prompt.
    """
    coming = {each.wording.marker: (each.wording, enumerate(each.seen)) for each in given}
    parts, end = [], 0
    for match in re.finditer("|".join(map(re.escape, coming)), text):
        wording, seen = coming[match[0]]
        number, each = next(seen)
        written = wording.written(replace(each, number=number))
        parts += [text[end : match.start()]]
        parts += [part if isinstance(part, str) else wording.token * part for part in written]
        end = match.end()
    ids = encode("".join([*parts, text[end:]]))
    images = [
        image
        for each in given
        for image in places(ids, each.token, [tile for seen in each.seen for tile in seen.embedded])
    ]
    return ids, sorted(images, key=lambda each: each.start)
