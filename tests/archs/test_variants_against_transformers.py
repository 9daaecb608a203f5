"""Variants of families that the zoo has no checkpoint of: converted, run, and compared with transformers.

Each case is a checkpoint of the zoo with another config.json and random weights: what transformers computes with the
folder, at once and token by token, our runtime must compute with the file made of it.

    python -m pytest -m verify tests/archs/test_variants_against_transformers.py
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from tests.zoo import CLOSE, step_by_step

DROP = object()  # an override that takes the key out of config.json
TOKENS = 40
WITHOUT_EAGER = ("falcon",)  # whose eager attention adds ALiBi twice

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "long_factor": [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5],
    "short_factor": [1 + i / 9 for i in range(8)],
}
LINEAR = {"type": "linear", "factor": 2.0}
WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
LOCAL = {"rope_type": "default", "rope_theta": 20_000.0}
PHI3_FACTORS = {"long_factor": [1 + i / 5 for i in range(12)], "short_factor": [1 + i / 20 for i in range(12)]}
NEMOTRON_EXPERTS = {
    "hybrid_override_pattern": "ME*E",
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}

# (zoo entry, what differs from its config.json), grouped by family
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama2-spm", dict.fromkeys(("num_key_value_heads", "rope_theta", "rms_norm_eps", "head_dim"), DROP)),
    ("llama2-spm", {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 100}),
    ("llama2-spm", {"hidden_act": "gelu", "vocab_size": 641}),
    ("llama2-spm", {"rope_parameters": {**LINEAR, "rope_theta": 500_000.0}, "rope_theta": DROP}),
    ("llama2-spm", {"rope_scaling": {"type": "dynamic", "factor": 3.0}, "max_position_embeddings": 24}),
    ("llama2-spm", {"rope_scaling": LONGROPE}),
    ("llama-yarn", {"rope_scaling": {**YARN, "attention_factor": 1.3, "beta_fast": 16, "beta_slow": 2}}),
    ("llama-yarn", {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}}),
    ("llama-yarn", {"rope_scaling": {**YARN, "truncate": False}}),
    ("llama-bias-headdim", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    ("llama-bias-headdim", {"attention_bias": False, "head_dim": 6}),
    ("mistral", {"sliding_window": 8, "head_dim": 24}),
    ("mistral", {"sliding_window": None, "rope_scaling": LLAMA3, "tie_word_embeddings": True}),
    ("mixtral", {"sliding_window": 8, "num_experts_per_tok": 1}),
    ("mixtral", {"num_experts_per_tok": 4, "head_dim": 24}),
    ("qwen2", {**WINDOWS, "num_hidden_layers": 3}),
    ("qwen2", {**WINDOWS, "layer_types": ["sliding_attention", "full_attention"]}),
    ("qwen2", {"num_key_value_heads": None, "rope_scaling": LLAMA3}),
    ("qwen2-moe", WINDOWS),
    ("qwen2-moe", {"decoder_sparse_step": 2, "num_hidden_layers": 4, "norm_topk_prob": True}),
    ("qwen2-moe", {"mlp_only_layers": [0], "num_experts_per_tok": 1, "qkv_bias": False}),
    ("qwen3", {"attention_bias": True, "head_dim": DROP, "rope_scaling": YARN}),
    ("qwen3-moe", WINDOWS),
    ("qwen3-moe", {"norm_topk_prob": DROP, "mlp_only_layers": [1], "num_hidden_layers": 3}),
    ("gpt2", {"n_inner": 100, "activation_function": "gelu", "scale_attn_weights": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    ("gpt2", {"n_embd": 72, "n_head": 3, "tie_word_embeddings": False}),
    ("gptneox-parallel", {"rotary_pct": DROP, "rotary_emb_base": 500_000, "rope_scaling": LINEAR}),
    ("gptneox-parallel", {"rotary_pct": 0.5, "attention_bias": False, "use_parallel_residual": False}),
    ("gpt-bigcode", {"multi_query": False, "n_inner": 100, "tie_word_embeddings": False}),
    ("opt-125m", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    ("opt-125m", {"enable_bias": False, "layer_norm_elementwise_affine": False, "activation_function": "gelu"}),
    ("gemma", {"hidden_act": "gelu", "hidden_activation": "relu", "attention_bias": True}),
    ("gemma", {"hidden_act": "relu", "num_key_value_heads": 1, "rope_theta": 500_000.0}),
    ("gemma2", {"layer_types": ["full_attention", "sliding_attention"] * 2, "final_logit_softcapping": None}),
    ("gemma2", {"query_pre_attn_scalar": 144, "head_dim": 24, "attn_logit_softcapping": None}),
    ("gemma3", {"sliding_window_pattern": 3, "rope_scaling": LLAMA3}),
    ("gemma3", {"rope_parameters": {"full_attention": {**YARN, "rope_theta": 1e6}, "sliding_attention": LOCAL}}),
    ("gemma3", {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 100}),
    ("phi2", {"num_key_value_heads": 1, "qk_layernorm": True, "rope_scaling": LINEAR}),
    ("phi3", {"sliding_window": 8, "num_key_value_heads": None, "partial_rotary_factor": 0.5}),
    ("phi3-longrope", {"rope_scaling": {**PHI3_FACTORS, "type": "longrope", "attention_factor": 1.25}}),
    ("phi3-longrope", {"rope_scaling": {**PHI3_FACTORS, "type": "yarn"}}),
    ("phimoe", {"router_jitter_noise": 0.1, "attention_bias": False, "lm_head_bias": False, "sliding_window": None}),
    ("falcon-7b-style", {"multi_query": False, "parallel_attn": False, "bias": True}),
    ("falcon-7b-style", {"alibi": True, "num_attention_heads": 6, "hidden_size": 96, "ffn_hidden_size": 100}),
    ("falcon-40b-style", {"num_ln_in_parallel_attn": 1, "num_kv_heads": 4}),
    ("falcon-rw-style", {}),
    ("falcon-rw-style", {"num_attention_heads": 16, "hidden_size": 128}),
    ("bloom", {"n_head": 5, "hidden_size": 80, "tie_word_embeddings": False}),
    ("mpt", {"n_heads": 6, "d_model": 96, "expansion_ratio": 2}),
    ("starcoder2", {"use_bias": False, "sliding_window": 8, "tie_word_embeddings": False}),
    ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True, "num_key_value_heads": 2}),
    ("stablelm", {"use_qkv_bias": False, "partial_rotary_factor": DROP, "rope_scaling": LINEAR}),
    ("olmo", {"clip_qkv": None, "num_key_value_heads": 1, "attention_bias": True}),
    ("olmo2", {"num_key_value_heads": None, "attention_bias": True, "rope_scaling": YARN}),
    ("olmo3", {"rope_scaling": {**YARN, "attention_factor": 1.2}, "layer_types": DROP}),
    ("olmoe", {"norm_topk_prob": True, "clip_qkv": 0.7, "num_key_value_heads": 1}),
    ("arcee", {"attention_bias": True, "mlp_bias": True, "head_dim": 24, "rope_scaling": YARN}),
    ("apertus", {"attention_bias": True, "rope_scaling": DROP, "head_dim": 24}),
    ("apertus", {"hidden_act": "gelu"}),
    ("smollm3", {"no_rope_layers": [1, 0, 0, 1], "use_sliding_window": True, "sliding_window": 8}),
    ("smollm3", {"no_rope_layers": DROP, "no_rope_layer_interval": 2, "num_key_value_heads": None}),
    ("seed-oss", {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True, "head_dim": DROP}),
    ("cohere", {"attention_bias": True, "tie_word_embeddings": False, "use_qk_norm": True, "num_key_value_heads": 1}),
    ("cohere", {"logit_scale": DROP, "layer_norm_eps": DROP, "rope_theta": DROP, "rope_scaling": LINEAR}),
    ("cohere2", {"layer_types": ["full_attention", "sliding_attention"] * 2, "head_dim": 24}),
    ("cohere2", {"sliding_window_pattern": 2, "layer_types": DROP, "attention_bias": True, "rope_scaling": YARN}),
    (
        "granite",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 24,
            "rope_scaling": LONGROPE | {"long_factor": [1 + i / 5 for i in range(12)], "short_factor": [1.0] * 12},
        },
    ),
    ("granite", dict.fromkeys(("embedding_multiplier", "attention_multiplier", "residual_multiplier"), DROP)),
    ("granitemoe", {"num_experts_per_tok": 4, "attention_bias": True, "tie_word_embeddings": False}),
    ("granitemoe-shared", {"shared_intermediate_size": 0}),
    ("granite-hybrid", {"mamba_n_groups": 2, "mamba_conv_bias": False, "mamba_proj_bias": True, "mamba_d_conv": 3}),
    ("granite-hybrid", {"layer_types": ["attention"] * 3, "position_embedding_type": "rope"}),
    ("granite-hybrid", {"layer_types": ["attention"] * 3, "num_local_experts": 0, "num_experts_per_tok": 0}),
    ("granite-hybrid", {"position_embedding_type": "rope", "time_step_limit": [0.1, 0.3], "rope_scaling": YARN}),
    ("deepseek-v2-qlora", {"norm_topk_prob": True, "first_k_dense_replace": 0, "num_experts_per_tok": 1}),
    ("deepseek-v2-yarn", {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}, "q_lora_rank": None}),
    ("deepseek-v2-yarn", {"rope_scaling": {**YARN, "attention_factor": 1.2}, "v_head_dim": 24}),
    ("deepseek-v3", {"norm_topk_prob": False, "n_group": 1, "topk_group": 1, "attention_bias": True}),
    ("deepseek-v3", {"rope_scaling": {**YARN, "mscale_all_dim": 1.0}, "n_shared_experts": 2}),
    ("dots1", {"sliding_window": 8, "max_window_layers": 1, "layer_types": DROP, "attention_bias": True}),
    ("gpt-oss-bf16", {"rope_scaling": None, "swiglu_limit": 3.0, "num_experts_per_tok": 1}),
    ("gpt-oss-bf16", {"layer_types": ["full_attention", "sliding_attention"], "attention_bias": False}),
    ("nemotron", {"partial_rotary_factor": 0.25, "head_dim": 32, "mlp_bias": True, "hidden_act": "silu"}),
    ("nemotron-h", {"hybrid_override_pattern": "M*-M-*", "n_groups": 4, "use_bias": True, "time_step_min": 0.05}),
    ("nemotron-h", {**NEMOTRON_EXPERTS, "n_group": 4, "topk_group": 2}),
    ("nemotron-h", {**NEMOTRON_EXPERTS, "moe_latent_size": 16, "mlp_bias": True, "hybrid_override_pattern": "ME-*"}),
    ("exaone4", {"head_dim": 24, "num_key_value_heads": 1, "layer_types": ["sliding_attention", "full_attention"] * 2}),
    ("glm", {"attention_bias": False, "head_dim": 32, "partial_rotary_factor": 1.0, "rope_theta": 80_000.0}),
    ("glm4", {"attention_bias": True, "tie_word_embeddings": True, "rope_scaling": LINEAR}),
    ("glm4-moe", {"use_qk_norm": False, "norm_topk_prob": False, "n_group": 2, "num_nextn_predict_layers": 1}),
    ("ernie4-5", {"use_bias": True, "head_dim": 16, "tie_word_embeddings": False, "rope_scaling": YARN}),
    ("ernie4-5-moe", {"moe_layer_start_index": 0, "moe_layer_end_index": 2, "moe_layer_interval": 2, "use_bias": True}),
    ("ernie4-5-moe", {"moe_num_shared_experts": 0, "moe_k": 1}),
    ("minimax-m2", {"rotary_dim": DROP, "partial_rotary_factor": 0.25, "num_experts_per_tok": 1}),
    ("hunyuan-dense", {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}, "attention_bias": True}),
    ("jais2", {"attention_bias": False, "mlp_bias": False, "head_dim": 32, "hidden_act": "gelu"}),
    ("jamba", {"expert_layer_period": 3, "attn_layer_period": 2, "mamba_proj_bias": True, "mamba_dt_rank": "auto"}),
    ("mamba", {"use_bias": True, "use_conv_bias": False, "time_step_rank": 6, "conv_kernel": 3}),
    ("falcon-mamba", {"mixer_rms_eps": 1e-3, "use_bias": True, "tie_word_embeddings": True}),
    ("mamba2", {"n_groups": 4, "use_bias": True, "time_step_limit": [0.05, 0.2], "use_conv_bias": False}),
    ("falcon-h1", {"tie_word_embeddings": True, "attention_in_multiplier": 0.7, "mamba_rms_norm": False}),
    ("falcon-h1", {"attention_bias": True, "projectors_bias": True, "mlp_bias": True, "mamba_proj_bias": True}),
    ("falcon-h1", {"mamba_norm_before_gate": True, "mamba_n_groups": 2, "mamba_d_ssm": 96, "mamba_n_heads": 6}),
    ("lfm2", {"block_auto_adjust_ff_dim": True, "full_attn_idxs": [0, 2], "layer_types": DROP, "conv_L_cache": 4}),
]


def case_name(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=lambda drop: "absent")


def write_checkpoint(zoo: Path, entry: str, overrides: Mapping[str, Any], folder: Path) -> None:
    """The entry's tokenizer, its config.json with `overrides`, and random weights of the shapes that these mean."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = json.loads((zoo / entry / "config.json").read_text(encoding="utf-8")) | dict(overrides)
    config = {key: value for key, value in config.items() if value is not DROP}
    text = json.dumps(config)
    full = AutoConfig.for_model(**json.loads(text))
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(full, dtype=torch.float32)
    with torch.no_grad():
        for name, values in model.named_parameters():
            values += randoms(name, values)
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(text, encoding="utf-8")
    spec = json.loads((zoo / entry / "spec.json").read_text(encoding="utf-8"))
    for file in (*(zoo / "tokenizers" / spec["tokenizer"]).iterdir(), *(zoo / entry).glob("*token*")):
        if file.name != "encodings.json":
            shutil.copy(file, folder)


