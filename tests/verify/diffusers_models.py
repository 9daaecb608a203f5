"""Small models of diffusers' classes with random weights, and diffusers' own reading of published names.

Sizes that a converter of diffusers takes as constants of one published model are replaced by those of the small model
in its compiled code; all else is diffusers' own.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from archs.diffusion import from_diffusers
from quants import Tensor, format_named, from_array


@dataclass(frozen=True)
class SmallModel:
    """A class of diffusers with the options of a small model.

    layout: "module.NAME" in archs.diffusion.from_diffusers. converter: diffusers' function from published names. sizes:
    constants in it → what they are in the small model. unread: beginnings of published names as the converter leaves
    them → of diffusers' names. prefix: what the converter expects before names. keeps: it asks for a name that it has
    removed. without: published names that it expects, though the model lacks them → what it makes of them.
    """

    cls: str
    layout: str
    converter: str
    config: Mapping[str, Any]
    sizes: Mapping[Any, Any] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    keeps: bool = False
    without: Mapping[str, str] = field(default_factory=dict)


FLUX = {
    "in_channels": 4,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "axes_dims_rope": (4, 4, 8),
}
WAN = {
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 16,
    "freq_dim": 32,
    "ffn_dim": 32,
    "num_layers": 2,
}
WAN_IMAGES = WAN | {"image_dim": 8, "added_kv_proj_dim": 24}
HUNYUAN = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 10,
    "num_layers": 2,
    "num_single_layers": 2,
    "num_refiner_layers": 2,
    "rope_axes_dim": (2, 4, 4),
    "text_embed_dim": 16,
    "pooled_projection_dim": 8,
}
UNET = {
    "block_out_channels": (32, 64),
    "layers_per_block": 2,
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "norm_num_groups": 8,
    "cross_attention_dim": 24,
    "attention_head_dim": 8,
}
FOUR_LEVELS = UNET | {
    "block_out_channels": (16, 32, 32, 32),
    "down_block_types": (*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"),
    "up_block_types": ("UpBlock2D", *["CrossAttnUpBlock2D"] * 3),
}
POOLED_TEXT = {  # which the converter for Flux.1 expects
    f"vector_in.{side}_layer.{parameter}": f"time_text_embed.text_embedder.linear_{number}.{parameter}"
    for number, side in ((1, "in"), (2, "out"))
    for parameter in ("weight", "bias")
}
BYT5 = {  # as the converter for HunyuanVideo leaves them
    "byt5_in.layernorm.": "context_embedder_2.norm.",
    "byt5_in.net.0.proj.": "context_embedder_2.linear_1.",
    "byt5_in.net.2.": "context_embedder_2.linear_2.",
    "byt5_in.fc3.": "context_embedder_2.linear_3.",
}
SMALL = {
    "flux": SmallModel(
        "FluxTransformer2DModel",
        "flux.FLUX",
        "convert_flux_transformer_checkpoint_to_diffusers",
        FLUX | {"pooled_projection_dim": 16, "guidance_embeds": True},
        {3072: 32},
    ),
    "flux-schnell": SmallModel(
        "FluxTransformer2DModel",
        "flux.FLUX",
        "convert_flux_transformer_checkpoint_to_diffusers",
        FLUX | {"pooled_projection_dim": 16},
        {3072: 32},
    ),
    "longcat-image": SmallModel(
        "LongCatImageTransformer2DModel",
        "flux.LONGCAT_IMAGE",
        "convert_flux_transformer_checkpoint_to_diffusers",
        FLUX | {"pooled_projection_dim": 16},
        {3072: 32},
        unread={"time_text_embed.timestep_embedder.": "time_embed.timestep_embedder."},
        without=POOLED_TEXT,
    ),
    "chroma": SmallModel(
        "ChromaTransformer2DModel",
        "flux.CHROMA",
        "convert_chroma_transformer_checkpoint_to_diffusers",
        FLUX | {"approximator_num_channels": 8, "approximator_hidden_dim": 16, "approximator_layers": 2},
        {3072: 32},
    ),
    "flux2": SmallModel(
        "Flux2Transformer2DModel",
        "flux.FLUX_2",
        "convert_flux2_transformer_checkpoint_to_diffusers",
        FLUX | {"timestep_guidance_channels": 16, "axes_dims_rope": (4, 4, 4, 4)},
    ),
    "flux2-klein": SmallModel(
        "Flux2Transformer2DModel",
        "flux.FLUX_2",
        "convert_flux2_transformer_checkpoint_to_diffusers",
        FLUX | {"timestep_guidance_channels": 16, "axes_dims_rope": (4, 4, 4, 4), "guidance_embeds": False},
    ),
    "sd3": SmallModel(
        "SD3Transformer2DModel",
        "sd3.SD3",
        "convert_sd3_transformer_checkpoint_to_diffusers",
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "joint_attention_dim": 24,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 16,
            "pos_embed_max_size": 6,
        },
    ),
    "sd3.5-medium": SmallModel(
        "SD3Transformer2DModel",
        "sd3.SD3",
        "convert_sd3_transformer_checkpoint_to_diffusers",
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 3,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "joint_attention_dim": 24,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 16,
            "pos_embed_max_size": 6,
            "dual_attention_layers": (0, 1),
            "qk_norm": "rms_norm",
        },
    ),
    "sd1": SmallModel(
        "UNet2DConditionModel", "unet.SD_1", "convert_ldm_unet_checkpoint", FOUR_LEVELS, prefix="model.diffusion_model."
    ),
    "sdxl": SmallModel(
        "UNet2DConditionModel",
        "unet.SDXL",
        "convert_ldm_unet_checkpoint",
        UNET
        | {
            "block_out_channels": (32, 64, 64),
            "down_block_types": ("DownBlock2D", *["CrossAttnDownBlock2D"] * 2),
            "up_block_types": (*["CrossAttnUpBlock2D"] * 2, "UpBlock2D"),
            "transformer_layers_per_block": (1, 2, 3),
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 80,
            "attention_head_dim": (2, 4, 8),
        },
        prefix="model.diffusion_model.",
    ),
    "sdxl-refiner": SmallModel(
        "UNet2DConditionModel",
        "unet.SDXL_REFINER",
        "convert_ldm_unet_checkpoint",
        FOUR_LEVELS
        | {
            "down_block_types": ("DownBlock2D", *["CrossAttnDownBlock2D"] * 2, "DownBlock2D"),
            "up_block_types": ("UpBlock2D", *["CrossAttnUpBlock2D"] * 2, "UpBlock2D"),
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 8,
            "projection_class_embeddings_input_dim": 80,
        },
        prefix="model.diffusion_model.",
    ),
    "sd2-unclip": SmallModel(
        "UNet2DConditionModel",
        "unet.SD_UNCLIP",
        "convert_ldm_unet_checkpoint",
        FOUR_LEVELS
        | {
            "class_embed_type": "projection",
            "projection_class_embeddings_input_dim": 80,
            "use_linear_projection": True,
        },
        prefix="model.diffusion_model.",
    ),
    "aura": SmallModel(
        "AuraFlowTransformer2DModel",
        "aura.AURA",
        "convert_auraflow_transformer_checkpoint_to_diffusers",
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "num_mmdit_layers": 4,
            "num_single_dit_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "joint_attention_dim": 24,
            "caption_projection_dim": 32,
            "pos_embed_max_size": 16,
        },
    ),
    "cosmos2": SmallModel(
        "CosmosTransformer3DModel",
        "cosmos.COSMOS",
        "convert_cosmos_transformer_checkpoint_to_diffusers",
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "num_layers": 2,
            "mlp_ratio": 2,
            "text_embed_dim": 32,
            "adaln_lora_dim": 4,
            "max_size": (4, 32, 32),
            "extra_pos_embed_type": None,
        },
        prefix="net.",
    ),
    "cosmos1": SmallModel(
        "CosmosTransformer3DModel",
        "cosmos.COSMOS_1",
        "convert_cosmos_transformer_checkpoint_to_diffusers",
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "num_layers": 2,
            "mlp_ratio": 2,
            "text_embed_dim": 32,
            "adaln_lora_dim": 4,
            "max_size": (4, 32, 32),
        },
        prefix="net.",
        keeps=True,
    ),
    "cosmos2.5": SmallModel(
        "CosmosTransformer3DModel",
        "cosmos.COSMOS",
        "convert_cosmos_transformer_checkpoint_to_diffusers",
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "num_layers": 2,
            "mlp_ratio": 2,
            "text_embed_dim": 32,
            "adaln_lora_dim": 4,
            "max_size": (4, 32, 32),
            "extra_pos_embed_type": None,
            "use_crossattn_projection": True,
            "crossattn_proj_in_channels": 8,
            "encoder_hidden_states_channels": 32,
            "img_context_dim_in": 8,
            "img_context_dim_out": 32,
        },
        prefix="net.",
    ),
    "ltxv": SmallModel(
        "LTXVideoTransformer3DModel",
        "ltx.LTXV",
        "convert_ltx_transformer_checkpoint_to_diffusers",
        {
            "in_channels": 8,
            "out_channels": 8,
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "cross_attention_dim": 32,
            "num_layers": 2,
            "caption_channels": 16,
        },
    ),
    "ltx2": SmallModel(
        "LTX2VideoTransformer3DModel",
        "ltx.LTX_2",
        "convert_ltx2_transformer_to_diffusers",
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "cross_attention_dim": 16,
            "audio_in_channels": 4,
            "audio_out_channels": 4,
            "audio_num_attention_heads": 2,
            "audio_attention_head_dim": 4,
            "audio_cross_attention_dim": 8,
            "num_layers": 2,
            "caption_channels": 16,
        },
    ),
    "ltx2.3": SmallModel(
        "LTX2VideoTransformer3DModel",
        "ltx.LTX_2",
        "convert_ltx2_transformer_to_diffusers",
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "cross_attention_dim": 16,
            "audio_in_channels": 4,
            "audio_out_channels": 4,
            "audio_num_attention_heads": 2,
            "audio_attention_head_dim": 4,
            "audio_cross_attention_dim": 8,
            "num_layers": 2,
            "caption_channels": 16,
            "gated_attn": True,
            "audio_gated_attn": True,
            "cross_attn_mod": True,
            "audio_cross_attn_mod": True,
            "use_prompt_embeddings": False,
        },
        unread={"prompt_adaln_single.": "prompt_adaln.", "audio_prompt_adaln_single.": "audio_prompt_adaln."},
    ),
    "hunyuan-video": SmallModel(
        "HunyuanVideoTransformer3DModel",
        "hunyuan.HUNYUAN_VIDEO",
        "convert_hunyuan_video_transformer_to_diffusers",
        HUNYUAN,
        {3072: 20},
    ),
    "hunyuan-video-i2v": SmallModel(
        "HunyuanVideoTransformer3DModel",
        "hunyuan.HUNYUAN_VIDEO",
        "convert_hunyuan_video_transformer_to_diffusers",
        HUNYUAN | {"guidance_embeds": False, "image_condition_type": "latent_concat"},
        {3072: 20},
    ),
    "hunyuan-video-1.5": SmallModel(
        "HunyuanVideo15Transformer3DModel",
        "hunyuan.HUNYUAN_VIDEO_15",
        "convert_hunyuan_video_transformer_to_diffusers",
        {
            "in_channels": 9,
            "out_channels": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 10,
            "num_layers": 2,
            "text_embed_dim": 16,
            "text_embed_2_dim": 8,
            "image_embed_dim": 12,
            "rope_axes_dim": (2, 4, 4),
            "use_meanflow": True,
        },
        unread={
            **BYT5,
            "time_text_embed.": "time_embed.",
            "time_r_in.mlp.0.": "time_embed.timestep_embedder_r.linear_1.",
            "time_r_in.mlp.2.": "time_embed.timestep_embedder_r.linear_2.",
            "vision_in.proj.0.": "image_embedder.norm_in.",
            "vision_in.proj.1.": "image_embedder.linear_1.",
            "vision_in.proj.3.": "image_embedder.linear_2.",
            "vision_in.proj.4.": "image_embedder.norm_out.",
            "cond_type_embedding.": "cond_type_embed.",
        },
    ),
    "hunyuan-image": SmallModel(
        "HunyuanImageTransformer2DModel",
        "hunyuan.HUNYUAN_IMAGE",
        "convert_hunyuan_video_transformer_to_diffusers",
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 10,
            "num_layers": 2,
            "num_single_layers": 2,
            "text_embed_dim": 16,
            "text_embed_2_dim": 8,
            "rope_axes_dim": (4, 6),
            "guidance_embeds": True,
            "use_meanflow": True,
        },
        {3072: 20},
        unread={
            **BYT5,
            "time_text_embed.": "time_guidance_embed.",
            "time_r_in.mlp.0.": "time_guidance_embed.timestep_embedder_r.linear_1.",
            "time_r_in.mlp.2.": "time_guidance_embed.timestep_embedder_r.linear_2.",
        },
    ),
    "wan": SmallModel("WanTransformer3DModel", "wan.WAN", "convert_wan_transformer_to_diffusers", WAN),
    "wan-i2v": SmallModel("WanTransformer3DModel", "wan.WAN", "convert_wan_transformer_to_diffusers", WAN_IMAGES),
    "wan-flf2v": SmallModel(
        "WanTransformer3DModel",
        "wan.WAN",
        "convert_wan_transformer_to_diffusers",
        WAN_IMAGES | {"pos_embed_seq_len": 10},
        unread={"img_emb.emb_pos": "condition_embedder.image_embedder.pos_embed"},
    ),
    "wan-vace": SmallModel(
        "WanVACETransformer3DModel",
        "wan.WAN_VACE",
        "convert_wan_transformer_to_diffusers",
        WAN | {"vace_layers": [0, 1], "vace_in_channels": 24},
    ),
    "wan-animate": SmallModel(
        "WanAnimateTransformer3DModel",
        "wan.WAN_ANIMATE",
        "convert_wan_transformer_to_diffusers",
        WAN_IMAGES
        | {
            "in_channels": 20,
            "latent_channels": 8,
            "out_channels": 8,
            "motion_encoder_channel_sizes": {str(2**n): 16 for n in range(2, 11)},
            "motion_encoder_size": 16,
            "motion_style_dim": 16,
            "motion_dim": 4,
            "motion_encoder_dim": 16,
            "face_encoder_hidden_dim": 16,
            "face_encoder_num_heads": 2,
            "inject_face_latents_blocks": 1,
        },
    ),
    "lumina2": SmallModel(
        "Lumina2Transformer2DModel",
        "lumina.LUMINA_2",
        "convert_lumina2_to_diffusers",
        {
            "in_channels": 4,
            "hidden_size": 48,
            "num_layers": 2,
            "num_refiner_layers": 2,
            "num_attention_heads": 6,
            "num_kv_heads": 2,
            "multiple_of": 8,
            "axes_dim_rope": (4, 2, 2),
            "axes_lens": (16, 16, 16),
            "cap_feat_dim": 16,
        },
        {2304: 48, 768: 16},
    ),
    "z-image": SmallModel(
        "ZImageTransformer2DModel",
        "lumina.Z_IMAGE",
        "convert_z_image_transformer_checkpoint_to_diffusers",
        {
            "in_channels": 4,
            "dim": 48,
            "n_layers": 2,
            "n_refiner_layers": 2,
            "n_heads": 2,
            "n_kv_heads": 2,
            "cap_feat_dim": 16,
            "axes_dims": [8, 8, 8],
            "axes_lens": [16, 16, 16],
        },
    ),
    "qwen-image-2.1": SmallModel(
        "QwenImage21Transformer2DModel",
        "qwen.QWEN_IMAGE_21",
        "convert_qwen_image21_transformer_checkpoint_to_diffusers",
        {
            "in_channels": 8,
            "out_channels": 8,
            "num_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "context_in_dim": 16,
            "axes_dims_rope": (4, 4, 8),
        },
    ),
    "krea2": SmallModel(
        "Krea2Transformer2DModel",
        "krea.KREA_2",
        "convert_krea2_transformer_checkpoint_to_diffusers",
        {
            "in_channels": 8,
            "num_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 32,
            "timestep_embed_dim": 16,
            "text_hidden_dim": 16,
            "num_text_layers": 2,
            "text_num_attention_heads": 2,
            "text_num_key_value_heads": 2,
            "text_intermediate_size": 24,
            "num_layerwise_text_blocks": 1,
            "num_refiner_text_blocks": 1,
            "axes_dims_rope": (4, 6, 6),
        },
    ),
    "minimax-h3": SmallModel(
        "MiniMaxH3Transformer3DModel",
        "minimax.MINIMAX_H3",
        "convert_minimax_h3_transformer_checkpoint_to_diffusers",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "hidden_size": 24,
            "num_layers": 2,
            "num_refiner_layers": 1,
            "ffn_dim": 32,
            "in_channels": 4,
            "audio_in_channels": 4,
            "text_dim": 16,
            "freq_dim": 16,
            "time_embed_hidden_dim": 16,
            "time_embed_dim": 16,
            "rope_freq_dim": 4,
        },
    ),
}


def built(model: SmallModel) -> Any:
    """Return the model with random weights, and with random buffers."""
    import diffusers
    import torch

    torch.manual_seed(len(model.layout))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = getattr(diffusers, model.cls)(**model.config)
    with torch.no_grad():
        for tensor in whole.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape) * 0.1)
    return whole.eval()


def converter(model: SmallModel) -> Callable[..., Any]:
    """Return diffusers' function from published names to its own, with the sizes of the small model."""
    from diffusers.loaders import single_file_utils

    original = getattr(single_file_utils, model.converter)
    if not model.sizes:
        return original
    code = _replaced(original.__code__, model.sizes)
    return FunctionType(code, original.__globals__, original.__name__, original.__defaults__, original.__closure__)


