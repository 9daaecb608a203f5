"""DeepSeek-OCR and Unlimited-OCR: SAM's encoder, whose output is merged by convolutions, before CLIP's, and one matrix
after both. DeepSeek-OCR 2 has a Qwen2 in CLIP's place, with learned queries for images of two sizes.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from ..config import required
from ..encoder import GATED_NET, LLAMA_ATTENTION, VISION, Encoder, always, at, maybe, side
from ..hparams.config_keys import LAYERS, SIZE
from ..hparams.encoder_keys import SIDE
from ..spec import Computed, Config, Target, TensorMap
from ..transforms import Invertible, flat_row
from ..typed_json import Fields, FieldType
from ..wrapper import Files, Wrapper, columns, rows

TOKENS, MAX_TILES = 256, 32  # defaults of an image; of Unlimited-OCR
USUAL = 4  # default of patches a side merged into one embedding
SAM_LAYER: dict[str, Target] = {
    "norm1": "pre_ln",
    "norm2": "post_ln",
    "attn.qkv": "attn.qkv",
    "attn.proj": "attn.out",
    "attn.rel_pos_h": "attn.pos_h.weight",
    "attn.rel_pos_w": "attn.pos_w.weight",
    "mlp.lin1": "mlp.lin1",
    "mlp.lin2": "mlp.lin2",
}


AS_ROW = Invertible(flat_row.invert, flat_row.forward)


SAM: dict[str, Target] = {
    **at(
        "sam_model.",
        "v.sam.",
        {
            **at("blocks.{i}.", "blk.{i}.", SAM_LAYER),
            "pos_embed": "pos_embd.weight",
            "patch_embed.proj": "patch_embd",
            "neck.{i}": "neck.{i}",
            "net_2": "net_2",
            "net_3": "net_3",
        },
    ),
    "projector.layers": "mm.model.fc",
    "image_newline": "v.image_newline",
    "view_seperator": TensorMap("v.view_seperator", AS_ROW),
}
CLIP: dict[str, Target] = at(
    "vision_model.",
    "v.",
    {
        **at(
            "transformer.layers.{i}.",
            "blk.{i}.",
            {
                "layer_norm1": "ln1",
                "layer_norm2": "ln2",
                "self_attn.qkv_proj": "attn_qkv",
                "self_attn.out_proj": "attn_out",
                "mlp.fc1": "ffn_up",
                "mlp.fc2": "ffn_down",
            },
        ),
        "embeddings.class_embedding": "class_embd",
        "embeddings.patch_embedding": "patch_embd",
        "embeddings.position_embedding": "position_embd",
        "pre_layrnorm": "pre_ln",
    },
)
QWEN2: dict[str, Target] = at(
    "qwen2_model.",
    "v.",
    {
        **at("model.model.layers.{i}.", "blk.{i}.", {**LLAMA_ATTENTION, **GATED_NET}),
        "model.model.norm": "post_ln",
        "query_768": "resample_query_768",
        "query_1024": "resample_query_1024",
    },
)
FIXED = dict.fromkeys(
    ("v.patch_embd.weight", "v.sam.pos_embd.weight", "v.sam.*.pos_[hw].weight", "v.sam.neck.*", "v.sam.net_*"), "F32"
)
INNER = {"heads": SIZE, "image_size": SIDE, "layers": LAYERS, "patch_size": SIDE, "width": SIZE, "dim": SIZE}
KEYS: dict[str, FieldType] = {
    "width": Fields({name: Fields(INNER) for name in ("clip-l-14-224", "sam_vit_b", "qwen2-0-5b")})
}
OF_SAM, OF_CLIP, OF_QWEN2 = (f"vision.width.{name}" for name in ("sam_vit_b", "clip-l-14-224", "qwen2-0-5b"))


def _keys(projector: str, tiles: int, size: str, patch: str) -> Mapping[str, str | Computed]:
    """Return the keys common to all. tiles: maximum tiles of an image, from the model's own code."""

    def averaged(config: Config) -> int | None:
        tokens = math.isqrt(int(config["preprocessor"].get("image_seq_length") or TOKENS))
        factor = int(side(size)(config)) // int(side(patch)(config)) // max(tokens, 1)
        return factor if factor not in (0, USUAL) else None

    return {
        "projector_type": always(projector),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-6),
        "use_gelu": always(True),
        "vision.projector.scale_factor": averaged,
        "vision.window_size": maybe("vision.window_size", 14),
        "vision.preproc_min_tiles": always(2),
        "vision.preproc_max_tiles": always(tiles),
        "vision.sam.block_count": f"{OF_SAM}.layers",
        "vision.sam.embedding_length": f"{OF_SAM}.width",
        "vision.sam.head_count": f"{OF_SAM}.heads",
    }


def _seeing_all(files: Files) -> list[int]:
    """Return SAM's layers without a window: their position tables cover more distances."""
    distances = 2 * int(files.keys["vision.window_size"]) - 1
    layers = range(int(files.keys["vision.sam.block_count"]))
    return [i for i in layers if files.shape(f"v.sam.blk.{i}.attn.pos_h.weight")[:1] != (distances,)]


