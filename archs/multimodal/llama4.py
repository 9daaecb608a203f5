"""Llama 4: a ViT with rotation in two dimensions and a class token after the patches, patches of a square concatenated,
a net of two matrices, and one more to the text model's width.
"""

from ..encoder import LLAMA_ATTENTION, VISION, Encoder, activation, always, at
from ..spec import Target
from ..wrapper import Wrapper, columns, inverse, rows, square

LAYER: dict[str, Target] = {**LLAMA_ATTENTION, "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}


LLAMA4 = Encoder(
    hf_classes=("Llama4ForConditionalGeneration",),
    metadata={
        **VISION,
        "projector_type": always("llama4"),
        "vision.attention.layer_norm_epsilon": "vision.norm_eps",
        "vision.projector.scale_factor": lambda config: int(1 / config["vision"]["pixel_shuffle_ratio"]),
        **activation("vision.hidden_act", gelu="use_gelu"),
    },
    tensors={
        **at("vision_model.model.layers.{i}.", "v.blk.{i}.", LAYER),
        "vision_model.class_embedding": "v.class_embd",
        "vision_model.layernorm_pre": "v.pre_ln",
        "vision_model.layernorm_post": "v.post_ln",
        "vision_model.patch_embedding.linear": "v.patch_embd",
        "vision_model.positional_embedding_vlm": "v.position_embd.weight",
        "vision_model.vision_adapter.mlp.fc1": "mm.model.mlp.1",
        "vision_model.vision_adapter.mlp.fc2": "mm.model.mlp.2",
        "multi_modal_projector.linear_1": "mm.model.fc",
    },
    wrappers=(
        Wrapper(
            "Llama4ForConditionalGeneration",
            "llama4",
            texts=("llama4",),
            text_names={"": "language_model."},
            biased=("v.pre_ln", "v.post_ln"),
            config={
                "vision.pixel_shuffle_ratio": inverse("vision.projector.scale_factor"),
                "vision.projector_input_dim": rows("mm.model.mlp.1.weight"),
                "vision.projector_output_dim": rows("mm.model.mlp.2.weight"),
                "vision.vision_output_dim": columns("mm.model.fc.weight"),
            },
            tokens={
                "image_token_index": ("<|patch|>",),
                "boi_token_index": ("<|image_start|>",),
                "eoi_token_index": ("<|image_end|>",),
            },
            processor="Llama4Processor",
            image_processor="Llama4ImageProcessorFast",
            preprocessor={"size": square()},
            positions=1,
        ),
    ),
)
