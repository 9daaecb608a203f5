"""Descriptions of tiny video models, and of image models with their layers, in the form that the package explains.

Names: a list of Anima's, else ComfyUI's and stable-diffusion.cpp's code. Shapes: the same code, and diffusers'.
"""

from . import images

WAN_BLOCK = """
    modulation* 1,6,h
    {self,cross}_attn.{q,k,v,o} h,h +
    {self,cross}_attn.norm_{q,k} h
    norm3 h +
    ffn.0 m,h +
    ffn.2 h,m +
"""
WAN = (
    """
patch_embedding h,16,1,2,2 +
text_embedding.0 h,t +
text_embedding.2 h,h +
time_embedding.0 h,256 +
time_embedding.2 h,h +
time_projection.1 6h,h +
head.modulation* 1,2,h
head.head 64,h +
blocks.{0..1}:"""
    + WAN_BLOCK
)
IMAGE_INPUT = """
img_emb.proj.0 1280 +
img_emb.proj.1 64,1280 +
img_emb.proj.3 h,1280 +
img_emb.proj.4 h +
img_emb.emb_pos* 1,514,1280
blocks.{0..1}.cross_attn:
    k_img h,h +
    v_img h,h +
    norm_k_img h
"""
WAN_I2V = WAN.replace("h,16,1,2,2", "h,36,1,2,2") + IMAGE_INPUT
WAN_VACE = (
    WAN
    + "vace_patch_embedding h,96,1,2,2 +\nvace_blocks.{0..1}:"
    + WAN_BLOCK
    + "    after_proj h,h +\nvace_blocks.0.before_proj h,h +\n"
)
WAN_CONTROL = (
    WAN.replace("h,16,1,2,2", "h,36,1,2,2")
    + """
control_adapter.conv h,384,2,2 +
control_adapter.residual_blocks.0.conv{1,2} h,16,3,3 +
"""
)
WAN_S2V = (
    WAN
    + """
casual_audio_encoder.weights* 1,25,1,1
casual_audio_encoder.encoder.final_linear h,64 +
casual_audio_encoder.encoder.conv1_local.conv h,64,3 +
cond_encoder h,16,1,2,2 +
frame_packer.proj h,16,1,2,2 +
trainable_cond_mask 3,h
audio_injector.injector.{0..1}.{q,k,v,o} h,h +
audio_injector.injector.{0..1}.norm_{q,k} h
"""
)
WAN_ANIMATE = (
    WAN_I2V
    + """
pose_patch_embedding h,16,1,2,2 +
motion_encoder.enc.fc.0 64,64 +
motion_encoder.enc.net_app.convs.0.0 32,3,1,1
motion_encoder.dec.direction* 64,20
face_encoder.conv1_local.conv 64,64,3 +
face_encoder.out_proj h,64 +
face_adapter.fuser_blocks.{0..1}:
    linear1_kv 2h,h +
    linear1_q h,h +
    linear2 h,h +
    {q,k}_norm 128
"""
)
WAN_HUMO = (
    WAN
    + """
audio_proj.audio_proj_glob_{1,2}.layer 64,64 +
blocks.{0..1}.audio_cross_attn_wrapper.audio_cross_attn.{q,k,v,o} h,h +
"""
)
WAN_SCAIL = WAN_I2V + "patch_embedding_pose h,20,1,2,2 +\n"


def _renamed(text: str, names: dict[str, str]) -> str:
    """Return a description with other names."""
    for ours, theirs in names.items():
        text = text.replace(ours, theirs)
    return text


