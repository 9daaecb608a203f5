"""Muse Glimmer: a ViT that rotates in two dimensions, with windows in most layers, on patches of two frames; squares of
patches go through three matrices.
"""

import math
from dataclasses import replace

import numpy as np

from quants import FormatError, Tensor
from quants.errors import ModelError

from ..encoder import VISION, Encoder, always, at, side
from ..hparams.config_keys import LAYER_TYPE
from ..spec import Config, Floats, Target, TensorMap
from ..transforms import Invertible, computed, interleave_rope, reshape
from ..typed_json import ListOf, Text
from ..wrapper import Files, Wrapper, columns, key, rows

FRAMES = 2  # of a patch, in published models
PATCH = side("vision.patch_size")
ROTATED = interleave_rope("vision.num_attention_heads")
LAYER: dict[str, Target] = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.q_proj": TensorMap("attn_q", ROTATED),
    "attn.k_proj": TensorMap("attn_k", ROTATED),
    "attn.v_proj": "attn_v",
    "attn.proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


def _of_one_image(tensor: Tensor, config: Config) -> Tensor:
    """Return a matrix over pixels of patches in several frames as a convolution over one, the sum over the frames."""
    frames, each = int(config["vision"]["patch_temporal"]), int(PATCH(config))
    if tensor.width != frames * 3 * each * each:
        raise FormatError(f"{tensor.where} has {tensor.width} columns; {frames} frames, {each} x {each}, were expected")

    def summed(x: Floats) -> Floats:
        parts = x.reshape(len(x), frames, -1)
        total: Floats = parts[:, 0]
        for i in range(1, frames):
            total = total + parts[:, i]
        return total

    matrix = replace(computed(tensor, summed), shape=(tensor.shape[0], 3 * each * each))
    return reshape(matrix, (tensor.shape[0], 3, each, each))


def _of_frames(tensor: Tensor, config: Config) -> Tensor:
    """Return the matrix again, of which only the sum over the frames is known: each frame gets an equal share."""
    frames = int(config["vision"]["patch_temporal"])
    flat = reshape(tensor, (tensor.shape[0], tensor.size // max(1, tensor.shape[0])))
    shared = computed(flat, lambda x: np.tile(x / np.float32(frames), (1, frames)))
    return _widened(shared, frames)


def _widened(tensor: Tensor, times: int) -> Tensor:
    return replace(tensor, shape=(tensor.shape[0], tensor.width * times))


def _image_size(config: Config) -> int:
    vision = config["vision"]
    return int(vision["pos_emb_height"]) * int(PATCH(config)) * int(vision["merge_size"])


def _irregular(layer_types: list[str] | None) -> bool:
    """Return whether the window pattern differs from the hardcoded one."""
    count = len(layer_types or ())
    usual = ["window_attention" if (i + 1) % 4 and i + 1 < count else "full_attention" for i in range(count)]
    return layer_types is not None and layer_types != usual


def _positions(files: Files) -> int:
    """Return the positions a side; their number must be a square."""
    side = math.isqrt(count := rows("v.position_embd.weight")(files))
    if side**2 != count:
        raise ModelError(f"v.position_embd.weight has {count} positions, which are no square")
    return side


MUSE_GLIMMER = Encoder(
    hf_classes=("MuseGlimmerForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": _image_size,  # of any size; programs want one
        "projector_type": always("muse-glimmer"),
        "vision.attention.layer_norm_epsilon": "vision.layer_norm_eps",
        "vision.spatial_merge_size": "vision.merge_size",
    },
    defaults={
        "vision": {
            "patch_size": 14,
            "pos_emb_height": 32,
            "num_attention_heads": 16,
            "num_hidden_layers": 50,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "patch_temporal": 2,
            "merge_size": 2,
            "layer_norm_eps": 1e-5,
        }
    },
    tensors={
        **at("vision_tower.layers.{i}.", "v.blk.{i}.", LAYER),
        "vision_tower.patch_embedder.patch_embedding.weight": TensorMap(
            "v.patch_embd.weight", Invertible(_of_one_image, _of_frames)
        ),
        "vision_tower.patch_embedder.position_embedding_table": "v.position_embd",
        "vision_tower.ln_pre": "v.pre_ln",
        "vision_tower.ln_post": "v.post_ln",
        "vision_adapter.fc1": "mm.0",
        "vision_adapter.fc2": "mm.1",
        "vision_projection": "mm.2",
    },
    keys={"layer_types": ListOf(Text((*LAYER_TYPE.choices, "window_attention")))},
    refused={"vision.layer_types": _irregular},
    wrappers=(
        Wrapper(
            "MuseGlimmerForConditionalGeneration",
            "muse_glimmer",
            texts=("muse-glimmer",),
            text_names={"model.": "model.language_model."},
            encoder_names={"vision_": "model.vision_"},
            biased=("v.pre_ln", "v.post_ln"),
            config={
                "vision.pos_emb_height": _positions,
                "vision.pos_emb_width": _positions,
                "vision.max_position_embeddings": rows("v.position_embd.weight"),
                "vision.patch_temporal": FRAMES,
                "vision.hidden_act": "gelu",
                "projector_hidden_act": "gelu",
                "projector_hidden_size": rows("mm.0.weight"),
                "out_hidden_size": columns("mm.0.weight"),
            },
            tokens={"image_token_id": ("<|patch|>",), "video_token_id": ("<|video|>",)},
            processor="MuseGlimmerProcessor",
            image_processor="MuseGlimmerImageProcessor",
            preprocessor={
                "patch_size": key("vision.patch_size"),
                "temporal_patch_size": FRAMES,
                "merge_size": key("vision.spatial_merge_size"),
            },
        ),
    ),
)
