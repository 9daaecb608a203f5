"""Qwen3-TTS: the speaker encoder (ECAPA-TDNN), the code predictor for a frame's other codes, and the decoder from codes
to audio, which is in a folder of its own.

The encoder from audio to codes is left out. Codebooks are stored as sums and counts; files have the factors of Snake,
not their logarithms. Tensors are in the order of llama.cpp's files.
"""

import re

import numpy as np

from quants import Tensor
from quants.errors import ModelError

from ..encoder import GATED_NET, QKV, Encoder, always, at
from ..spec import Config, Floats, Target, TensorMap, Tensors
from ..transforms import computed, reshape, stacked

FOLDER = "speech_tokenizer"
ENCODES = "encodes audio as codes, which no program reads from such files"
MIN_USAGE = np.float32(1e-5)  # of the usage of a code
BOOK = re.compile(r"(.*\.vq)\.layers\.(\d+)\._codebook\.(embedding_sum|cluster_usage)")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
STAGES = 3  # of the speaker encoder; its other sizes, too, are the same in all such models
SUFFIXES = ("weight", "alpha", "bias", "beta")
# Names of the decoder's parts by their stored numbers; others come after the blocks.
OF_BLOCKS = re.compile(rf"({FOLDER}\.decoder\.decoder)\.(\d{{1,3}})\.(?:block\.([0-4])\.)?(.*)")


def _matrix(tensor: Tensor, config: Config) -> Tensor:
    """Return a convolution over one frame, (out, in, 1), as a matrix."""
    return reshape(tensor, tensor.shape[:2]) if tensor.shape[2:] == (1,) else tensor


def _exp(tensor: Tensor, config: Config) -> Tensor:
    return computed(tensor, np.exp)


def _inverse_exp(tensor: Tensor, config: Config) -> Tensor:
    return computed(tensor, lambda x: np.float32(1) / (np.exp(x) + np.float32(1e-9)))


def _snake(source: str, name: str) -> dict[str, Target]:
    """Return an activation's two vectors."""
    beta = TensorMap(f"{name}.beta", _inverse_exp)
    return {f"{source}.alpha": TensorMap(f"{name}.alpha", _exp), f"{source}.beta": beta}


TALKER = "talker.code_predictor."
LAYER: dict[str, Target] = {
    "input_layernorm": "ln1",
    "self_attn.q_proj": "attn_q",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_proj": "attn_k",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "post_attention_layernorm": "ln2",
    **GATED_NET,
}
AUDIO_LAYER: dict[str, Target] = {
    "input_layernorm": "ln1",
    **QKV,
    "self_attn.o_proj": "attn_out",
    "self_attn_layer_scale.scale": "ls1.weight",
    "post_attention_layernorm": "ln2",
    **GATED_NET,
    "mlp_layer_scale.scale": "ls2.weight",
}
SOUND: dict[str, Target] = at(
    f"{FOLDER}.decoder.",
    "a.gen.wav.",
    {
        **{
            f"quantizer.rvq_{which}.{source}": TensorMap(f"quant.{which}.{name}", _matrix)
            for which in ("first", "rest")
            for source, name in (("input_proj", "in_proj"), ("output_proj", "out_proj"), ("vq.codebook", "codebook"))
        },
        "pre_conv.conv": "pre_conv",
        "pre_transformer.input_proj": "tfm.in_proj",
        "pre_transformer.output_proj": "tfm.out_proj",
        "pre_transformer.norm": "tfm.output_norm",
        **at("pre_transformer.layers.{i}.", "tfm.blk.{i}.", AUDIO_LAYER),
        **at(
            "upsample.{i}.",
            "up.blk.{i}.",
            {
                "0.conv": "conv",
                "1.dwconv.conv": "dwconv",
                "1.norm": "norm",
                "1.pwconv1": "pw1",
                "1.pwconv2": "pw2",
                "1.gamma": "gamma",
            },
        ),
        "decoder.entry.conv": "dac.entry",
        **at(
            "decoder.blocks.{i}.",
            "dac.blk.{i}.",
            {
                **_snake("snake", "snake"),
                "up.conv": "conv",
                **_snake("res.{j}.act1", "res.{j}.act1"),
                "res.{j}.conv1.conv": "res.{j}.conv1",
                **_snake("res.{j}.act2", "res.{j}.act2"),
                "res.{j}.conv2.conv": "res.{j}.conv2",
            },
        ),
        **_snake("decoder.last", "dac.post_snake"),
        "decoder.last.conv": "dac.post_conv",
    },
)


def _named(name: str) -> str:
    """Return the decoder's parts by role: an entry, blocks of a Snake, a convolution and three units, an end."""
    if not (match := OF_BLOCKS.fullmatch(name)):
        return name
    net, number, part, inner = match[1], int(match[2]), match[3], match[4]
    if part is None:
        return f"{net}.{'last' if number else 'entry'}.{inner}"
    unit = {"0": "snake", "1": "up"}.get(part) or f"res.{int(part) - 2}"
    return f"{net}.blocks.{number - 1}.{unit}.{inner}" if number else name


def with_codebooks(config: Config, tensors: Tensors) -> Tensors:
    """Return codebooks as embeddings; the decoder goes first, in the order of SOUND."""
    named: dict[str, Tensor] = {}
    books: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if (book := BOOK.fullmatch(name)) and name.startswith(f"{FOLDER}.decoder."):
            other = {"embedding_sum": "cluster_usage", "cluster_usage": "embedding_sum"}[book[3]]
            usage = tensors.get(name.replace(book[3], other))
            if usage is None:
                raise ModelError(f"the checkpoint has {name!r}, but not the codebook's {other}", "a file is damaged")
            if other == "cluster_usage":
                books.setdefault(book[1], {})[int(book[2])] = means(tensor, usage)
        else:
            named[_named(name)] = tensor
    for name, each in books.items():
        if lacking := sorted(set(range(max(each) + 1)) - set(each)):
            raise ModelError(f"{name} lacks codebook {lacking[0]}", "a file is damaged")
        several = [each[i] for i in sorted(each)]
        named[f"{name}.codebook.weight"] = stacked(several, name) if len(several) > 1 else several[0]
    return {name: named[name] for name in sorted(named, key=_place)}


