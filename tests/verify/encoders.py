"""Record what transformers and llama.cpp's converter make of the small checkpoints in tests/data/towers.

    python -m tests.verify.encoders CONVERTER QUANTIZE [NAME …]

CONVERTER is llama.cpp's convert_hf_to_gguf.py, QUANTIZE its llama-quantize. A folder has a config.json and what else
such a checkpoint has beside weights. Written into it: `spec.json`, the tensors that transformers' class has for that
config, a line each as in tests/data/families; `reference.json`, what the converter writes with --mmproj: keys, tensors
with shape and their types for each of OUTTYPES, the sha256 of the four files, and those of what llama-quantize makes
of the F16 one; and of encoders that are run, `embeddings.npz`: what transformers makes of an image or a sound.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file

import gguftools
from tests.archs import checkpoints
from tests.archs.checkpoints import ENCODERS, OUTTYPES
from tests.verify.published import of_parts, recorded
from tests.verify.published_encoders import BY_CODE, PROCESSED, cogvlm_text, read

RECIPES = ("Q4_0", "Q4_K_M", "Q6_K", "Q8_0")
Row = tuple[str, str, list[int], float, float]

# Encoders whose tiles are put together with learned ends of rows: their rows and columns, and the whole image's size.
TILED = {
    "granite4-vision-small": (1, 2, (40, 90)),
    "unlimited-ocr-small": (2, 1, (900, 500)),
    "deepseek-ocr2-small": (1, 2, (500, 900)),
}

# How published checkpoints begin names, where transformers 5 saves them otherwise.
PUBLISHED = {
    "gemma3": {"vision_tower.": "vision_tower.vision_model."},
    "granite4-vision": {"model.vision_tower.": "model.vision_tower.vision_model."},
    "granite4-vision-small": {"model.vision_tower.": "model.vision_tower.vision_model."},
    "lfm2-vl": {"model.vision_tower.": "model.vision_tower.vision_model."},
    "llava-1-5": {"vision_tower.": "vision_tower.vision_model."},
}

# Checkpoints whose tensors were written by hand, though transformers has the class: it gives them other names.
BY_HAND = ("gemma3n", "dots3-note", "granite-speech", "granite-speech-plus", "deepseek-v4-vision")

# Encoders that are run, and the height and width of an image for them.
IMAGES = {
    "gemma3": (56, 56),
    "pixtral": (42, 56),
    "mistral3": (28, 56),
    "smolvlm": (56, 56),
    "idefics3": (56, 56),
    "qwen2-vl": (140, 196),
    "qwen2-5-vl": (140, 196),
    "llava-1-5": (28, 28),
    "internvl-hf": (56, 56),
    "qwen3-vl": (96, 160),
    "qwen3-5": (96, 160),
    "glm4v": (84, 140),
    "llama4": (56, 56),
    "paddleocr-vl": (84, 140),
    "minicpm-v-4-6": (112, 168),
    "janus": (56, 56),
    "exaone4-5": (140, 196),
    "step3p7": (112, 168),
    "gemma4-unified": (36, 60),
    "nemotron-vl-small": (64, 64),
    "phi4-vision": (42, 70),
    "minicpm-v-2-6": (42, 70),
    "gemma3n-pictures": (256, 256),
    "deepseek-v4-vision": (98, 140),
    "gemma4-e": (96, 144),
    "gemma4-dense": (96, 144),
    "lfm2-vl": (32, 96),
    "lighton-ocr": (28, 56),
    "glm5-next": (84, 140),
    "kimi-k2-5": (84, 140),
    "kimi-vl": (84, 140),
    "dots-ocr": (84, 140),
    "dots3-note": (84, 140),
    "minimax-m3": (84, 140),
    "muse-glimmer": (84, 140),
    "hunyuan-vl": (96, 160),
    "ling3-vl": (96, 160),
    "youtu-vl": (480, 288),
    "mimo-v2-5": (140, 196),
    "cogvlm": (56, 56),
}
LARGE = {
    "lfm2-vl": ((700, 1000),),
    "llama4": ((100, 30), (500, 120)),
    "step3p7": ((640, 1100), (24, 130)),
    "unlimited-ocr-small": ((500, 900),),
    "deepseek-ocr2-small": ((900, 500),),
}
SCENES = ((61, 97), (150, 40))  # heights and widths of images that are prepared for each of them
ONLY = {"phi4-vision": ((900, 1200),)}  # or for one of them: a smaller one is not enlarged as its class does
BY_TORCHVISION = (
    "lfm2-vl",
    "llama4",
    "step3p7",
    "gemma4-unified",
    "unlimited-ocr-small",
    "kimi-vl",
    "kimi-k2-5",
    "minimax-m3",
    "muse-glimmer",
)
# What transformers calls keys of Kimi K2.5's config.
KIMI_KEYS = {"media_placeholder_token_id": "image_token_id"}
KIMI_VISION_KEYS = {"init_pos_emb_height": "pos_emb_height", "init_pos_emb_width": "pos_emb_width"}
# Text models that transformers has of models whose encoders it has not, and what names of their weights begin with.
TEXTS = {
    "kimi-vl": ("DeepseekV3ForCausalLM", "language_model."),
    "dots-ocr": ("Qwen2ForCausalLM", ""),
    "youtu-vl": ("YoutuForCausalLM", ""),
}
# Encoders for sounds that are run, and the frames of a spectrogram for them: all, and those that are not padding.
SOUNDS = {
    "qwen2-audio": (48, 37),
    "voxtral": (48, 48),
    "audio-flamingo3": (48, 37),
    "ultravox": (48, 37),
    "qwen2-5-omni": (480, 431),
    "qwen3-omni": (1000, 931),
    "qwen3-asr": (1000, 931),
    "glm-asr": (48, 37),
    "meralion2": (50, 50),
    "granite-speech": (41, 41),
    "granite-speech-plus": (41, 41),
    "gemma4": (150, 131),
    "lfm2-audio": (101, 101),
    "gemma3n": (301, 282),
    "glm-asr-hf": (48, 37),
    "gemma4-unified": (20, 17),
    "dots3-note": (48, 42),
}
# Models that see and hear: the size of an image, frames of a sound, and how many tokens each has.
TOGETHER = {
    "gemma4": ((96, 144), (150, 6, 38)),
    "qwen2-5-omni": ((84, 140), (431, 15, 108)),
    "qwen3-omni": ((96, 160), (331, 15, 43)),
}
AUDIO_PARTS = ("audio_config", "whisper_config", "speech_config", "encoder_config", "encoder")
# What the converter has to find names begin with, to do what it means to do: of Pixtral it looks for the embedding of
# [IMG_BREAK] after it has dropped everything of the language model; of InternVL it drops what has no "model."; of
# Qwen3-Omni it knows no name with "thinker.visual."; of Gemma 3n's norms behind convolutions only those of Gemma 4.
AS_READ = {
    "gemma3n": {
        "model.audio_tower.conformer.": "conformer.layers.",
        "model.audio_tower.subsample_conv_projection.conv_0.": "conformer.subsample_conv_projection.layer0.",
        "model.audio_tower.subsample_conv_projection.conv_1.": "conformer.subsample_conv_projection.layer1.",
    },
    "qwen3-omni": {"thinker.visual.": "visual."},
    "pixtral": {"language_model.model.": "model."},
    "mistral3": {"language_model.model.": "model."},
    "internvl-hf": {"vision_tower.": "model.vision_tower.", "multi_modal_projector.": "model.multi_modal_projector."},
}

# Models of which only an older script makes files, and what it calls their versions.
OLDER = {"minicpm-v-2-6": "3"}

# What the converter takes only of one size, by an assertion.
OF_ONE_SIZE = {"step3p7", "step-vl"}


def record_spec(name: str) -> None:
    """The tensors of the class; spec.json stays where transformers has no such class."""
    if not (ENCODERS / name / "config.json").is_file():
        return
    config = json.loads((ENCODERS / name / "config.json").read_text(encoding="utf-8"))
    hf_class = getattr(transformers, config["architectures"][0].replace("OnOCR", "OnOcr"), None)
    if hf_class is None or "thinker_config" in config or name in BY_HAND:
        return
    full = transformers.AutoConfig.for_model(**config)
    with tempfile.TemporaryDirectory() as folder:
        hf_class._from_config(full, dtype=torch.float32).save_pretrained(folder)
        saved = load_file(Path(folder, "model.safetensors"))
    tensors = {_published(name, key): values for key, values in saved.items()}
    rows = {each[0]: list(each) for each in (_row(*each) for each in sorted(tensors.items()))}
    if (ENCODERS / name / "spec.json").is_file():  # vectors that the class begins anew each time stay as they were
        before = json.loads((ENCODERS / name / "spec.json").read_text(encoding="utf-8"))["tensors"]
        rows |= {each[0]: each for each in before if each[0] in rows and each[2] == rows[each[0]][2]}
    lines = ",\n".join(map(json.dumps, rows.values()))
    (ENCODERS / name / "spec.json").write_text(f'{{"tensors": [\n{lines}\n]}}\n', encoding="utf-8")


def _published(entry: str, name: str) -> str:
    for saved, published in PUBLISHED.get(entry, {}).items():
        if name.startswith(saved) and not name.startswith(published):
            return published + name.removeprefix(saved)
    return name


def _row(name: str, values: torch.Tensor) -> Row:
    """Matrices about zero, vectors about what the class begins with; limits that are infinite are not."""
    values = values.clip(-5, 5)
    mean = float(f"{values.double().mean():.2g}") if values.ndim < 2 else 0.0
    return name, "BF16", list(values.shape), mean, 0.15 if values.ndim > 1 else 0.1


def record_embeddings(name: str, checkpoint: Path) -> None:
    """What transformers makes of an image, for encoders that are run: its size, and the embeddings."""
    if name in SOUNDS:
        record_sound(name, checkpoint)
    if name == "qwen3-tts":
        record_codes(name, checkpoint)
    if name in TILED:
        record_tiles(name, checkpoint)
    if name not in IMAGES:
        return
    height, width = IMAGES[name]
    pixels = checkpoints.image(name, height, width)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if name in of_parts:
        found = recorded(name, checkpoint, pixels, int(config.get("image_token_id", 60)))
        np.savez_compressed(ENCODERS / name / "embeddings.npz", size=[height, width], **found)
        return
    if name in BY_CODE:
        record_published(name, checkpoint, config, pixels)
        return
    model, given = _seeing(checkpoint, config), _inputs(name, pixels, config)
    with torch.inference_mode():
        found = (model if hasattr(model, "get_image_features") else model.model).get_image_features(**given)
        if name == "llama4":  # whose last matrix its forward multiplies with
            found = model.multi_modal_projector(found.last_hidden_state)
    deeper = [torch.cat(list(each)) for each in getattr(found, "deepstack_features", None) or []]
    found = getattr(found, "pooler_output", found)
    found = found[0] if isinstance(found, (list, tuple)) else found
    found = torch.cat([found.reshape(-1, found.shape[-1]), *deeper], dim=-1)
    embeddings = found.numpy()
    token = model.config.image_token_id
    ids = torch.tensor([[3, 5, 8, *[token] * len(embeddings), 21, 34, 55]])
    if name.startswith(("qwen", "glm", "exaone", "paddleocr", "minicpm", "gemma4", "hunyuan")):
        given["mm_token_type_ids"] = (ids == token).int()
    if name == "gemma3":
        given["token_type_ids"] = (ids == token).int()
    if name == "gemma4-unified":  # `generate`'s, as of Gemma 4: forward alone makes full layers see images whole
        given["attention_mask"] = model.create_masks_for_generate(
            model.config, model.get_input_embeddings()(ids), None, None, None, given["mm_token_type_ids"]
        )
    with torch.inference_mode():
        logits = model(input_ids=ids, **given).logits[0].numpy()
    more = {"ids": ids[0].numpy(), "logits": logits}
    np.savez_compressed(ENCODERS / name / "embeddings.npz", size=[height, width], embeddings=embeddings, **more)


def _seeing(checkpoint: Path, config: dict[str, Any]) -> Any:
    """The model's class, with the checkpoint's weights."""
    written = config["architectures"][0].replace("OnOCR", "OnOcr")
    more = {}
    if written == "KimiK25ForConditionalGeneration":
        written = "Kimi_K25ForConditionalGeneration"
        settings = {KIMI_KEYS.get(key, key): value for key, value in config.items() if key != "model_type"}
        vision = {KIMI_VISION_KEYS.get(key, key): value for key, value in config["vision_config"].items()}
        settings["vision_config"] = {key: value for key, value in vision.items() if key != "model_type"}
        settings["projection_hidden_size"] = vision["mm_hidden_size"]
        more["config"] = transformers.Kimi_K25Config(**settings)
    if written == "HunYuanVLForConditionalGeneration":
        from transformers.models.hunyuan_vl import modeling_hunyuan_vl

        modeling_hunyuan_vl.HunYuanVLRotaryEmbedding.recomposition_frequencies = _by_parts
    hf_class = getattr(transformers, written)
    return hf_class.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager", **more).eval()


def _by_parts(rotary: Any, freq: torch.Tensor) -> torch.Tensor:
    """As the model's published code, vLLM and llama.cpp have it: both halves of a pair are of one part of a position.
    transformers 5.23 splits a head's whole width, so that they are of two.
    """
    sections, axes = list(rotary.mrope_section), len(rotary.mrope_section)
    parts = torch.cat((freq, freq), dim=-1).split(sections * 2, dim=-1)
    return torch.cat([part[i % axes] for i, part in enumerate(parts)], dim=-1)


def record_published(name: str, checkpoint: Path, config: dict[str, Any], pixels: Any) -> None:
    """After a model's published code; logits where transformers has the text model."""
    with torch.inference_mode():
        embeddings = BY_CODE[name](given := read(checkpoint, config, pixels))
        more = _read_with_it(name, checkpoint, config, embeddings) if name in TEXTS else {}
        if name == "cogvlm":
            ids = torch.tensor([3, 5, 8, *[60] * len(embeddings), 21, 34, 55])
            more = {"ids": ids.numpy(), "logits": cogvlm_text(given, ids, embeddings, 3).numpy()}
    size = list(IMAGES[name])
    np.savez_compressed(ENCODERS / name / "embeddings.npz", size=size, embeddings=embeddings.numpy(), **more)


