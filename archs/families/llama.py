"""Llama, and the models that share its graph and its GGUF name: Mistral, Mixtral's dense parts. Differs from HF: q and
k rows are re-ordered, because ggml rotates adjacent pairs where HF rotates halves. llama.cpp drops Mistral's window.

Mixtral: Llama's graph with routed experts; the two best of softmax, rescaled to sum to one.
Reference: transformers `models/llama/modeling_llama.py`, `models/mistral/modeling_mistral.py`,
`models/mixtral/modeling_mixtral.py`.
"""

from archs.config import head_dim
from archs.experts import FUSED_EXPERTS
from archs.rope import SCALING, llama3_freqs, longrope_factors
from archs.spec import COMMON, Architecture, Block, TensorMap
from archs.transforms import interleave_rope

LLAMA = Architecture(
    name="llama",
    hf_classes=("LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"),
    vocab=("sentencepiece", "bpe"),
    metadata={**COMMON, **SCALING, "vocab_size": "vocab_size", "rope.dimension_count": head_dim},
    defaults={
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": lambda config: config["num_attention_heads"], "head_dim": head_dim,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "vocab_size": 32_000,
    },
    tensors={
        "embed_tokens": "token_embd",
        "layers.{i}.input_layernorm": "blk.{i}.attn_norm",
        "layers.{i}.self_attn.q_proj": TensorMap("blk.{i}.attn_q", interleave_rope("num_attention_heads")),
        "layers.{i}.self_attn.k_proj": TensorMap("blk.{i}.attn_k", interleave_rope("num_key_value_heads")),
        "layers.{i}.self_attn.v_proj": "blk.{i}.attn_v",
        "layers.{i}.self_attn.o_proj": "blk.{i}.attn_output",
        "layers.{i}.post_attention_layernorm": "blk.{i}.ffn_norm",
        "layers.{i}.mlp.gate_proj": "blk.{i}.ffn_gate",
        "layers.{i}.mlp.up_proj": "blk.{i}.ffn_up",
        "layers.{i}.mlp.down_proj": "blk.{i}.ffn_down",
        "norm": "output_norm",
        "lm_head": "output",
    },
    flags_from_tensors={"attention_bias": "blk.*.attn_q.bias", "mlp_bias": "blk.*.ffn_up.bias"},
    generated=(llama3_freqs, longrope_factors),
    block=Block(rope="adjacent", normalize_experts=True),
)  # fmt: skip

MISTRAL = LLAMA.derive(
    hf_classes=("MistralForCausalLM", "MistralModel"),
    metadata={"attention.sliding_window": "sliding_window"},
    defaults={
        "intermediate_size": 14_336, "num_key_value_heads": 8, "head_dim": None, "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
)  # fmt: skip

MIXTRAL = MISTRAL.derive(
    hf_classes=("MixtralForCausalLM", "MixtralModel"),
    defaults={
        "rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5, "sliding_window": None, "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    tensors={
        **FUSED_EXPERTS,
        "layers.{i}.mlp.gate": "blk.{i}.ffn_gate_inp",
        "layers.{i}.block_sparse_moe.gate": "blk.{i}.ffn_gate_inp",
        "layers.{i}.block_sparse_moe.experts.{e}.w1": TensorMap("blk.{i}.ffn_gate_exps", stack=True),
        "layers.{i}.block_sparse_moe.experts.{e}.w2": TensorMap("blk.{i}.ffn_down_exps", stack=True),
        "layers.{i}.block_sparse_moe.experts.{e}.w3": TensorMap("blk.{i}.ffn_up_exps", stack=True),
    },
)  # fmt: skip