def means(sums: Tensor, usage: Tensor) -> Tensor:
    """Return a codebook: the mean vector of each code. Raises ModelError if the two tensors don't fit each other."""
    if len(sums.shape) != 2 or usage.size != sums.rows:
        raise ModelError(f"{sums.where} has shape {list(sums.shape)}, {usage.where} {list(usage.shape)}")

    def divided(x: Floats, rows: Floats) -> Floats:
        counts: Floats = np.maximum(usage.float32().reshape(-1)[rows.astype(np.int64)], MIN_USAGE)
        return x / counts[:, None]

    return computed(sums, divided, np.arange(sums.rows, dtype=np.float32))


RULES = [NUMBER.sub("#", f".{re.sub(r'{.}', '0', each)}.")[1:-1] for each in SOUND]


def _place(name: str) -> list[int]:
    """Return a tensor's position: in the order of SOUND, layer by layer; all others after, in their order."""
    bare, _, suffix = name.rpartition(".")
    if not name.startswith(f"{FOLDER}."):
        return [len(RULES)]
    bare, order = (bare, SUFFIXES.index(suffix)) if suffix in SUFFIXES else (name, 0)
    rule, places = NUMBER.sub("#", f".{name}.")[1:-1], list[int]()
    for match in NUMBER.finditer(name):
        begins = NUMBER.sub("#", name[: match.start()] + "0.")
        places += [next((i for i, each in enumerate(RULES) if each.startswith(begins)), len(RULES)), int(match[0])]
    exact = next((i for i, each in enumerate(RULES) if each in (rule, rule.rpartition(".")[0])), len(RULES))
    return [*places, exact, order]


QWEN3_TTS = Encoder(
    hf_classes=("Qwen3TTSForConditionalGeneration",),
    metadata={
        "has_audio_encoder": always(True),
        "audio.projector_type": always("qwen3tts_spkenc"),
        "audio.projection_dim": "text.hidden_size",
        "audio.num_mel_bins": always(128),
        "audio.block_count": always(STAGES),
        "audio.embedding_length": always(1536),
        "audio.attention.head_count": always(1),  # it has no attention; programs require these
        "audio.feed_forward_length": always(1536),
        "audio.attention.layer_norm_epsilon": always(1e-5),
        "has_gen_audio_encoder": always(True),
        "gen.audio.projector_type": always("qwen3tts_gen"),
        "gen.audio.projection_dim": "text.hidden_size",
        "gen.audio.embedding_length": "speech.hidden_size",
        "gen.audio.feed_forward_length": "speech.intermediate_size",
        "gen.audio.block_count": "speech.num_hidden_layers",
        "gen.audio.attention.head_count": "speech.num_attention_heads",
        "gen.audio.attention.head_count_kv": "speech.num_key_value_heads",
        "gen.audio.attention.layer_norm_epsilon": "speech.rms_norm_eps",
    },
    parts={"audio": "speaker_encoder_config", "speech": "talker_config.code_predictor_config"},
    tensors={
        **SOUND,
        "speaker_encoder.blocks.{i}.conv": "a.conv1d.{i}",
        **at(
            "speaker_encoder.blocks.{i}.",
            "a.blk.{i}.",
            {
                "tdnn1.conv": "conv_pw1",
                "tdnn2.conv": "conv_pw2",
                "res2net_block.blocks.{j}.conv": "res2.{j}",
                "se_block.conv1": "se_conv1",
                "se_block.conv2": "se_conv2",
            },
        ),
        "speaker_encoder.mfa.conv": "a.conv_out",
        "speaker_encoder.asp.conv": "a.asp_attn",
        "speaker_encoder.asp.tdnn.conv": "a.asp_tdnn",
        "speaker_encoder.fc": "mm.a.fc",
        "talker.model.codec_embedding": "a.gen.code.out_embd",
        f"{TALKER}small_to_mtp_projection": "a.gen.code.proj_in",
        f"{TALKER}model.norm": "a.gen.code.output_norm",
        f"{TALKER}model.codec_embedding.{{i}}.weight": TensorMap("a.gen.code.embd.weight", stack=True),
        f"{TALKER}lm_head.{{i}}.weight": TensorMap("a.gen.code.head.weight", stack=True),
        **at(f"{TALKER}model.layers.{{i}}.", "a.gen.code.blk.{i}.", LAYER),
    },
    fixed={
        **dict.fromkeys(
            (
                "a.gen.wav.pre_conv.weight",
                "a.gen.wav.dac.entry.weight",
                "a.gen.wav.dac.post_conv.weight",
                "a.gen.wav.up.blk.*.dwconv.weight",
                "a.gen.wav.dac.blk.*.conv1.weight",
                "a.gen.wav.dac.blk.*.conv2.weight",
            ),
            "F16",
        ),
        **dict.fromkeys(
            ("a.gen.wav.up.blk.*.conv.weight", "a.gen.wav.dac.blk.*.conv.weight", "a.gen.code.blk.*.ffn_down.weight"),
            "F32",
        ),
    },
    ignored={f"{FOLDER}.encoder.*": ENCODES, f"{FOLDER}.encoder_model.*": ENCODES},
    claimed=("speaker_encoder.*", f"{TALKER}*"),
    prepare=with_codebooks,
    folders=(FOLDER,),
)
