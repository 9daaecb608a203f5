"""Descriptions of tiny image models, in the form that the package explains.

Names: lists of published checkpoints (Flux, Flux.2, SD 1.5, SDXL, Z-Image, Qwen-Image, Mage-Flow, Krea 2, ERNIE-Image),
else ComfyUI's and stable-diffusion.cpp's code. Shapes: the same code, and diffusers'.
"""

FLUX_BLOCKS = """
double_blocks.0:
    {img,txt}_mod.lin 6h,h +
    {img,txt}_attn.qkv 3h,h +
    {img,txt}_attn.norm.{query,key}_norm.scale* 128
    {img,txt}_attn.proj h,h +
    {img,txt}_mlp.0 m,h +
    {img,txt}_mlp.2 h,m +
single_blocks.{0..1}:
    linear1 5h,h +
    linear2 h,3h +
    norm.{query,key}_norm.scale* 128
    modulation.lin 3h,h +
"""
FLUX_ENDS = """
txt_in h,t +
time_in.in_layer h,256 +
time_in.out_layer h,h +
final_layer.linear 64,h +
final_layer.adaLN_modulation.1 2h,h +
"""
POOLED = """
vector_in.in_layer h,768 +
vector_in.out_layer h,h +
"""
GUIDANCE = """
guidance_in.in_layer h,256 +
guidance_in.out_layer h,h +
"""
FLUX = FLUX_BLOCKS + FLUX_ENDS + POOLED + "img_in h,64 +\n"
LONGCAT = FLUX_BLOCKS + FLUX_ENDS.replace("h,t", "h,3584") + "img_in h,64 +\n"
OVIS = FLUX_BLOCKS.replace(
    "    {img,txt}_mlp.0 m,h +\n    {img,txt}_mlp.2 h,m +\n",
    "    {img,txt}_mlp.{gate_proj,up_proj} m,h +\n    {img,txt}_mlp.down_proj h,m +\n",
)
OVIS += FLUX_ENDS + "img_in h,64 +\ntxt_norm.scale* t\n"
APPROXIMATOR = """
distilled_guidance_layer:
    in_proj h,64 +
    layers.{0..1}.{in_layer,out_layer} h,h +
    norms.{0..1}.scale* h
    out_proj h,h +
"""
CHROMA_BLOCKS = "\n".join(line for line in FLUX_BLOCKS.splitlines() if "mod" not in line)
CHROMA = CHROMA_BLOCKS + APPROXIMATOR + "img_in h,64 +\ntxt_in h,t +\nfinal_layer.linear 64,h +\n"
RADIANCE = (
    CHROMA_BLOCKS
    + APPROXIMATOR
    + """
img_in_patch h,3,16,16 +
txt_in h,t +
nerf_image_embedder.embedder.0 64,67 +
nerf_blocks.{0..1}:
    param_generator 768,h +
    norm.scale* 64
nerf_final_layer_conv.norm.scale* 64
nerf_final_layer_conv.conv 3,64,3,3 +
__x0__* 0
"""
)
FLUX_2 = """
double_blocks.0:
    {img,txt}_attn.qkv 3h,h
    {img,txt}_attn.norm.{query,key}_norm.scale* 128
    {img,txt}_attn.proj h,h
    {img,txt}_mlp.0 2m,h
    {img,txt}_mlp.2 h,m
single_blocks.{0..1}:
    linear1 7h,h
    linear2 h,3h
    norm.{query,key}_norm.scale* 128
double_stream_modulation_{img,txt}.lin 6h,h
single_stream_modulation.lin 3h,h
img_in h,128
txt_in h,t
time_in.in_layer h,256
time_in.out_layer h,h
final_layer.linear 128,h
final_layer.adaLN_modulation.1 2h,h
"""


def residual(stem: str, inner: str, outer: str) -> str:
    """Describe a block of convolutions; the skip is there if the channels change."""
    skip = f"    skip_connection {outer},{inner},1,1 +\n" if inner != outer else ""
    return f"""
{stem}:
    in_layers.0 {inner} +
    in_layers.2 {outer},{inner},3,3 +
    emb_layers.1 {outer},4c +
    out_layers.0 {outer} +
    out_layers.3 {outer},{outer},3,3 +
{skip}"""


