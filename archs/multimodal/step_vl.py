"""Step3-VL and Step 3.7: a ViT with scales after attention and nets; two convolutions of stride 2 merge patches, and
one matrix brings them to the text model's width.
"""

from ..encoder import PATCHES, VISION, Encoder, always, at, maybe
from ..spec import Config, Target
from ..wrapper import Wrapper, columns, has, rows, square

LAYER: dict[str, Target] = {
    "ln_1": "ln1",
    "ln_2": "ln2",
    "ls_1.gamma": "ls1.weight",
    "ls_2.gamma": "ls2.weight",
    "attn.in_proj_weight": "attn_qkv.weight",
    "attn.in_proj_bias": "attn_qkv.bias",
    "attn.out_proj": "attn_out",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
STRIDE = 2  # of each convolution; hardcoded by programs
LONGEST = 3024  # pixels of an image's longer side, by the model's own code
MEAN = [0.48145466, 0.4578275, 0.40821073]  # default without a preprocessor's file
DEVIATION = [0.26862954, 0.26130258, 0.27577711]


def _net_width(config: Config) -> int:
    vision = config["vision"]
    width = vision.get("hidden_size") or vision["width"]
    return int(vision.get("intermediate_size") or round(width * vision["mlp_ratio"]))


_width = rows("v.patch_embd.weight")
STEP_VL = Encoder(
    hf_classes=("StepVLForConditionalGeneration", "Step3p7ForConditionalGeneration"),
    metadata={
        **VISION,
        "vision.feed_forward_length": _net_width,
        "vision.image_mean": maybe("preprocessor.image_mean", MEAN),
        "vision.image_std": maybe("preprocessor.image_std", DEVIATION),
        "projector_type": always("step3vl"),
        "vision.attention.layer_norm_epsilon": maybe("vision.layer_norm_eps", 1e-5),
        "vision.projector.scale_factor": always(STRIDE**2),
        "vision.preproc_image_size": always(LONGEST),
    },
    defaults={"vision": {"mlp_ratio": 8960 / 1536}},
    tensors={
        **at("vision_model.transformer.resblocks.{i}.", "v.blk.{i}.", LAYER),
        "vision_model.conv1": "v.patch_embd",
        "vision_model.ln_pre": "v.pre_ln",
        "vision_model.positional_embedding": "v.position_embd.weight",
        "vision_model.vit_downsampler1": "mm.0",
        "vision_model.vit_downsampler2": "mm.1",
        "vit_large_projector": "mm.model.fc",
    },
    fixed={"mm.[01].weight": PATCHES},
    refused={"understand_projector_stride": lambda stride: stride != STRIDE},
    wrappers=(
        Wrapper(
            "Step3p7ForConditionalGeneration",
            "step3p7",
            texts=("step35",),
            biased=("v.pre_ln", "mm.0", "mm.1"),
            config={
                "understand_projector_stride": STRIDE,
                "projector_bias": has("mm.model.fc.bias"),
                "vision.mlp_ratio": lambda files: rows("v.blk.0.ffn_up.weight")(files) / _width(files),
                "vision.hidden_act": "quick_gelu",
                "vision.num_channels": columns("v.patch_embd.weight"),
            },
            tokens={"image_token_id": ("<im_patch>",)},
            processor="Step3p7Processor",
            image_processor="Step3p7ImageProcessor",
            preprocessor={"size": square()},
            positions=0,
        ),
    ),
)