def _read_with_it(name: str, checkpoint: Path, config: dict[str, Any], embeddings: torch.Tensor) -> dict[str, Any]:
    """A text with the image, and its logits."""
    written, beginning = TEXTS[name]
    settings = config.get("text_config", config)
    own = {key: value for key, value in settings.items() if key not in ("model_type", "vision_config", "architectures")}
    hf_class = getattr(transformers, written)
    model = hf_class._from_config(hf_class.config_class(**own), attn_implementation="eager").eval().float()
    found = model.load_state_dict(_part_of(checkpoint, beginning), strict=False)
    assert not found.missing_keys, found.missing_keys
    ids = torch.tensor([3, 5, 8, *[60] * len(embeddings), 21, 34, 55])
    x = model.get_input_embeddings()(ids)
    x[3 : 3 + len(embeddings)] = embeddings
    return {"ids": ids.numpy(), "logits": model(inputs_embeds=x[None]).logits[0].numpy()}


def record_tiles(name: str, checkpoint: Path) -> None:
    """The same of an image in tiles, (rows, columns, height, width of the image)."""
    rows, columns, size = TILED[name]
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if "granite" not in name:
        record_ocr(name, checkpoint, config)
        return
    model = (
        getattr(transformers, config["architectures"][0])
        .from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
        .eval()
    )
    side = config["vision_config"]["image_size"]
    every = (checkpoints.image(f"{name}/{i}", side, side) for i in range(rows * columns + 1))
    *parts, whole = map(torch.from_numpy, every)
    pixels, token = torch.stack([whole, *parts])[None], config["image_token_index"]
    with torch.inference_mode():
        found = model.get_image_features(pixels, image_sizes=torch.tensor([size])).deepstack_features
        found = torch.cat([values[0] for _, values in sorted(found, key=lambda each: each[0])], dim=1)
        ids = torch.tensor([[3, 5, 8, *[token] * len(found), 21, 34, 55]])
        logits = model(input_ids=ids, pixel_values=pixels, image_sizes=torch.tensor([size])).logits[0]
    more = {"ids": ids[0].numpy(), "logits": logits.numpy(), "embeddings": found.numpy()}
    np.savez_compressed(ENCODERS / name / "embeddings.npz", size=[side, side], tiles=[rows, columns, *size], **more)


