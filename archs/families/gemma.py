"""Gemma: Llama's layers with a tanh GELU, norm weights stored minus one, the embedding scaled by the root of its width.

In old configs `hidden_act` "gelu" means tanh too; `hidden_activation` has no effect there. Gemma 2: Gemma with norms
after each part too, softcapped scores and logits, and a window in every second layer. MERaLiON 2 (text): Gemma 2. Gemma
3 (text): Gemma 2 with q/k norms, windows with a rope base of their own, and without softcapped scores. Five of six
layers are windowed. EmbeddingGemma: Gemma 3's layers with bidirectional attention (`use_bidirectional_attention`, where
a window counts both sides together); ends in hidden states. Without that switch the class is Gemma 3 without its head.
Reference: transformers `models/gemma/`, `models/gemma2/`, `models/gemma3/`.
"""

import math

from archs.config import unusual_windows
from archs.families.llama import HALVES
from archs.hparams.config_keys import BothSides
from archs.hparams.file_keys import Derived, Keys, with_window
from archs.rope import unusual_base
from archs.spec import Computed, Config, TensorMap
from archs.tensor_maps import not_exportable
from archs.transforms import add_one

GEMMA = HALVES.derive(
    name="gemma",
    hf_classes=("GemmaForCausalLM", "GemmaModel"),
    vocab=("sentencepiece", "bpe"),
    vocab_keys={"eot_token_id": 107},
    # prompts have bidirectional attention
    wrappers_refused=("PaliGemmaForConditionalGeneration", "ColPaliForRetrieval"),
    metadata={
        "rope.freq_base": unusual_base,
        "hidden_activation": lambda config: {"gelu": None, "gelu_pytorch_tanh": None}.get(
            config.get("hidden_act"), config.get("hidden_act")
        ),
    },
    defaults={
        "hidden_size": 3072,
        "intermediate_size": 24_576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "vocab_size": 256_000,
    },
    tensors={
        ".input_layernorm": TensorMap("attn_norm", add_one),
        ".post_attention_layernorm": TensorMap("ffn_norm", add_one),
        "norm": TensorMap("output_norm", add_one),
    },
    config_from_gguf=lambda keys, tensors: {"hidden_act": keys.get("hidden_activation") or "gelu_pytorch_tanh"},
    activation="",
    block={"activation": "gelu_tanh", "embedding_scale": "sqrt_width"},
)

PERIOD = 2  # default without `attention.sliding_window_pattern`


def scale_of_27b(layers: int) -> Derived:
    """Scale q·k of models with this many layers by the width divided by the heads, not by the head width."""

    def scale(keys: Keys) -> float | None:
        shared = keys.usual("attention.key_length")  # 0 without heads, which the validators report
        return float(shared**-0.5) if shared and keys.layer_count == layers else None

    return Derived("1 / √(embedding_length / attention.head_count), as in the 27B model", scale)


def attention_scale(layers: int) -> Computed:
    """Return the factor of q·k, if it is not the default (llama.cpp drops it).

    layers: of the 27B model.
    """

    def scale(config: Config) -> float | None:
        shared = config["hidden_size"] // config["num_attention_heads"]
        usual = shared if config["num_hidden_layers"] == layers else config["head_dim"]
        scalar = config["query_pre_attn_scalar"]
        return 1 / math.sqrt(scalar) if scalar != usual else None

    return scale


GEMMA2 = GEMMA.derive(
    vocab_keys={"eot_token_id": None},
    name="gemma2",
    wrappers_refused=(),
    hf_classes=("Gemma2ForCausalLM", "Gemma2Model"),
    metadata={
        "hidden_activation": None,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": unusual_windows(PERIOD),
        "attention.scale": attention_scale(46),
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    absent={
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "attention.sliding_window": 4096,
        "attention.scale": scale_of_27b(46),
    },
    defaults={
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    tensors={
        ".post_attention_layernorm": TensorMap("post_attention_norm", add_one),
        ".pre_feedforward_layernorm": TensorMap("ffn_norm", add_one),
        ".post_feedforward_layernorm": TensorMap("post_ffw_norm", add_one),
    },
    config_from_gguf=None,
    activation="hidden_activation",
    block={"window_period": PERIOD},
)

MERALION2 = GEMMA2.derive(
    hf_classes=("MERaLiON2ForConditionalGeneration",),
    prefixes=("text_decoder", *GEMMA2.prefixes),
    config_from_gguf=not_exportable,
)

GEMMA3_PERIOD = 6  # default without `attention.sliding_window_pattern`

GEMMA3 = GEMMA2.derive(
    name="gemma3",
    hf_classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    metadata={
        "rope.freq_base": "rope_theta",
        "attention.sliding_window_pattern": unusual_windows(GEMMA3_PERIOD),  # llama.cpp drops it
        "attn_logit_softcapping": None,
        "attention.scale": attention_scale(62),
    },
    absent={
        **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window")),
        "attention.scale": scale_of_27b(62),
        "rope.freq_base_swa": with_window(10_000.0),
    },
    defaults={
        "model_type": "gemma3_text",
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window_pattern": GEMMA3_PERIOD,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "vocab_size": 262_208,
    },
    tensors={
        ".self_attn.q_norm": TensorMap("attn_q_norm", add_one),
        ".self_attn.k_norm": TensorMap("attn_k_norm", add_one),
    },
    refused={"use_bidirectional_attention": True},
    flags_from_tensors={"mlp_bias": None},
    activation="hidden_activation|hidden_act|activation_function",
    block={"window_period": GEMMA3_PERIOD, "scales_windowed_rope": False},
)

GEMMA_EMBEDDING = GEMMA3.derive(
    name="gemma-embedding",
    hf_classes=("Gemma3TextModel",),
    metadata={"attention.scale": attention_scale(0)},
    absent={"attention.scale": None},
    keys={"sliding_window": BothSides()},
    defaults={"model_type": "gemma3_text", "use_bidirectional_attention": True},
    refused={"use_bidirectional_attention": False},
    variant=lambda config: None if config.get("use_bidirectional_attention") else GEMMA3,
    config_from_gguf=lambda keys, tensors: {"use_bidirectional_attention": True},
    block={"causal": False, "hidden_states": True},
)
