"""Wan 2.1 and 2.2 with their relatives: image to video, first and last frame, VACE, Animate."""

from .rules import DiffusersLayout, Rule, modules, of_channels, parameters, same


def block(name: str) -> tuple[Rule, ...]:
    """Return the rules of a list of blocks."""
    prefixes = f"{name}.{{i}}.", f"{name}.{{i}}."
    attentions = {
        f"{target}.{published}": f"{source}.{own}"
        for target, source in (("self_attn", "attn1"), ("cross_attn", "attn2"))
        for published, own in (("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("o", "to_out.0"))
    }
    images = {"cross_attn.k_img": "attn2.add_k_proj", "cross_attn.v_img": "attn2.add_v_proj"}
    norms = {
        "self_attn.norm_q": "attn1.norm_q",
        "self_attn.norm_k": "attn1.norm_k",
        "cross_attn.norm_q": "attn2.norm_q",
        "cross_attn.norm_k": "attn2.norm_k",
        "cross_attn.norm_k_img": "attn2.norm_added_k",
        "norm3": "norm2",  # in the order of computation in diffusers, not in that of definition
        "norm2": "norm3",
    }
    ends = {"before_proj": "proj_in", "after_proj": "proj_out"}  # of VACE's blocks
    return (
        *modules({**attentions, **images, **norms, **ends, "ffn.0": "ffn.net.0.proj", "ffn.2": "ffn.net.2"}, *prefixes),
        *parameters({"modulation": "scale_shift_table"}, *prefixes),
    )


FACES = (  # of Animate
    *modules(
        {
            "linear1_q": "to_q",
            "linear1_kv": ("to_k", "to_v"),
            "linear2": "to_out",
            "q_norm": "norm_q",
            "k_norm": "norm_k",
        },
        "face_adapter.fuser_blocks.{i}.",
        "face_adapter.{i}.",
    ),
    *modules(
        {"conv1_local.conv": "conv1_local", "conv2.conv": "conv2", "conv3.conv": "conv3", **same("out_proj")},
        "face_encoder.",
        "face_encoder.",
    ),
    *parameters(same("face_encoder.padding_tokens")),
)
CONVOLUTIONS = "motion_encoder.enc.net_app.convs."
BLOCKS_OF_MOTION = 7
MOTION = (
    *parameters(
        {
            "motion_encoder.dec.direction.weight": "motion_encoder.motion_synthesis_weight",
            f"{CONVOLUTIONS}0.0.weight": "motion_encoder.conv_in.weight",
            f"{CONVOLUTIONS}0.1.bias": of_channels("motion_encoder.conv_in.act_fn.bias"),
            f"{CONVOLUTIONS}8.weight": "motion_encoder.conv_out.weight",
        }
    ),
    *modules({"motion_encoder.enc.fc.{i}": "motion_encoder.motion_network.{i}"}),
    *(
        rule
        for number in range(BLOCKS_OF_MOTION)
        for rule in parameters(
            {
                "conv1.0.weight": "conv1.weight",
                "conv1.1.bias": of_channels("conv1.act_fn.bias"),
                "conv2.1.weight": "conv2.weight",
                "conv2.2.bias": of_channels("conv2.act_fn.bias"),
                "skip.1.weight": "conv_skip.weight",
            },
            f"{CONVOLUTIONS}{number + 1}.",
            f"motion_encoder.res_blocks.{number}.",
        )
    ),
)
RULES = (
    *block("blocks"),
    *block("vace_blocks"),
    *modules(
        {
            **same("patch_embedding", "vace_patch_embedding", "pose_patch_embedding"),
            "time_embedding.0": "condition_embedder.time_embedder.linear_1",
            "time_embedding.2": "condition_embedder.time_embedder.linear_2",
            "time_projection.1": "condition_embedder.time_proj",
            "text_embedding.0": "condition_embedder.text_embedder.linear_1",
            "text_embedding.2": "condition_embedder.text_embedder.linear_2",
            "img_emb.proj.0": "condition_embedder.image_embedder.norm1",
            "img_emb.proj.1": "condition_embedder.image_embedder.ff.net.0.proj",
            "img_emb.proj.3": "condition_embedder.image_embedder.ff.net.2",
            "img_emb.proj.4": "condition_embedder.image_embedder.norm2",
            "head.head": "proj_out",
        }
    ),
    *parameters(
        {"head.modulation": "scale_shift_table", "img_emb.emb_pos": "condition_embedder.image_embedder.pos_embed"}
    ),
    *FACES,
    *MOTION,
)
NAMES = ("condition_embedder.time_proj.weight", "blocks.0.attn1.norm_q.weight", "scale_shift_table")
CONTROL, FACE = "vace_patch_embedding.weight", "face_adapter.0.to_q.weight"
WAN = DiffusersLayout(RULES, (NAMES,), absent=(CONTROL, FACE))
WAN_VACE = DiffusersLayout(RULES, ((*NAMES, CONTROL),))
WAN_ANIMATE = DiffusersLayout(RULES, ((*NAMES, FACE),))