TENCENT = {
    "_attn.norm.{query,key}_norm.scale*": "_attn_{q,k}_norm",
    "    norm.{query,key}_norm.scale*": "    {q,k}_norm",
    "_attn.qkv": "_attn_qkv",
    "_attn.proj": "_attn_proj",
    "_mod.lin ": "_mod.linear ",
    "modulation.lin ": "modulation.linear ",
    "_mlp.0 ": "_mlp.fc1 ",
    "_mlp.2 ": "_mlp.fc2 ",
    "    mlp.0 ": "    mlp.fc1 ",
    "    mlp.2 ": "    mlp.fc2 ",
    "time_in.in_layer": "time_in.mlp.0",
    "time_in.out_layer": "time_in.mlp.2",
    "guidance_in.in_layer": "guidance_in.mlp.0",
    "guidance_in.out_layer": "guidance_in.mlp.2",
    "t_embedder.in_layer": "t_embedder.mlp.0",
    "t_embedder.out_layer": "t_embedder.mlp.2",
    "c_embedder.in_layer": "c_embedder.linear_1",
    "c_embedder.out_layer": "c_embedder.linear_2",
}
HUNYUAN_VIDEO_OF_COMFY = (
    images.FLUX_BLOCKS
    + images.FLUX_ENDS.replace("txt_in h,t +", "")
    + images.TOKEN_REFINER
    + images.POOLED
    + images.GUIDANCE
    + "img_in.proj h,16,1,2,2 +\n"
)
HUNYUAN_VIDEO = _renamed(HUNYUAN_VIDEO_OF_COMFY, TENCENT)
HUNYUAN_VIDEO_15 = (
    images.FLUX_BLOCKS.partition("single_blocks")[0]
    + images.FLUX_ENDS.replace("txt_in h,t +", "")
    + images.TOKEN_REFINER
    + images.GLYPHS
    + """
img_in.proj h,65,1,1,1 +
cond_type_embedding 3,h
vision_in.proj.0 1152 +
vision_in.proj.1 64,1152 +
vision_in.proj.3 h,64 +
vision_in.proj.4 h +
"""
)
COSMOS_1 = """
x_embedder.proj.1 h,68
extra_pos_embedder.pos_emb_{h,w,t}* 64,h
t_embedder.1.linear_1 h,h
t_embedder.1.linear_2 3h,h
affline_norm h
blocks.{block0,block1}.blocks.{0..1}:
    block.attn.to_{q,k}.0 h,h
    block.attn.to_{q,k}.1 128
    block.attn.{to_v.0,to_out.0} h,h
blocks.{block0,block1}.blocks.2:
    block.layer1 m,h
    block.layer2 h,m
blocks.{block0,block1}.blocks.{0..2}:
    adaLN_modulation.1 64,h
    adaLN_modulation.2 3h,64
final_layer.linear 64,h
final_layer.adaLN_modulation.1 64,h
final_layer.adaLN_modulation.2 2h,64
logvar.0.freqs* 128
"""
COSMOS_PREDICT_2 = """
x_embedder.proj.1 h,68
t_embedder.1.linear_1 h,h
t_embedder.1.linear_2 3h,h
t_embedding_norm h
pos_embedder.seq* 128
accum_video_sample_counter* 1
blocks.{0..1}:
    adaln_modulation_{self_attn,cross_attn,mlp}.1 64,h
    adaln_modulation_{self_attn,cross_attn,mlp}.2 3h,64
    {self,cross}_attn.{q,k}_proj h,h
    {self,cross}_attn.{v,output}_proj h,h
    {self,cross}_attn.{q,k}_norm 128
    mlp.layer1 m,h
    mlp.layer2 h,m
final_layer.linear 64,h
final_layer.adaln_modulation.1 64,h
final_layer.adaln_modulation.2 2h,64
"""
ANIMA = (
    COSMOS_PREDICT_2
    + """
llm_adapter:
    embed 320,h
    out_proj h,h +
    norm h
llm_adapter.blocks.0:
    {self,cross}_attn.{q,k,v,o}_proj h,h
    {self,cross}_attn.{q,k}_norm 64
    norm_{self_attn,cross_attn,mlp} h
    mlp.0 m,h +
    mlp.2 h,m +
"""
)
LTX_ENDS = """
patchify_proj h,128 +
proj_out 128,h +
scale_shift_table* 2,h
caption_projection.linear_1 h,t +
caption_projection.linear_2 h,h +
adaln_single.emb.timestep_embedder.linear_1 h,256 +
adaln_single.emb.timestep_embedder.linear_2 h,h +
adaln_single.linear 6h,h +
"""
LTX_BLOCK = """
transformer_blocks.{0..1}:
    scale_shift_table* 6,h
    {attn1,attn2}.{to_q,to_k,to_v,to_out.0} h,h +
    {attn1,attn2}.{q,k}_norm h
    ff.net.0.proj m,h +
    ff.net.2 h,m +
"""
LTX_VIDEO = LTX_ENDS + LTX_BLOCK
LTX_2 = (
    LTX_VIDEO
    + """
audio_patchify_proj 128,128 +
audio_proj_out 128,128 +
audio_scale_shift_table* 2,128
audio_caption_projection.linear_1 128,t +
audio_caption_projection.linear_2 128,128 +
{audio_adaln_single,av_ca_audio_scale_shift_adaln_single,av_ca_v2a_gate_adaln_single}:
    emb.timestep_embedder.linear_1 128,256 +
    emb.timestep_embedder.linear_2 128,128 +
    linear 512,128 +
{av_ca_video_scale_shift_adaln_single,av_ca_a2v_gate_adaln_single}:
    emb.timestep_embedder.linear_1 h,256 +
    emb.timestep_embedder.linear_2 h,h +
    linear h,h +
transformer_blocks.{0..1}:
    audio_scale_shift_table* 6,128
    scale_shift_table_a2v_ca_audio* 5,128
    scale_shift_table_a2v_ca_video* 5,h
    {audio_attn1,audio_attn2}.{to_q,to_k,to_v,to_out.0} 128,128 +
    {audio_attn1,audio_attn2}.{q,k}_norm 128
    {audio_to_video,video_to_audio}_attn.{to_q,to_k,to_v,to_out.0} 128,h +
    {audio_to_video,video_to_audio}_attn.{q,k}_norm 128
    audio_ff.net.0.proj 512,128 +
    audio_ff.net.2 128,512 +
{audio,video}_embeddings_connector:
    learnable_registers* 128,h
    transformer_1d_blocks.0.attn1.{to_q,to_k,to_v,to_out.0} h,h +
    transformer_1d_blocks.0.attn1.{q,k}_norm h
    transformer_1d_blocks.0.ff.net.0.proj m,h +
    transformer_1d_blocks.0.ff.net.2 h,m +
"""
)
KANDINSKY_LAYER = """
    feed_forward.in_layer m,h
    feed_forward.out_layer h,m
    {ATTENTION}.to_{query,key,value} h,h +
    {ATTENTION}.{query,key}_norm 64
    {ATTENTION}.out_layer h,h +
"""
KANDINSKY_5 = (
    """
time_embeddings.in_layer 64,h +
time_embeddings.out_layer 64,64 +
text_embeddings.in_layer h,t +
text_embeddings.norm h +
pooled_text_embeddings.in_layer 64,768 +
pooled_text_embeddings.norm 64 +
visual_embeddings.in_layer h,132 +
out_layer.modulation.out_layer 2h,64 +
out_layer.out_layer 64,h +
text_transformer_blocks.0:
    text_modulation.out_layer 6h,64 +"""
    + KANDINSKY_LAYER.replace("{ATTENTION}", "self_attention")
    + """visual_transformer_blocks.{0..1}:
    visual_modulation.out_layer 9h,64 +"""
    + KANDINSKY_LAYER.replace("{ATTENTION}", "{self,cross}_attention")
)
MINIMAX_LAYER = """
    norm{1,2} h
    attn.qkv_proj 3h,h
    attn.out_proj h,h
    attn.{q,k}_norm 128
    mlp.fc1 2m,h
    mlp.fc2 h,m
"""
MINIMAX_H3 = (
    "blocks.{0..1}:"
    + MINIMAX_LAYER
    + "    adaln_proj.linear 18h,8 +\ntoken_refiner.blocks.0:"
    + MINIMAX_LAYER
    + """
token_refiner.final_norm h
video_patch_proj h,96 + F32
audio_patch_proj h,32 + F32
condition_proj h,t +
adaln_t_table* 1001,8
rope.inv_freq* 16 F32
final_layer.norm h
final_layer.adaln_proj.linear 2h,8 +
final_layer.video_out 96,h + F32
final_layer.audio_out 32,h + F32
"""
)
MOCHI = """
pos_frequencies* 3,4,32
x_embedder.proj h,12,2,2 +
t_embedder.mlp.0 h,256 +
t_embedder.mlp.2 h,h +
t5_y_embedder.to_kv 2t,t +
t5_y_embedder.to_q t,t +
t5_y_embedder.to_out h,t +
t5_yproj 128,t +
blocks.{0..1}:
    mod_x 4h,h +
    attn.qkv_x 3h,h
    attn.qkv_y 3h,128
    attn.{q,k}_norm_{x,y} 64
    attn.proj_x h,h +
    mlp_x.w1 2m,h
    mlp_x.w2 h,m
blocks.0:
    mod_y 512,h +
    attn.proj_y 128,h +
    mlp_y.w1 m,128
    mlp_y.w2 128,h
blocks.1.mod_y 128,h +
final_layer.mod 2h,h +
final_layer.linear 48,h +
"""
KANDINSKY_6_TEXT = """
    text_modulation.out_layer 6h,64 +
    self_attention.to_{query,key,value} h,h +
    self_attention.{query,key}_norm 128
    self_attention.out_layer h,h +
    feed_forward.in_layer m,h
    feed_forward.out_layer h,m
"""
KANDINSKY_6 = (
    """
visual_embeddings.in_layer h,132 +
visual_token_type_embeddings 2,h
audio_embeddings.in_layer h,20 +
audio_embeddings.norm h +
{video,audio}_time_embeddings.in_layer 64,h +
{video,audio}_time_embeddings.out_layer 64,64 +
{video,audio}_text_embeddings.in_layer h,t +
{video,audio}_text_embeddings.norm h +
{video,audio}_pooled_text_embeddings.in_layer 64,768 +
{video,audio}_pooled_text_embeddings.norm 64 +
{out_layer,audio_outLayer}.modulation.out_layer 2h,64 +
out_layer.out_layer 64,h +
audio_outLayer.out_layer 20,h +
visual_blocks.0:
    {va,av}_modulation.out_layer 3h,64 +
    {va,av}_cross_attention.to_{query,key,value} h,h +
    {va,av}_cross_attention.{query,key}_norm 128
    {va,av}_cross_attention.out_layer h,h +
visual_blocks.0.{videoT,audioT}:
    visual_modulation.out_layer 9h,64 +"""
    + KANDINSKY_LAYER.replace("{ATTENTION}", "{self,cross}_attention")
    + "{video,audio}_text_transformer_blocks.0:"
    + KANDINSKY_6_TEXT
)
KANDINSKY_6_OF_DIFFUSERS = _renamed(
    KANDINSKY_6,
    {
        "visual_blocks.0": "visual_transformer_blocks.0",
        "{videoT,audioT}": "{video_dec_block,audio_dec_block}",
        "audio_outLayer": "audio_out_layer",
        "time_embeddings.in_layer": "time_embeddings.timestep_embedder.linear_1",
        "time_embeddings.out_layer": "time_embeddings.timestep_embedder.linear_2",
        "feed_forward.in_layer": "feed_forward.net.0.proj",
        "feed_forward.out_layer": "feed_forward.net.2",
    },
)
SEEDVR_BRANCH = """
    attn.proj_qkv.{BRANCH} 3h,h
    attn.proj_out.{BRANCH} h,h +
    attn.norm_{q,k}.{BRANCH} 128
    mlp.{BRANCH}.{proj_in_gate,proj_in} m,h
    mlp.{BRANCH}.proj_out h,m
    ada.{BRANCH}.{attn,mlp}_{shift,scale,gate}* h
"""
SEEDVR_2 = (
    """
positive_conditioning* 58,t
negative_conditioning* 64,t
vid_in.proj h,132 +
txt_in h,t +
emb_in.proj_in h,256 +
emb_in.proj_hid h,h +
emb_in.proj_out 6h,h +
vid_out.proj 64,h +
vid_out_norm h
vid_out_ada.out_{shift,scale}* h
blocks.{0..1}.attn.rope.rope.freqs* 21
blocks.0:"""
    + SEEDVR_BRANCH.replace("{BRANCH}", "{vid,txt}")
    + "blocks.1:"
    + SEEDVR_BRANCH.replace("{BRANCH}", "all")
)
