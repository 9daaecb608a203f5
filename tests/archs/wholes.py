"""Small models with encoders as their two files: of those checkpoints of tests/data/towers that exports bring back."""

from __future__ import annotations

import json
from pathlib import Path

import gguftools
from archs.config import normalized
from archs.metadata import Metadata
from archs.plans.mmproj import without_encoders
from archs.plans.text import architecture_metadata, map_tensors
from archs.registry import of_config
from gguftools.io.checkpoint.folder import open_checkpoint

from .checkpoints import ENCODERS, build_encoder, lettered, write_tensors

QWEN = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>")
# By the checkpoint's name: the texts of its tokens from the 60th on, or of those with these numbers.
SPECIAL: dict[str, tuple[str, ...] | dict[int, str]] = {
    "gemma3": ("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
    "llava-1-5": ("<image>",),
    "pixtral": {10: "[IMG]", 12: "[IMG_BREAK]", 13: "[IMG_END]"},
    "mistral3": {10: "[IMG]", 12: "[IMG_BREAK]", 13: "[IMG_END]"},
    "lighton-ocr": {10: "<|image_pad|>"},
    "llama4": ("<|patch|>", "<|image_start|>", "<|image_end|>"),
    "smolvlm": ("<image>",),
    "idefics3": ("<image>", "<|begin_of_text|>"),
    "internvl-hf": ("<IMG_CONTEXT>", "<img>", "</img>"),
    "glm4v": ("<|image|>",),
    "glm5-next": ("<|image|>", "<|video|>"),
    "minimax-m3": ("]<]image[>[", "]<]video[>["),
    "granite4-vision-small": ("<image>",),
    "step3p7": ("<im_patch>",),
    "muse-glimmer": ("<|patch|>", "<|video|>"),
    "qwen2-audio": ("<|AUDIO|>",),
    "voxtral": ("[AUDIO]",),
    "audio-flamingo3": ("<sound>",),
    **{each: {59: "<|audio|>", 60: "<|image|>"} for each in ("gemma4", "gemma4-e", "gemma4-dense")},
    "lfm2-vl": ("<image>",),
    "paddleocr-vl": ("<|IMAGE_PLACEHOLDER|>",),
    "hunyuan-vl": ("<image>",),
    "exaone4-5": QWEN[:1],
    "minicpm-v-4-6": QWEN[:1],
    "granite-speech": ("<|audio|>",),
    "granite-speech-plus": ("<|audio|>",),
    "glm-asr-hf": ("<|pad|>", "<|begin_of_audio|>", "<|end_of_audio|>"),
    "gemma3n": {10: "<image_soft_token>", 11: "<audio_soft_token>"},
    "gemma4-unified": {59: "<|audio|>", 60: "<|image|>"},
    "minicpm-v-2-6": (),
    "ultravox": (),
    "kimi-vl": ("<|media_pad|>",),
    "kimi-k2-5": ("<|media_pad|>", "<|media_begin|>", "<|media_end|>"),
    **dict.fromkeys(("deepseek-ocr", "deepseek-ocr2-small", "unlimited-ocr-small"), ("<image>",)),
    **dict.fromkeys(("qwen2-vl", "qwen2-5-vl", "qwen3-vl", "qwen3-5"), QWEN),
}
# What files have not, by beginnings of names: layers behind the one whose output is taken.
LOST = {
    "llava-1-5": ("vision_tower.vision_model.encoder.layers.2.", "vision_tower.vision_model.post_layernorm."),
    "gemma3n": ("model.language_model.embed_tokens_per_layer",),  # whose rows behind the texts' are cut off
    "granite4-vision-small": ("model.vision_tower.vision_model.head.",),  # which images in texts do not use
    "hunyuan-vl": ("vit.embeddings.position_embedding",),  # whose first row belongs to no patch
}
TEXTLESS = {"ultravox": "voxtral"}  # published without their text model, with which they are tested; as that one's
SUMMED = {"muse-glimmer": "patch_embedding"}  # of whose frames only the sum is known
FOLDED = ("granite-speech", "granite-speech-plus")  # whose batch norms come back as factors and summands alone


def files(name: str, folder: Path) -> tuple[Path, Path, Path]:
    """Write a checkpoint and its two files of float32; where they are: checkpoint, text model, encoders."""
    build_encoder(name, folder / name)
    if name in TEXTLESS:
        rows = [
            row
            for each in (name, TEXTLESS[name])
            for row in json.loads((ENCODERS / each / "spec.json").read_text(encoding="utf-8"))["tensors"]
            if each == name or row[0].startswith("language_model.")
        ]
        write_tensors(folder / name / "model.safetensors", name, rows)
    return (folder / name, *converted(name, folder))


def converted(name: str, folder: Path) -> tuple[Path, Path]:
    """The two files of the checkpoint in `folder`/`name`."""
    checkpoint = open_checkpoint(folder / name)
    tensors, _ = without_encoders(checkpoint.config, checkpoint.tensors)
    architecture = of_config(checkpoint.config)
    config = normalized(checkpoint.config, architecture.defaults, architecture.keys, tensors)
    if architecture.prepare:
        config, tensors = architecture.prepare(config, tensors)
    keys = {"general.architecture": architecture.name} | architecture_metadata(architecture, config)
    text, encoders = folder / f"{name}.gguf", folder / f"mmproj-{name}.gguf"
    made = map_tensors(architecture, config, tensors).tensors
    words, more = lettered(()), range(64, made["token_embd.weight"].shape[0])
    words["tokenizer.ggml.tokens"] += [f"<{i}>" for i in more]
    words["tokenizer.ggml.scores"] += [0.0 for _ in more]
    words["tokenizer.ggml.token_type"] += [3 for _ in more]
    named = SPECIAL[name] if isinstance(SPECIAL[name], dict) else dict(enumerate(SPECIAL[name], 60))
    words["tokenizer.ggml.tokens"] = [named.get(i, each) for i, each in enumerate(words["tokenizer.ggml.tokens"])]
    gguftools.Model(Metadata(keys | words), made).save(text)
    gguftools.convert(folder / name, encoders, "f32", part="mmproj")
    return text, encoders
