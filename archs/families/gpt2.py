"""GPT-2: learned positions, layer norms, fused q/k/v, weights stored as (in, out). The causal masks that old
checkpoints store are dropped.

GPT-BigCode (SantaCoder, StarCoder): GPT-2's layers with one key-value head, weights stored as (out, in). Without
multi_query, q/k/v are fused head by head.
Reference: transformers `models/gpt2/modeling_gpt2.py`, `models/gpt_bigcode/modeling_gpt_bigcode.py`.
"""

from archs.config import required
from archs.spec import BASE, Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.transforms import transpose, ungroup


def attention_scale(config: Config) -> float | list[float] | None:
    """The factor of q·k where it is not the usual one, of each layer where they differ (llama.cpp drops it)."""
    width = required(config, "n_embd|hidden_size") / required(config, "n_head|num_attention_heads")
    scale = width**-0.5 if config.get("scale_attn_weights", True) else 1.0
    if config.get("scale_attn_by_inverse_layer_idx"):
        return [scale / (layer + 1) for layer in range(required(config, "n_layer|num_hidden_layers"))]
    return None if config.get("scale_attn_weights", True) else scale


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    scale, found = keys.get("attention.scale"), {"n_ctx": keys["context_length"]}
    if "position_embd.weight" in tensors:
        found["n_positions"] = tensors["position_embd.weight"].shape[0]
    if not isinstance(scale, list):
        return found
    return found | {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": scale[0] != 1}


GPT2 = BASE.derive(
    name="gpt2", hf_classes=("GPT2LMHeadModel", "GPT2Model"),
    metadata={
        "context_length": "n_ctx|n_positions",
        "feed_forward_length": lambda config: config.get("n_inner") or 4 * required(config, "n_embd|hidden_size"),
        "attention.scale": attention_scale,
    },
    defaults={"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "layer_norm_epsilon": 1e-5},
    layers="h",
    tensors={
        "wte": "token_embd", "wpe": "position_embd", ".ln_1": "attn_norm",
        ".attn.c_attn": TensorMap("attn_qkv", transpose), ".attn.c_proj": TensorMap("attn_output", transpose),
        ".ln_2": "ffn_norm", ".mlp.c_fc": TensorMap("ffn_up", transpose),
        ".mlp.c_proj": TensorMap("ffn_down", transpose), "ln_f": "output_norm", "lm_head": "output",
    },
    config_from_gguf=config_from_gguf,
    ignored=("h.*.attn.bias", "h.*.attn.masked_bias"),
    prefixes=("transformer", "model", "language_model", "text_model"),
    block={"norm": "layer", "rope": "none", "activation": "gelu_tanh", "gated": False},
)  # fmt: skip


def kv_heads(config: Config) -> int:
    return 1 if config["multi_query"] else int(config["n_head"])


STARCODER = GPT2.derive(
    name="starcoder", hf_classes=("GPTBigCodeForCausalLM", "GPTBigCodeModel"),
    metadata={"context_length": "n_positions", "attention.head_count_kv": kv_heads},
    defaults={"model_type": "gpt_bigcode", "multi_query": True},
    config_from_gguf=lambda keys, tensors: {
        **config_from_gguf(keys, tensors), "multi_query": keys.get("attention.head_count_kv", 1) == 1
    },
    tensors={
        ".attn.c_attn": TensorMap("attn_qkv", ungroup("n_head", kv_heads)), ".attn.c_proj": "attn_output",
        ".mlp.c_fc": "ffn_up", ".mlp.c_proj": "ffn_down",
    },
)  # fmt: skip
