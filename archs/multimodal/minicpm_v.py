"""MiniCPM-V 4.6: SigLIP with a merger of squares of patches between two of its layers, and a second one after it.
MiniCPM-V and MiniCPM-o before that: SigLIP, read by learned queries.

llama.cpp's converter has no class of the latter: keys are those that its runtime reads, tensors those of the script
that it had (tools/mtmd/legacy-models).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quants import Tensor, from_array
from quants.errors import ModelError

from ..config import other_than, required
from ..encoder import CLIP_VISION, QKV, VISION, Encoder, always, at, maybe
from ..spec import Config, Target, TensorMap
from ..transforms import Invertible, computed, part, transpose
from ..wrapper import Files, Wrapper, key

MERGER: dict[str, Target] = {
    "layer_norm1": "ln1",
    **QKV,
    "self_attn.out_proj": "attn_out",
    "pre_norm": "ds_ln",
    "linear_1": "ds_ffn_up",
    "linear_2": "ds_ffn_down",
}


def _inserted(config: Config) -> list[int]:
    layer = config.get("insert_layer_id")
    return [int(config["vision"].get("insert_layer_id", 6) if layer is None else layer)]


def _side(files: Files) -> int:
    return math.isqrt(files.shape("v.position_embd.weight")[0]) * int(files.keys["vision.patch_size"])


MINICPM_V = Encoder(
    hf_classes=("MiniCPMV4_6ForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": maybe("preprocessor.scale_resolution|vision.image_size"),
        "projector_type": always("minicpmv4_6"),
        "vision.projector.scale_factor": always(4),
        "vision.wa_layer_indexes": _inserted,
        "use_gelu": always(True),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
    },
    tensors={
        **at("vision_tower.", "", CLIP_VISION),
        **at("vision_tower.vit_merger.", "v.vit_merger.", MERGER),
        "merger.mlp.{i}.pre_norm": "mm.input_norm",
        "merger.mlp.{i}.linear_1": "mm.up",
        "merger.mlp.{i}.linear_2": "mm.down",
    },
    refused={"preprocessor.downsample_mode": other_than("16x")},
    wrappers=(
        Wrapper(
            "MiniCPMV4_6ForConditionalGeneration",
            "minicpmv4_6",
            texts=("qwen35",),
            text_names={"model.": "model.language_model."},
            encoder_names={"": "model."},
            biased=("v.patch_embd", "v.post_ln", "mm.up", "mm.down", "mm.input_norm"),
            config={
                "vision.image_size": _side,
                "insert_layer_id": lambda files: files.keys["vision.wa_layer_indexes"][0],
            },
            tokens={"image_token_id": ("<|image_pad|>",), "video_token_id": ("<|video_pad|>",)},
            processor="MiniCPMV4_6Processor",
            image_processor="MiniCPMV4_6ImageProcessor",
            preprocessor={"scale_resolution": key("vision.image_size"), "patch_size": key("vision.patch_size")},
        ),
    ),
)


# Version numbers in programs, by class and config.json's version.
VERSIONS = {
    ("MiniCPMV", "2.5"): 2,
    ("MiniCPMV", "2.6"): 3,
    ("MiniCPMO", "2.6"): 4,
    ("MiniCPMV", "4.0"): 5,
    ("MiniCPMO", "4.0"): 6,
    ("MiniCPMV", "4.5"): 6,
    ("MiniCPMO", "4.5"): 100_045,
}
SIDE = 70  # patches of the largest image
LONGEST = 10_000
QUERIES = 96  # of 2.5, whose config.json has no version
SOUNDS = "for audio, which no program reads from such files"


def _version(config: Config) -> int:
    stated = config.get("version")
    if stated is None and config.get("query_num") == QUERIES:
        stated = 2.5
    wanted = f"{float(stated):.1f}" if isinstance(stated, (int, float)) else str(stated)
    for hf_class in config.get("architectures") or []:
        if (hf_class, wanted) in VERSIONS:
            return VERSIONS[hf_class, wanted]
    known = ", ".join(f"{hf_class} {version}" for hf_class, version in VERSIONS)
    raise ModelError(f"config.json has version {stated!r}, which is none of {known}")


def _waves(config: Config) -> Iterator[Tensor]:
    """Return sines and cosines by columns and rows of an image; programs recompute them, but require the tensor."""
    width = int(required(config, "hidden_size"))
    rates = np.float32(1) / np.float32(LONGEST) ** (np.arange(width // 4, dtype=np.float32) / np.float32(width / 4))

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        places = np.divmod(np.arange(start, stop), SIDE)[::-1]  # columns first
        angles = [place.astype(np.float32)[:, None] * rates for place in places]
        values = np.concatenate([f(angle) for angle in angles for f in (np.sin, np.cos)], axis=1)
        return np.ascontiguousarray(values, "<f4").view(np.uint8)

    row = from_array("resampler.pos_embed_k", np.zeros((1, 4 * len(rates)), np.float32))
    yield replace(row, shape=(SIDE**2, 4 * len(rates)), read=read)


def _projection(tensor: Tensor, config: Config) -> Tensor:
    """Return the matrix transposed, divided by the text model's embedding scale."""
    turned, scale = transpose(tensor, config), config.get("scale_emb")
    return turned if scale is None else computed(turned, lambda x: x / np.float32(scale))


