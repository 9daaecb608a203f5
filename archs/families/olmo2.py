"""OLMo 2 and 3: norms after attention and feed-forward net only, and over all heads of q and k; OLMo 3 has windows.

Reference: transformers `models/olmo2/modeling_olmo2.py`, `models/olmo3/modeling_olmo3.py`.
"""


from archs.config import windowed_layers
from archs.families.qwen2 import HALVES
from archs.hyper import Hyper, Keys
from archs.layouts import head_norms
from archs.spec import ConfigKeys, GgufKeys, Tensors
from quants.errors import ModelError


def without_window(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    if "attention.sliding_window" in keys:
        raise ModelError("OLMo 2 has no windows")
    return {}


def numbers(keys: Keys, usual: Hyper) -> Hyper:
    """Rope scaling is for the layers that see everything."""
    return usual.with_layers(lambda index, own: {"rope_scaled": own.rope_scaled and own.window is None})


OLMO2 = HALVES.derive(
    name="olmo2",
    hf_classes=("Olmo2ForCausalLM", "Olmo2Model"),
    vocab=("bpe",),
    defaults={
        "intermediate_size": 11_008, "num_key_value_heads": lambda config: config["num_attention_heads"],
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "vocab_size": 50_304,
    },
    config_from_gguf=without_window,
    tensors={
        "layers.{i}.input_layernorm": None,
        **head_norms(),
        "layers.{i}.post_attention_layernorm": "blk.{i}.post_attention_norm",
        "layers.{i}.post_feedforward_layernorm": "blk.{i}.post_ffw_norm",
    },
    block={"window_period": 4, "numbers": numbers},
)  # fmt: skip


THETA = 500_000.0

OLMO3 = OLMO2.derive(
    hf_classes=("Olmo3ForCausalLM", "Olmo3Model"),
    config_from_gguf=None,
    rope_parameters="by kind",
    metadata={
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": lambda config: windowed_layers(config, lambda layer: (layer + 1) % 4 != 0),
    },
    defaults={
        "sliding_window": 4096, "rope_theta": THETA,
        # transformers gives a base without kinds of layers to those without a window alone
        "rope_local_base_freq": lambda config: THETA if config["rope_theta"] != THETA else None,
    },
)  # fmt: skip
