"""MiMo V2.5: Qwen2.5-VL's layers with fewer keys than queries, sinks, and windows of rows or columns; for audio the
encoder of an audio tokenizer, in a folder of its own, whose codes have embeddings and layers before the text's.
"""

from quants import Tensor

from ..config import required
from ..encoder import AUDIO, FUSED_ATTENTION, GATED_NET, QKV, VISION, WHISPER_ATTENTION, Encoder, always, at, maybe
from ..spec import Config, Target, TensorMap, Tensors
from ..transforms import column, concatenated, stacked, zeros
from ..typed_json import Fields, Whole
from .qwen_vl import PATCHES

FOLDER = "audio_tokenizer"
CODEBOOKS = f"{FOLDER}.encoder.quantizer.vq.layers."
LAYER: dict[str, Target] = {**FUSED_ATTENTION, "attn.sinks": "attn_sinks", **GATED_NET}
AUDIO_LAYER: dict[str, Target] = {**WHISPER_ATTENTION, "fc1": "ffn_up", "fc2": "ffn_down"}
LOCAL: dict[str, Target] = {
    **QKV,
    "self_attn.o_proj": "attn_out",
    **GATED_NET,
    "input_layernorm": "ln1",
    "post_attention_layernorm": "ln2",
}


def _codebooks(config: Config) -> list[int]:
    """Return the number of codes in each codebook."""
    sizes = {}
    for name, shape in config["shapes"].items():
        number = name.removeprefix(CODEBOOKS).partition(".")[0]
        if name.startswith(CODEBOOKS) and name.endswith("._codebook.embed") and number.isdecimal():
            sizes[int(number)] = shape[0]
    return [sizes[number] for number in sorted(sizes)]


def _in_one(config: Config, tensors: Tensors) -> Tensors:
    """Return codebooks as one tensor, padded with zeros, after the other tensors of their folder."""
    books = [f"{CODEBOOKS}{i}._codebook.embed" for i in range(len(_codebooks(config)))]
    if not books or any(name not in tensors for name in books):
        return tensors
    rows = max(_codebooks(config))

    def filled(tensor: Tensor) -> Tensor:
        lacking = rows - tensor.shape[0]
        return concatenated([tensor, zeros(tensor, lacking)], tensor.name) if lacking else tensor

    inside = {name: tensor for name, tensor in tensors.items() if name.startswith(FOLDER) and name not in books}
    merged = {f"{FOLDER}.codebook": stacked([filled(tensors[name]) for name in books], f"{FOLDER}.codebook")}
    return inside | merged | {name: tensors[name] for name in tensors if not name.startswith(FOLDER)}


def _windows(config: Config) -> list[int]:
    """Return the window flags of the audio tokenizer's layers: 0 for a window, -1 for global attention."""
    audio = config["audio"]
    count, period = int(required(config, "audio.encoder_layers")), int(audio.get("swa_per_block") or 1)
    regular = bool(audio.get("hybrid_attention")) and period > 1
    return [0 if regular and i % period < period - 1 else -1 for i in range(count)]


def _window(config: Config) -> int | None:
    sizes = config["audio"]["encoder_attn_window_size"]
    return sizes[0] if sizes else None


MIMO_V2 = Encoder(
    hf_classes=("MiMoV2ForCausalLM",),
    metadata={
        **VISION,
        "vision.image_size": maybe("vision.image_size", 560),
        **AUDIO,
        "audio.embedding_length": "audio.d_model",
        "audio.block_count": "audio.encoder_layers",
        "vision.projector_type": always("mimovl"),
        "use_silu": always(True),
        "vision.attention.head_count_kv": maybe("vision.num_key_value_heads", 8),
        "vision.spatial_merge_size": "vision.spatial_merge_size",
        "vision.window_size": "vision.visual_token_window_size",
        "vision.wa_pattern_mode": "vision.vit_window_attn_types",
        "vision.attention.layer_norm_epsilon": maybe("vision.rms_norm_eps", 1e-6),
        "vision.image_min_pixels": "preprocessor.min_pixels",
        "vision.image_max_pixels": "preprocessor.max_pixels",
        "audio.projector_type": always("mimo_audio"),
        "audio.num_mel_bins": "audio.n_mels",
        "audio.attention.layer_norm_epsilon": maybe("audio.layer_norm_eps", 1e-5),
        "audio.rvq.num_quantizers": lambda config: len(_codebooks(config)),
        "audio.rvq.codebook_size": _codebooks,
        "audio.wa_pattern_mode": _windows,
        "audio.window_size": _window,
        "audio.local_block_count": "audio_config.input_local_layers",
        "audio.local_group_size": "audio_config.group_size",
    },
    parts={"vision": "vision_config", "audio": FOLDER},
    defaults={"vision": {"num_heads": 32, "depth": 28}},
    tensors={
        **PATCHES,
        **at("visual.blocks.{i}.", "v.blk.{i}.", LAYER),
        "visual.merger.ln_q": "v.post_ln",
        "visual.merger.mlp.{i}": "mm.{i}",
        **at(
            f"{FOLDER}.encoder.",
            "a.",
            {
                **at("layers.{i}.", "blk.{i}.", AUDIO_LAYER),
                **{f"conv{i}.weight": f"conv1d.{i}.weight" for i in (1, 2)},
                **{f"conv{i}.bias": TensorMap(f"conv1d.{i}.bias", column) for i in (1, 2)},
                "layer_norm": "post_ln",
                "down_sample_layer.{i}": "downsample.conv",
                "down_sample_norm": "downsample.norm",
            },
        ),
        f"{FOLDER}.codebook": "a.rvq.codebook.weight",
        "speech_embeddings.{i}.weight": TensorMap("mm.a.code_embd.weight", stack=True),
        **at(
            "audio_encoder.input_local_transformer.",
            "mm.a.",
            {**at("layers.{i}.", "local_blk.{i}.", LOCAL), "norm": "local_norm"},
        ),
        "audio_encoder.projection.first": "mm.a.mlp.1",
        "audio_encoder.projection.second": "mm.a.mlp.2",
    },
    fixed={
        "a.rvq.codebook.weight": "F32",
        "mm.a.code_embd.weight": "F32",
        "a.conv1d.*.weight": "F32",
        "a.downsample.conv.weight": "F32",
    },
    ignored={
        f"{FOLDER}.decoder.*": "decodes codes to audio, which no program does from such files",
        **{f"{FOLDER}.*._codebook.{name}": "counts of training" for name in ("cluster_size", "embed_avg", "inited")},
    },
    spellings={
        "audio_encoder.projection.mlp.0.": "audio_encoder.projection.first.",
        "audio_encoder.projection.mlp.2.": "audio_encoder.projection.second.",
    },
    claimed=("visual.*", "speech_embeddings.*", "audio_encoder.*"),
    folders=(FOLDER,),
    prepare=_in_one,
    keys={"audio_config": Fields({"input_local_layers": Whole(0, 10_000), "group_size": Whole(1, 1 << 16)})},
)