def attention(stem: str, width: str, text: str, depth: int, is_linear: bool) -> str:
    """Describe a block of transformer layers between projections that are convolutions in SD 1."""
    projection = f"{width},{width}" if is_linear else f"{width},{width},1,1"
    four = f"4{width}"
    return f"""
{stem}:
    norm {width} +
    proj_{{in,out}} {projection} +
{stem}.transformer_blocks.{{0..{depth - 1}}}:
    attn1.to_{{q,k,v}} {width},{width}
    attn2.to_q {width},{width}
    attn2.to_{{k,v}} {width},{text}
    {{attn1,attn2}}.to_out.0 {width},{width} +
    ff.net.0.proj 8{width},{width} +
    ff.net.2 {width},{four} +
    norm{{1..3}} {width} +
"""


UNET_ENDS = """
time_embed.0 4c,c +
time_embed.2 4c,4c +
input_blocks.0.0 c,4,3,3 +
out.0 c +
out.2 4,c,3,3 +
"""


def four_levels(text: str, is_linear: bool) -> str:
    """Describe SD 1's levels, all with the first one's channels: attention (on one block of two) but on the lowest."""
    lines = [UNET_ENDS, "\ninput_blocks.{3,6,9}.0.op c,c,3,3 +"]
    lines += [residual(f"input_blocks.{number}.0", "c", "c") for number in (1, 2, 4, 5, 7, 8, 10, 11)]
    lines += [residual(f"middle_block.{number}", "c", "c") for number in (0, 2)]
    lines += [residual(f"output_blocks.{number}.0", "2c", "c") for number in range(12)]
    stems = ("input_blocks.1.1", "input_blocks.7.1", "middle_block.1", "output_blocks.5.1")
    lines += [attention(stem, "c", text, 1, is_linear) for stem in stems]
    lines.append("\noutput_blocks.2.1.conv c,c,3,3 +\noutput_blocks.{5,8}.2.conv c,c,3,3 +\n")
    return "\n".join(lines)


def three_levels(has_middle: bool = True) -> str:
    """Describe SDXL's levels, all with the first one's channels: attention (on one block of two) on the lower two."""
    lines = [UNET_ENDS, "\nlabel_emb.0.0 4c,2816 +\nlabel_emb.0.2 4c,4c +\ninput_blocks.{3,6}.0.op c,c,3,3 +"]
    lines += [residual(f"input_blocks.{number}.0", "c", "c") for number in (1, 2, 4, 5, 7, 8)]
    lines += [residual(f"output_blocks.{number}.0", "2c", "c") for number in range(9)]
    lines += [residual("middle_block.0", "c", "c")]
    stems = {"input_blocks.4.1": 2, "output_blocks.0.1": 3}
    if has_middle:
        lines.append(residual("middle_block.2", "c", "c"))
        stems |= {"middle_block.1": 3}
    lines += [attention(stem, "c", "2048", depth, True) for stem, depth in stems.items()]
    lines.append("\noutput_blocks.{2,5}.2.conv c,c,3,3 +\n")
    return "\n".join(lines)


SD_1 = four_levels("768", False)
SD_2 = four_levels("1024", True)
SDXL = three_levels()
SSD_1B = three_levels(has_middle=False)
SDXL_REFINER = four_levels("1280", True) + "label_emb.0.0 4c,2560 +\nlabel_emb.0.2 4c,4c +\n"
SD_UNCLIP = four_levels("1024", True) + "label_emb.0.0 4c,2048 +\nlabel_emb.0.2 4c,4c +\n"

