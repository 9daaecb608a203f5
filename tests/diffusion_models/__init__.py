"""Tiny checkpoints of image and video models: published names and shape patterns, few blocks, hidden size 256.

Values are random, the same in every run. A model is described by lines of a text (`images`, `videos`):

    double_blocks.{0..1}:        what stands before the names of the indented lines below
        img_mod.lin 6h,h +       name of a weight, its sizes, and + if it has a bias
        {img,txt}_attn.x* 1,h    a bare parameter, whose name does not end in .weight; {a,b} stands for two names
        norm 128 F32             a type other than the model's

`h` is the hidden size, `m` the width of MLPs (2h), `t` the text's width, `c` that of convolutional channels.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from . import images, videos

Arrays = dict[str, NDArray]
TYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
HIDDEN = 256
LTX_CONFIG = '{"transformer": {"_class_name": "AVTransformer3DModel", "num_layers": 2}}'


@dataclass(frozen=True)
class Tiny:
    """A tiny model: its family, its description, the type it was published in, and its safetensors metadata."""

    family: str
    text: str
    type: str = "BF16"
    header: Mapping[str, str] = field(default_factory=dict)


MODELS: Mapping[str, Tiny] = {
    "flux_dev": Tiny("flux", images.FLUX + images.GUIDANCE),
    "flux_schnell": Tiny("flux", images.FLUX),
    "flux_fill": Tiny("flux", images.FLUX.replace("img_in h,64", "img_in h,384") + images.GUIDANCE),
    "flux_control": Tiny("flux", images.FLUX.replace("img_in h,64", "img_in h,128") + images.GUIDANCE),
    "longcat_image": Tiny("longcat_image", images.LONGCAT),
    "ovis_image": Tiny("ovis_image", images.OVIS),
    "chroma": Tiny("chroma", images.CHROMA),
    "chroma_radiance": Tiny("chroma_radiance", images.RADIANCE),
    "flux2_dev": Tiny("flux2", images.FLUX_2 + images.GUIDANCE.replace(" +", "")),
    "flux2_klein": Tiny("flux2", images.FLUX_2),
    "sd15": Tiny("sd1", images.SD_1, "F16"),
    "sd2": Tiny("sd1", images.SD_2, "F32"),
    "sdxl": Tiny("sdxl", images.SDXL, "F16"),
    "ssd_1b": Tiny("sdxl", images.SSD_1B, "F16"),
    "sdxl_refiner": Tiny("sdxl_refiner", images.SDXL_REFINER, "F16"),
    "sd_unclip": Tiny("sd_unclip", images.SD_UNCLIP, "F16"),
    "sd3_medium": Tiny("sd3", images.SD_3, "F16"),
    "sd35_large": Tiny("sd3", images.SD_35_LARGE, "F16"),
    "sd35_medium": Tiny("sd3", images.SD_35_MEDIUM, "F16"),
    "aura": Tiny("aura", images.AURA, "F16"),
    "hidream": Tiny("hidream", images.HIDREAM),
    "hidream_o1": Tiny("hidream_o1", images.HIDREAM_O1),
    "lumina2": Tiny("lumina2", images.LUMINA_2),
    "newbie": Tiny("newbie", images.NEWBIE),
    "z_image": Tiny("z_image", images.Z_IMAGE),
    "qwen_image": Tiny("qwen_image", images.QWEN_IMAGE),
    "qwen_image_edit_2511": Tiny("qwen_image", images.QWEN_IMAGE + "__index_timestep_zero__* 0\n"),
    "qwen_image_layered": Tiny("qwen_image", images.QWEN_IMAGE + "time_text_embed.addition_t_embedding 2,h\n"),
    "mage_flow": Tiny("mage_flow", images.MAGE_FLOW),
    "qwen_image21": Tiny("qwen_image21", images.QWEN_IMAGE_21),
    "lens": Tiny("lens", images.LENS),
    "krea2": Tiny("krea2", images.KREA_2),
    "ideogram4": Tiny("ideogram4", images.IDEOGRAM_4),
    "ernie_image": Tiny("ernie_image", images.ERNIE_IMAGE),
    "hunyuan_image": Tiny("hunyuan_image", images.HUNYUAN_IMAGE),
    "joyimage": Tiny("joyimage", images.JOYIMAGE),
    "omnigen2": Tiny("omnigen2", images.OMNIGEN_2, "F16"),
    "boogu": Tiny("boogu", images.BOOGU),
    "pixart": Tiny("pixart", images.PIXART, "F16"),
    "sensenova_u15": Tiny("sensenova_u15", images.SENSENOVA),
    "mochi": Tiny("mochi", videos.MOCHI),
    "kandinsky5": Tiny("kandinsky5", videos.KANDINSKY_5),
    "kandinsky6": Tiny("kandinsky6", videos.KANDINSKY_6),
    "kandinsky6_diffusers": Tiny("kandinsky6", videos.KANDINSKY_6_OF_DIFFUSERS),
    "seedvr2": Tiny("seedvr2", videos.SEEDVR_2, "F16"),
    "cosmos1": Tiny("cosmos1", videos.COSMOS_1),
    "cosmos_predict2": Tiny("cosmos_predict2", videos.COSMOS_PREDICT_2),
    "anima": Tiny("anima", videos.ANIMA),
    "ltxv": Tiny("ltxv", videos.LTX_VIDEO, header={"config": LTX_CONFIG}),
    "ltx2": Tiny("ltx2", videos.LTX_2, header={"config": LTX_CONFIG}),
    "hyvid": Tiny("hyvid", videos.HUNYUAN_VIDEO),
    "hyvid_comfy": Tiny("hyvid", videos.HUNYUAN_VIDEO_OF_COMFY),
    "hyvid15": Tiny("hyvid15", videos.HUNYUAN_VIDEO_15),
    "wan_t2v": Tiny("wan", videos.WAN, "F32"),
    "wan_i2v": Tiny("wan", videos.WAN_I2V, "F16"),
    "wan22_ti2v": Tiny("wan", videos.WAN.replace("h,16,1,2,2", "h,48,1,2,2"), "F16"),
    "wan_vace": Tiny("wan_vace", videos.WAN_VACE, "F16"),
    "wan_control": Tiny("wan_control", videos.WAN_CONTROL),
    "wan_s2v": Tiny("wan_s2v", videos.WAN_S2V),
    "wan_animate": Tiny("wan_animate", videos.WAN_ANIMATE),
    "wan_humo": Tiny("wan_humo", videos.WAN_HUMO),
    "wan_scail": Tiny("wan_scail", videos.WAN_SCAIL),
    "minimax_h3": Tiny("minimax_h3", videos.MINIMAX_H3),
}
ONE_PER_FAMILY = tuple({tiny.family: name for name, tiny in reversed(MODELS.items())}.values())


def shapes(model: str, hidden: int = HIDDEN) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return each tensor's name → its shape and type."""
    tiny = MODELS[model]
    found = {}
    for name, sizes, form in _lines(tiny.text, hidden):
        found[name] = sizes, form or tiny.type
    return found


