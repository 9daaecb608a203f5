"""Grok: experts with gelu, norms after both parts too, scores and the router's logits softcapped.

Grok 2 has a net next to the experts; their sum is divided by the root of two. Weights of chosen experts are not
rescaled, as in the model's own server; llama.cpp rescales them, and does not cap the router's logits. The growth of
queries past `attn_temperature_len` tokens is not run, as in llama.cpp. Published files of Grok 2 hold each processor's
share of the experts. Reference: SGLang's `grok.py`, which the model's authors name; llama.cpp's converter and graph.
"""

import re

from archs.config import head_dim
from archs.families.llama import HALVES
from archs.hparams.file_keys import Derived, Keys
from archs.hparams.model_hparams import HParams
from archs.spec import Architecture, Computed, Config, ConfigKeys, GgufKeys, ScaledSum, TensorMap, Tensors
from archs.tensor_maps import MIXTRAL_EXPERTS, gated_net
from archs.transforms import concatenated, side_by_side
from quants import Tensor
from quants.errors import ModelError

WITHOUT_FACTORS = 30.0  # default of configs without softcaps


def hparams_hook(keys: Keys, usual: HParams) -> HParams:
    """Set the factor of scores, which has a key of its own."""
    scale = keys.get("attention.output_scale")
    return usual.with_layers(lambda index, own: {} if scale is None else {"attention_scale": float(scale)})


def scaled(key: str) -> Computed:
    """Return a YaRN setting, which such configs have on the top level."""
    return lambda config: config.get(key) if config.get("rope_type") in ("yarn", "original") else None