NAMING = ("model_type", "architectures")


def record_ocr(name: str, checkpoint: Path, config: dict[str, Any]) -> None:
    """Of DeepSeek-OCR 2 and Unlimited-OCR."""
    model, given = ocr(name, checkpoint, config)
    with torch.inference_mode():
        found = model.get_image_features(**given).pooler_output[0]
        ids = torch.tensor([[3, 5, 8, *[config["image_token_id"]] * len(found), 21, 34, 55]])
        logits = model(input_ids=ids, **given).logits[0]
    more = {"ids": ids[0].numpy(), "logits": logits.numpy(), "embeddings": found.numpy()}
    rows, columns, size = TILED[name]
    side = config["vision_config"]["image_size"]
    np.savez_compressed(ENCODERS / name / "embeddings.npz", size=[side, side], tiles=[rows, columns, *size], **more)


def ocr(name: str, checkpoint: Path, config: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """transformers' class with the sizes that published configs mean, and an image as it is given that."""
    rows, columns, _ = TILED[name]
    vision, side = config["vision_config"], config["vision_config"]["image_size"]
    sam = vision["width"]["sam_vit_b"]
    parts: dict[str, Any] = {
        "sam_config": {
            "hidden_size": sam["width"],
            "num_hidden_layers": sam["layers"],
            "num_attention_heads": sam["heads"],
            "global_attn_indexes": sam["global_attn_indexes"],
            "downsample_channels": sam["downsample_channels"],
            "image_size": side,
            "output_channels": 16,
            "mlp_dim": 48,
        }
    }
    if "clip-l-14-224" in vision["width"]:
        clip, written = vision["width"]["clip-l-14-224"], "UnlimitedOcr"
        parts["encoder_config"] = {
            "hidden_size": clip["width"],
            "num_hidden_layers": clip["layers"],
            "num_attention_heads": clip["heads"],
            "intermediate_size": 48,
            "image_size": clip["image_size"],
            "patch_size": clip["patch_size"],
        }
    else:
        written = "DeepseekOcr2"
        parts["encoder_config"] = {
            "hidden_size": vision["width"]["qwen2-0-5b"]["dim"],
            "num_hidden_layers": vision["layers"],
            "num_attention_heads": vision["num_attention_heads"],
            "intermediate_size": vision["intermediate_size"],
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        }
    text = {key: config["language_config"][key] for key in config["language_config"] if key not in NAMING}
    text["mlp_layer_types"], text["pad_token_id"] = ["dense"] * text["num_hidden_layers"], 0
    kind = getattr(transformers, f"{written}ForConditionalGeneration")
    full = kind.config_class(vision_config=parts, text_config=text, image_token_id=config["image_token_id"])
    model = kind.from_pretrained(checkpoint, config=full, dtype=torch.float32, attn_implementation="eager").eval()
    every = (checkpoints.image(f"{name}/{i}", side, side) for i in range(rows * columns + 1))
    *local, whole = map(torch.from_numpy, every)
    given = {"pixel_values": whole[None], "pixel_values_local": torch.stack(local), "num_local_patches": [len(local)]}
    given |= {"patches_grid": [[columns, rows]]} if written == "UnlimitedOcr" else {}
    return model, given


def record_sound(name: str, checkpoint: Path) -> None:
    """What transformers makes of a sound: its frames, and the embeddings; and logits of a text with it."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    inner = config.get("thinker_config", config)
    part = next(inner[key] for key in AUDIO_PARTS if key in inner)
    frames, real = SOUNDS[name]
    part = part.get("whisper_config", part)
    sizes = ("num_mel_bins", "input_dim", "input_feat_size", "feat_in", "audio_embed_dim")
    mels = next(part[key] for key in sizes if key in part)
    features = torch.from_numpy(checkpoints.sound(name, mels, frames))[None]
    mask = (torch.arange(frames) < real).long()[None]
    more: dict[str, Any] = {}
    with torch.inference_mode():
        if name == "qwen3-asr":
            found = _qwen3_asr(part, checkpoint, features, mask)
        elif name == "glm-asr":
            found = _glm_asr(config, checkpoint, features, mask)
        elif name == "lfm2-audio":
            found = _lfm2(part, checkpoint, features)
        elif name == "gemma3n":
            found, more = _gemma3n(checkpoint, features, mask)
        elif name.startswith("gemma4"):
            found, more = _gemma4(checkpoint, features, mask)
        elif name == "dots3-note":
            found, more = _dots3(checkpoint, features, real)
        elif name == "meralion2":
            found = _meralion(config, checkpoint, features)
        elif "thinker_config" in config:
            encoder = _encoder(name, checkpoint, part)
            found = encoder(features[0, :, :real], feature_lens=torch.tensor([real])).last_hidden_state
        elif name == "ultravox":
            found = _ultravox(config, checkpoint, features, real)
        else:
            hf_class = getattr(transformers, config["architectures"][0])
            model = hf_class.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
            found, more = _heard(model, features, mask)
    file = ENCODERS / name / ("heard.npz" if name in IMAGES else "embeddings.npz")
    np.savez_compressed(file, frames=[frames, real], embeddings=found.numpy(), **more)


def record_together(name: str, checkpoint: Path) -> None:
    """Logits of a text with an image and a sound, into together.npz: its ids, and the sizes of both."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    (height, width), (frames, image, audio) = TOGETHER[name]
    part = config.get("thinker_config", config)
    mels = next(part["audio_config"][key] for key in ("num_mel_bins", "input_feat_size") if key in part["audio_config"])
    pixels = checkpoints.image(name, height, width)
    sound = torch.from_numpy(checkpoints.sound(name, mels, frames))[None]
    heard = torch.ones(1, frames, dtype=torch.long)
    if "thinker_config" in config:
        model = _thinker(config, checkpoint)
        given = _inputs(name, pixels, part) | {"input_features": sound, "feature_attention_mask": heard}
    else:
        model = transformers.Gemma4ForConditionalGeneration.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        given = _inputs(name, pixels, part)
        given |= {"input_features": sound.transpose(1, 2), "input_features_mask": heard.bool()}
    ids = torch.tensor([[3, *AROUND[0], *[60] * image, *AROUND[1], 21, *AROUND[2], *[59] * audio, *AROUND[3], 12]])
    if name == "gemma4":
        given["mm_token_type_ids"] = (ids == 60).int() + 3 * (ids == 59).int()
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **given).logits[0].numpy()
    size = {"size": [height, width], "frames": frames}
    np.savez_compressed(ENCODERS / name / "together.npz", ids=ids[0].numpy(), logits=logits, **size)