SD_3_ENDS = """
pos_embed* 1,1024,h
x_embedder.proj h,16,2,2 +
context_embedder h,t +
t_embedder.mlp.0 h,256 +
t_embedder.mlp.2 h,h +
y_embedder.mlp.0 h,1024 +
y_embedder.mlp.2 h,h +
final_layer.linear 64,h +
final_layer.adaLN_modulation.1 2h,h +
"""
SD_3_BLOCK = """
joint_blocks.0.{x,context}_block:
    adaLN_modulation.1 6h,h +
    attn.qkv 3h,h +
    attn.proj h,h +
    mlp.fc1 m,h +
    mlp.fc2 h,m +
"""
SD_3_LAST = """
joint_blocks.1.x_block:
    adaLN_modulation.1 6h,h +
    attn.qkv 3h,h +
    attn.proj h,h +
    mlp.fc1 m,h +
    mlp.fc2 h,m +
joint_blocks.1.context_block:
    adaLN_modulation.1 2h,h +
    attn.qkv 3h,h +
"""
QK_NORMS = "joint_blocks.{0..1}.{x,context}_block.attn.ln_{q,k} 64\n"
SECOND_ATTENTION = """
joint_blocks.0.x_block:
    attn2.qkv 3h,h +
    attn2.ln_{q,k} 64
    attn2.proj h,h +
"""
SD_3 = SD_3_ENDS + SD_3_BLOCK + SD_3_LAST
SD_35_LARGE = SD_3 + QK_NORMS
SD_35_MEDIUM = (
    SD_3_ENDS
    + SD_3_BLOCK.replace("{x,context}", "context")
    + SD_3_BLOCK.replace("{x,context}", "x").replace("6h,h", "9h,h")
    + SD_3_LAST
    + QK_NORMS
    + SECOND_ATTENTION
)
AURA = """
positional_encoding* 1,1024,h
register_tokens* 1,8,h
t_embedder.mlp.0 h,256 +
t_embedder.mlp.2 h,h +
cond_seq_linear h,t
init_x_linear h,16 +
double_layers.{0..3}:
    mod{C,X}.1 2h,h
    attn.w{1,2}{q,k,v,o} h,h
    mlp{C,X}.c_fc{1,2} 64,h
    mlp{C,X}.c_proj h,64
single_layers.{0..1}:
    modCX.1 6h,h
    attn.w1{q,k,v,o} h,h
    mlp.c_fc{1,2} m,h
    mlp.c_proj h,m
modF.1 2h,h
final_linear 16,h
"""
HIDREAM = """
x_embedder.proj h,64 +
t_embedder.timestep_embedder.linear_1 h,256 +
t_embedder.timestep_embedder.linear_2 h,h +
p_embedder.pooled_embedder.linear_1 h,2048 +
p_embedder.pooled_embedder.linear_2 h,h +
caption_projection.{0..2}.linear h,t
double_stream_blocks.0.block:
    adaLN_modulation.1 12h,h +
    attn1.to_{q,k,v,out,q_t,k_t,v_t,out_t} h,h +
    attn1.{q,k}_rms_norm h
    attn1.{q,k}_rms_norm_t h
    ff_i.shared_experts.{w1,w3} h,h
    ff_i.shared_experts.w2 h,h
    ff_i.experts.{0..1}.{w1,w3} h,h
    ff_i.experts.{0..1}.w2 h,h
    ff_i.gate 4,h
    ff_t.{w1,w3} m,h
    ff_t.w2 h,m
single_stream_blocks.{0..1}.block:
    adaLN_modulation.1 6h,h +
    attn1.to_{q,k,v,out} h,h +
    attn1.{q,k}_rms_norm h
    ff_i.shared_experts.{w1,w3} h,h
    ff_i.shared_experts.w2 h,h
    ff_i.gate 8,h
final_layer.linear 64,h +
final_layer.adaLN_modulation.1 2h,h +
"""
HIDREAM_O1 = """
t_embedder1.mlp.0 h,256 +
t_embedder1.mlp.2 h,h +
x_embedder.proj1 64,3072
x_embedder.proj2 h,64 +
final_layer2.linear 3072,h +
language_model.embed_tokens 320,h
language_model.norm h
language_model.layers.{0..1}:
    self_attn.{q,o}_proj h,h
    self_attn.{k,v}_proj 64,h
    self_attn.{q,k}_norm 64
    mlp.{gate,up}_proj m,h
    mlp.down_proj h,m
    {input,post_attention}_layernorm h
visual.patch_embed.proj h,3,2,16,16 +
visual.pos_embed 64,h
visual.blocks.{0..1}:
    norm{1,2} h +
    attn.qkv 3h,h +
    attn.proj h,h +
    mlp.linear_fc1 m,h +
    mlp.linear_fc2 h,m +
visual.merger.norm h +
visual.merger.linear_fc1 h,4h +
visual.merger.linear_fc2 h,h +
"""


