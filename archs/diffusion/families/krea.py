"""Krea 2. Sources: ComfyUI's `model_detection.py`, ggufy's list of names; shapes of diffusers' `transformer_krea2`."""

from ..from_diffusers import krea as layouts
from ..spec import DiffusionFamily

KREA_2 = DiffusionFamily(
    name="krea2",
    title="Krea 2",
    tag="wan",  # borrowed: ComfyUI knows the model by its names, and ComfyUI-GGUF takes no tag of its own
    signatures=(
        ("blocks.0.attn.qknorm.qnorm.scale", "txtfusion.projector.weight", "first.weight", "last.linear.weight"),
    ),
    kept=("txtfusion.", "tmlp.", "tproj.", "txtmlp.", "first.", "last."),
    from_diffusers=layouts.KREA_2,
    diffusers_signatures=layouts.KREA_2.signatures,
)