AROUND = ([57], [56], [58], [55])  # what stands in front of and behind an image, and a sound


def _thinker(config: dict[str, Any], checkpoint: Path) -> Any:
    """The part of an Omni model that sees, hears and writes. Positions of images and sounds are found by AROUND."""
    own = "Qwen3OmniMoe" if config["model_type"] == "qwen3_omni_moe" else "Qwen2_5Omni"
    kind = getattr(transformers, f"{own}ThinkerForConditionalGeneration")
    said = {key: value for key, value in config["thinker_config"].items() if key != "model_type"}
    names = ("vision_start_token_id", "vision_end_token_id", "audio_start_token_id", "audio_end_token_id")
    said |= {key: each[0] for key, each in zip(names, AROUND, strict=True)}
    model = kind._from_config(kind.config_class(**said), attn_implementation="eager").eval().float()
    model.load_state_dict(
        {
            key if key.startswith("lm_head.") else f"model.{key.replace('model.', 'language_model.', 1)}": value
            for key, value in _part_of(checkpoint, "thinker.").items()
        }
    )
    return model


def record_codes(name: str, checkpoint: Path) -> None:
    """Logits of a frame's codes after a state of the talker and codes, by Qwen 3's layers, which the model has."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["talker_config"]
    own, talker = _part_of(checkpoint, "talker.code_predictor."), _part_of(checkpoint, "talker.model.")
    settings = {key: value for key, value in config["code_predictor_config"].items() if key != "model_type"}
    of_layers = transformers.Qwen3Config(**settings)
    layers = transformers.Qwen3Model._from_config(of_layers, attn_implementation="eager")
    in_layers = {key[6:]: value for key, value in own.items() if key.startswith(("model.layers.", "model.norm."))}
    layers.eval().float().load_state_dict(in_layers, strict=False)
    books = config["num_code_groups"] - 1
    state = checkpoints.values(name, "state", [config["hidden_size"]], 0.0, 1.0).astype(np.float32)
    codes = np.arange(books) * 7 % settings["vocab_size"]
    tables = [talker["codec_embedding.weight"], *(own[f"model.codec_embedding.{i}.weight"] for i in range(books))]
    rows = [torch.from_numpy(state), *(table[code] for table, code in zip(tables, codes, strict=False))]
    end = [own[f"small_to_mtp_projection.{kind}"] for kind in ("weight", "bias")]
    with torch.inference_mode():
        x = torch.nn.functional.linear(torch.stack(rows), *end)
        x = layers(inputs_embeds=x[None]).last_hidden_state[0, 1:]
        logits = torch.stack([row @ own[f"lm_head.{i}.weight"].T for i, row in enumerate(x)])
    np.savez_compressed(ENCODERS / name / "embeddings.npz", state=state, codes=codes, code_logits=logits.numpy())


def _heard(model: Any, features: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """What is put into the text, seen where the language model reads it, and logits."""
    kept = []
    model.model.language_model.register_forward_pre_hook(
        lambda module, args, more: kept.append(more["inputs_embeds"]), with_kwargs=True
    )
    token, given = model.config.audio_token_id, {"input_features": features}
    if "GraniteSpeech" in type(model).__name__:
        given = {"input_features": features.transpose(1, 2)}
        count = model.get_audio_features(**given).pooler_output.shape[1]
    elif "GlmAsr" in type(model).__name__:
        given["input_features_mask"] = mask
        count = len(model.get_audio_features(**given).pooler_output)
    elif "Voxtral" in type(model).__name__:
        count = len(model.get_audio_features(features).pooler_output)
    else:
        given["feature_attention_mask" if "Qwen2Audio" in type(model).__name__ else "input_features_mask"] = mask
        count = int(model.model.audio_tower._get_feat_extract_output_lengths(mask.sum(-1))[1])
    ids = [3, 5, 8, *[token] * count, 21, 34, 55]
    text = torch.tensor([ids])
    logits = model(input_ids=text, attention_mask=torch.ones_like(text), **given).logits[0]
    return kept[0][0, 3 : 3 + count], {"ids": ids, "logits": logits.numpy()}


def _encoder(name: str, checkpoint: Path, part: dict[str, Any]) -> Any:
    """The encoder for sounds alone, with its weights."""
    from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as qwen25
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as qwen3

    kind = qwen25.Qwen2_5OmniAudioEncoder if name == "qwen2-5-omni" else qwen3.Qwen3OmniMoeAudioEncoder
    settings = {key: value for key, value in part.items() if key != "model_type"}
    encoder = kind._from_config(kind.config_class(**settings), attn_implementation="eager").eval().float()
    encoder.load_state_dict(_part_of(checkpoint, "thinker.audio_tower."))
    return encoder


def _qwen3_asr(part: dict[str, Any], checkpoint: Path, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    from transformers.models.qwen3_asr import modeling_qwen3_asr as asr

    settings = {key: value for key, value in part.items() if key != "model_type"}
    config = asr.Qwen3ASREncoder.config_class(**settings)
    encoder = asr.Qwen3ASREncoder._from_config(config, attn_implementation="eager").eval().float()
    own = _part_of(checkpoint, "thinker.audio_tower.")
    ends = {key: own.pop(key) for key in sorted(own) if key.startswith("proj")}
    encoder.load_state_dict(own)
    x = encoder(features, mask).last_hidden_state
    for i in (1, 2):
        x = torch.nn.functional.linear(x, ends[f"proj{i}.weight"], ends[f"proj{i}.bias"])
        x = torch.nn.functional.gelu(x) if i == 1 else x
    return x


def _glm_asr(config: dict[str, Any], checkpoint: Path, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """By transformers' class, which has other names, and rotates halves of a head's first half instead of pairs."""
    whisper = config["whisper_config"]
    audio = {
        "hidden_size": whisper["d_model"],
        "intermediate_size": whisper["encoder_ffn_dim"],
        "num_hidden_layers": whisper["encoder_layers"],
        "num_attention_heads": whisper["encoder_attention_heads"],
        "num_mel_bins": whisper["num_mel_bins"],
    }
    # the class says of a projector that it reads `intermediate_size`, which is four times the width in what there is
    full = transformers.GlmAsrConfig(audio_config=audio, text_config={"model_type": "llama", **config["lm_config"]})
    encoder = transformers.AutoModel.from_config(full.audio_config, attn_implementation="eager").eval().float()
    own, heads = {}, whisper["encoder_attention_heads"]
    names = {
        "self_attn.out_proj": "self_attn.o_proj",
        "self_attn_layer_norm": "input_layernorm",
        "fc1": "mlp.fc1",
        "final_layer_norm": "post_attention_layernorm",
        "fc2": "mlp.fc2",
    }
    for key, value in _part_of(checkpoint, "audio_encoder.whisper.").items():
        for old, new in names.items():
            key = key.replace(f".{old}.", f".{new}.")
        if "q_proj" in key or "k_proj" in key:
            parts = value.reshape(heads, value.shape[0] // heads, -1)
            half = parts.shape[1] // 2
            parts = torch.cat([parts[:, :half:2], parts[:, 1:half:2], parts[:, half:]], dim=1)
            value = parts.reshape(value.shape)
        own[key] = value
    own.pop("embed_positions.weight")
    behind = _part_of(checkpoint, "audio_encoder.")
    own |= {f"norm.{kind}": behind[f"layer_norm.{kind}"] for kind in ("weight", "bias")}
    encoder.load_state_dict(own)
    x = encoder(features).last_hidden_state[0]
    x = x.reshape(-1, 4 * x.shape[1])
    for i in (0, 2):
        x = torch.nn.functional.linear(x, behind[f"adapting.{i}.weight"], behind[f"adapting.{i}.bias"])
        x = torch.nn.functional.gelu(x) if i == 0 else x
    return x[: ((int(mask.sum()) + 1) // 2 - 4) // 4 + 1]


def _lfm2(part: dict[str, Any], checkpoint: Path, features: torch.Tensor) -> torch.Tensor:
    """By the class of Parakeet's encoder, which is the same one under other names."""
    from transformers.models.parakeet.modeling_parakeet import ParakeetEncoder

    config = ParakeetEncoder.config_class(
        hidden_size=part["d_model"],
        num_hidden_layers=part["n_layers"],
        num_attention_heads=part["n_heads"],
        intermediate_size=part["d_model"] * part["ff_expansion_factor"],
        conv_kernel_size=part["conv_kernel_size"],
        subsampling_conv_channels=part["subsampling_conv_channels"],
        num_mel_bins=part["feat_in"],
        scale_input=False,
    )
    encoder = ParakeetEncoder._from_config(config, attn_implementation="eager").eval().float()
    names = {
        "pre_encode.conv.": "subsampling.layers.",
        "pre_encode.out.": "subsampling.linear.",
        "self_attn.linear_pos.": "self_attn.relative_k_proj.",
        "self_attn.linear_out.": "self_attn.o_proj.",
        "self_attn.linear_": "self_attn.",
        "self_attn.pos_bias_": "self_attn.bias_",
        "conv.batch_norm.": "conv.norm.",
    }
    own = {}
    for key, value in _part_of(checkpoint, "conformer.").items():
        for old, new in names.items():
            key = key.replace(old, new)
        for which in "qkv":
            key = key.replace(f"self_attn.{which}.", f"self_attn.{which}_proj.")
        own[key] = value
    encoder.load_state_dict(own)
    x = encoder(features.transpose(1, 2)).last_hidden_state[0]
    functional, end = torch.nn.functional, _part_of(checkpoint, "audio_adapter.model.")
    x = functional.layer_norm(x, x.shape[1:], end["0.weight"], end["0.bias"])
    x = functional.gelu(functional.linear(x, end["1.weight"], end["1.bias"]))
    return functional.linear(x, end["3.weight"], end["3.bias"])


