"""SenseNova U1.5, a language model with a second set of weights that draws pixels.

Sources: ComfyUI's `ldm/sensenova` and `model_detection.py`, ggufy's `ImageArch.zig`.
"""

from ..spec import DiffusionFamily

SENSENOVA = DiffusionFamily(
    name="sensenova_u15",
    title="SenseNova U1.5",
    tag="wan",  # borrowed: ComfyUI knows the model by its names, and ComfyUI-GGUF takes no tag of its own
    signatures=(
        (
            "fm_modules.vision_model_mot_gen.embeddings.patch_embedding.weight",
            "fm_modules.fm_head.conv2.weight",
            "language_model.model.layers.0.self_attn.q_proj.weight",
            "language_model.model.layers.0.self_attn.q_proj_mot_gen.weight",
        ),
    ),
    kept=("fm_modules.", "vision_model.", "embed_tokens.", "lm_head."),
)
