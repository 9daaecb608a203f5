"""dots3-note: dots.ocr's image encoder with norms of q and k, and more and more experts in its last layers; for audio a
conformer's convolutions before layers with gated nets. A net of two matrices after each.
"""

from collections.abc import Callable, Iterator

from ..config import other_than
from ..encoder import AUDIO, VISION, WHISPER_ATTENTION, Encoder, always, at
from ..spec import Config, Target, TensorMap
from ..transforms import part
from ..wrapper import Files, Wrapper, key, rows

LAYER: dict[str, Target] = {
    "norm_1": "ln1",
    "norm_2": "ln2",
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "mlp.fc1": "ffn_gate",
    "mlp.fc2": "ffn_down",
    "mlp.fc3": "ffn_up",
    "mlp.gate_weight": "ffn_gate_inp.weight",
    "mlp.router_bias": "exp_probs_b.weight",
    **{
        f"mlp.experts.{{j}}.{source}.weight": TensorMap(f"{name}_exps.weight", stack=True)
        for source, name in (("fc1", "ffn_gate"), ("fc2", "ffn_down"), ("fc3", "ffn_up"))
    },
}
AUDIO_LAYER: dict[str, Target] = {
    **WHISPER_ATTENTION,
    "fc2": "ffn_down",
    "fc1": (TensorMap("ffn_gate", part(0, 2)), TensorMap("ffn_up", part(1, 2))),
}


def _experts(config: Config) -> list[int]:
    """Return the number of experts in each layer; 0: a plain net."""
    return [max(0, count) for count in config["vision"]["pyramid_num_routed"]]


def _not(wanted: object) -> Callable[[object], bool]:
    """Return a test for any value but this, absent ones included."""
    return lambda value: value != wanted


def _counts(files: Files) -> list[int]:
    """Return the number of experts in each layer; 0: a plain net."""
    return [int(count) for count in files.keys["vision.expert_count_per_layer"]]


def _needed(files: Files) -> Iterator[str]:
    """Return the tensors that every layer has, by its type."""
    for i, count in enumerate(_counts(files)):
        nets = [f"ffn_{name}{'_exps' if count else ''}" for name in ("gate", "up", "down")]
        more = ["ffn_gate_inp"] if count else []
        for name in ("ln1", "ln2", "attn_qkv", "attn_out", "attn_q_norm", "attn_k_norm", *nets, *more):
            yield f"v.blk.{i}.{name}"
    yield from (f"a.conv2d.{i}" for i in (1, 2, 3))
    yield from (name for i in (0, 2) for name in (f"mm.{i}", f"mm.a.mlp.{i + 1}"))


def _expert_width(files: Files) -> int:
    shapes = (tensor.shape for name, tensor in files.tensors.items() if name.endswith(".ffn_up_exps.weight"))
    return next((shape[1] for shape in shapes), int(files.keys["vision.feed_forward_length"]))