def lumina(gate: int, time: int) -> str:
    """Describe Lumina 2's layers and refiners. gate: width of the modulation. time: width of the timestep's MLP."""
    layer = """
    attention.qkv 3h,h
    attention.out h,h
    attention.{q,k}_norm 128
    feed_forward.w{1,3} m,h
    feed_forward.w2 h,m
    {attention,ffn}_norm{1,2} h
"""
    modulation = f"    adaLN_modulation.{0 if gate == time else 1} 4h,{gate} +\n"
    ends = f"""
x_embedder h,64 +
t_embedder.mlp.0 {time},256 +
t_embedder.mlp.2 {gate},{time} +
cap_embedder.0 t
cap_embedder.1 h,t +
final_layer.linear 64,h +
final_layer.adaLN_modulation.1 h,{gate} +
"""
    layers = "noise_refiner.0:" + layer + modulation + "context_refiner.0:" + layer
    return ends + layers + "layers.{0..1}:" + layer + modulation


LUMINA_2 = lumina(256, 1024) + "norm_final h\n"
NEWBIE = (
    lumina(256, 1024)
    + """
norm_final h
clip_text_pooled_proj.0 1024
clip_text_pooled_proj.1 256,1024 +
time_text_embed.1 256,512 +
"""
)
Z_IMAGE = lumina(256, 256) + "{x,cap}_pad_token* 1,h\n"
QWEN_BLOCK = """
transformer_blocks.{0..1}:
    {img,txt}_mod.1 6h,h +
    attn.{to_q,to_k,to_v,add_q_proj,add_k_proj,add_v_proj,to_out.0,to_add_out} h,h +
    attn.norm_{q,k,added_q,added_k} 128
    {img,txt}_mlp.net.0.proj m,h +
    {img,txt}_mlp.net.2 h,m +
"""
QWEN_ENDS = """
time_text_embed.timestep_embedder.linear_1 h,256 +
time_text_embed.timestep_embedder.linear_2 h,h +
norm_out.linear 2h,h +
"""
QWEN_IMAGE = QWEN_BLOCK + QWEN_ENDS + "img_in h,64 +\ntxt_in h,3584 +\ntxt_norm 3584\nproj_out 64,h +\n"
MAGE_FLOW = QWEN_BLOCK + QWEN_ENDS + "img_in h,128 +\ntxt_in h,2560 +\ntxt_norm 2560\nproj_out 128,h +\n"
QWEN_IMAGE_21 = """
img_in h,64
txt_in.text_norm t
txt_in.linear_1 h,t
txt_in.linear_2 h,h
time_text_embed.timestep_embedder.linear_1 h,256
time_text_embed.timestep_embedder.linear_2 h,h
modulation.1 4h,h
norm_out.linear h,h
proj_out 64,h
transformer_blocks.{0..1}:
    attn.{to_q,to_k,to_v,to_out.0} h,h
    attn.norm_{q,k} 128
    img_mlp.gate_up 2m,h
    img_mlp.out h,m
"""
LENS = (
    QWEN_ENDS
    + """
img_in h,128 +
txt_in h,4t +
txt_norm.{0..3} t
proj_out 128,h +
transformer_blocks.{0..1}:
    {img,txt}_mod.1 6h,h +
    {img,txt}_norm{1,2} h
    {img,txt}_mlp.w{1,3} m,h
    {img,txt}_mlp.w2 h,m
    attn.{img,txt}_qkv 3h,h +
    attn.norm_{q,k,added_q,added_k} 64
    attn.{to_out.0,to_add_out} h,h +
"""
)
KREA_LAYER = """
    attn.{wq,wo,gate} h,h
    attn.w{k,v} 64,h
    attn.qknorm.{q,k}norm.scale* 128
    mlp.{gate,up} m,h
    mlp.down h,m
    {pre,post}norm.scale* h
"""
KREA_2 = (
    "blocks.{0..1}:"
    + KREA_LAYER
    + "    mod.lin* 6,h\ntxtfusion.{layerwise_blocks,refiner_blocks}.0:"
    + KREA_LAYER
    + """
txtfusion.projector 1,12
first h,64 +
last.linear 64,h +
last.modulation.lin* 2,h
last.norm.scale* h
tmlp.0 h,256 +
tmlp.2 h,h +
tproj.1 6h,h +
txtmlp.0.scale* h
txtmlp.{1,3} h,h +
"""
)
IDEOGRAM_4 = """
input_proj h,128 +
llm_cond_norm 4t
llm_cond_proj h,4t +
t_embedding.mlp_{in,out} h,h +
adaln_proj 64,h +
embed_image_indicator 2,h
layers.{0..1}:
    attention.qkv 3h,h
    attention.o h,h
    attention.norm_{q,k} 256
    feed_forward.w{1,3} m,h
    feed_forward.w2 h,m
    {attention,ffn}_norm{1,2} h
    adaln_modulation 4h,64 +
final_layer.linear 128,h +
final_layer.adaln_modulation h,64 +
"""
ERNIE_IMAGE = """
x_embedder.proj h,128,1,1 +
text_proj h,t
time_embedding.linear_{1,2} h,h +
adaLN_modulation.1 6h,h +
layers.{0..1}:
    adaLN_{sa,mlp}_ln h
    self_attention.{to_q,to_k,to_v,to_out.0} h,h
    self_attention.norm_{q,k} 128
    mlp.{gate,up}_proj m,h
    mlp.linear_fc2 h,m
final_norm.linear 2h,h +
final_linear 128,h +
"""
TOKEN_REFINER = """
txt_in:
    input_embedder h,t +
    t_embedder.in_layer h,256 +
    t_embedder.out_layer h,h +
    c_embedder.in_layer h,t +
    c_embedder.out_layer h,h +
txt_in.individual_token_refiner.blocks.{0..1}:
    norm{1,2} h +
    self_attn.qkv 3h,h +
    self_attn.proj h,h +
    mlp.0 h,h +
    mlp.2 h,h +
    adaLN_modulation.1 2h,h +
"""
GLYPHS = """
byt5_in:
    layernorm 1472 +
    fc1 h,1472 +
    fc2 h,h +
    fc3 h,h +
"""
HUNYUAN_IMAGE = (
    FLUX_BLOCKS
    + FLUX_ENDS.replace("txt_in h,t +", "")
    + TOKEN_REFINER
    + GLYPHS
    + GUIDANCE
    + "img_in.proj h,64,1,1 +\ntime_r_in.in_layer h,256 +\ntime_r_in.out_layer h,h +\n"
)
PIXART = """
pos_embed* 1,64,h
x_embedder.proj h,4,2,2 +
t_embedder.mlp.0 h,256 +
t_embedder.mlp.2 h,h +
t_block.1 6h,h +
y_embedder.y_embedding* 120,t
y_embedder.y_proj.fc1 h,t +
y_embedder.y_proj.fc2 h,h +
blocks.{0..1}:
    scale_shift_table* 6,h
    attn.qkv 3h,h +
    attn.proj h,h +
    cross_attn.q_linear h,h +
    cross_attn.kv_linear 2h,h +
    cross_attn.proj h,h +
    mlp.fc1 m,h +
    mlp.fc2 h,m +
final_layer.scale_shift_table* 2,h
final_layer.linear 32,h +
"""
JOYIMAGE = """
img_in h,16,1,2,2 +
condition_embedder.time_embedder.linear_1 h,256 +
condition_embedder.time_embedder.linear_2 h,h +
condition_embedder.time_proj 6h,h +
condition_embedder.text_embedder.linear_1 h,t +
condition_embedder.text_embedder.linear_2 h,h +
double_blocks.{0..1}:
    {img,txt}_mod.modulate_table* 1,6,h
    {img,txt}_mlp.net.0.proj m,h +
    {img,txt}_mlp.net.2 h,m +
    attn.{img,txt}_attn_qkv 3h,h +
    attn.{img,txt}_attn_proj h,h +
    attn.{img,txt}_attn_{q,k}_norm 128
proj_out 64,h +
"""
OMNIGEN_ENDS = """
image_index_embedding* 5,h
{x_embedder,ref_image_patch_embedder} h,64 +
time_caption_embed.timestep_embedder.linear_1 h,256 +
time_caption_embed.timestep_embedder.linear_2 h,h +
time_caption_embed.caption_embedder.0 t
time_caption_embed.caption_embedder.1 h,t +
norm_out.linear_1 h,h +
norm_out.linear_2 64,h +
"""
OMNIGEN_LAYER = """
    attn.{to_q,to_out.0} h,h
    attn.to_{k,v} 64,h
    attn.norm_{q,k} 64
    feed_forward.linear_{1,3} m,h
    feed_forward.linear_2 h,m
    {norm2,ffn_norm1,ffn_norm2} h
"""
OMNIGEN_MODULATED = OMNIGEN_LAYER + "    norm1.linear 4h,h +\n    norm1.norm h\n"
OMNIGEN_REFINERS = (
    "{noise_refiner,ref_image_refiner}.0:" + OMNIGEN_MODULATED + "context_refiner.0:" + OMNIGEN_LAYER + "    norm1 h\n"
)
OMNIGEN_2 = OMNIGEN_ENDS + OMNIGEN_REFINERS + "layers.{0..3}:" + OMNIGEN_MODULATED
BOOGU = (
    OMNIGEN_ENDS
    + OMNIGEN_REFINERS
    + "single_stream_layers.{0..1}:"
    + OMNIGEN_MODULATED
    + """double_stream_layers.0:
    img_instruct_attn.processor.{img,instruct}_to_q h,h
    img_instruct_attn.processor.{img,instruct}_to_{k,v} 64,h
    img_instruct_attn.{processor.img_out,processor.instruct_out,to_out.0} h,h
    {img_instruct_attn,img_self_attn}.norm_{q,k} 64
    img_self_attn.{to_q,to_out.0} h,h
    img_self_attn.to_{k,v} 64,h
    {img,instruct}_feed_forward.linear_{1,3} m,h
    {img,instruct}_feed_forward.linear_2 h,m
    {img_norm1,img_norm2,img_norm3,instruct_norm1,instruct_norm2}.linear 4h,h +
    {img_norm1,img_norm2,img_norm3,instruct_norm1,instruct_norm2}.norm h
    {img_attn_norm,img_self_attn_norm,instruct_attn_norm} h
    {img,instruct}_ffn_norm{1,2} h
"""
)
SENSENOVA = """
{vision_model,fm_modules.vision_model_mot_gen}.embeddings.patch_embedding 64,3,16,16 +
{vision_model,fm_modules.vision_model_mot_gen}.embeddings.dense_embedding h,64,2,2 +
fm_modules.{timestep,noise_scale}_embedder.mlp.0 h,256 +
fm_modules.{timestep,noise_scale}_embedder.mlp.2 h,h +
fm_modules.fm_head.conv1 64,64,3,3 +
fm_modules.fm_head.conv2 192,16,3,3 +
language_model.lm_head 320,h
language_model.model.embed_tokens 320,h
language_model.model.{norm,norm_mot_gen} h
language_model.model.layers.{0..1}:
    self_attn.{q,o}_{proj,proj_mot_gen} h,h
    self_attn.{k,v}_{proj,proj_mot_gen} 64,h
    self_attn.{q,k}_norm{,_mot_gen,_hw,_hw_mot_gen} 64
    {mlp,mlp_mot_gen}.{gate,up}_proj m,h
    {mlp,mlp_mot_gen}.down_proj h,m
    {input,post_attention}_layernorm{,_mot_gen} h
"""
