"""GPT-2 and other decoders with layer norms and ungated nets.

GPT-2: learned positions, fused q/k/v, weights stored as (in, out). The causal masks that old checkpoints store are
    dropped.
GPT-BigCode (SantaCoder, StarCoder): GPT-2's layers with one key-value head, weights stored as (out, in). Without
    multi_query, q/k/v are fused head by head.
GPT-NeoX and Pythia: partly rotating heads, attention parallel to the feed-forward net or before it. q, k and v are
    fused head by head.
BLOOM: ALiBi, a norm on the embedding too, q/k/v fused head by head, tanh GELU.
Jais: GPT-2's layers with ALiBi, gated nets, and scores divided by the heads' width.
MPT: ALiBi, layer norms without biases, fused q/k/v that may be clipped.
OPT: learned positions that start at row two, ReLU. No other converter takes it; names follow GPT-2's, norms after each
    part (the 350m variant) follow BERT's. The 350m variant also projects between a narrow embedding and the layers.
Reference: transformers `models/gpt2/`, `models/gpt_bigcode/`, `models/gpt_neox/`, `models/bloom/`, `models/mpt/`,
`models/opt/`.
"""

import math
import re
from collections.abc import Iterable

import numpy as np

from archs.config import changed, lookup, needed, other_than, required
from archs.hparams.config_keys import ANYTHING
from archs.hparams.file_keys import Derived
from archs.rope import FACTORS, SCALING, rotated_width, unusual_base
from archs.spec import BASE, Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.tensor_maps import NEOX_NET, QKV, as_it_is
from archs.transforms import concatenated, scaled, skip_rows, take, transpose, ungroup
from archs.typed_json import Unread
from quants import Tensor, from_array
from quants.errors import ModelError