def _unprojected(tensor: Tensor, config: Config) -> Tensor:
    scale = config.get("scale_emb")
    return transpose(tensor if scale is None else computed(tensor, lambda x: x * np.float32(scale)), config)


def _of_sounds(files: Files) -> bool:
    """Return whether it is MiniCPM-o, whose audio and speech parts are left out; two share a version number."""
    version = files.keys.get("minicpmv_version")
    return version in (4, 100_045) or (version == 6 and files.text.get("general.architecture") == "llama")


def _stored_version(hf_class: str) -> Callable[[Files], float | None]:
    """Return config.json's version; none for 2.5, whose published config has none."""

    def version(files: Files) -> float | None:
        number = int(files.keys.get("minicpmv_version", 2))
        versions = [name for (each, name), own in VERSIONS.items() if each == hf_class and own == number]
        if not versions:
            raise ModelError(f"clip.minicpmv_version is {number}, which is no version of {hf_class}")
        return None if versions[0] == "2.5" and files.keys["minicpmv_query_num"] == QUERIES else float(versions[0])

    return version


def _queries(files: Files) -> int:
    count, shape = int(files.keys["minicpmv_query_num"]), files.shape("resampler.query")
    if shape != (count, files.width):
        raise ModelError(f"'resampler.query' has the shape {shape}; {count} queries {files.width} wide were expected")
    return count


def _of_resampler(hf_class: str, model_type: str, **more: object) -> Wrapper:
    version = _stored_version(hf_class)
    return Wrapper(
        hf_class,
        model_type,
        texts=("llama", "qwen2", "qwen3"),
        text_in=("",),
        text_names={"": "llm."},
        fits=_of_sounds if hf_class == "MiniCPMO" else lambda files: not _of_sounds(files),
        biased=(
            "v.patch_embd",
            "v.post_ln",
            "resampler.ln_q",
            "resampler.ln_kv",
            "resampler.ln_post",
            "resampler.attn.out",
            *(f"resampler.attn.{name}" for name in "qkv"),
        ),
        config={
            "version": version,
            "patch_size": key("vision.patch_size"),
            "vision.model_type": "siglip_vision_model",
            "vision.image_size": _side,
            "drop_vision_last_layer": False,
            "batch_vision_input": True,
            "slice_mode": True,
            "use_image_id": lambda files: files.keys["minicpmv_version"] != 2,
            "slice_config": lambda files: {
                "max_slice_nums": 9,
                "model_type": "minicpmv",
                "patch_size": int(files.keys["vision.patch_size"]),
            },
            **more,
        },
        processor=f"{hf_class}Processor",
        image_processor="MiniCPMVImageProcessor",
        preprocessor={
            "max_slice_nums": 9,
            "scale_resolution": key("vision.image_size"),
            "patch_size": key("vision.patch_size"),
            "use_image_id": lambda files: files.keys["minicpmv_version"] != 2,
            "image_feature_size": _queries,
            "norm_mean": key("vision.image_mean"),
            "norm_std": key("vision.image_std"),
            "version": version,
        },
    )


QUERYING = Encoder(
    hf_classes=("MiniCPMV", "MiniCPMO"),
    metadata={
        **VISION,
        "vision.image_size": maybe("image_size", 448),
        "vision.image_mean": maybe("preprocessor.image_mean", [0.5, 0.5, 0.5]),
        "vision.image_std": maybe("preprocessor.image_std", [0.5, 0.5, 0.5]),
        "projector_type": always("resampler"),
        "minicpmv_version": _version,
        "minicpmv_query_num": "query_num",
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
        "use_gelu": always(True),
    },
    defaults={
        "vision": {
            "hidden_size": 1152,
            "image_size": 980,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
        }
    },
    tensors={
        **at("vpm.", "", CLIP_VISION),
        **at(
            "resampler.",
            "resampler.",
            {
                **{
                    f"attn.in_proj_{suffix}": tuple(
                        TensorMap(f"attn.{name}.{suffix}", part(i, 3)) for i, name in enumerate("qkv")
                    )
                    for suffix in ("weight", "bias")
                },
                "attn.out_proj": "attn.out",
                "kv_proj": "kv",
                "query": "query",
                "ln_q": "ln_q",
                "ln_kv": "ln_kv",
                "ln_post": "ln_post",
                "proj": TensorMap("proj.weight", Invertible(_projection, _unprojected)),
            },
        ),
    },
    ignored={
        "resampler.pos_embed": "waves that are made anew",
        **dict.fromkeys(("apm.*", "audio_projection_layer.*"), SOUNDS),
        "tts.*": "generates speech, which no program does",
    },
    generated=(_waves,),
    refused={"drop_vision_last_layer": lambda value: bool(value)},
    claimed=("vpm.*", "resampler.*", "apm.*", "audio_projection_layer.*", "tts.*"),
    wrappers=(
        _of_resampler("MiniCPMV", "minicpmv"),
        _of_resampler("MiniCPMO", "minicpmo", init_vision=True, init_audio=False, init_tts=False),
    ),
)
