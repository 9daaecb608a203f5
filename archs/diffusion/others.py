"""Recognize what is no image or video model: adapters, other parts of a pipeline, language models.

Only names are read, and only to tell in an error what a file seems to be.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple


class Recognized(NamedTuple):
    """Hold what a file seems to be, and what to do with it."""

    what: str
    hint: str


# What a file is if any name matches → what to do. The first that matches is named.
OTHER_FILES: tuple[tuple[str, Recognized], ...] = (
    (
        r"lora_(up|down|A|B|unet|te)\b|lora_unet_|\.lora\.|\.alpha$|\.hada_w|\.lokr_w|\.dora_scale$|\.diff_b?$",
        Recognized("a LoRA or another adapter", "merge it into the model that it was made for"),
    ),
    (
        r"\.(wscales|smooth_factor|smooth_factor_orig)$",
        Recognized("a model packed for Nunchaku (SVDQuant)", "take the checkpoint that it was made from"),
    ),
    (
        r"^control_model\.|controlnet_|\bzero_convs\.|\binput_hint_block\.",
        Recognized("a ControlNet", "its readers take the safetensors file"),
    ),
    (r"^image_proj\.|^ip_adapter\.|\bto_k_ip\b", Recognized("an IP-Adapter", "its readers take the safetensors file")),
    (
        r"^(emb_params|string_to_param.*|clip_[lg])$",
        Recognized("an embedding of a few tokens (textual inversion)", "its readers take the safetensors file"),
    ),
    (r"\bmotion_modules\.", Recognized("a motion module (AnimateDiff)", "its readers take the safetensors file")),
    (
        r"^(first_stage_model\.|vae\.)?(encoder|decoder)\.(conv_in|conv1|down|up|mid|middle|upsamples|downsamples)\b",
        Recognized("a VAE", "its readers take the safetensors file"),
    ),
    (
        r"^(model\.)?\d+\.sub\.|\brdb\d\.conv|^conv_first\.",
        Recognized("an upscaler", "its readers take the safetensors file"),
    ),
    (
        r"\bencoder\.block\.0\.layer\.0\.SelfAttention\.|\btext_model\.encoder\.layers\.0\.|\bresblocks\.0\.attn\.",
        Recognized("a text encoder", "convert its Hugging Face folder, which has its tokenizer"),
    ),
    (
        r"\b(layers|h|blk)\.0\.(self_attn|attn|attention|linear_attn|attn_q|attn_qkv)\b.*|\bembed_tokens\.weight$",
        Recognized("a language model", "convert its folder, which has config.json and the tokenizer"),
    ),
)
DIFFUSERS = re.compile(r"^(single_)?transformer_blocks\.0\.|^(down|up|mid)_blocks?\.")


def recognized(names: Iterable[str]) -> Recognized | None:
    """Return what a file with these names seems to be; None for what may be an unknown image or video model."""
    listed = tuple(names)
    return next((what for pattern, what in OTHER_FILES if any(re.search(pattern, name) for name in listed)), None)


def is_like_diffusers(names: Iterable[str]) -> bool:
    """Return True if names look like those of a model in diffusers' layout."""
    return any(DIFFUSERS.search(name) for name in names)
