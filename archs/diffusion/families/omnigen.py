"""OmniGen2 and Boogu-Image, which adds blocks of two streams to it.

Sources: ComfyUI's `ldm/omnigen` and `model_detection.py`, stable-diffusion.cpp's `boogu.hpp`.
"""

from ..spec import DiffusionFamily

NAMES = (
    "time_caption_embed.timestep_embedder.linear_1.bias",
    "x_embedder.weight",
    "context_refiner.0.attn.to_q.weight",
    "norm_out.linear_2.weight",
)
REFERENCES = "ref_image_patch_embedder.weight"  # which Lumina 2 in diffusers' layout has not
TWO_STREAMS = "double_stream_layers.0.img_instruct_attn.processor.img_to_q.weight"
KEPT = (
    "x_embedder.",
    "ref_image_patch_embedder.",
    "image_index_embedding",
    "time_caption_embed.",
    "context_refiner.",
    "noise_refiner.",
    "ref_image_refiner.",
    "norm_out.",
)

OMNIGEN_2 = DiffusionFamily(
    name="omnigen2",
    title="OmniGen2",
    tag="wan",  # borrowed: ComfyUI knows the model by its names, and ComfyUI-GGUF takes no tag of its own
    signatures=((*NAMES, REFERENCES, "layers.0.attn.to_q.weight"),),
    absent=(TWO_STREAMS,),
    kept=KEPT,
    refused={"sdcpp": "reads of this kind only Boogu-Image"},
)
BOOGU = DiffusionFamily(
    name="boogu",
    title="Boogu-Image",
    tag="wan",  # borrowed
    signatures=((*NAMES, TWO_STREAMS, "single_stream_layers.0.attn.to_q.weight"),),
    kept=KEPT,
)
