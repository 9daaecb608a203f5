"""SeedVR2, which restores and enlarges videos. Sources: ComfyUI's `model_detection.py`, a table of all shapes."""

from ..spec import DiffusionFamily

SEEDVR_2 = DiffusionFamily(
    name="seedvr2",
    title="SeedVR2",
    tag="wan",  # borrowed: ComfyUI knows the model by its names, and ComfyUI-GGUF takes no tag of its own
    signatures=(
        (
            "vid_in.proj.weight",
            "emb_in.proj_hid.weight",
            "blocks.0.attn.proj_qkv.vid.weight",
            "blocks.0.ada.vid.attn_shift",
            "vid_out.proj.weight",
        ),
    ),
    kept=("vid_in.", "txt_in.", "emb_in.", "vid_out."),
    refused={"sdcpp": "has no code for this model"},
)
