"""Qwen2-VL to Qwen4-Exp: patches of two frames, rotation in two dimensions, squares of patches merged by a net.
Qwen2.5-VL has gated nets and windows; EXAONE 4.5 also fewer keys than queries; Qwen3-VL learned positions, fused q/k/v,
and "deepstack": nets for the outputs of some layers, which are added in the text model's first layers.
"""

import math
from dataclasses import replace

from quants.errors import ModelError

from ..config import other_than
from ..encoder import GATED_NET, VISION, Encoder, always, at, maybe, side
from ..spec import Config, Target, TensorMap, Tensors
from ..transforms import frame, part
from ..wrapper import Files, Wrapper

PATCHES: dict[str, Target] = {
    "visual.patch_embed.proj.weight": (
        TensorMap("v.patch_embd.weight", frame(0)),
        TensorMap("v.patch_embd.weight.1", frame(1)),
    ),
    "visual.patch_embed.proj.bias": "v.patch_embd.bias",
}
LAYER: dict[str, Target] = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.proj": "attn_out",
    "attn.qkv": tuple(TensorMap(f"attn_{name}", part(i, 3)) for i, name in enumerate("qkv")),
    "attn.q": "attn_q",
    "attn.k": "attn_k",
    "attn.v": "attn_v",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    **GATED_NET,
}


WINDOW = 112  # pixels a side; hardcoded by programs


def _window_pattern(config: Config) -> int:
    """Return the period of layers that attend to all patches. Raises ModelError if they are irregular."""
    full = config["vision"].get("fullatt_block_indexes") or []
    period = full[0] + 1 if full else 0
    if not full or full != [period * (i + 1) - 1 for i in range(len(full))]:
        raise ModelError(f"config.json has fullatt_block_indexes {full}; files know only every so many-th layer")
    return period


def _full_layers(files: Files) -> list[int]:
    period = int(files.keys["vision.n_wa_pattern"])
    return list(range(period - 1, int(files.keys["vision.block_count"]), period))


