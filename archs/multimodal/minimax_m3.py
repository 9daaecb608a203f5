"""MiniMax M3: CLIP's layers on patches of two frames, whose heads rotate in three dimensions, and two nets with a
merging of squares of patches between them.
"""

from typing import Any

import numpy as np

from quants import FormatError

from ..encoder import CLIP_VISION, VISION, Encoder, always, at, maybe
from ..spec import Config, Index, Target, TensorMap
from ..transforms import frame, reordered
from ..wrapper import Files, Wrapper, columns, key, rows

WIDTH = 80  # of a head; programs know the axes' shares of no other width


def _by_axis(rows: int, config: Config) -> Index:
    """Return rows of q and k so that both halves of each axis (frames, rows, columns) are adjacent."""
    heads = int(config["vision"]["num_attention_heads"])
    if rows != heads * WIDTH:
        raise FormatError(f"{rows} rows; {heads} heads of {WIDTH} each were expected")
    half = WIDTH // 3 // 2  # pairs of an axis
    axes = [np.arange(first, first + half) + pair * 3 * half for first in (0, half, 2 * half) for pair in (0, 1)]
    order = np.concatenate([*axes, np.arange(6 * half, WIDTH)])
    index: Index = (np.arange(heads)[:, None] * WIDTH + order).reshape(-1)
    return index


def _merge_size(config: Config) -> int:
    settings = config["vision"].get("img_token_compression_config")
    return int(settings.get("spatial_merge_size") or 2) if isinstance(settings, dict) else 2


def _compression(files: Files) -> dict[str, Any]:
    return {
        "image_token_compression_method": "patch_merge",
        "spatial_merge_size": MERGED(files),
        "temporal_patch_size": 2,
    }


MERGED = key("vision.spatial_merge_size", 2)
ROTATED = reordered(_by_axis)
LAYER: dict[str, Target] = {
    **CLIP_VISION,
    "encoder.layers.{i}.self_attn.q_proj": TensorMap("v.blk.{i}.attn_q", ROTATED),
    "encoder.layers.{i}.self_attn.k_proj": TensorMap("v.blk.{i}.attn_k", ROTATED),
    "embeddings.patch_embedding.weight": (
        TensorMap("v.patch_embd.weight", frame(0)),
        TensorMap("v.patch_embd.weight.1", frame(1)),
    ),
    "pre_layrnorm": "v.pre_ln",
}

MINIMAX_M3 = Encoder(
    hf_classes=("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForConditionalGeneration"),
    metadata={
        **VISION,
        "projector_type": always("minimax_m3"),
        "use_gelu": always(True),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-5),
        "vision.spatial_merge_size": _merge_size,
    },
    defaults={
        "vision": {
            "hidden_size": 1280,
            "intermediate_size": 5120,
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            "image_size": 2016,
            "patch_size": 14,
        }
    },
    tensors={
        **at("vision_tower.vision_model.", "", LAYER),
        "multi_modal_projector.linear_1": "mm.1",
        "multi_modal_projector.linear_2": "mm.2",
        "patch_merge_mlp.linear_1": "mm.merger.fc1",
        "patch_merge_mlp.linear_2": "mm.merger.fc2",
    },
    wrappers=(
        Wrapper(
            "MiniMaxM3SparseForConditionalGeneration",
            "minimax_m3_vl",
            texts=("minimax-m3",),
            text_names={"": "language_model."},
            unused=("*.position_embedding", "*.post_layernorm"),
            biased=("v.pre_ln", "mm.1", "mm.2", "mm.merger.fc1", "mm.merger.fc2"),
            config={
                "vision.num_channels": columns("v.patch_embd.weight"),
                "vision.temporal_patch_size": 2,
                "vision.hidden_act": "gelu",
                "projector_hidden_size": rows("mm.1.weight"),
                "vision.spatial_merge_size": MERGED,
                "vision.img_token_compression_config": _compression,
            },
            tokens={"image_token_index": ("]<]image[>[",), "video_token_index": ("]<]video[>[",)},
            processor="MiniMaxM3VLProcessor",
            image_processor="MiniMaxM3VLImageProcessor",
            preprocessor={"patch_size": key("vision.patch_size"), "temporal_patch_size": 2, "merge_size": MERGED},
        ),
    ),
)
