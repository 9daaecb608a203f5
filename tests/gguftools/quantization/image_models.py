"""Names and shapes of image and video models' tensors, as they were published, with few blocks."""

from __future__ import annotations

Shapes = dict[str, tuple[int, ...]]


def flux(double: int = 3, single: int = 4, h: int = 3072) -> Shapes:
    shapes: Shapes = {
        "img_in.weight": (h, 64),
        "txt_in.weight": (h, 4096),
        "time_in.in_layer.weight": (h, 256),
        "time_in.out_layer.weight": (h, h),
        "guidance_in.in_layer.weight": (h, 256),
        "guidance_in.out_layer.weight": (h, h),
        "vector_in.in_layer.weight": (h, 768),
        "vector_in.out_layer.weight": (h, h),
        "final_layer.linear.weight": (64, h),
        "final_layer.adaLN_modulation.1.weight": (2 * h, h),
        "img_in.bias": (h,),
    }
    for i in range(double):
        for side in ("img", "txt"):
            shapes |= {
                f"double_blocks.{i}.{side}_mod.lin.weight": (6 * h, h),
                f"double_blocks.{i}.{side}_attn.qkv.weight": (3 * h, h),
                f"double_blocks.{i}.{side}_attn.qkv.bias": (3 * h,),
                f"double_blocks.{i}.{side}_attn.norm.query_norm.scale": (128,),
                f"double_blocks.{i}.{side}_attn.proj.weight": (h, h),
                f"double_blocks.{i}.{side}_mlp.0.weight": (4 * h, h),
                f"double_blocks.{i}.{side}_mlp.2.weight": (h, 4 * h),
            }
    for i in range(single):
        shapes |= {
            f"single_blocks.{i}.linear1.weight": (7 * h, h),
            f"single_blocks.{i}.linear2.weight": (h, 5 * h),
            f"single_blocks.{i}.modulation.lin.weight": (3 * h, h),
        }
    return shapes


def sd3(blocks: int = 3, h: int = 2432) -> Shapes:
    shapes: Shapes = {
        "pos_embed": (1, 36864, h),
        "x_embedder.proj.weight": (h, 16, 2, 2),
        "context_embedder.weight": (h, 4096),
        "t_embedder.mlp.0.weight": (h, 256),
        "y_embedder.mlp.0.weight": (h, 2048),
        "final_layer.linear.weight": (64, h),
    }
    for i in range(blocks):
        for part in ("x_block", "context_block"):
            stem = f"joint_blocks.{i}.{part}"
            shapes |= {
                f"{stem}.adaLN_modulation.1.weight": (6 * h, h),
                f"{stem}.attn.qkv.weight": (3 * h, h),
                f"{stem}.attn.ln_q.weight": (64,),
                f"{stem}.attn.proj.weight": (h, h),
                f"{stem}.mlp.fc1.weight": (4 * h, h),
                f"{stem}.mlp.fc2.weight": (h, 4 * h),
            }
    return shapes


def wan(blocks: int = 6, d: int = 1536, f: int = 8960) -> Shapes:
    shapes: Shapes = {
        "patch_embedding.weight": (d, 16, 1, 2, 2),
        "text_embedding.0.weight": (d, 4096),
        "text_embedding.2.weight": (d, d),
        "time_embedding.0.weight": (d, 256),
        "time_projection.1.weight": (6 * d, d),
        "head.head.weight": (64, d),
        "head.modulation": (1, 2, d),
    }
    for i in range(blocks):
        for part in ("self_attn", "cross_attn"):
            shapes |= {f"blocks.{i}.{part}.{each}.weight": (d, d) for each in "qkvo"}
            shapes |= {f"blocks.{i}.{part}.norm_q.weight": (d,)}
        shapes |= {f"blocks.{i}.ffn.0.weight": (f, d), f"blocks.{i}.ffn.2.weight": (d, f)}
        shapes |= {f"blocks.{i}.modulation": (1, 6, d), f"blocks.{i}.norm3.weight": (d,)}
    return shapes


