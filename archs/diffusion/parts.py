"""Cut a checkpoint that holds a whole pipeline into its parts, by the prefixes and names of its tensors.

Programs take the parts from files of their own: the image or video model, the VAE, and each text encoder. Names are
those of stable-diffusion.cpp's options: `--vae`, `--clip_l`, `--clip_g`, `--t5xxl`, `--llm`, `--clip_vision`.
"""

import fnmatch
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from ..spec import Tensors

MODEL, VAE, LANGUAGE_MODEL, T5 = "model", "vae", "llm", "t5xxl"
TEXT_ENCODERS = ("clip-l", "clip-g", "clip-h", T5, LANGUAGE_MODEL)
PARTS = (VAE, "text-encoders", *TEXT_ENCODERS, "clip-vision")  # that can be asked for besides the model

# Of tensors of an encoder: what they begin with → what that leaves out.
ENCODER = re.compile(
    r"(cond_stage_model|conditioner\.embedders\.\d+|text_encoders\.[\w-]+)\.((?:transformer|model)\.)?"
)
RESBLOCKS = "transformer.resblocks."  # of OpenCLIP, whose names begin with what others wrap theirs in
VAE_PREFIXES = ("first_stage_model.", "vae.")
# Parts that programs read under their full names.
FULL_NAMES = {"audio_vae.": "audio-vae", "vocoder.": "audio-vae", "text_embedding_projection.": "text-projection"}
BARE_CLIP, CLIP_HEADS = "embeddings.token_embedding.weight", ("text_projection.", "logit_scale")
CLIP_WIDTHS = {768: "clip-l", 1280: "clip-g", 1024: "clip-h"}

IGNORED = {
    "model_ema.*": "a moving average of the weights in training",
    "alphas_cumprod*": "a schedule, which programs compute",
    "betas": "a schedule, which programs compute",
    "posterior_*": "a schedule, which programs compute",
    "log_one_minus_*": "a schedule, which programs compute",
    "sqrt_*": "a schedule, which programs compute",
    "lvlb_weights": "weights of a loss in training",
    "logvar": "weights of a loss in training",
    "denoiser.sigmas": "a schedule, which programs compute",
    "scale_factor": "a number that programs know",
    "global_step": "a number of training",
    "first_stage_model.loss.*": "networks of a loss in training",
}


class Split(NamedTuple):
    """Tensors of each part by its name, the model's under their names in the source, and the unused ones → why."""

    parts: Mapping[str, Tensors]
    ignored: Mapping[str, str]


def split(tensors: Tensors) -> Split:
    """Cut a checkpoint into its parts; of a model alone, the only part is that."""
    parts: dict[str, dict[str, str]] = defaultdict(dict)
    encoders: dict[str, dict[str, str]] = defaultdict(dict)
    ignored = {}
    for name in tensors:
        if why := _why_ignored(name):
            ignored[name] = why
        elif match := ENCODER.match(name):
            wrapped = match[2] is None or name[match.start(2) :].startswith(RESBLOCKS)
            encoders[match[1]][name[match.start(2) if wrapped and match[2] else match.end() :]] = name
        elif prefix := next((each for each in VAE_PREFIXES if name.startswith(each)), ""):
            parts[VAE][name.removeprefix(prefix)] = name
        else:
            part = next((part for each, part in FULL_NAMES.items() if name.startswith(each)), MODEL)
            parts[part][name] = name
    for prefix, names in encoders.items():
        shapes = {own: tensors[name].shape for own, name in names.items()}
        part = encoder_name(shapes) or prefix.rpartition(".")[2].replace("_", "-")
        parts[part if part not in parts else f"{part}-2"] |= names
    return Split(
        {part: {own: tensors[name].renamed(own) for own, name in names.items()} for part, names in parts.items()},
        ignored,
    )


def with_usual_names(part: str, tensors: Tensors) -> Tensors:
    """Return a CLIP's tensors with the prefix that programs know them by; transformers 5 leaves it out."""
    if not part.startswith("clip-") or BARE_CLIP not in tensors:
        return tensors
    renamed = {name if name.startswith(CLIP_HEADS) else f"text_model.{name}": each for name, each in tensors.items()}
    return {name: each.renamed(name) for name, each in renamed.items()}


def encoder_name(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the name of the encoder that has tensors of these names and shapes; "" for an unknown one."""
    for name in (f"text_model.{BARE_CLIP}", BARE_CLIP, "token_embedding.weight"):
        if len(shape := shapes.get(name, ())) == 2:
            return CLIP_WIDTHS.get(shape[1], "")
    if "encoder.block.0.layer.0.SelfAttention.q.weight" in shapes:
        return T5
    if any(name.startswith("vision_model.") for name in shapes) and not any("language" in name for name in shapes):
        return "clip-vision"
    return LANGUAGE_MODEL if any(".layers.0." in f".{name}" for name in shapes) else ""


def _why_ignored(name: str) -> str:
    return next((why for pattern, why in IGNORED.items() if fnmatch.fnmatchcase(name, pattern)), "")
