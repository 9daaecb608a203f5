"""dots.llm1: Qwen3's attention with DeepSeek V3's routing.

Reference: transformers `models/dots1/modeling_dots1.py`. Every layer's window, where the config has one, follows
`layer_types`; the published model has none.
"""

from archs.config import windowed_layers
from archs.experts import ROUTING, always
from archs.families.deepseek2 import DEEPSEEK_V3
from archs.families.qwen2 import HALVES
from archs.layouts import head_norms
from archs.spec import Config, in_layers


def window_pattern(config: Config) -> list[bool] | None:
    """Which layers are windowed, where any is (llama.cpp drops this)."""
    found = windowed_layers(config, lambda layer: layer >= config["max_window_layers"])
    return found if any(found) and config.get("sliding_window") else None


DOTS1 = HALVES.derive(
    name="dots1",
    hf_classes=("Dots1ForCausalLM",),
    vocab=("bpe", "sentencepiece"),
    metadata={
        **ROUTING,
        "expert_gating_func": always("sigmoid"),
        "attention.sliding_window": lambda config: config.get("sliding_window") if window_pattern(config) else None,
        "attention.sliding_window_pattern": window_pattern,
    },
    defaults={
        "hidden_size": 4608, "num_key_value_heads": 32, "intermediate_size": 10_944, "num_hidden_layers": 62,
        "moe_intermediate_size": 1408, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": False, "routed_scaling_factor": 1.0, "scoring_func": "sigmoid",
        "max_position_embeddings": 2048, "max_window_layers": 62, "vocab_size": 152_064,
    },
    tensors={
        **{name: target for name, target in DEEPSEEK_V3.tensors.items() if ".mlp." in name},
        **in_layers({**head_norms()}),
    },
    layers_vary=True,
)  # fmt: skip
