"""OPT: learned positions that start at row two, layer norms, ReLU.

Reference: transformers `models/opt/modeling_opt.py`. No other converter takes it; names follow GPT-2's, norms after
each part (the 350m variant) follow BERT's. The 350m variant also projects between a narrow embedding and the layers.
"""

from collections.abc import Iterable

import numpy as np

from archs.spec import BASE, Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.transforms import skip_rows
from quants import Tensor, from_array


def pre(name: str, post: str) -> TensorMap:
    """A norm that stands before its part, or after it where `do_layer_norm_before` is false."""
    return TensorMap(lambda config: name if config["do_layer_norm_before"] else post)


def weightless_norms(config: Config) -> Iterable[Tensor]:
    """Ones for norms that have no weights: the runtime takes a norm that is not in the file for none at all."""
    if config["layer_norm_elementwise_affine"]:
        return
    before, ones = config["do_layer_norm_before"], np.ones(config["hidden_size"], np.float32)
    names = ("attn_norm", "ffn_norm") if before else ("attn_output_norm", "layer_output_norm")
    for i in range(config["num_hidden_layers"]):
        yield from (from_array(f"blk.{i}.{name}.weight", ones) for name in names)
    if before and not config.get("_remove_final_layer_norm"):
        yield from_array("output_norm.weight", ones)


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Where norms stand, whether they have weights, and how wide the embedding is."""
    before = "blk.0.attn_norm.weight" in tensors
    return {
        "do_layer_norm_before": before,
        "layer_norm_elementwise_affine": f"blk.0.{'attn_norm' if before else 'attn_output_norm'}.bias" in tensors,
        "_remove_final_layer_norm": before and "output_norm.weight" not in tensors,
        "word_embed_proj_dim": tensors["token_embd.weight"].shape[1],
    }


OPT = BASE.derive(
    name="opt", hf_classes=("OPTForCausalLM", "OPTModel"),
    metadata={
        "feed_forward_length": "ffn_dim", "attention.head_count_kv": "num_attention_heads",
        "attention.layer_norm_epsilon": lambda config: 1e-5,
        "vocab_size": "vocab_size",
    },
    defaults={
        "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "max_position_embeddings": 2048, "do_layer_norm_before": True, "layer_norm_elementwise_affine": True,
        "activation_function": "relu", "vocab_size": 50_272,
    },
    tensors={
        "embed_tokens": "token_embd", "embed_positions": TensorMap("position_embd", skip_rows(2)),
        "project_in": "token_embd_proj",
        ".self_attn_layer_norm": pre("attn_norm", "attn_output_norm"),
        ".self_attn.q_proj": "attn_q", ".self_attn.k_proj": "attn_k", ".self_attn.v_proj": "attn_v",
        ".self_attn.out_proj": "attn_output",
        ".final_layer_norm": pre("ffn_norm", "layer_output_norm"),
        ".fc1": "ffn_up", ".fc2": "ffn_down",
        "final_layer_norm": TensorMap(lambda config: "output_norm"),  # some have none
        "project_out": "output_proj", "lm_head": "output",
    },
    generated=(weightless_norms,),
    flags_from_tensors={"enable_bias": "blk.*.attn_q.bias"},
    config_from_gguf=config_from_gguf,
    prefixes=("model.decoder", "model", "decoder"),
    block={"norm": "layer", "rope": "none", "activation": "relu", "gated": False},
)  # fmt: skip