def _sam_side(files: Files) -> int:
    """Return the side of SAM's images, in pixels."""
    return columns("v.sam.pos_embd.weight")(files) * files.shape("v.sam.patch_embd.weight")[-1]


def _tokens(files: Files) -> int | None:
    """Return the tokens of an image; nothing for the default."""
    side = int(files.keys["vision.image_size"]) // int(files.keys["vision.patch_size"])
    factor = files.keys.get("vision.projector.scale_factor")
    if factor is None and side // math.isqrt(TOKENS) in (0, USUAL):
        return None
    return int(side // int(factor or USUAL)) ** 2


SAM_CONFIG = {
    "model_type": "vision",
    "model_name": "deeplip_b_l",
    "mlp_ratio": 3.7362,
    "width.sam_vit_b.downsample_channels": lambda files: [rows(f"v.sam.net_{i}.weight")(files) for i in (2, 3)],
    "width.sam_vit_b.global_attn_indexes": _seeing_all,
}
OF_TEXT = {  # no latents, and the experts with the highest scores
    "model_type": "deepseek_vl_v2",
    "use_mla": False,
    "topk_method": "greedy",
    "kv_lora_rank": None,
    "q_lora_rank": None,
    "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0,
    "v_head_dim": 0,
    "rm_head": False,
    "lm_head": True,
    "architectures": ["DeepseekV2ForCausalLM"],
}
WRAPPER = Wrapper(
    "DeepseekOCRForCausalLM",
    "deepseek_vl_v2",
    texts=("deepseek2-ocr",),
    text_in=("", "language_config"),
    fits=lambda files: files.keys.get("vision.preproc_max_tiles") != MAX_TILES,
    encoder_names={"": "model."},
    needed=lambda files: [f"v.sam.neck.{i}" for i in range(4)],
    biased=("v.sam.patch_embd", "v.sam.neck.1", "v.sam.neck.3", "v.pre_ln", "mm.model.fc"),
    positions=1,
    config={
        **{f"text.{name}": value for name, value in OF_TEXT.items()},
        **{f"vision.{name}": value for name, value in SAM_CONFIG.items()},
        "vision.image_size": _sam_side,
        "projector_config": lambda files: {
            "model_type": "mlp_projector",
            "projector_type": "linear",
            "input_dim": columns("mm.model.fc.weight")(files),
            "n_embed": files.width,
        },
        "candidate_resolutions": lambda files: [[_sam_side(files)] * 2],
        "global_view_pos": "head",
        "tile_tag": "2D",
    },
    tokens={"image_token_id": ("<image>",)},
    processor="DeepseekVLV2Processor",
    preprocessor={
        "candidate_resolutions": lambda files: [[_sam_side(files)] * 2],
        "image_token": "<image>",
        "normalize": True,
        "patch_size": lambda files: files.shape("v.sam.patch_embd.weight")[-1],
        "downsample_ratio": 4,
        "image_seq_length": _tokens,
    },
)


def _with_clip(wrapper: Wrapper, tiles: int) -> Encoder:
    return Encoder(
        hf_classes=(wrapper.hf_class,),
        metadata={
            **VISION,
            "vision.image_size": side(f"{OF_CLIP}.image_size"),
            "vision.patch_size": side(f"{OF_CLIP}.patch_size"),
            "vision.embedding_length": f"{OF_CLIP}.width",
            "vision.feed_forward_length": lambda config: 4 * int(required(config, f"{OF_CLIP}.heads")),  # as llama.cpp
            "vision.block_count": f"{OF_CLIP}.layers",
            "vision.attention.head_count": f"{OF_CLIP}.heads",
            **_keys("deepseekocr", tiles, f"{OF_CLIP}.image_size", f"{OF_CLIP}.patch_size"),
        },
        tensors={**SAM, **CLIP},
        fixed=FIXED,
        keys=KEYS,
        wrappers=(wrapper,),
    )


DEEPSEEK_OCR = _with_clip(WRAPPER, 9)
UNLIMITED_OCR = _with_clip(
    replace(
        WRAPPER,
        hf_class="UnlimitedOCRForCausalLM",
        model_type="unlimited-ocr",
        fits=lambda files: files.keys.get("vision.preproc_max_tiles") == MAX_TILES,
    ),
    MAX_TILES,
)
DEEPSEEK_OCR2 = Encoder(
    hf_classes=("DeepseekOCR2ForCausalLM",),
    metadata={
        **VISION,
        "vision.embedding_length": f"{OF_QWEN2}.dim",
        "vision.block_count": "vision.layers",
        **_keys("deepseekocr2", 6, "vision.image_size", "vision.patch_size"),
        "vision.attention.head_count_kv": always(2),
    },
    defaults={"vision": {"patch_size": 16, "intermediate_size": 4864, "num_attention_heads": 14, "layers": 24}},
    tensors={**SAM, **QWEN2},
    fixed=FIXED,
    keys=KEYS,
    wrappers=(
        replace(
            WRAPPER,
            hf_class="DeepseekOCR2ForCausalLM",
            fits=None,
            optional=("v.image_newline",),
            positions=None,
            biased=("v.sam.patch_embd", "v.sam.neck.1", "v.sam.neck.3", "mm.model.fc"),
            config={name: value for name, value in WRAPPER.config.items() if name != "vision.image_size"},
        ),
    ),
)
