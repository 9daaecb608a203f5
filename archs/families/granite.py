"""Granite: Llama's layers with scales on embedding, attention, residual and logits.

Granite MoE, with or without an expert that all tokens share: softmax over the chosen experts' scores.
Reference: transformers `models/granite/modeling_granite.py`, `models/granitemoe/modeling_granitemoe.py`,
`models/granitemoeshared/`.
"""

from archs.experts import fused_experts
from archs.families.llama import LLAMA
from archs.hyper import Hyper, Keys
from archs.spec import ConfigKeys, GgufKeys, TensorMap, Tensors, in_layers
from archs.transforms import part


def numbers(keys: Keys, usual: Hyper) -> Hyper:
    """Files of models without rope say so by a key."""
    rope = bool(keys.get("rope.scaling.finetuned", True))
    return usual.with_layers(lambda index, own: {"rotates": own.rotates and rope})


GRANITE = LLAMA.derive(
    name="granite",
    hf_classes=("GraniteForCausalLM", "GraniteModel"),
    metadata={
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    },
    defaults={
        "head_dim": None, "attention_multiplier": 1.0, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    block={"logit_scale": "divide", "numbers": numbers},
)  # fmt: skip


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    width = keys.get("expert_shared_feed_forward_length")
    if width is None:
        return {}
    return {
        "architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared",
        "shared_intermediate_size": width,
    }  # fmt: skip


GRANITE_MOE = GRANITE.derive(
    name="granitemoe",
    hf_classes=("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    vocab_keys={"add_space_prefix": False},
    metadata={"expert_shared_feed_forward_length": lambda config: config.get("shared_intermediate_size") or None},
    defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
    config_from_gguf=config_from_gguf,
    tensors=in_layers({
        **fused_experts("block_sparse_moe"), "block_sparse_moe.router": "ffn_gate_inp",
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "block_sparse_moe.input_linear": (TensorMap("ffn_gate_exps", part(0, 2)), TensorMap("ffn_up_exps", part(1, 2))),
        "block_sparse_moe.output_linear": "ffn_down_exps",
        "shared_mlp.input_linear": (TensorMap("ffn_gate_shexp", part(0, 2)), TensorMap("ffn_up_shexp", part(1, 2))),
        "shared_mlp.output_linear": "ffn_down_shexp",
    }),
    block={"scoring": "softmax_of_top"},
)  # fmt: skip