YARN = {  # published names of its settings → those of files
    "scaling_factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "extrapolation_factor": "yarn_ext_factor",
    "attn_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def output_scale(config: Config) -> float:
    return float(config.get("attn_output_multiplier") or head_dim(config) ** -0.5)


OLDER = "decoder_layer.{i}."  # names of Grok 1, which has no net next to its experts
OLDER_OUTSIDE = ("in_out_embed", "rms_norm")


def other_names(tensors: Tensors) -> tuple[str, ...]:
    """Return unused names: Grok 2's or Grok 1's, which names a layer's last norm differently."""
    older = "blk.0.layer_output_norm.weight" in tensors
    return tuple(
        name
        for name in GROK.tensors
        if name != "lm_head" and (name.startswith(OLDER) or name in OLDER_OUTSIDE) is not older
    )


def published(config: Config, tensors: Tensors) -> Tensors:
    """Return the names, which begin with another word in Grok 1."""
    older = any("decoder_layer." in name for name in tensors)
    called = {name: name.replace("model.", "transformer.", 1) if older else name for name in tensors}
    return {new: tensors[name].renamed(new) for name, new in called.items()}


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return YaRN's settings on the top level, as they are published."""
    net = "blk.0.ffn_up.weight" in tensors
    grows = keys["attention.temperature_length"] if "attention.temperature_length" in keys else ...  # noqa: SIM401
    config: ConfigKeys = {
        "architectures": ["Grok1ForCausalLM"],
        "model_type": "git" if net else "grok-1",
        "attn_output_multiplier": keys["attention.output_scale"],
        "attn_temperature_len": grows,
        "residual_moe": net or ...,
        "hidden_act": "gelu",
        **dict.fromkeys(("rope_scaling", "attention_bias", "mlp_bias"), ...),
    }
    if keys.get("rope.scaling.type") == "yarn":
        settings = {name: keys.stored(f"rope.scaling.{key}") for name, key in YARN.items()}
        config |= {"rope_type": "original", **{name: value for name, value in settings.items() if value is not None}}
    return config


SHARE = re.compile(r"(.*)\.TP-(\d{3})")
COLUMNS = re.compile(r".*\.(w2|linear_1)\.weight")  # whose columns are split among processors, others' rows


def joined(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return matrices of experts in one piece that are stored in shares, one for each processor.

    Raises ModelError for a missing share.
    """
    shares: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := SHARE.fullmatch(name):
            shares.setdefault(match[1], {})[int(match[2])] = tensor
    count, named = 1 + max((max(each) for each in shares.values()), default=0), dict[str, Tensor]()
    for name, tensor in tensors.items():
        whole = match[1] if (match := SHARE.fullmatch(name)) else name
        if whole == name or whole in named:
            named.setdefault(whole, tensor)
            continue
        if missing := sorted(set(range(count)) - set(shares[whole])):
            raise ModelError(f"of {whole!r} the share of processor {missing[0]} is missing", "fetch all *-TP-* files")
        parts = [shares[whole][i] for i in range(count)]
        if other := next((each for each in parts if (each.format, each.shape) != (tensor.format, tensor.shape)), None):
            problem = f"{other.origin} is {other.format.name} {list(other.shape)}"
            raise ModelError(f"{problem}, but {tensor.origin} {tensor.format.name} {list(tensor.shape)}")
        named[whole] = (side_by_side if COLUMNS.fullmatch(whole) else concatenated)(parts, whole)
    return config, named


GROK: Architecture = HALVES.derive(
    name="grok",
    hf_classes=("GrokForCausalLM", "Grok1ForCausalLM"),
    vocab=("sentencepiece", "bpe"),
    prefixes=("model", "transformer"),
    metadata={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "router_logit_softcapping": "router_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "expert_feed_forward_length": "moe_intermediate_size",
        "rope.scaling.type": lambda config: "yarn" if scaled("rope_type")(config) else None,
        **{f"rope.scaling.{key}": scaled(name) for name, key in YARN.items()},
        "attention.temperature_length": lambda config: config.get("attn_temperature_len") or None,
        "attention.output_scale": output_scale,
        "embedding_scale": "embedding_multiplier_scale",
        "logit_scale": "output_multiplier_scale",
    },
    absent={  # Grok 1's
        "embedding_scale": 78.38367176906169,
        "logit_scale": 0.5773502691896257,
        "attn_logit_softcapping": 30.0,
        "attention.output_scale": 0.08838834764831845,
        "rope.scaling.yarn_beta_fast": Derived(
            "", lambda keys: 8.0 if keys.get("rope.scaling.type") == "yarn" else None, "8 with yarn"
        ),
    },
    defaults={
        "model_type": "grok-1",
        "attn_logit_softcapping": WITHOUT_FACTORS,
        "router_logit_softcapping": WITHOUT_FACTORS,
        "rms_norm_eps": 1e-5,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    tensors={
        "embed_tokens": "token_embd",
        "in_out_embed": "token_embd",
        **gated_net("mlp"),
        ".input_layernorm": None,
        ".post_attention_layernorm": None,
        ".pre_attn_norm": "attn_norm",
        ".post_attn_norm": "attn_output_norm",
        ".pre_moe_norm": "ffn_norm",
        ".post_moe_norm": "post_ffw_norm",
        ".block_sparse_moe.gate": "ffn_gate_inp",
        **MIXTRAL_EXPERTS,
        **{
            f"decoder_layer.{{i}}.{source}": f"blk.{{i}}.{name}"
            for source, name in {
                "rms_norm": "attn_norm",
                "rms_norm_1": "attn_output_norm",
                "rms_norm_2": "ffn_norm",
                "rms_norm_3": "layer_output_norm",
                "router": "ffn_gate_inp",
                "multi_head_attention.query": "attn_q",
                "multi_head_attention.key": "attn_k",
                "multi_head_attention.value": "attn_v",
                "multi_head_attention.linear": "attn_output",
            }.items()
        },
        **{
            f"decoder_layer.{{i}}.moe.{{e}}.{source}": TensorMap(f"blk.{{i}}.ffn_{name}_exps", stack=True)
            for source, name in {"linear": "gate", "linear_1": "down", "linear_v": "up"}.items()
        },
        "rms_norm": "output_norm",
    },
    activation="",
    config_from_gguf=config_from_gguf,
    prepare=joined,
    prepare_export=published,
    legacy_names=other_names,
    block={
        "net": ("experts+dense", "experts"),
        "activation": "gelu_tanh",
        "attn_post_norm": "attn_output_norm",
        "ffn_post_norm": "layer_output_norm",
        "hparams_hook": hparams_hook,
        "add_shared_expert": ScaledSum(0.5**0.5),
    },
)
