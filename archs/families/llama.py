"""Llama, and the models that share its graph and its GGUF name: Mistral, Mixtral's dense parts. Differs from HF: q and
k rows are re-ordered, because ggml rotates adjacent pairs where HF rotates halves. llama.cpp drops Mistral's window.

InternLM 3: biases of q, k and v only, if its config says so; its class is used for the export.

Llama as an encoder (NVIDIA's embedders): every token attends to all others, and the result is hidden states.

Mixtral: Llama's graph with routed experts; the two best of softmax, rescaled to sum to one. Reference: transformers
`models/llama/`, `models/mistral/`, `models/mixtral/`.
"""

from archs.config import head_dim
from archs.experts import FUSED_EXPERTS
from archs.rope import FACTORS, SCALING
from archs.spec import BASE, Config, ConfigKeys, GgufKeys, TensorMap, Tensors
from archs.tensor_maps import MIXTRAL_EXPERTS, becomes
from archs.transforms import interleave_rope
from quants.errors import ModelError

LLAMA = BASE.derive(
    name="llama",
    hf_classes=("LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel", "IQuestCoderForCausalLM"),
    wrappers=(
        "Idefics3ForConditionalGeneration",
        "JanusForConditionalGeneration",
        "LlavaForConditionalGeneration",
        "SmolVLMForConditionalGeneration",
        "UltravoxModel",
        "VLlama3ForCausalLM",
        "VoxtralForConditionalGeneration",
    ),
    vocab=("sentencepiece", "bpe"),
    metadata={**SCALING, "vocab_size": "vocab_size", "rope.dimension_count": head_dim},
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": lambda config: config["num_attention_heads"],
        "head_dim": head_dim,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "vocab_size": 32_000,
    },
    tensors={
        "embed_tokens": "token_embd",
        ".input_layernorm": "attn_norm",
        ".self_attn.q_proj": TensorMap("attn_q", interleave_rope("num_attention_heads")),
        ".self_attn.k_proj": TensorMap("attn_k", interleave_rope("num_key_value_heads")),
        ".self_attn.v_proj": "attn_v",
        ".self_attn.o_proj": "attn_output",
        ".post_attention_layernorm": "ffn_norm",
        ".mlp.gate_proj": "ffn_gate",
        ".mlp.up_proj": "ffn_up",
        ".mlp.down_proj": "ffn_down",
        "norm": "output_norm",
        "lm_head": "output",
    },
    flags_from_tensors={"attention_bias": "blk.*.attn_q.bias", "mlp_bias": "blk.*.ffn_up.bias"},
    generated=FACTORS,
    block={"rope": "adjacent", "normalize_experts": True},
)


def internlm3_config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Raise ModelError for files that are Llama's as well: with biases of all four matrices of attention, or of
    none.
    """
    if "blk.0.attn_q.bias" not in tensors or "blk.0.attn_output.bias" in tensors:
        raise ModelError("InternLM 3 has biases of q, k and v alone, or is written as Llama")
    return {}


INTERNLM3 = LLAMA.derive(
    hf_classes=("InternLM3ForCausalLM",),
    wrappers=(),
    defaults={"model_type": "internlm3", "hidden_act": "silu"},
    flags_from_tensors={
        "attention_bias": None,
        "mlp_bias": None,
        "qkv_bias": "blk.*.attn_q.bias",
        "bias": "blk.*.ffn_up.bias",
    },
    config_from_gguf=internlm3_config_from_gguf,
)


def without_norm(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the tensors without the norm for images that precedes the text model."""
    return config, {name: tensor for name, tensor in tensors.items() if name != "norm.weight"}


SARASHINA = LLAMA.derive(
    hf_classes=("Sarashina2VisionForCausalLM",),
    wrappers_refused=("Sarashina2VisionForCausalLM",),
    prepare=without_norm,
    config_from_gguf=becomes("LlamaForCausalLM"),
)

LLAMA_EMBED = LLAMA.derive(
    name="llama-embed",
    hf_classes=("LlamaBidirectionalModel",),
    tensors={"lm_head": None},
    ignored=("lm_head.*",),
    metadata={"attention.causal": lambda config: False},
    defaults={"model_type": "llama_bidirec"},
    block={"causal": False, "hidden_states": True},
)

HALVES = LLAMA.derive(  # base of other families: no class means this alone
    hf_classes=(),
    vocab=("bpe",),
    metadata={"vocab_size": None, "rope.dimension_count": None},
    defaults={"intermediate_size": 22_016, "head_dim": None, "max_position_embeddings": 32_768, "vocab_size": 151_936},
    tensors={".self_attn.q_proj": "attn_q", ".self_attn.k_proj": "attn_k"},
    block={"rope": "halves", "normalize_experts": False},
)

MISTRAL = LLAMA.derive(
    hf_classes=("MistralForCausalLM", "MistralModel"),
    metadata={"attention.sliding_window": "sliding_window"},
    defaults={
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "head_dim": None,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
)

MIXTRAL = MISTRAL.derive(
    hf_classes=("MixtralForCausalLM", "MixtralModel"),
    defaults={
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    tensors={**FUSED_EXPERTS, ".mlp.gate": "ffn_gate_inp", ".block_sparse_moe.gate": "ffn_gate_inp", **MIXTRAL_EXPERTS},
)