def randoms(name: str, values: Any) -> Any:
    """What is added to the initial values (norms of one or zero, biases of zero), so that all of them matter."""
    import torch

    return torch.randn_like(values) * (0.15 if values.ndim < 2 else 0.1)


def true_logits(folder: Path, ids: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    attention = "sdpa" if kind in WITHOUT_EAGER else "eager"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
    with torch.inference_mode():
        return model(torch.from_numpy(ids)[None], use_cache=False).logits[0].double().numpy()


def errors(folder: Path, file: Path) -> tuple[float, float]:
    """Largest |difference| of the logits over their std, at once and token by token."""
    gguftools.convert(folder, file, "f32")
    model = gguftools.load(file)
    ids = np.random.default_rng(2).integers(0, 250, TOKENS)
    truth = true_logits(folder, ids)
    found = [model.logits(ids), step_by_step(model, ids, model.new_cache())]
    at_once, cached = (float(np.abs(logits - truth).max() / truth.std()) for logits in found)
    return at_once, cached


@pytest.mark.verify
@pytest.mark.parametrize(("entry", "overrides"), CASES, ids=case_name)
def test_transformers_agrees(entry: str, overrides: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    write_checkpoint(shared / "zoo", entry, overrides, tmp_path / entry)
    at_once, cached = errors(tmp_path / entry, tmp_path / "f32.gguf")
    assert at_once < CLOSE
    if not any(word in case_name(overrides) for word in ("dynamic", "long_factor")):  # which look at the whole text
        assert cached < CLOSE
