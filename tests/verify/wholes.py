"""Exports of models with encoders as transformers loads them: nothing missing, nothing left over, and the same logits
as the checkpoint that both files were made of, with an image or a sound and without.

    python -m tests.verify.wholes [NAME …]      exit code 1 where anything is wrong
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoImageProcessor, AutoProcessor

from gguftools.conversion.export import export
from quants.errors import GgufToolsError
from tests.archs import checkpoints, wholes

from .encoders import AUDIO_PARTS, IMAGES, SOUNDS, TILED, _inputs, _seeing, ocr

CLOSE = 2e-5  # of the logits' standard deviation
ROUNDED = {"muse-glimmer": 1e-4}  # a sum of frames' weights, rounded
RENAMED = ("kimi-k2-5",)  # whose small config has the published keys alone, which transformers does not read
BY_SIZES = ("deepseek-ocr2-small", "unlimited-ocr-small")  # whose published configs transformers does not read
UNKNOWN = ("kimi-vl", "deepseek-ocr", "minicpm-v-2-6", "ultravox")  # classes that transformers has not
TYPED = ("qwen", "hunyuan", "glm", "exaone", "paddleocr", "minicpm", "gemma4")


def loaded(folder: Path) -> tuple[Any, dict[str, Any]]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    name = config["architectures"][0].replace("OnOCR", "OnOcr")
    name = name.replace("KimiK25For", "Kimi_K25For")
    name = name.replace("Qwen2_5OmniFor", "Qwen2_5OmniThinkerFor")  # the whole class wants a file for its voice
    hf_class = getattr(transformers, name)
    model, report = hf_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    return getattr(model, "thinker", model).eval(), report


def given(name: str, model: Any, config: dict[str, Any]) -> dict[str, Any]:
    """What stands for an image or a sound, with as many tokens as it has embeddings; nothing where it is not run."""
    truth = np.load(checkpoints.ENCODERS / name / "embeddings.npz")
    if "logits" not in truth:
        return {}
    ids = torch.from_numpy(truth["ids"].astype(np.int64))[None]
    if name in TILED:
        count, side = TILED[name][0] * TILED[name][1], config["vision_config"]["image_size"]
        every = (checkpoints.image(f"{name}/{i}", side, side) for i in range(count + 1))
        *parts, whole = map(torch.from_numpy, every)
        return {
            "input_ids": ids,
            "pixel_values": torch.stack([whole, *parts])[None],
            "image_sizes": torch.tensor([TILED[name][2]]),
        }
    if name in IMAGES:
        found = _inputs(name, checkpoints.image(name, *IMAGES[name]), config)
        keys = ("image_token_id", "image_token_index", "media_placeholder_token_id")
        token = next(config[key] for key in keys if key in config)
        if name.startswith(TYPED):
            found["mm_token_type_ids"] = (ids == token).int()
        if name == "gemma3":
            found["token_type_ids"] = (ids == token).int()
        return {"input_ids": ids, **found}
    inner = config.get("thinker_config", config)
    part = next(inner[key] for key in AUDIO_PARTS if key in inner)
    frames, real = SOUNDS[name]
    mels = next(part[key] for key in ("num_mel_bins", "input_dim", "input_feat_size", "feat_in") if key in part)
    features = torch.from_numpy(checkpoints.sound(name, mels, frames))[None]
    mask = (torch.arange(frames) < real).long()[None]
    found = {"input_ids": ids, "input_features": features, "attention_mask": torch.ones_like(ids)}
    kind = type(model).__name__
    if "GraniteSpeech" in kind:
        found["input_features"] = features.transpose(1, 2)
    elif "Gemma4" in kind:
        found |= {"input_features": features.transpose(1, 2) * mask[..., None], "input_features_mask": mask.bool()}
    elif "Voxtral" not in kind:
        found["feature_attention_mask" if "Qwen2Audio" in kind else "input_features_mask"] = mask
    return found


def thinker_inputs(name: str, config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The same of Qwen's models that hear, of which only the embeddings of a sound are recorded."""
    inner = config.get("thinker_config", config)
    truth = np.load(checkpoints.ENCODERS / name / "embeddings.npz")
    frames, real = SOUNDS[name]
    features = torch.from_numpy(checkpoints.sound(name, inner["audio_config"]["num_mel_bins"], frames))[None]
    token = inner.get("audio_token_id", inner.get("audio_token_index"))
    ids = torch.tensor([[3, 5, 8, *[token] * len(truth["embeddings"]), 21, 34]])
    mask = (torch.arange(frames) < real).long()[None]
    masks = {"input_features_mask" if name == "qwen3-asr" else "feature_attention_mask": mask}
    found = {"sound": {"input_ids": ids, "input_features": features, "attention_mask": torch.ones_like(ids), **masks}}
    if "vision_config" in inner:
        seen = _inputs(
            name, checkpoints.image(name, 140, 196) if "2-5" in name else checkpoints.image(name, 96, 160), inner
        )
        token = inner.get("image_token_id", inner.get("image_token_index"))
        ids = torch.tensor([[3, 5, 8, *[token] * (len(seen["pixel_values"]) // 4), 21, 34]])
        found["picture"] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **seen}
    return found


def logits(model: Any, inputs: dict[str, Any]) -> Any:
    with torch.inference_mode():
        return model(**inputs, use_cache=False).logits[0].double().numpy()


# Classes without a checkpoint in tests/data/towers: of which it differs, and how.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-vl-moe": (
        "qwen3-vl",
        {
            "architectures": ["Qwen3VLMoeForConditionalGeneration"],
            "model_type": "qwen3_vl_moe",
            "text_config": {
                "model_type": "qwen3_vl_moe_text",
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 24,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
            },
            "vision_config": {"model_type": "qwen3_vl_moe"},
        },
    ),
    "qwen3-5-moe": (
        "qwen3-5",
        {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            "text_config": {
                "model_type": "qwen3_5_moe_text",
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 16,
                "shared_expert_intermediate_size": 24,
            },
            "vision_config": {"model_type": "qwen3_5_moe"},
        },
    ),
    "glm4v-moe": (
        "glm4v",
        {
            "architectures": ["Glm4vMoeForConditionalGeneration"],
            "model_type": "glm4v_moe",
            "text_config": {
                "model_type": "glm4v_moe_text",
                "num_hidden_layers": 2,
                "first_k_dense_replace": 1,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 16,
                "n_group": 1,
                "topk_group": 1,
                "n_shared_experts": 1,
            },
            "vision_config": {"model_type": "glm4v_moe_vision"},
        },
    ),
    "qwen2-5-omni-saved": (
        "qwen2-5-omni",
        {
            "architectures": ["Qwen2_5OmniForConditionalGeneration"],
            "thinker_config": {"vision_start_token_id": 62, "audio_start_token_id": 57},
        },
    ),
    "qwen3-omni-saved": (
        "qwen3-omni",
        {"enable_audio_output": False, "thinker_config": {"vision_start_token_id": 62, "audio_start_token_id": 57}},
    ),
    "qwen3-asr-saved": ("qwen3-asr", {}),
    "qwen4-exp-sigmoid": ("qwen4-exp", {"text_config": {"output_gate_type": "sigmoid"}}),
    "glm-ocr": (
        "glm4v",
        {
            "architectures": ["GlmOcrForConditionalGeneration"],
            "model_type": "glm_ocr",
            "text_config": {"model_type": "glm_ocr_text"},
            "vision_config": {"model_type": "glm_ocr_vision"},
        },
    ),
}


SPOKEN: dict[str, dict[int, str]] = {
    "qwen2-5-omni-saved": {
        57: "<|audio_bos|>",
        59: "<|AUDIO|>",
        60: "<|IMAGE|>",
        61: "<|VIDEO|>",
        62: "<|vision_bos|>",
    },
    "qwen3-omni-saved": {
        57: "<|audio_start|>",
        59: "<|audio_pad|>",
        60: "<|image_pad|>",
        61: "<|video_pad|>",
        62: "<|vision_start|>",
    },
    "qwen3-asr-saved": {59: "<|audio_pad|>"},
    "qwen4-exp-sigmoid": dict(enumerate(wholes.QWEN, 60)),
}


def variant(name: str, work: Path) -> tuple[Path, Path, Path]:
    """A checkpoint as transformers begins and saves it, and its two files."""
    base, changes = VARIANTS[name]
    config = json.loads((checkpoints.ENCODERS / base / "config.json").read_text(encoding="utf-8"))
    if base == "qwen3-asr":  # as transformers has it
        config |= config.pop("thinker_config")
        config["audio_config"]["model_type"] = "qwen3_asr_encoder"
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    torch.manual_seed(0)
    made = getattr(transformers, config["architectures"][0])._from_config(transformers.AutoConfig.for_model(**config))
    with torch.no_grad():
        for each in made.parameters():
            each.copy_(torch.randn_like(each) * (0.15 if each.ndim > 1 else 0.1) + (each.ndim < 2))
    made.float().save_pretrained(work / name)
    (work / name / "preprocessor_config.json").write_bytes(
        (checkpoints.ENCODERS / base / "preprocessor_config.json").read_bytes()
    ) if (checkpoints.ENCODERS / base / "preprocessor_config.json").is_file() else None
    (work / name / "config.json").write_text(json.dumps(config), encoding="utf-8")  # without what the class fills in
    wholes.SPECIAL[name] = wholes.SPECIAL.get(base) or SPOKEN[name]
    return (work / name, *wholes.converted(name, work))


def examine(name: str, work: Path) -> tuple[str, bool]:
    """What is to be said of it, and whether it is right."""
    if name in UNKNOWN:
        return "transformers has no such class; tests/gguftools/conversion compares all tensors", True
    checkpoint, text, encoders = variant(name, work) if name in VARIANTS else wholes.files(name, work)
    base = VARIANTS[name][0] if name in VARIANTS else name
    done = export(text, work / "back", mmproj=encoders)
    if name in BY_SIZES:
        return ocr_logits(name, work / "back", checkpoint)
    model, report = loaded(work / "back")
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    own, before = loaded(checkpoint) if name not in RENAMED else (_seeing(checkpoint, config), {})
    wrong = [
        f"{what}: {sorted(map(str, names))[:3]}"
        for what, names in report.items()
        if {*map(str, names)} - {*map(str, before.get(what, ()))}
    ]
    inputs = {"text": {"input_ids": torch.tensor([[3, 5, 8, 21, 34, 55, 13, 2]])}}
    if (checkpoints.ENCODERS / base / "embeddings.npz").is_file() and (seen := given(base, own, config)):
        inputs["image or sound"] = seen
    if base in ("qwen2-5-omni", "qwen3-omni", "qwen3-asr"):
        inputs |= thinker_inputs(base, config)
    errors = []
    for what, each in inputs.items():
        found, wanted = logits(model, each), logits(own, each)
        error = float(np.abs(found - wanted).max() / wanted.std())
        errors.append(f"{what} {error:.0e}")
        wrong += [f"logits of a {what} are {error:.0e} off"] if not error < ROUNDED.get(base, CLOSE) else []
    wrong += [f"a conversion would write otherwise: {key}" for key in done.differing if "tokenizer" not in key]
    return "; ".join([*wrong, f"{done.hf_class}, {', '.join(errors)}; {processors(work / 'back')}"]), not wrong


def ocr_logits(name: str, *folders: Path) -> tuple[str, bool]:
    """Logits of a text with an image in tiles, of both checkpoints by what their configs say."""
    ids = torch.from_numpy(np.load(checkpoints.ENCODERS / name / "embeddings.npz")["ids"].astype(np.int64))[None]
    found = []
    for folder in folders:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model, seen = ocr(name, folder, config)
        found.append(logits(model, {"input_ids": ids, **seen}))
    error = float(np.abs(found[0] - found[1]).max() / found[1].std())
    return f"image in tiles {error:.0e}", error < CLOSE


def processors(folder: Path) -> str:
    """What transformers makes of the preprocessor's file."""
    said = []
    for kind in (AutoImageProcessor, AutoProcessor):
        try:
            said.append(type(kind.from_pretrained(folder)).__name__)
        except Exception as error:
            said.append(f"no {kind.__name__} ({type(error).__name__}: {str(error).splitlines()[0][:80]})")
    return ", ".join(said)


def main(names: list[str]) -> int:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    failed = 0
    for name in names or [*sorted(wholes.SPECIAL), *VARIANTS]:
        with tempfile.TemporaryDirectory() as work:
            try:
                said, is_right = examine(name, Path(work))
            except GgufToolsError as error:
                said, is_right = f"refused: {error}", False
            except ImportError as error:  # Gemma 3n's encoder for images is timm's
                said, is_right = f"not loaded: {' '.join(str(error).split())[:80]}", True
            except Exception as error:
                said, is_right = f"does not load or run: {type(error).__name__}: {str(error)[:200]}", False
        print(f"{name:20s} {'' if is_right else 'WRONG: '}{said}", flush=True)
        failed += not is_right
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