def arrays(model: str, hidden: int = HIDDEN) -> Arrays:
    """Return a model's tensors: normal numbers like those of weights, the same in every run."""
    return {name: _values(name, shape, form) for name, (shape, form) in shapes(model, hidden).items()}


def write(path: Path, model: str, prefix: str = "", others: Arrays | None = None, hidden: int = HIDDEN) -> Path:
    """Write a model's .safetensors file. others: tensors of other parts, under their names in the file."""
    named = {f"{prefix}{name}": values for name, values in arrays(model, hidden).items()} | (others or {})
    save_file(named, path, {"format": "pt", **MODELS[model].header})
    return path


@cache
def _numbers(form: str) -> NDArray:
    numbers = np.random.default_rng(0).standard_normal(1_000_003, np.float32) * np.float32(0.02)
    return numbers.astype(TYPES[form])


def _values(name: str, shape: tuple[int, ...], form: str) -> NDArray:
    numbers = _numbers(form)
    start = zlib.crc32(name.encode()) % len(numbers)
    places = np.arange(start, start + math.prod(shape))
    return np.take(numbers, places, mode="wrap").reshape(shape)


def _lines(text: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yield the tensors that a text describes: name, shape, type or ""."""
    before = [""]
    for line in text.splitlines():
        if not line.strip():
            continue
        if line.rstrip().endswith(":"):
            before = [f"{start}." for start in _expanded(line.strip()[:-1])]
            continue
        if not line.startswith(" "):
            before = [""]
        stem, sizes, *rest = line.split()
        shape = tuple(_size(each, hidden) for each in sizes.split(","))
        form = next((each for each in rest if each in TYPES), "")
        for start, name in itertools.product(before, _expanded(stem)):
            is_bare = name.endswith("*")
            yield f"{start}{name.rstrip('*')}{'' if is_bare else '.weight'}", shape, form
            if "+" in rest:
                yield f"{start}{name}.bias", shape[:1], form


def _expanded(text: str) -> list[str]:
    """Return the names that a text with {a,b} and {0..2} stands for."""
    match = re.search(r"\{([^}]*)\}", text)
    if match is None:
        return [text]
    first, dots, last = match[1].partition("..")
    words = [str(each) for each in range(int(first), int(last) + 1)] if dots else match[1].split(",")
    return [name for word in words for name in _expanded(f"{text[: match.start()]}{word}{text[match.end() :]}")]


def _size(text: str, hidden: int) -> int:
    """Return a size: a number, or a multiple of a width that a letter stands for."""
    match = re.fullmatch(r"(\d*)([hmtc]?)", text)
    assert match, text
    widths = {"": 1, "h": hidden, "m": 2 * hidden, "t": 512, "c": 64}
    return int(match[1] or 1) * widths[match[2]]
