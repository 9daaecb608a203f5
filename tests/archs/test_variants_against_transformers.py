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
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
LONGROPE = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 32,
            "long_factor": [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5], "short_factor": [1 + i / 9 for i in range(8)]}  # fmt: skip
LINEAR = {"type": "linear", "factor": 2.0}
WINDOWS = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
LOCAL = {"rope_type": "default", "rope_theta": 20_000.0}
PHI3_FACTORS = {"long_factor": [1 + i / 5 for i in range(12)], "short_factor": [1 + i / 20 for i in range(12)]}

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
