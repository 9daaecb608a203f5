"""NVIDIA Cosmos 1 and Predict2, and Anima, which is Predict2 with an adapter for another text encoder.

Sources: ComfyUI-GGUF's `convert.py`, ComfyUI's `ldm/cosmos`, stable-diffusion.cpp's `anima.hpp`, Anima's names.
"""

from ..from_diffusers import cosmos as layouts
from ..spec import DiffusionFamily

ADAPTER = "llm_adapter.blocks.0.cross_attn.q_proj.weight"
PREDICT_2 = (
    "blocks.0.mlp.layer1.weight",
    "blocks.0.adaln_modulation_cross_attn.1.weight",
    "x_embedder.proj.1.weight",
    "final_layer.linear.weight",
)
KEPT = ("p_embedder.", "t_embedder.", "t_embedding_norm.", "x_embedder.", "final_layer.")
UNUSED = {"*_extra_state": "a state of the training", "*accum_*": "a count of the training"}

COSMOS_1 = DiffusionFamily(
    name="cosmos1",
    title="Cosmos 1",
    tag="cosmos",
    signatures=(
        (
            "blocks.block0.blocks.0.block.attn.to_q.0.weight",
            "x_embedder.proj.1.weight",
            "t_embedder.1.linear_1.weight",
            "final_layer.linear.weight",
        ),
    ),
    kept=("extra_pos_embedder.", "t_embedder.", "affline_norm.", "x_embedder.", "final_layer."),
    float32=("pos_embedder",),
    ignored=UNUSED,
    refused={"sdcpp": "has no code for this model"},
    from_diffusers=layouts.COSMOS_1,
    diffusers_signatures=layouts.COSMOS_1.signatures,
)
COSMOS_PREDICT_2 = DiffusionFamily(
    name="cosmos_predict2",
    title="Cosmos Predict2",
    tag="cosmos",
    signatures=(PREDICT_2,),
    absent=(ADAPTER, *layouts.COSMOS.absent),
    kept=KEPT,
    float32=("pos_embedder",),
    ignored=UNUSED,
    refused={"sdcpp": "reads of this kind only Anima"},
    from_diffusers=layouts.COSMOS,
    diffusers_signatures=layouts.COSMOS.signatures,
)
ANIMA = DiffusionFamily(
    name="anima",
    title="Anima",
    tag="cosmos",
    signatures=((*PREDICT_2, ADAPTER),),
    kept=(*KEPT, "llm_adapter."),
    float32=("pos_embedder",),
    ignored=UNUSED,
)