def _dots3(checkpoint: Path, features: torch.Tensor, real: int) -> tuple[torch.Tensor, dict[str, Any]]:
    from transformers.models.dots3_note import modeling_dots3_note as dots3

    part = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["audio_config"]
    own = _part_of(checkpoint, "audio_encoder.")
    sizes = {"downsample_hidden_size": 8, "adapter_input_size": 32, "adapter_out_dim": 32}
    config = dots3.Dots3NoteAudioConfig(**part, **sizes)
    encoder = dots3.Dots3NoteAudioModel._from_config(config, attn_implementation="eager").eval().float()
    names = {
        "dots_encoder.speech_encoder.": "",
        "audio_adapter.proj.0.": "adapter.norm.",
        ".out_proj.": ".o_proj.",
        "audio_adapter.proj.1.": "adapter.fc1.",
        "audio_adapter.proj.3.": "adapter.fc2.",
        ".fc2.": ".mlp.down_proj.",
        "conv_out": "conv_stem.conv_out",
        ".self_attn_layer_norm.": ".input_layernorm.",
        ".fc1.": ".mlp.gate_up_proj.",
        ".final_layer_norm.": ".post_attention_layernorm.",
        **{f"conv2d{i}": f"conv_stem.convs.{i - 1}" for i in (1, 2, 3)},
    }
    renamed = {}
    for key, value in own.items():
        for old, new in names.items():
            key = key if key.startswith("adapter.") else key.replace(old, new)
        renamed[key] = value
    encoder.load_state_dict(renamed)
    return encoder(features, torch.tensor([160 * real])).pooler_output, {}