def sdxl() -> Shapes:
    shapes: Shapes = {
        "time_embed.0.weight": (1280, 320),
        "label_emb.0.0.weight": (1280, 2816),
        "input_blocks.0.0.weight": (320, 4, 3, 3),
        "input_blocks.3.0.op.weight": (320, 320, 3, 3),
        "out.2.weight": (4, 320, 3, 3),
    }
    for stem, c in (("input_blocks.4.1", 640), ("input_blocks.7.1", 1280), ("middle_block.1", 1280)):
        shapes |= {f"{stem}.proj_in.weight": (c, c), f"{stem}.proj_out.weight": (c, c)}
        shapes |= {f"{stem.rpartition('.')[0]}.0.emb_layers.1.weight": (c, 1280)}
        for i in range(2):
            block = f"{stem}.transformer_blocks.{i}"
            for part in ("attn1", "attn2"):
                width = 2048 if part == "attn2" else c
                shapes |= {f"{block}.{part}.to_q.weight": (c, c), f"{block}.{part}.to_out.0.weight": (c, c)}
                shapes |= {f"{block}.{part}.to_{each}.weight": (c, width) for each in "kv"}
            shapes |= {f"{block}.ff.net.0.proj.weight": (8 * c, c), f"{block}.ff.net.2.weight": (c, 4 * c)}
            shapes |= {f"{block}.norm1.weight": (c,)}
    return shapes


def lumina2(layers: int = 3, d: int = 3840) -> Shapes:
    """Z-Image."""
    shapes: Shapes = {
        "cap_embedder.1.weight": (d, 2560),
        "x_embedder.weight": (d, 64),
        "t_embedder.mlp.0.weight": (1024, 256),
        "final_layer.linear.weight": (64, d),
        "context_refiner.0.attention.qkv.weight": (3 * d, d),
        "noise_refiner.0.feed_forward.w2.weight": (d, 10240),
        "x_pad_token": (1, d),
    }
    for i in range(layers):
        shapes |= {
            f"layers.{i}.attention.qkv.weight": (3 * d, d),
            f"layers.{i}.attention.out.weight": (d, d),
            f"layers.{i}.attention.q_norm.weight": (128,),
            f"layers.{i}.feed_forward.w1.weight": (10240, d),
            f"layers.{i}.feed_forward.w2.weight": (d, 10240),
            f"layers.{i}.feed_forward.w3.weight": (10240, d),
            f"layers.{i}.adaLN_modulation.0.weight": (4 * d, 256),
        }
    return shapes


def hidream(blocks: int = 2, d: int = 2560) -> Shapes:
    shapes: Shapes = {
        "caption_projection.0.linear.weight": (d, 4096),
        "x_embedder.proj.weight": (d, 64),
        "t_embedder.timestep_embedder.linear_1.weight": (d, 256),
        "p_embedder.pooled_embedder.linear_1.weight": (d, 2048),
        "final_layer.linear.weight": (64, d),
    }
    for i in range(blocks):
        stem = f"double_stream_blocks.{i}.block"
        shapes |= {f"{stem}.attn1.to_{each}.weight": (d, d) for each in ("q", "k", "v", "q_t", "k_t", "v_t", "out")}
        shapes |= {f"{stem}.ff_i.gate.weight": (4, d), f"{stem}.adaLN_modulation.1.weight": (12 * d, d)}
        for part in ("ff_i.shared_experts", "ff_i.experts.0", "ff_i.experts.1", "ff_t"):
            shapes |= {f"{stem}.{part}.w{number}.weight": (6912, d) for number in (1, 3)}
            shapes |= {f"{stem}.{part}.w2.weight": (d, 6912)}
    return shapes


def qwen_image(blocks: int = 12, d: int = 3072) -> Shapes:
    shapes: Shapes = {
        "img_in.weight": (d, 64),
        "txt_in.weight": (d, 3584),
        "time_text_embed.timestep_embedder.linear_2.weight": (d, d),
        "norm_out.linear.weight": (2 * d, d),
        "proj_out.weight": (64, d),
    }
    for i in range(blocks):
        stem = f"transformer_blocks.{i}"
        shapes |= {f"{stem}.attn.{each}.weight": (d, d) for each in ("to_q", "to_k", "to_v", "to_out.0")}
        shapes |= {f"{stem}.attn.add_{each}_proj.weight": (d, d) for each in "qkv"}
        shapes |= {f"{stem}.attn.norm_added_q.weight": (128,)}
        for side in ("img", "txt"):
            shapes |= {
                f"{stem}.{side}_mod.1.weight": (6 * d, d),
                f"{stem}.{side}_mlp.net.0.proj.weight": (4 * d, d),
                f"{stem}.{side}_mlp.net.2.weight": (d, 4 * d),
            }
    return shapes


MODELS = {
    "flux": flux(),
    "sd3": sd3(),
    "wan": wan(),
    "sdxl": sdxl(),
    "lumina2": lumina2(),
    "hidream": hidream(),
    "qwen_image": qwen_image(),
}