def _merging(files: Files) -> int:
    """Return the patches a side merged into one embedding, by their concatenated width."""
    return math.isqrt(files.shape("mm.0.weight")[1] // files.shape("v.patch_embd.weight")[0])


def channels(files: Files) -> int:
    return files.shape("v.patch_embd.weight")[1]


TOKENS = {
    "image_token_id": ("<|image_pad|>",),
    "video_token_id": ("<|video_pad|>",),
    "vision_start_token_id": ("<|vision_start|>",),
    "vision_end_token_id": ("<|vision_end|>",),
}
PREPROCESSOR = {
    "patch_size": lambda files: files.keys["vision.patch_size"],
    "temporal_patch_size": 2,
    "merge_size": _merging,
    "min_pixels": lambda files: files.keys.get("vision.image_min_pixels", 56 * 56),
    "max_pixels": lambda files: files.keys.get("vision.image_max_pixels", 12_845_056),
}
QWEN2_WRAPPER = Wrapper(
    "Qwen2VLForConditionalGeneration",
    "qwen2_vl",
    texts=("qwen2vl",),
    unused=("*.mlp.*_proj", "*.attn.[qkv]"),
    needed=lambda files: ("mm.0", "mm.2"),
    biased=("v.post_ln", "mm.0", "mm.2"),
    config={
        "vision.mlp_ratio": lambda files: files.shape("v.blk.0.ffn_up.weight")[0] / files.shape("v.post_ln.weight")[0],
        "vision.hidden_size": lambda files: files.keys["vision.projection_dim"],
        "vision.in_channels": channels,
        "vision.spatial_merge_size": _merging,
        "vision.temporal_patch_size": 2,
    },
    tokens=TOKENS,
    processor="Qwen2VLProcessor",
    image_processor="Qwen2VLImageProcessor",
    preprocessor=PREPROCESSOR,
)
QWEN25_WRAPPER = Wrapper(
    "Qwen2_5_VLForConditionalGeneration",
    "qwen2_5_vl",
    texts=("qwen2vl",),
    unused=("*.attn.[qkv]",),
    needed=lambda files: ("mm.0", "mm.2"),
    biased=("mm.0", "mm.2"),
    config={
        "vision.fullatt_block_indexes": _full_layers,
        "vision.window_size": WINDOW,
        "vision.in_channels": channels,
        "vision.spatial_merge_size": _merging,
        "vision.temporal_patch_size": 2,
        "vision.tokens_per_second": 2,
        "vision.out_hidden_size": lambda files: files.keys["vision.projection_dim"],
    },
    tokens=TOKENS,
    processor="Qwen2_5_VLProcessor",
    image_processor="Qwen2VLImageProcessor",
    preprocessor=PREPROCESSOR,
)
QWEN2_VL = Encoder(
    hf_classes=("Qwen2VLForConditionalGeneration", "Qwen2VLModel"),
    metadata={
        **VISION,
        "vision.image_size": maybe("vision.image_size", 560),
        "vision.embedding_length": "vision.embed_dim",
        "vision.feed_forward_length": "vision.hidden_size",
        "projector_type": always("qwen2vl_merger"),
        "vision.attention.layer_norm_epsilon": maybe("rms_norm_eps", 1e-6),
    },
    tensors={
        **PATCHES,
        **at("visual.blocks.{i}.", "v.blk.{i}.", LAYER),
        "visual.merger.ln_q": "v.post_ln",
        "visual.merger.mlp.{i}": "mm.{i}",
    },
    wrappers=(QWEN2_WRAPPER,),
)
QWEN25_VL = Encoder(
    hf_classes=("Qwen2_5_VLForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": maybe("vision.image_size", 560),
        "projector_type": always("qwen2.5vl_merger"),
        "use_silu": always(True),
        "vision.n_wa_pattern": _window_pattern,
        "vision.attention.layer_norm_epsilon": QWEN2_VL.metadata["vision.attention.layer_norm_epsilon"],
    },
    tensors=QWEN2_VL.tensors,
    refused={"vision.window_size": other_than(WINDOW)},
    wrappers=(QWEN25_WRAPPER,),
)
EXAONE = Encoder(
    hf_classes=("Exaone4_5_ForConditionalGeneration",),
    metadata={
        **VISION,
        "vision.image_size": QWEN2_VL.metadata["vision.image_size"],
        "projector_type": always("exaone4_5"),
        "use_silu": always(True),
        "vision.image_min_pixels": "preprocessor.min_pixels",
        "vision.image_max_pixels": "preprocessor.max_pixels",
        "vision.attention.head_count_kv": maybe("vision.num_key_value_heads"),
        "vision.attention.layer_norm_epsilon": maybe("vision.rms_norm_eps|rms_norm_eps", 1e-6),
        "vision.window_size": maybe("vision.window_size"),
        "vision.n_wa_pattern": _window_pattern,
    },
    defaults={
        "vision": {
            "depth": 32,
            "hidden_size": 3584,
            "intermediate_size": 3420,
            "num_heads": 16,
            "num_key_value_heads": 8,
            "patch_size": 14,
            "window_size": WINDOW,
            "fullatt_block_indexes": [7, 15, 23, 31],
        }
    },
    tensors={**QWEN2_VL.tensors, **at("visual.blocks.{i}.", "v.blk.{i}.", {"attn.qkv": "attn_qkv"})},
    wrappers=(
        replace(
            QWEN25_WRAPPER,
            hf_class="Exaone4_5_ForConditionalGeneration",
            model_type="exaone4_5",
            texts=("exaone4",),
            text_names={"model.": "model.language_model."},
            encoder_names={"visual.": "model.visual."},
            config={
                path: value
                for path, value in QWEN25_WRAPPER.config.items()
                if path not in ("vision.window_size", "vision.tokens_per_second")
            },
            tokens={"image_token_id": ("<|image_pad|>",), "video_token_id": ("<|video_pad|>",)},
            unused=(),
            processor="Exaone4_5_Processor",
        ),
    ),
)


def _image_size(config: Config) -> int:
    vision = config["vision"]
    positions = vision.get("num_position_embeddings") or 2304
    return vision.get("image_size") or int(math.sqrt(positions) * side("vision.patch_size")(config))


def _deepstack(config: Config) -> list[bool] | None:
    chosen = config["vision"].get("deepstack_visual_indexes") or []
    return [layer in chosen for layer in range(int(config["vision"]["depth"]))] or None


def by_layer(config: Config, tensors: Tensors) -> Tensors:
    """Return Deepstack's nets, stored from 0 on, by their input layers."""
    beginning, layers = "visual.deepstack_merger_list.", config["vision"].get("deepstack_visual_indexes") or []

    def placed(name: str) -> str:
        if not name.startswith(beginning):
            return name
        number, _, rest = name.removeprefix(beginning).partition(".")
        if not number.isdecimal() or int(number) >= len(layers):
            raise ModelError(f"config.json names {len(layers)} layers for deepstack; the checkpoint has {name!r}")
        return f"{beginning}{layers[int(number)]}.{rest}"

    return {placed(name): tensor for name, tensor in tensors.items()}


def in_order(config: Config, tensors: Tensors) -> Tensors:
    """Return Deepstack's nets counted from 0: the inverse of `by_layer`."""
    beginning, layers = "visual.deepstack_merger_list.", config["vision"].get("deepstack_visual_indexes") or []

    def counted(name: str) -> str:
        if not name.startswith(beginning):
            return name
        number, _, rest = name.removeprefix(beginning).partition(".")
        return f"{beginning}{layers.index(int(number))}.{rest}"

    return {counted(name): tensor for name, tensor in tensors.items()}


def _deep_layers(files: Files) -> list[int]:
    return [layer for layer, is_deep in enumerate(files.keys.get("vision.is_deepstack_layers", ())) if is_deep]


QWEN3_WRAPPER = Wrapper(
    "Qwen3VLForConditionalGeneration",
    "qwen3_vl",
    texts=("qwen3vl",),
    text_names={"model.": "model.language_model."},
    encoder_names={"visual.": "model.visual."},
    needed=lambda files: [f"v.deepstack.{layer}.fc1" for layer in _deep_layers(files)],
    biased=("v.patch_embd", "v.post_ln", "mm.0", "mm.2"),
    config={
        "text.rope_parameters.mrope_interleaved": True,
        "vision.deepstack_visual_indexes": _deep_layers,
        "vision.in_channels": channels,
        "vision.num_position_embeddings": lambda files: files.shape("v.position_embd.weight")[0],
        "vision.out_hidden_size": lambda files: files.keys["vision.projection_dim"],
        "vision.temporal_patch_size": 2,
        "vision.spatial_merge_size": _merging,
        "vision.hidden_act": "gelu_pytorch_tanh",
    },
    tokens=TOKENS,
    processor="Qwen3VLProcessor",
    image_processor="Qwen2VLImageProcessorFast",
    preprocessor={
        **{key: value for key, value in PREPROCESSOR.items() if "pixels" not in key},
        "size": {"shortest_edge": 256 * 256, "longest_edge": 4096 * 4096},
    },
)
QWEN3_WRAPPERS = (
    QWEN3_WRAPPER,
    replace(
        QWEN3_WRAPPER, hf_class="Qwen3VLMoeForConditionalGeneration", model_type="qwen3_vl_moe", texts=("qwen3vlmoe",)
    ),
    replace(QWEN3_WRAPPER, hf_class="Qwen3_5ForConditionalGeneration", model_type="qwen3_5", texts=("qwen35",)),
    replace(QWEN3_WRAPPER, hf_class="Qwen4ExpForConditionalGeneration", model_type="qwen4_exp", texts=("qwen4exp",)),
    replace(
        QWEN3_WRAPPER, hf_class="Qwen3_5MoeForConditionalGeneration", model_type="qwen3_5_moe", texts=("qwen35moe",)
    ),
)
QWEN3_VL = Encoder(
    hf_classes=(
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
        "OpenJevModel",
        "ClefModel",
    ),
    metadata={
        **VISION,
        "vision.image_size": _image_size,
        "projector_type": always("qwen3vl_merger"),
        "use_gelu": always(True),
        "vision.spatial_merge_size": maybe("vision.spatial_merge_size"),
        "vision.attention.layer_norm_epsilon": maybe("text_config.rms_norm_eps", 1e-6),
        "vision.is_deepstack_layers": _deepstack,
    },
    tensors={
        **PATCHES,
        **at(
            "visual.blocks.{i}.",
            "v.blk.{i}.",
            {**LAYER, "attn.qkv": "attn_qkv", "mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down"},
        ),
        **at(
            "visual.deepstack_merger_list.{i}.",
            "v.deepstack.{i}.",
            {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"},
        ),
        "visual.merger.norm": "v.post_ln",
        "visual.merger.linear_fc1": "mm.0",
        "visual.merger.linear_fc2": "mm.2",
        "visual.pos_embed": "v.position_embd",
    },
    prepare=by_layer,
    prepare_export=in_order,
    wrappers=QWEN3_WRAPPERS,
)
