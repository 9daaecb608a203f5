"""Kimi-VL: MoonViT, with fused q/k/v and positions that are interpolated to the image, patches of a square
concatenated, a net of two matrices. Kimi K2.5's and GLM-5V's keeps q/k/v fused and has positions in time, too.
"""

import math
from typing import Any

import numpy as np

from quants import FormatError, Tensor
from quants.errors import ModelError

from ..encoder import VISION, Encoder, always, at, maybe, side
from ..spec import Computed, Config, Index, Target, TensorMap
from ..transforms import Invertible, part, reordered, reshape
from ..wrapper import Files, Wrapper, key

LAYER: dict[str, Target] = {
    "norm0": "ln1",
    "norm1": "ln2",
    "wo": "attn_out",
    "mlp.fc0": "ffn_up",
    "mlp.fc1": "ffn_down",
    "wqkv": tuple(TensorMap(f"attn_{name}", part(i, 3)) for i, name in enumerate("qkv")),
}


def _one_after_the_other(tensor: Tensor, config: Config) -> Tensor:
    """Return positions of a grid, (rows, columns, width), as a matrix."""
    return reshape(tensor, (tensor.rows, tensor.width))


def _as_grid(tensor: Tensor, config: Config) -> Tensor:
    """Return the matrix as a grid with as many rows as columns: the inverse."""
    side = int(config["vision"]["init_pos_emb_height"])
    return reshape(tensor, (side, side, tensor.width))


def _grid_side(files: Files) -> int:
    count = files.shape("v.position_embd.weight")[0]
    side = math.isqrt(count)
    if side * side != count:
        raise ModelError(f"v.position_embd.weight has {count} positions; as many rows as columns were expected")
    return side


TOKENS = {
    "media_placeholder_token_id": ("<|media_pad|>",),
    "image_token_id": ("<|media_pad|>",),
    "vision_start_token_id": ("<|media_start|>", "<|media_begin|>"),
    "vision_end_token_id": ("<|media_end|>",),
}
BIASED = ("v.patch_embd", "v.post_ln", "mm.1", "mm.2", "mm.input_norm")

KIMI_VL = Encoder(
    hf_classes=("KimiVLForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": always(64 * 14),  # of any size; programs want one
        "projector_type": always("kimivl"),
        "use_gelu": always(True),
        "vision.projector.scale_factor": always(2),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-5),
    },
    tensors={
        **at("vision_tower.encoder.blocks.{i}.", "v.blk.{i}.", LAYER),
        "vision_tower.patch_embed.proj": "v.patch_embd",
        "vision_tower.encoder.final_layernorm": "v.post_ln",
        "vision_tower.patch_embed.pos_emb.weight": TensorMap(
            "v.position_embd.weight", Invertible(_one_after_the_other, _as_grid)
        ),
        "multi_modal_projector.pre_norm": "mm.input_norm",
        "multi_modal_projector.linear_1": "mm.1",
        "multi_modal_projector.linear_2": "mm.2",
    },
    wrappers=(
        Wrapper(
            "KimiVLForConditionalGeneration",
            "kimi_vl",
            texts=("deepseek2",),
            text_names={"": "language_model."},
            biased=BIASED,
            config={
                "text.model_type": "deepseek_v3",
                "vision.model_type": "moonvit",
                "vision.merge_kernel_size": [2, 2],
                "vision.init_pos_emb_height": _grid_side,
                "vision.init_pos_emb_width": _grid_side,
            },
            tokens={"media_placeholder_token_id": TOKENS["media_placeholder_token_id"]},
            processor="KimiVLProcessor",
            image_processor="KimiVLImageProcessor",
            preprocessor={"patch_size": key("vision.patch_size"), "merge_kernel_size": [2, 2]},
        ),
    ),
)


def _by_axis(rows: int, config: Config) -> Index:
    """Return rows of q and k so that the pairs that rotate by rows of the image come before those by columns."""
    third, heads = rows // 3, int(config["vision"]["vt_num_attention_heads"])
    if rows % (12 * heads):
        raise FormatError(f"{rows} rows; {heads} heads don't divide them into q, k and v of pairs by two axes")
    order = np.arange(third).reshape(heads, -1, 2, 2).transpose(0, 2, 1, 3).reshape(-1)
    return np.concatenate([order, third + order, np.arange(2 * third, rows)])


PATCH = side("vision.patch_size")


def _image_size(config: Config) -> int:
    return int(config["vision"].get("init_pos_emb_height", 64)) * int(PATCH(config))