def _gemma4(checkpoint: Path, features: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    own = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    hf_class = getattr(transformers, own)
    model = hf_class.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    given = {"input_features": features.transpose(1, 2) * mask[..., None], "input_features_mask": mask.bool()}
    heard = model.model.get_audio_features(*given.values())
    found = heard.pooler_output[heard.attention_mask]
    ids = [3, 5, 8, *[model.config.audio_token_id] * len(found), 21, 34, 55]
    text = torch.tensor([ids])
    logits = model(input_ids=text, attention_mask=torch.ones_like(text), **given).logits[0]
    return found, {"ids": ids, "logits": logits.numpy()}


def _gemma3n(checkpoint: Path, features: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """The class without the encoder for images, which needs timm. A word of the sounds' own stands behind the sound."""
    from transformers.models.gemma3n import modeling_gemma3n

    def of_config(config: Any, made: Any = modeling_gemma3n.AutoModel.from_config) -> Any:
        return torch.nn.Identity() if "Vision" in type(config).__name__ else made(config)

    kept: list[torch.Tensor] = []
    with mock.patch.object(modeling_gemma3n.AutoModel, "from_config", of_config):
        model = transformers.Gemma3nForConditionalGeneration.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager"
        ).eval()
    model.model.language_model.register_forward_pre_hook(
        lambda module, args, more: kept.append(more["inputs_embeds"]), with_kwargs=True
    )
    config = model.config
    ids = [3, 5, 8, *[config.audio_token_id] * config.audio_soft_tokens_per_image, config.audio_config.vocab_offset, 21]
    text, given = torch.tensor([ids]), {"input_features": features.transpose(1, 2), "input_features_mask": mask.bool()}
    logits = model(input_ids=text, attention_mask=torch.ones_like(text), **given).logits[0]
    return kept[0][0, 3:-2], {"ids": ids, "logits": logits.numpy()}


def _meralion(config: dict[str, Any], checkpoint: Path, features: torch.Tensor) -> torch.Tensor:
    """After the model's published code, which transformers does not have."""
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    settings = {key: value for key, value in config["speech_config"].items() if key != "model_type"}
    whisper = WhisperEncoder._from_config(transformers.WhisperConfig(**settings), attn_implementation="eager").eval()
    whisper.float().load_state_dict(_part_of(checkpoint, "speech_encoder."))
    functional, own = torch.nn.functional, _part_of(checkpoint, "")
    x = whisper(features).last_hidden_state[0]
    x = functional.layer_norm(x, x.shape[1:], own["ln_speech.weight"], own["ln_speech.bias"])

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, *(own[f"speech_audio_adapter.{name}.{kind}"] for kind in ("weight", "bias")))

    factor = config["speech_mlp_scale_factor"]
    x = functional.silu(linear("mlp_adapter.0", x.reshape(len(x) // factor, factor * x.shape[1])))
    return linear("out_proj", functional.silu(linear("gate_proj", x)) * linear("pool_proj", x))


def _part_of(checkpoint: Path, beginning: str) -> dict[str, torch.Tensor]:
    tensors = load_file(checkpoint / "model.safetensors")
    return {key.removeprefix(beginning): value.float() for key, value in tensors.items() if key.startswith(beginning)}


def _ultravox(config: dict[str, Any], checkpoint: Path, features: torch.Tensor, real: int) -> torch.Tensor:
    """After the model's published code, which transformers does not have: Whisper's layers, with padding masked."""
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    settings = {key: value for key, value in config["audio_config"].items() if key != "model_type"}
    whisper = WhisperEncoder._from_config(transformers.WhisperConfig(**settings), attn_implementation="eager").eval()
    whisper.float().load_state_dict(_part_of(checkpoint, "audio_tower."))
    functional, kept = torch.nn.functional, (real + 1) // 2
    x = functional.gelu(whisper.conv2(functional.gelu(whisper.conv1(features)))).transpose(1, 2)
    x = (x + whisper.embed_positions.weight)[:, :kept]  # nobody sees what is behind
    for layer in whisper.layers:
        x = layer(x, None)
        x = x[0] if isinstance(x, tuple) else x
    x = whisper.layer_norm(x)[0]
    factor = config["stack_factor"]
    x = functional.pad(x, (0, 0, 0, -len(x) % factor)).reshape(-1, factor * x.shape[1])
    own = _part_of(checkpoint, "multi_modal_projector.")
    x = functional.rms_norm(x, x.shape[1:], own["ln_pre.weight"], 1e-6) @ own["linear_1.weight"].T
    x, gate = x.chunk(2, dim=-1)
    x = functional.silu(gate) * x
    return functional.rms_norm(x, x.shape[1:], own["ln_mid.weight"], 1e-6) @ own["linear_2.weight"].T


def _inputs(name: str, pixels: Any, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """An image as the model's class is given it."""
    values, side = torch.from_numpy(pixels)[None], config["vision_config"]["patch_size"]
    if name.startswith(("qwen", "glm", "exaone", "minimax")):
        flat, grid = _flattened(pixels, side)
        return {"pixel_values": flat, "image_grid_thw": grid}
    side = side[0] if isinstance(side, list) else side
    if name == "gemma4-unified":
        side *= config["vision_config"]["pooling_kernel_size"]
    rows, columns = (length // side for length in pixels.shape[1:])
    if name in ("muse-glimmer", "hunyuan-vl"):
        frames = int(config["vision_config"].get("patch_temporal", 1))
        each = values.reshape(3, rows, side, columns, side).permute(1, 3, 0, 2, 4).reshape(rows * columns, -1)
        return {"pixel_values": each.repeat(1, frames), "image_grid_thw": torch.tensor([[1, rows, columns]])}
    if name in ("paddleocr-vl", "kimi-k2-5"):
        each = values.reshape(3, rows, side, columns, side).permute(1, 3, 0, 2, 4).reshape(-1, 3, side, side)
        return {"pixel_values": each, "image_grid_thw": torch.tensor([[1, rows, columns]])}
    if name == "minicpm-v-4-6":
        each = values.reshape(1, 3, rows, side, -1).permute(0, 1, 3, 2, 4).reshape(1, 3, side, -1)
        return {"pixel_values": each, "target_sizes": torch.tensor([[rows, columns]])}
    if name.startswith("gemma4"):
        each = values.reshape(3, rows, side, columns, side).permute(1, 3, 2, 4, 0).reshape(1, rows * columns, -1)
        row, column = np.divmod(np.arange(rows * columns), columns)
        return {"pixel_values": each, "image_position_ids": torch.from_numpy(np.stack([column, row], axis=-1))[None]}
    if name == "lfm2-vl":
        each = values.reshape(3, rows, side, columns, side).permute(1, 3, 2, 4, 0).reshape(1, rows * columns, -1)
        mask = torch.ones(1, rows * columns, dtype=torch.long)
        return {"pixel_values": each, "spatial_shapes": torch.tensor([[rows, columns]]), "pixel_attention_mask": mask}
    if name in ("smolvlm", "idefics3"):
        return {"pixel_values": values[None]}
    if name in ("pixtral", "mistral3", "lighton-ocr"):
        return {"pixel_values": values, "image_sizes": torch.tensor([pixels.shape[1:]])}
    return {"pixel_values": values}


def record_prepared(name: str, checkpoint: Path) -> None:
    """What transformers' image processors make of images: uint8 (tiles, 3, height, width) by the image's
    "HEIGHTxWIDTH/STEP/NUMBER": each so many-th pixel of large ones, and the number of one of several sizes.
    """
    if name not in (*IMAGES, *TILED, "qwen2-5-omni"):
        return
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config = config.get("thinker_config", config)
    file = next(checkpoint.glob("*processor_config.json"))
    given = json.loads(file.read_text(encoding="utf-8"))
    given |= given.get("media_proc_cfg", given.get("vision_config", {}))
    given |= {f"image_{key}": given[f"norm_{key}"] for key in ("mean", "std") if f"norm_{key}" in given}
    if name in PROCESSED:
        record_processed(name)
        return
    processor, mean, std = _processor(name, config, given)
    found = {}
    for height, width in ONLY.get(name, (*SCENES, *LARGE.get(name, ()))):
        form = "pt" if name in BY_TORCHVISION else "np"
        made = processor(Image.fromarray(checkpoints.scene(height, width)), return_tensors=form)
        pixels = made["pixel_values"]
        pixels = pixels.double().numpy() if isinstance(pixels, torch.Tensor) else np.asarray(pixels, np.float64)
        if "image_grid_thw" in made:
            pixels = _unflattened(pixels, made["image_grid_thw"][0], processor)
        if name.startswith("gemma4"):
            ends = np.asarray(made["image_position_ids"]).max(axis=(0, 1)) + 1
            pixels = _in_rows(pixels[0], ends[::-1])
        several = [pixels.reshape(-1, *pixels.shape[-3:])]
        if name.startswith("minicpm"):
            several = _slices(pixels[0], made["target_sizes"], processor.patch_size)
        if "pixel_values_local" in made:
            several = [*np.asarray(made["pixel_values_local"], np.float64), *several[0]]
        if name.startswith("granite"):
            several = [np.concatenate([pixels[0, 1:], pixels[0, :1]])]
        if name in ("lfm2-vl", "phi4-vision"):
            several = [_in_rows(*each) for each in zip(pixels, made["spatial_shapes"], strict=True)]
        for i, pixels in enumerate(several):
            values = (pixels * np.reshape(std, (3, 1, 1)) + np.reshape(mean, (3, 1, 1))) * 255
            assert np.abs(values - values.round()).max() < (1 if name == "llama4" else 1e-3)  # it computes in bfloat16
            step = 16 if values.size > 100_000 else 1
            found[f"{height}x{width}/{step}/{i}"] = values.round().astype(np.uint8)[..., ::step, ::step]
    np.savez_compressed(ENCODERS / name / "prepared.npz", **found)


def record_processed(name: str) -> None:
    """What the model's published code makes of images."""
    found = {
        f"{height}x{width}/1/0": PROCESSED[name](Image.fromarray(checkpoints.scene(height, width)))[None]
        for height, width in SCENES
    }
    np.savez_compressed(ENCODERS / name / "prepared.npz", **found)


def record_crops(checkpoint: Path) -> None:
    """What Gemma 3's processor makes of long images with pan and scan, likewise: into cropped.npz."""
    config, given = (
        json.loads((checkpoint / file).read_text(encoding="utf-8"))
        for file in ("config.json", "preprocessor_config.json")
    )
    processor, mean, std = _processor("gemma3", config, given)
    crops = {"min_crop_size": 256, "max_num_crops": 4, "min_ratio_to_activate": 1.2}
    settings = {"do_pan_and_scan": True} | {f"pan_and_scan_{key}": value for key, value in crops.items()}
    found = {}
    for height, width in ((300, 700), (1100, 257), (256, 1400), (260, 300), (200, 900)):
        made = processor(Image.fromarray(checkpoints.scene(height, width)), return_tensors="np", **settings)
        values = (made["pixel_values"] * np.reshape(std, (3, 1, 1)) + np.reshape(mean, (3, 1, 1))) * 255
        found[f"{height}x{width}"] = values.round().astype(np.uint8)
    np.savez_compressed(ENCODERS / "gemma3" / "cropped.npz", **found)


def _processor(name: str, config: dict[str, Any], given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The class for images, with the sizes of the checkpoint; its mean and deviation."""
    vision = config["vision_config"]
    side, patch, colours = vision.get("image_size"), vision.get("patch_size"), ("image_mean", "image_std")
    side, patch = (each[0] if isinstance(each, list) else each for each in (side, patch))
    square = {"height": side, "width": side}
    settings: dict[str, Any] = {key: given[key] for key in colours}
    if name == "gemma3n-pictures":
        made = transformers.Gemma3ImageProcessorPil(size=given["size"], do_normalize=False)
        return made, [0.0] * 3, [1.0] * 3
    if name == "gemma3":
        kind, settings["size"] = transformers.Gemma3ImageProcessorPil, square
    elif name == "llava-1-5":
        kind, settings["size"] = transformers.CLIPImageProcessorPil, {"shortest_edge": side}
        settings["crop_size"] = side
    elif name in ("pixtral", "mistral3", "lighton-ocr"):
        kind, settings["size"] = transformers.PixtralImageProcessorPil, {"longest_edge": side}
        unit = patch * config.get("spatial_merge_size", 1)
        settings["patch_size"] = {"height": unit, "width": unit}
    elif name in ("smolvlm", "idefics3"):
        kind, settings["size"] = transformers.SmolVLMImageProcessorPil, given["size"]
        settings["max_image_size"] = {"longest_edge": side}
    elif name == "internvl-hf":
        kind, settings["size"], settings["crop_to_patches"] = transformers.GotOcr2ImageProcessorPil, square, True
    elif name == "janus":
        kind, settings["size"] = transformers.JanusImageProcessorPil, square
    elif name == "gemma4-unified":
        kind, settings["patch_size"] = transformers.Gemma4UnifiedImageProcessor, patch
    elif name.startswith("gemma4"):
        kind = transformers.Gemma4ImageProcessorPil
    elif name.startswith("minicpm"):  # of the older ones a patch of 14 pixels becomes a token
        kind = transformers.MiniCPMV4_6ImageProcessorPil
        more = {"patch_size": patch} if name == "minicpm-v-4-6" else {"patch_size": patch // 2, "downsample_mode": "4x"}
        settings |= more | {"scale_resolution": given["scale_resolution"]}
    elif name == "unlimited-ocr-small":
        kind, settings["size"] = transformers.UnlimitedOcrImageProcessor, square
    elif name == "deepseek-ocr2-small":
        kind, settings["size"] = transformers.DeepseekOcr2ImageProcessorPil, square
    elif name in TILED:
        kind, settings["size"] = transformers.LlavaNextImageProcessorPil, square
        settings |= {"crop_size": square, "image_grid_pinpoints": config["image_grid_pinpoints"]}
    elif name == "step3p7":
        kind, settings["size"] = transformers.Step3p7ImageProcessor, square
    elif name == "phi4-vision":
        kind, settings["patch_size"] = transformers.Siglip2ImageProcessorPil, given["patch_size"]
        settings["max_num_patches"] = given["max_num_patches"]
    elif name == "nemotron-vl-small":
        kind, settings["size"] = transformers.GotOcr2ImageProcessorPil, {"height": 64, "width": 64}
        settings["crop_to_patches"], settings["max_patches"] = True, given["max_num_tiles"]
    elif name.startswith("kimi"):
        kind, settings["size"] = transformers.Kimi_K25ImageProcessor, {"max_height": 512, "max_width": 512}
        settings |= {"patch_size": patch, "max_patches": 4096}
    elif name == "glm5-next":
        kind = transformers.Glm5NextImageProcessorPil
        settings |= {key: given[key] for key in ("patch_size", "min_image_tokens", "max_image_tokens")}
    elif name == "hunyuan-vl":
        kind, settings["patch_size"] = transformers.HunYuanVLImageProcessorPil, patch
    elif name == "minimax-m3":
        kind, settings["patch_size"] = transformers.MiniMaxM3VLImageProcessor, patch
    elif name == "muse-glimmer":
        kind, settings["patch_size"] = transformers.MuseGlimmerImageProcessor, patch
    elif name == "lfm2-vl":
        kind = transformers.Lfm2VlImageProcessor  # this and the next one need torchvision
    elif name == "llama4":
        kind, settings["size"] = transformers.Llama4ImageProcessor, square
    elif name == "paddleocr-vl":
        kind = transformers.PaddleOCRVLImageProcessorPil
        settings |= {key: given[key] for key in ("min_pixels", "max_pixels")} | {"patch_size": patch}
    else:
        kind = transformers.Glm4vImageProcessorPil if name == "glm4v" else transformers.Qwen2VLImageProcessorPil
        settings["patch_size"] = patch
        if name.startswith("qwen2"):
            settings["size"] = {"shortest_edge": 56 * 56, "longest_edge": 12_845_056}
        elif name.startswith(("dots", "mimo")):
            settings["size"] = {"shortest_edge": given["min_pixels"], "longest_edge": given["max_pixels"]}
        elif name.startswith(("qwen3", "ling3")):
            settings["size"] = {"shortest_edge": 65_536, "longest_edge": 16_777_216}
    return kind(**settings), *(given[key] for key in colours)


def _slices(strip: Any, sizes: Any, side: int) -> list[Any]:
    """Pixels (3, height, width) of each tile as MiniCPM-V's processor gives all of them, (3, side of a patch, …)."""
    found, start = [], 0
    for rows, columns in sizes:
        stop = start + rows * columns * side
        each = strip[:, :, start:stop].reshape(3, side, rows, columns, side)
        found.append(each.transpose(0, 2, 1, 3, 4).reshape(3, rows * side, columns * side))
        start = stop
    return found


def _in_rows(patches: Any, grid: Any) -> Any:
    """Pixels (3, height, width) of patches as LFM2's processor gives them, (padded number, values)."""
    rows, columns = grid
    side = math.isqrt(patches.shape[-1] // 3)
    each = patches[: rows * columns].reshape(rows, columns, side, side, 3)
    return each.transpose(4, 0, 2, 1, 3).reshape(3, rows * side, columns * side)


def _unflattened(patches: Any, grid: Any, processor: Any) -> Any:
    """Pixels (3, height, width) of patches as Qwen's processor gives them."""
    (_, rows, columns), side, merged = grid, processor.patch_size, processor.merge_size
    name = type(processor).__name__
    if name.startswith(("HunYuan", "Muse")):  # by row and column, Muse Glimmer's in two frames
        shape = rows, columns, -1, 3, side, side
        return patches.reshape(shape)[:, :, 0].transpose(2, 0, 3, 1, 4).reshape(3, rows * side, -1)
    if patches.ndim == 4:  # PaddleOCR's and Kimi's: by row and column
        return patches.reshape(rows, columns, 3, side, side).transpose(2, 0, 3, 1, 4).reshape(3, rows * side, -1)
    shape = rows // merged, columns // merged, merged, merged, 3, processor.temporal_patch_size, side, side
    return patches.reshape(shape)[:, :, :, :, :, 0].transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * side, -1)


def _flattened(pixels: Any, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two frames of an image as Qwen's processor gives them: patches, squares of four together; and their grid."""
    _, height, width = pixels.shape
    rows, columns = height // side, width // side
    parts = np.stack([pixels, pixels]).reshape(1, 2, 3, rows // 2, 2, side, columns // 2, 2, side)
    patches = np.ascontiguousarray(parts.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)).reshape(rows * columns, -1)
    return torch.from_numpy(patches), torch.tensor([[1, rows, columns]])


def record_reference(name: str, folder: Path, quantizer: Path) -> None:
    """folder: where what the converter wrote is, one file for each of OUTTYPES."""
    found: dict[str, Any] = {"keys": {}, "tensors": {}, "files": {}, "quantized": {}}
    for outtype in OUTTYPES:
        output = folder / f"{outtype}.gguf"
        with gguftools.open(output) as model:
            for tensor in model.tensors.values():
                of_name = found["tensors"].setdefault(tensor.name, [list(tensor.shape)])
                of_name.append(tensor.format.name)
            if outtype == OUTTYPES[0]:
                found["keys"] = {key: _plain(model.metadata[key]) for key in model.metadata}
        found["files"][outtype] = checkpoints.file_digest(output)
    for recipe in RECIPES:
        quantized = folder / "quantized.gguf"
        command = [quantizer, folder / "f16.gguf", quantized, recipe, "1"]
        if not subprocess.run(command, capture_output=True, check=False).returncode:  # it stops at some
            found["quantized"][recipe] = sha256(quantized.read_bytes()).hexdigest()
    (ENCODERS / name / "reference.json").write_text(_lines(found), encoding="utf-8")


def record_older(name: str, checkpoint: Path, converter: Path) -> None:
    """Into spec.json, which was written by hand, what the script for models that the converter does not take makes of
    one: the sha256 of its tensors, in float32. It calls both matrices of nets by each other's names.
    """
    saved = load_file(checkpoint / "model.safetensors")
    for file, beginning, kept in (("projector", "resampler.", "resampler."), ("clip", "vpm.", "")):
        parts = {f"{kept}{key.removeprefix(beginning)}": values for key, values in saved.items() if beginning in key}
        torch.save({key: values.float() for key, values in parts.items()}, checkpoint / f"minicpmv.{file}")
    script = converter.parent / "tools" / "mtmd" / "legacy-models" / "minicpmv-convert-image-encoder-to-gguf.py"
    command = [sys.executable, script, "-m", checkpoint, "--minicpmv-projector", checkpoint / "minicpmv.projector"]
    command += ["--output-dir", checkpoint, "--minicpmv_version", OLDER[name], "--use-f32"]
    environment = {**os.environ, "PYTHONPATH": str(converter.parent / "gguf-py")}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    exchanged = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    with gguftools.open(checkpoint / "mmproj-model-f32.gguf") as model:
        written = {
            ".".join(exchanged.get(part, part) for part in each.name.split(".")): sha256(
                each.float32().tobytes()
            ).hexdigest()
            for each in model.tensors.values()
        }
    file = ENCODERS / name / "spec.json"
    tensors = json.loads(file.read_text(encoding="utf-8"))["tensors"]
    lines = ",\n".join(map(json.dumps, tensors))
    digests = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(written.items()))
    file.write_text(f'{{"tensors": [\n{lines}\n],\n"written": {{\n{digests}\n}}}}\n', encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float)):
        return value
    return [each.item() if isinstance(each, np.generic) else each for each in value]


def _lines(found: dict[str, Any]) -> str:
    """JSON with a line for each key and tensor."""
    parts = []
    for part, entries in found.items():
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
        parts.append(f'"{part}": {{\n{lines}\n}}')
    return "{" + ",\n".join(parts) + "}\n"


# Runs the converter for each checkpoint and type in one process, because it takes long to import. Says what failed.
# One name of Granite Speech's is in a wrong line of its table (b11434): its runtime does not load what it writes. A
# name of Llama 4's is also in Gemma 4's line: its runtime then norms attention's output instead of what the net reads.
CONVERT = """
import runpy, sys, traceback
from pathlib import Path
converter, *calls = sys.argv[1:]
sys.path[:0] = [str(Path(converter).parent), str(Path(converter).parent / "gguf-py")]
import gguf
names = gguf.TensorNameMap.block_mappings_cfg
norm, wrong = gguf.MODEL_TENSOR.A_ENC_CONV_NORM, gguf.MODEL_TENSOR.A_ENC_CONV_NORM_VAR
moved = "encoder.layers.{bid}.conv.batch_norm"
if moved in names[wrong]:
    names[norm] += (moved,)
    names[wrong] = tuple(name for name in names[wrong] if name != moved)
of_net, of_output = gguf.MODEL_TENSOR.V_ENC_POST_ATTN_NORM, gguf.MODEL_TENSOR.V_ENC_ATTN_POST_NORM
lines = dict(names)
for call in calls:
    checkpoint, outtype, output = call.split("\\t")
    names.update(lines)
    if Path(checkpoint).name == "llama4":
        names[of_net] += names[of_output]
        names[of_output] = ()
    sys.argv = [converter, checkpoint, "--mmproj", "--outfile", output, "--outtype", outtype]
    try:
        runpy.run_path(converter, run_name="__main__")
    except (Exception, SystemExit) as error:
        print(Path(checkpoint).name, outtype, traceback.format_exc(limit=-2), file=sys.stdout)
"""


def main(arguments: list[str]) -> None:
    converter, quantizer, *names = arguments
    names = names or checkpoints.encoders()
    with tempfile.TemporaryDirectory() as folder:
        calls: dict[str, list[str]] = {"": [], "1": []}
        for name in names:
            record_spec(name)
            checkpoints.build_encoder(name, Path(folder, "own", name))
            record_embeddings(name, Path(folder, "own", name))
            record_prepared(name, Path(folder, "own", name))
            if name == "gemma3":
                record_crops(Path(folder, "own", name))
            if name in TOGETHER:
                record_together(name, Path(folder, "own", name))
            checkpoints.build_encoder(name, Path(folder, name), AS_READ.get(name, {}))
            if name in OLDER:
                record_older(name, Path(folder, name), Path(converter))
                continue
            Path(folder, "written", name).mkdir(parents=True)
            for outtype in OUTTYPES:
                output = Path(folder, "written", name, f"{outtype}.gguf")
                calls["1" if name in OF_ONE_SIZE else ""].append(f"{Path(folder, name)}\t{outtype}\t{output}")
        for optimize, of_kind in calls.items():
            environment = {**os.environ, "PYTHONPATH": "", "PYTHONOPTIMIZE": optimize}
            command = [sys.executable, "-c", CONVERT, converter, *of_kind]
            done = subprocess.run(command, stdout=-1, stderr=subprocess.DEVNULL, text=True, env=environment)
            print(done.stdout)
        for name in names:
            if all(Path(folder, "written", name, f"{outtype}.gguf").exists() for outtype in OUTTYPES):
                record_reference(name, Path(folder, "written", name), Path(quantizer))
                print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