def attention_scale(config: Config) -> float | list[float] | None:
    """Return the factor of q·k if not the default, of each layer if they differ (llama.cpp drops it)."""
    width = required(config, "n_embd|hidden_size") / required(config, "n_head|num_attention_heads")
    scale = width**-0.5 if config.get("scale_attn_weights", True) else 1.0
    if config.get("scale_attn_by_inverse_layer_idx"):
        return [scale / (layer + 1) for layer in range(required(config, "n_layer|num_hidden_layers"))]
    return None if config.get("scale_attn_weights", True) else scale


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    scale, sizes = keys.get("attention.scale"), {"n_ctx": keys["context_length"]}
    if "position_embd.weight" in tensors:
        sizes["n_positions"] = tensors["position_embd.weight"].shape[0]
    if not isinstance(scale, list):
        return sizes
    return sizes | {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": scale[0] != 1}


GPT = BASE.derive(  # the base of these families
    layers="h",
    prefixes=("transformer", "model", "language_model", "text_model"),
    block={"norm": "layer", "rope": "none", "gated": False},
)


def divided(config: Config) -> bool:
    """Return whether scores are divided by the heads' width, not by its root."""
    return bool(lookup(config, "mup_scale_qk_dot_by_d|scale_qk_dot_by_d"))


GPT2 = GPT.derive(
    name="gpt2",
    hf_classes=("GPT2LMHeadModel", "GPT2Model"),
    metadata={
        "context_length": "n_ctx|n_positions",
        "feed_forward_length": lambda config: config.get("n_inner") or 4 * required(config, "n_embd|hidden_size"),
        "attention.scale": attention_scale,
    },
    defaults={"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "layer_norm_epsilon": 1e-5},
    tensors={
        "wte": "token_embd",
        "wpe": "position_embd",
        ".ln_1": "attn_norm",
        ".attn.c_attn": TensorMap("attn_qkv", transpose),
        ".attn.c_proj": TensorMap("attn_output", transpose),
        ".ln_2": "ffn_norm",
        ".mlp.c_fc": TensorMap("ffn_up", transpose),
        ".mlp.c_proj": TensorMap("ffn_down", transpose),
        "ln_f": "output_norm",
        "lm_head": "output",
    },
    config_from_gguf=config_from_gguf,
    ignored=("h.*.attn.bias", "h.*.attn.masked_bias"),
    block={"activation": "gelu_tanh"},
)


def fused(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return q, k and v of a layer fused."""
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"(.*\.self_attn\.)([qkv])(_proj\..*)", name):
            parts = [tensors.get(f"{match[1]}{letter}{match[3]}") for letter in "qkv"]
            whole = [each for each in parts if each is not None]
            name, tensor = f"{match[1]}qkv{match[3]}", concatenated(whole, f"{match[1]}qkv{match[3]}")
        named[name] = tensor
    return config, named


def apart(config: Config, tensors: Tensors) -> Tensors:
    """Return fused q, k and v as separate tensors."""
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.*\.self_attn\.)qkv(_proj\..*)", name)
        each = tensor.shape[0] // 3
        for i, letter in enumerate("qkv" if match else ""):
            own = f"{match[1]}{letter}{match[2]}" if match else name
            named[own] = take(tensor, np.arange(i * each, (i + 1) * each)).renamed(own)
        named |= {} if match else {name: tensor}
    return named


RUGPT3XL = GPT2.derive(
    hf_classes=("RuGPT3XLForCausalLM",),
    layers="layers",
    prefixes=("model",),
    prepare=fused,
    prepare_export=apart,
    metadata={"context_length": "max_position_embeddings", "feed_forward_length": "intermediate_size"},
    defaults={
        **dict.fromkeys(("n_embd", "n_head", "n_layer", "n_positions", "layer_norm_epsilon")),
        "layer_norm_eps": 1e-5,
        "model_type": "rugpt3xl",
        **needed("hidden_size", "num_attention_heads", "num_hidden_layers"),
    },
    tensors={
        **dict.fromkeys(GPT2.tensors),
        "embed_tokens": "token_embd",
        "embed_positions": "position_embd",
        ".input_layernorm": "attn_norm",
        ".self_attn.qkv_proj": "attn_qkv",
        ".self_attn.o_proj": "attn_output",
        ".post_attention_layernorm": "ffn_norm",
        ".mlp.up_proj": "ffn_up",
        ".mlp.down_proj": "ffn_down",
        "norm": "output_norm",
        "lm_head": "output",
    },
)


def slopes(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the largest exponent of the distance penalties, of which checkpoints store the first; a head if there is
    none.
    """
    first = next((tensor for name, tensor in tensors.items() if name.endswith("relative_pe.slopes")), None)
    if first is not None:
        heads = 2 ** math.floor(math.log2(config["n_head"]))
        config = changed(config, alibi_bias_max=-round(math.log2(float(first.float32().reshape(-1)[0])) * heads))
    if "lm_head.weight" not in tensors and (name := next((n for n in tensors if n.endswith("wte.weight")), "")):
        tensors = {**tensors, "lm_head.weight": tensors[name].renamed("lm_head.weight")}
    return config, tensors


def jais_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return Jais' config; its factors stay in the weights and are one here. Raises ModelError for other penalties than
    its code has.
    """
    if keys.get("attention.max_alibi_bias") != 8:
        raise ModelError("its distance penalties are others than Jais' code makes of the number of heads")
    scale, width = keys["attention.scale"], keys["embedding_length"] // keys["attention.head_count"]
    factors = dict.fromkeys(("mup_embeddings_scale", "mup_output_alpha", "mup_width_scale"), 1.0)
    return {
        **config_from_gguf(keys, tensors),
        **factors,
        "embeddings_scale": ...,
        "width_scale": ...,
        "rope_scaling": ...,
        "mup_scale_qk_dot_by_d": isinstance(scale, float) and math.isclose(scale, 1 / width, rel_tol=1e-6),
        "activation_function": "swiglu",
        "position_embedding_type": "alibi",
    }


JAIS = GPT2.derive(
    name="jais",
    hf_classes=("JAISLMHeadModel",),
    prepare=slopes,
    metadata={
        "context_length": "n_positions",
        "feed_forward_length": "n_inner",
        "attention.max_alibi_bias": lambda config: float(config.get("alibi_bias_max") or 8),
        "attention.scale": lambda config: (
            None if divided(config) else attention_scale(config) or (config["n_embd"] / config["n_head"]) ** -0.5
        ),
    },
    defaults={
        "embeddings_scale": lambda config: required(config, "mup_embeddings_scale"),
        "width_scale": lambda config: required(config, "mup_output_alpha") * required(config, "mup_width_scale"),
        **needed("n_inner"),
    },
    tensors={
        "wte": TensorMap("token_embd", scaled("embeddings_scale")),
        "wpe": None,
        ".mlp.c_fc": TensorMap("ffn_up", transpose),
        ".mlp.c_fc2": TensorMap("ffn_gate", transpose),
        "lm_head": TensorMap("output", scaled("width_scale")),
    },
    refused={"activation_function": other_than("swiglu"), "position_embedding_type": other_than("alibi")},
    absent={
        "attention.scale": Derived(
            "1 / attention.key_length", lambda keys: 1 / max(1, keys.get("attention.key_length") or 1)
        )
    },
    config_from_gguf=jais_from_gguf,
    prepare_export=as_it_is,
    activation="",
    block={"activation": "silu", "gated": True, "alibi": True},
    ignored=(*GPT2.ignored, "relative_pe.slopes"),
)


def kv_heads(config: Config) -> int:
    return 1 if config["multi_query"] else int(config["n_head"])


STARCODER = GPT2.derive(
    name="starcoder",
    hf_classes=("GPTBigCodeForCausalLM", "GPTBigCodeModel"),
    metadata={"context_length": "n_positions", "attention.head_count_kv": kv_heads},
    defaults={"model_type": "gpt_bigcode", "multi_query": True},
    config_from_gguf=lambda keys, tensors: {
        **config_from_gguf(keys, tensors),
        "multi_query": keys.get("attention.head_count_kv") == 1,
    },
    tensors={
        ".attn.c_attn": TensorMap("attn_qkv", ungroup("n_head", kv_heads)),
        ".attn.c_proj": "attn_output",
        ".mlp.c_fc": "ffn_up",
        ".mlp.c_proj": "ffn_down",
    },
)

GPTNEOX = GPT.derive(
    name="gptneox",
    hf_classes=("GPTNeoXForCausalLM", "GPTNeoXModel"),
    metadata={
        **SCALING,
        "rope.dimension_count": rotated_width,
        "rope.freq_base": unusual_base,
        "use_parallel_residual": "use_parallel_residual",
    },
    keys={"rope_theta": Unread(), "partial_rotary_factor": Unread()},
    defaults={
        "model_type": "gpt_neox",
        "hidden_size": 6144,
        "intermediate_size": 24_576,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "rope_theta": lambda config: config.get("rotary_emb_base", 10_000.0),
        "partial_rotary_factor": lambda config: config.get("rotary_pct", 0.25),
        "use_parallel_residual": True,
        "vocab_size": 50_432,
    },
    tensors={
        "embed_in": "token_embd",
        ".input_layernorm": "attn_norm",
        ".attention.query_key_value": TensorMap("attn_qkv", ungroup("num_attention_heads", "num_attention_heads")),
        ".attention.dense": "attn_output",
        ".post_attention_layernorm": "ffn_norm",
        **NEOX_NET,
        "final_layer_norm": "output_norm",
        "lm_head": "output",
        "embed_out": "output",
    },
    ignored=("layers.*.attention.bias",),
    layers="layers",
    prefixes=("gpt_neox",),
    generated=FACTORS,
    config_from_gguf=lambda keys, tensors: {  # transformers reads `rope_theta`, `partial_rotary_factor` elsewhere
        "rotary_emb_base": keys.get("rope.freq_base"),
        "rotary_pct": keys["rope.dimension_count"] / (keys["embedding_length"] // keys["attention.head_count"]),
    },
    flags_from_tensors={"attention_bias": "blk.*.attn_qkv.bias"},
    block={"rope": "halves", "activation": "gelu", "parallel": "use_parallel_residual"},
)

HEADS, WIDTH = "n_head|num_attention_heads", "hidden_size|n_embed"  # as BLOOM's configs call them

BLOOM = GPT.derive(
    name="bloom",
    hf_classes=("BloomForCausalLM", "BloomModel"),
    metadata={
        "context_length": f"seq_length|{WIDTH}",  # the model has no limit; llama.cpp's stand-in
        "embedding_length": WIDTH,
        "feed_forward_length": lambda config: 4 * required(config, WIDTH),
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
    },
    defaults={
        "hidden_size": lambda config: config.get("n_embed", 64),
        "n_layer": lambda config: config.get("num_hidden_layers", 2),
        "n_head": lambda config: config.get("num_attention_heads", 8),
        "layer_norm_epsilon": 1e-5,
        "vocab_size": 250_880,
    },
    tensors={
        "word_embeddings": "token_embd",
        "word_embeddings_layernorm": "token_embd_norm",
        ".input_layernorm": "attn_norm",
        ".self_attention.query_key_value": TensorMap("attn_qkv", ungroup(HEADS, HEADS)),
        ".self_attention.dense": "attn_output",
        ".post_attention_layernorm": "ffn_norm",
        **NEOX_NET,
        "ln_f": "output_norm",
        "lm_head": "output",
    },
    config_from_gguf=lambda keys, tensors: {"seq_length": keys["context_length"]},
    refused={"apply_residual_connection_post_layernorm": True},
    activation="",
    absent={"attention.max_alibi_bias": 8.0},
    block={"alibi": True, "activation": "gelu_tanh"},
)


def largest_bias(config: Config) -> float:
    """Return the largest distance penalty's exponent, 0 without ALiBi."""
    if lookup(config, "attn_config.alibi") is False:
        return 0.0
    return float(lookup(config, "attn_config.alibi_bias_max") or 8)


MPT = GPT.derive(
    name="mpt",
    hf_classes=("MptForCausalLM", "MPTForCausalLM", "MptModel"),
    metadata={
        "feed_forward_length": lambda config: config["expansion_ratio"] * config["d_model"],
        "attention.head_count_kv": "attn_config.kv_n_heads",
        "attention.clamp_kqv": "attn_config.clip_qkv",
        "attention.max_alibi_bias": largest_bias,
        "attention.scale": "attn_config.softmax_scale",
    },
    defaults={
        "d_model": 2048,
        "n_heads": 16,
        "n_layers": 24,
        "expansion_ratio": 4,
        "max_seq_len": 2048,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": 50_368,
    },
    layers="blocks",
    tensors={
        "wte": "token_embd",
        "wpe": "position_embd",
        ".norm_1": "attn_norm",
        ".attn.Wqkv": "attn_qkv",
        ".attn.q_ln": "attn_q_norm",
        ".attn.k_ln": "attn_k_norm",
        ".attn.out_proj": "attn_output",
        ".norm_2": "ffn_norm",
        ".ffn.up_proj": "ffn_up",
        ".ffn.down_proj": "ffn_down",
        "norm_f": "output_norm",
        "lm_head": "output",
    },
    keys={"logit_scale": ANYTHING},
    config_from_gguf=lambda keys, tensors: {"expansion_ratio": keys["feed_forward_length"] / keys["embedding_length"]},
    activation="",
    block={"alibi": True, "activation": "gelu"},
)


def pre(name: str, post: str) -> TensorMap:
    """Return a norm before its part, or after it if `do_layer_norm_before` is false."""
    return TensorMap(lambda config: name if config["do_layer_norm_before"] else post)


def weightless_norms(config: Config) -> Iterable[Tensor]:
    """Return ones for norms without weights: the runtime skips norms that are missing in the file."""
    if config["layer_norm_elementwise_affine"]:
        return
    before, ones = config["do_layer_norm_before"], np.ones(config["hidden_size"], np.float32)
    names = ("attn_norm", "ffn_norm") if before else ("attn_output_norm", "layer_output_norm")
    for i in range(config["num_hidden_layers"]):
        yield from (from_array(f"blk.{i}.{name}.weight", ones) for name in names)
    if before and not config.get("_remove_final_layer_norm"):
        yield from_array("output_norm.weight", ones)


def opt_config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the place of norms, whether they have weights, and the embedding's width."""
    before = "blk.0.attn_norm.weight" in tensors
    return {
        "do_layer_norm_before": before,
        "layer_norm_elementwise_affine": f"blk.0.{'attn_norm' if before else 'attn_output_norm'}.bias" in tensors,
        "_remove_final_layer_norm": before and "output_norm.weight" not in tensors,
        "word_embed_proj_dim": tensors["token_embd.weight"].shape[1],
    }


OPT = GPT.derive(
    name="opt",
    hf_classes=("OPTForCausalLM", "OPTModel"),
    metadata={
        "feed_forward_length": "ffn_dim",
        "attention.head_count_kv": "num_attention_heads",
        "attention.layer_norm_epsilon": lambda config: 1e-5,
        "vocab_size": "vocab_size",
    },
    defaults={
        "hidden_size": 768,
        "ffn_dim": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "layer_norm_elementwise_affine": True,
        "activation_function": "relu",
        "vocab_size": 50_272,
    },
    tensors={
        "embed_tokens": "token_embd",
        "embed_positions": TensorMap("position_embd", skip_rows(2)),
        "project_in": "token_embd_proj",
        ".self_attn_layer_norm": pre("attn_norm", "attn_output_norm"),
        **QKV,
        ".self_attn.out_proj": "attn_output",
        ".final_layer_norm": pre("ffn_norm", "layer_output_norm"),
        ".fc1": "ffn_up",
        ".fc2": "ffn_down",
        "final_layer_norm": TensorMap(lambda config: "output_norm"),  # some have none
        "project_out": "output_proj",
        "lm_head": "output",
    },
    layers="layers",
    prefixes=("model.decoder", "model", "decoder"),
    generated=(weightless_norms,),
    flags_from_tensors={"enable_bias": "blk.*.attn_q.bias"},
    config_from_gguf=opt_config_from_gguf,
    block={"activation": "relu"},
)