def _replaced(code: CodeType, sizes: Mapping[Any, Any]) -> CodeType:
    constants = (_replaced(each, sizes) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_consts=tuple(sizes.get(each, each) if type(each) is int else each for each in constants))


def layout_of(layout: str) -> Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]:
    """Return the layout named "module.NAME"."""
    module, _, name = layout.partition(".")
    found: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
    found = getattr(importlib.import_module(f"{from_diffusers.__name__}.{module}"), name)
    return found


class Kept(dict[str, Any]):
    """A dictionary whose items stay when they are popped."""

    def pop(self, name: str, default: Any = None) -> Any:
        return self.get(name, default)


def back(model: SmallModel, published: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return diffusers' layout of published tensors, by diffusers itself."""
    named = {f"{model.prefix}{name}": tensor for name, tensor in published.items()}
    checkpoint = Kept(named) if model.keeps else named
    checkpoint |= dict.fromkeys(model.without)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = dict(converter(model)(checkpoint=checkpoint, config=config))
    for name in model.without.values():
        del converted[name]
    for ours, theirs in model.unread.items():
        for name in [name for name in converted if name.startswith(ours)]:
            converted[theirs + name.removeprefix(ours)] = converted.pop(name)
    return converted


def tensors_of(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return torch's tensors as ours, with their bits."""
    import torch

    found = {}
    for name, tensor in state.items():
        if tensor.dtype == torch.bfloat16:
            bits = from_array(name, tensor.view(torch.float16).numpy())
            found[name] = Tensor(name, bits.shape, format_named("BF16"), bits.read, name)
        else:
            found[name] = from_array(name, tensor.numpy(), name)
    return found


def torch_of(tensor: Tensor) -> Any:
    """Return one of our tensors as torch's, with its bits."""
    import torch

    values = torch.from_numpy(tensor.elements().copy()).reshape(tensor.shape)
    return values.view(torch.bfloat16) if tensor.format.name == "BF16" else values