_width = key("vision.embedding_length")
WRAPPER = Wrapper(
    "Dots3NoteForConditionalGeneration",
    "dots3_note",
    texts=("dots3note",),
    text_in=("",),
    read_otherwise=True,
    encoder_names={"audio_encoder.audio_adapter.norm.": "audio_encoder.audio_adapter.proj.0."},
    layers_alike=False,
    needed=_needed,
    config={
        "vision.hidden_size": _width,
        "vision.adapter_in_dim": _width,
        "vision.adapter_out_dim": lambda f: f.width,
        "vision.adapter_merge_size": key("vision.spatial_merge_size"),
        "vision.num_channels": 3,
        "vision.moe_intermediate_size": _expert_width,
        "vision.temporal_patch_size": 1,
        "vision.use_bias": False,
        "vision.use_qk_norm": True,
        "vision.adapter_type": "patch_merger",
        "vision.pre_pixel_shuffle": True,
        "vision.router_scoring_func": "sigmoid",
        "vision.router_scale": 1.0,
        "vision.pyramid_num_routed": lambda files: [count or -1 for count in _counts(files)],
        "vision.capacity_factor": key("vision.expert_used_count"),
        "audio.use_conv2d_stem": True,
        "audio.use_rope": True,
        "audio.use_rms_norm": True,
        "audio.use_causal": False,
        "audio.merge_factor": 1,
        "audio.chunk_seconds": 60,
        "audio.rope_parameters": lambda files: {
            "rope_type": "default",
            "partial_rotary_factor": 0.5,
            "rope_theta": 10_000.0,
        },
        "audio.whisper_config.activation_function": "swiglu",
        "audio.whisper_adapter_in_dim": key("audio.embedding_length"),
        "audio.whisper_adapter_out_dim": lambda files: files.width,
        "audio.downsample_hidden_size": rows("a.conv2d.1.weight"),
        "use_dsa": True,
        "use_sliding_window": True,
        "apply_mla_qkv_lora_rescale": True,
        "k_rope_only_layernorm": True,
        "attention_gate_type": "headwise",
        "swa_attention_gate_type": "headwise",
    },
    tokens={
        "image_token_id": ("<|imgpad|>",),
        "audio_token_id": ("<|audio_comp_pad|>",),
        "video_token_id": ("<|video_pad|>",),
    },
    processor="Dots3NoteProcessor",
    image_processor="Dots3NoteImageProcessor",
    preprocessor={"patch_size": key("vision.patch_size"), "merge_size": key("vision.spatial_merge_size")},
)
DOTS3_NOTE = Encoder(
    hf_classes=("Dots3NoteForCausalLM", "Dots3NoteForConditionalGeneration"),
    metadata={
        **VISION,
        "vision.image_size": always(0),  # of any size
        "vision.embedding_length": "vision.embed_dim",
        **AUDIO,
        "audio.embedding_length": "audio.whisper_config.d_model",
        "audio.feed_forward_length": "audio.whisper_config.encoder_ffn_dim",
        "audio.block_count": "audio.whisper_config.encoder_layers",
        "audio.attention.head_count": "audio.whisper_config.encoder_attention_heads",
        "vision.projector_type": always("dots3note_v"),
        "use_silu": always(True),
        "vision.attention.layer_norm_epsilon": "vision.rms_norm_eps",
        "vision.spatial_merge_size": "vision.spatial_merge_size",
        "vision.image_min_pixels": "preprocessor.min_pixels",
        "vision.image_max_pixels": "preprocessor.max_pixels",
        "vision.expert_count_per_layer": _experts,
        "vision.expert_used_count": lambda config: int(config["vision"]["capacity_factor"]),
        "audio.projector_type": always("dots3note_a"),
        "audio.num_mel_bins": "audio.whisper_config.num_mel_bins",
        "audio.attention.layer_norm_epsilon": always(1e-6),
    },
    parts={"vision": "vision_config", "audio": "audio_config"},
    tensors={
        **at("vision_encoder.blocks.{i}.", "v.blk.{i}.", LAYER),
        **at(
            "vision_encoder.",
            "",
            {
                "patch_embed.proj": "v.patch_embd",
                "patch_embed.norm": "v.pre_ln",
                "post_trunk_norm": "mm.post_norm",
                "adapter.ln_q": "mm.input_norm",
                "adapter.mlp.{i}": "mm.{i}",
            },
        ),
        **at(
            "audio_encoder.dots_encoder.speech_encoder.",
            "a.",
            {
                **at("layers.{i}.", "blk.{i}.", AUDIO_LAYER),
                **{f"conv2d{i}": f"conv2d.{i}" for i in (1, 2, 3)},
                "conv_out": "conv_out",
                "layer_norm": "post_ln",
            },
        ),
        "audio_encoder.audio_adapter.norm": "mm.a.norm_pre",
        "audio_encoder.audio_adapter.proj.{i}": "mm.a.mlp.{i}",
    },
    fixed={"*.ffn_gate_inp.weight": "F32", "a.conv2d.*": "F32", "a.conv_out.weight": "F32"},
    spellings={"audio_encoder.audio_adapter.proj.0.": "audio_encoder.audio_adapter.norm."},
    claimed=("vision_encoder.*", "audio_encoder.*"),
    refused={
        "vision.adapter_type": _not("patch_merger"),
        "vision.pre_pixel_shuffle": _not(True),
        "vision.router_scoring_func": other_than("sigmoid"),
        "vision.router_scale": other_than(1.0),
        "vision.temporal_patch_size": other_than(1),
        "vision.use_bias": other_than(False),
        "vision.use_qk_norm": _not(True),
        "audio.use_conv2d_stem": _not(True),
        "audio.use_rope": _not(True),
        "audio.use_rms_norm": _not(True),
        "audio.use_causal": other_than(False),
        "audio.merge_factor": other_than(1),
        "audio.chunk_seconds": _not(60),
        "audio.whisper_config.activation_function": _not("swiglu"),
        "audio.rope_parameters.partial_rotary_factor": _not(0.5),
        "audio.rope_parameters.rope_theta": _not(10_000.0),
    },
    wrappers=(WRAPPER,),
)
