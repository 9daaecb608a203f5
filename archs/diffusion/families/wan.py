"""Wan 2.1 and 2.2, video models: from text, images, control videos, speech and motion.

Sources: ComfyUI's `model_detection.py` and `ldm/wan`, stable-diffusion.cpp's `wan.hpp`.
"""

from dataclasses import replace

from ..from_diffusers import wan as layouts
from ..from_diffusers.rules import DiffusersLayout
from ..spec import DiffusionFamily

CONTROL = "vace_patch_embedding.weight"
CAMERA = "control_adapter.conv.weight"
REFERENCE = "ref_conv.weight"
SPEECH = "casual_audio_encoder.encoder.final_linear.weight"
MOTION = "face_adapter.fuser_blocks.0.k_norm.weight"
VOICE = "audio_proj.audio_proj_glob_1.layer.bias"
POSE = "patch_embedding_pose.weight"
RELATIVES = (CONTROL, CAMERA, REFERENCE, SPEECH, MOTION, VOICE, POSE)
NAMES = (
    "blocks.0.self_attn.norm_q.weight",
    "text_embedding.2.weight",
    "patch_embedding.weight",
    "head.modulation",
    "head.head.weight",
)

WAN = DiffusionFamily(
    name="wan",
    title="Wan",
    tag="wan",
    signatures=(NAMES,),
    absent=(*RELATIVES, *layouts.WAN.absent),
    kept=("patch_embedding", "text_embedding.", "time_embedding.", "time_projection.", "img_emb.", "head."),
    float32=(".modulation", "img_emb.emb_pos"),
    from_diffusers=layouts.WAN,
    diffusers_signatures=layouts.WAN.signatures,
)


def _with(
    name: str, title: str, own: tuple[str, ...], kept: tuple[str, ...] = (), layout: DiffusersLayout | None = None
) -> DiffusionFamily:
    """Return a variant of Wan with tensors of its own, any of which tells it."""
    return replace(
        WAN,
        name=name,
        title=title,
        signatures=tuple((*NAMES, each) for each in own),
        absent=tuple(each for each in RELATIVES if each not in own),
        kept=(*WAN.kept, *kept),
        from_diffusers=layout,
        diffusers_signatures=layout.signatures if layout else (),
    )


WAN_VACE = _with("wan_vace", "Wan VACE", (CONTROL,), layout=layouts.WAN_VACE)
WAN_CONTROL = _with("wan_control", "Wan Fun (camera, control)", (CAMERA, REFERENCE), ("control_adapter.", "ref_conv."))
WAN_S2V = _with(
    "wan_s2v", "Wan S2V", (SPEECH,), ("casual_audio_encoder.", "cond_encoder.", "frame_packer.", "trainable_cond_mask.")
)
WAN_ANIMATE = _with("wan_animate", "Wan Animate", (MOTION,), ("motion_encoder.", "face_encoder."), layouts.WAN_ANIMATE)
WAN_HUMO = _with("wan_humo", "HuMo (Wan)", (VOICE,), ("audio_proj.",))
WAN_SCAIL = _with("wan_scail", "SCAIL (Wan)", (POSE,))