def _pixels(patches: Computed) -> Computed:
    return lambda config: int(patches(config)) * int(PATCH(config)) ** 2


def _limit(files: Files) -> int:
    """Return the maximum number of patches."""
    return int(files.keys["vision.image_max_pixels"]) // int(files.keys["vision.patch_size"]) ** 2


def _merged(files: Files) -> list[int]:
    return [int(files.keys["vision.projector.scale_factor"])] * 2


def _settings(files: Files) -> dict[str, Any]:
    """Return the image settings, where the published code reads them."""
    return {
        **{name: list(map(float, files.keys[f"vision.{name}"])) for name in ("image_mean", "image_std")},
        "patch_size": int(files.keys["vision.patch_size"]),
        "merge_kernel_size": _merged(files)[0],
        "in_patch_limit": _limit(files),
    }


# Keys of transformers' class, in addition to those of the published code → the encoders' file's.
OF_TRANSFORMERS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "mm_hidden_size": "embedding_length",
    **{f"pos_emb_{side}": f"pos_emb_{side}" for side in ("height", "width", "time")},
}


KIMI_K25 = Encoder(
    hf_classes=("KimiK25ForConditionalGeneration", "Glm5vForConditionalGeneration"),
    metadata={
        **VISION,
        "vision.image_size": _image_size,
        "vision.embedding_length": "vision.vt_hidden_size",
        "vision.feed_forward_length": "vision.vt_intermediate_size",
        "vision.block_count": "vision.vt_num_hidden_layers",
        "vision.attention.head_count": "vision.vt_num_attention_heads",
        "projector_type": always("kimik25"),
        "/vision.pos_emb_height": maybe("vision.init_pos_emb_height", 64),
        "/vision.pos_emb_width": maybe("vision.init_pos_emb_width", 64),
        "/vision.pos_emb_time": maybe("vision.init_pos_emb_time", 4),
        "use_gelu": lambda config: config["vision"].get("projector_hidden_act", "gelu") == "gelu",
        "vision.attention.layer_norm_epsilon": maybe("vision.projector_ln_eps", 1e-5),
        "vision.projector.scale_factor": lambda config: config["vision"].get("merge_kernel_size", [2])[0],
        "vision.image_min_pixels": _pixels(always(8)),
        "vision.image_max_pixels": _pixels(maybe("preprocessor.in_patch_limit", 16384)),
    },
    defaults={"vision": {"patch_size": 14, "vt_num_attention_heads": 16}},
    tensors={
        **KIMI_VL.tensors,
        "vision_tower.encoder.blocks.{i}.wqkv": TensorMap("v.blk.{i}.attn_qkv", reordered(_by_axis)),
        "vision_tower.patch_embed.pos_emb.weight": "v.position_embd.weight",
        "mm_projector.pre_norm": "mm.input_norm",
        "mm_projector.linear_1": "mm.1",
        "mm_projector.linear_2": "mm.2",
    },
    spellings={"mm_projector.proj.0.": "mm_projector.linear_1.", "mm_projector.proj.2.": "mm_projector.linear_2."},
    ignored={"vision_tower.patch_embed.pos_emb.time_weight": "waves that the model's code makes itself"},
    wrappers=(
        Wrapper(
            "KimiK25ForConditionalGeneration",
            "kimi_k25",
            texts=("deepseek2",),
            text_names={"": "language_model."},
            encoder_names={f"mm_projector.linear_{i + 1}.": f"mm_projector.proj.{2 * i}." for i in range(2)},
            unused=("multi_modal_projector.*",),
            biased=BIASED,
            config={
                "text.model_type": "deepseek_v3",
                **{f"vision.{name}": key(f"vision.{own}") for name, own in OF_TRANSFORMERS.items()},
                "vision.merge_kernel_size": _merged,
                "vision.projector_hidden_act": lambda files: "gelu" if files.keys.get("use_gelu") else None,
                "projection_hidden_size": key("vision.embedding_length"),
                "projection_layer_norm_eps": key("vision.attention.layer_norm_epsilon"),
            },
            tokens=TOKENS,
            processor="Kimi_K25Processor",
            image_processor="Kimi_K25ImageProcessor",
            preprocessor={
                "patch_size": key("vision.patch_size"),
                "merge_size": lambda files: _merged(files)[0],
                "max_patches": _limit,
                "in_patch_limit": _limit,
                "media_proc_cfg": _settings,
            },
        ),
    ),
)
