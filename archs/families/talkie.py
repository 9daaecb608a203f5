"""Talkie: norms without weights, a gain for each head of q, which is normed after rotation, as k is, gains of the
parts' outputs, and the normed embedding, which each layer adds again.

It rotates in the other direction: the second half of each head's q and k is stored negated. Reference: llama.cpp's
converter and graph.
"""

import numpy as np

from archs.config import changed, head_dim, lookup
from archs.families.llama import HALVES
from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import HParams
from archs.spec import Computed, Config, ConfigKeys, Floats, GgufKeys, TensorMap, Tensors, Transform
from archs.transforms import column, scaled_rows
from quants import from_array

EPSILON = float(np.finfo(np.float32).eps)  # default of norms


def turned(heads: str) -> Transform:
    """Return the second half of each head's rows negated. heads: the config key that counts them."""

    def signs(config: Config) -> Floats:
        width, count = head_dim(config), int(lookup(config, heads))
        half = np.repeat(np.array([1, -1], np.float32), [width - width // 2, width // 2])
        return np.tile(half, count)

    return scaled_rows(signs)


def with_logit_scale(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return the config with the head's gain, which is a tensor of checkpoints; the head itself is stored without
    ".weight".
    """
    gains = [name for name in tensors if name.endswith("lm_head_gain.w_g")]
    scale = float(tensors[gains[0]].float32().reshape(-1)[0]) if gains else 1.0
    called = {name: f"{name}.weight" if name.endswith("lm_head") else name for name in tensors if name not in gains}
    left = {new: tensors[name].renamed(new) for name, new in called.items()}
    return changed(config, logit_scale=scale), left


def published(config: Config, tensors: Tensors) -> Tensors:
    """Return the head's gain as a tensor, the head without ".weight"."""
    gain = from_array("lm_head_gain.w_g", np.array([config["logit_scale"]], np.float32))
    called = {name: name.removesuffix(".weight") if name == "lm_head.weight" else name for name in tensors}
    return {**{new: tensors[name].renamed(new) for name, new in called.items()}, gain.name: gain}


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    return {
        "logit_scale": keys.get("logit_scale"),
        "head_dim": keys["embedding_length"] // keys["attention.head_count"],
        **dict.fromkeys(("attention_bias", "mlp_bias", "rope_scaling"), ...),
    }


def hparams_hook(keys: Keys, usual: HParams) -> HParams:
    return usual.with_layers(lambda index, own: {"qk_l2_norm": True})


def epsilon(config: Config) -> float:
    return EPSILON


KEYS: dict[str, str | Computed | None] = {"attention.layer_norm_rms_epsilon": epsilon, "logit_scale": "logit_scale"}

TALKIE = HALVES.derive(
    name="talkie",
    hf_classes=("TalkieForCausalLM",),
    layers="blocks",
    metadata=KEYS,
    prepare=with_logit_scale,
    defaults={"model_type": "talkie", "rms_norm_eps": None, "head_dim": head_dim},
    tensors={
        **dict.fromkeys(HALVES.tensors),
        "embed": "token_embd",
        "lm_head": "output",
        ".attn.attn_query": TensorMap("attn_q", turned("num_attention_heads")),
        ".attn.attn_key": TensorMap("attn_k", turned("num_key_value_heads")),
        ".attn.attn_value": "attn_v",
        ".attn.attn_resid": "attn_output",
        ".attn.head_gain.head_g": TensorMap("attn_q_norm.weight", column),
        ".attn_gain.a_g": "attn_output.scale",
        ".mlp.mlp_gate": "ffn_gate",
        ".mlp.mlp_linear": "ffn_up",
        ".mlp.mlp_resid": "ffn_down",
        ".mlp_gain.a_g": "ffn_down.scale",
        ".embed_skip.a_g": "layer_output_scale.weight",
    },
    config_from_gguf=config_from_gguf,
    prepare_export=published,
    derived_keys=("logit_scale",),
    activation="",
    block={
        "norm": "rms_without_weights",
        "hparams_hook": hparams_hook,
        "normed_embedding": True,
        "embedding_skip": True,
        "qkv_steps": ("rope", "norm_without_weights", "norm"),
    },
)
