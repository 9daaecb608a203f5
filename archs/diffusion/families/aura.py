"""AuraFlow. Sources: ComfyUI-GGUF's `convert.py`, ComfyUI's `ldm/aura/mmdit.py`."""

from ..from_diffusers import aura as layouts
from ..spec import DiffusionFamily

AURA = DiffusionFamily(
    name="aura",
    title="AuraFlow",
    tag="aura",
    signatures=(
        (
            "double_layers.3.modX.1.weight",
            "single_layers.0.modCX.1.weight",
            "init_x_linear.weight",
            "final_linear.weight",
        ),
    ),
    kept=(
        "t_embedder.",
        "init_x_linear.",
        "modF.1.",
        "cond_seq_linear.",
        "final_linear.",
        "positional_encoding",
        "register_tokens",
    ),
    refused={"sdcpp": "has no code for this model"},
    from_diffusers=layouts.AURA,
    diffusers_signatures=layouts.AURA.signatures,
)
