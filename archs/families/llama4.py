"""Llama 4 (text): attention within chunks in three of four layers; the fourth has no rope, but queries that grow with
their position; experts whose input is weighted, and a shared one.

Reference: transformers `models/llama4/modeling_llama4.py`. Norms of q and k have no weights and are in layers with
rope. llama.cpp drops settings that differ from the published models; our keys store them.
"""

from typing import Any

from archs.config import UnlessUsual
from archs.experts import gate_and_up
from archs.families.llama import LLAMA
from archs.families.llama_like import PERIOD, rope_layers, rope_layers_from_gguf, unusual_rope_layers
from archs.hparams.file_keys import Derived, Keys
from archs.hparams.model_hparams import HParams, LayerHParams, growing_queries
from archs.layer_types import experts_in_turn
from archs.spec import Config, ConfigKeys, GgufKeys, TensorMap, Tensors, weigh_input
from archs.tensor_maps import gated_net
from archs.transforms import Invertible, transpose
from quants import Tensor
from quants.errors import ModelError

CHUNK, SCALE, LENGTH = 8192, 0.1, 8192  # defaults without such keys

LARGEST = 128  # experts of the one model that does not normalise q and k


def chunk(config: Config) -> int | None:
    """Return the length of chunks if not the default; 0 if no layer is chunked."""
    layer_types = config.get("layer_types") or []
    cut = [bool(each) for each in rope_layers(config)]
    if layer_types and not any(layer_type == "chunked_attention" for layer_type in layer_types):
        return 0
    if layer_types and [layer_type == "chunked_attention" for layer_type in layer_types] != cut:
        raise ModelError("config.json's layer_types cut other layers into chunks than those with rope")
    return config["attention_chunk_size"] if config["attention_chunk_size"] != CHUNK else None


def temperature(config: Config) -> float | None:
    scale = float(config["attn_scale"]) if config["attn_temperature_tuning"] else 0.0
    return scale if scale != SCALE else None


def normed(config: Config) -> bool | None:
    stated = bool(config["use_qk_norm"])
    return stated if stated != (config["num_local_experts"] != LARGEST) else None


def columns(width: str) -> Invertible:
    """Return experts' matrices with a row for each output; they are published with a column for each. width: of an
    input.
    """

    def transform(tensor: Tensor, config: Config) -> Tensor:
        turned = tensor.shape[-1] == config[width] != tensor.shape[-2]  # as libraries that quantize store them
        return tensor if turned else transpose(tensor, config)

    return Invertible(transform, transpose.invert)


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return only the text model's config: which layers are chunked, and settings that files omit as default."""
    layers: list[int] = rope_layers_from_gguf(keys, tensors)["no_rope_layers"]
    whole, scale = keys.stored("attention.sliding_window") == 0, keys.get("attention.temperature_scale")
    return {
        "architectures": ["Llama4ForCausalLM"],
        "no_rope_layers": layers,
        "layer_types": ["full_attention"] * len(layers) if whole else None,
        "moe_layers": [i for i in range(len(layers)) if f"blk.{i}.ffn_gate_inp.weight" in tensors],
        "attention_chunk_size": keys.get("attention.chunk_length"),
        "attn_temperature_tuning": bool(scale),
        "attn_scale": scale,
        "use_qk_norm": bool(keys.get("attention.normed")),
    }


def hparams_hook(keys: Keys, usual: HParams) -> HParams:
    """Restrict layers with rope to their own chunk and, in all models but the largest, normalise q and k."""
    whole = keys.stored("attention.sliding_window") == 0
    length = None if whole else int(keys.get("attention.chunk_length")) or None
    normed = bool(keys.get("attention.normed"))

    def of_layer(index: int, own: LayerHParams) -> dict[str, Any]:
        return {"chunk": length, "qk_l2_norm": normed} if own.rotates else {}

    return usual.with_layers(of_layer)


LLAMA4 = LLAMA.derive(
    name="llama4",
    hf_classes=("Llama4ForConditionalGeneration", "Llama4ForCausalLM"),
    vocab=("bpe",),
    metadata={
        "feed_forward_length": "intermediate_size_mlp",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
        "expert_feed_forward_length": "intermediate_size",
        "attention.sliding_window": lambda config: 0 if chunk(config) == 0 else None,
        "attention.chunk_length": lambda config: chunk(config) or None,
        "attention.temperature_scale": temperature,
        "attention.temperature_length": UnlessUsual("floor_scale", LENGTH),
        "attention.normed": normed,
        "no_rope_layers": unusual_rope_layers,
    },
    defaults={
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16_384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "no_rope_layer_interval": 4,
        "attention_chunk_size": CHUNK,
        "attn_temperature_tuning": True,
        "attn_scale": SCALE,
        "floor_scale": LENGTH,
        "use_qk_norm": True,
        "vocab_size": 202_048,
    },
    absent={
        "attention.chunk_length": CHUNK,
        "attention.temperature_scale": SCALE,
        "attention.temperature_length": LENGTH,
        "attention.normed": Derived(
            f"in all models but that of {LARGEST} experts", lambda keys: keys.get("expert_count") != LARGEST
        ),
    },
    config_from_gguf=config_from_gguf,
    tensors={
        ".self_attn.q_proj": "attn_q",
        ".self_attn.k_proj": "attn_k",
        **gated_net("feed_forward"),
        ".feed_forward.router": "ffn_gate_inp",
        ".feed_forward.experts.gate_up_proj": gate_and_up("_exps.weight", columns("hidden_size")),
        ".feed_forward.experts.down_proj": TensorMap("ffn_down_exps.weight", columns("intermediate_size")),
        **gated_net("feed_forward.shared_expert", "_shexp"),
    },
    layers_vary=True,
    block={
        "net": experts_in_turn,
        "qkv_steps": ("clamp", "norm", "rope", "norm_without_weights"),
        "scoring": "sigmoid",
        "normalize_experts": False,
        "rope_period": PERIOD,
        "hparams_hook": hparams_hook,
        # queries of layers without rope grow; positions count from one
        "query_scale": lambda numbers, positions, rotated: None if rotated else growing_queries(numbers, positions + 1),
        "weigh_expert": weigh_input,
    },
)
