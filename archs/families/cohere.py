"""Command R and R+: layer norms without biases, feed-forward net parallel to attention, a scale on the logits; R+ also
has a norm of its own for each head of q and k. Adjacent pairs rotate in HF too.

Command R7B and Command A: Command R with a window in three of four layers and no rope in the fourth. Command with
experts: routed ones averaged with shared ones, after leading dense layers. Its softmax is over the chosen experts, so
their weights sum to one whatever `norm_topk_prob` says. Reference: transformers `models/cohere/`, `models/cohere2/`,
`models/cohere2_moe/`.
"""

from archs.config import head_dim, unusual_windows, windowed_layers
from archs.experts import GATING, SEPARATE_EXPERTS, SHARED, net_types
from archs.families.llama import HALVES
from archs.hparams.file_keys import Keys, with_experts
from archs.hparams.model_hparams import HParams
from archs.rope import scaling_type
from archs.spec import Config, ScaledSum, first_of_period
from archs.tensor_maps import NotExportable, head_norms
from archs.typed_json import Unread

COHERE = HALVES.derive(
    name="command-r",
    hf_classes=("CohereForCausalLM", "CohereModel"),
    metadata={
        "context_length": "model_max_length|max_position_embeddings",
        "logit_scale": "logit_scale",
        "rope.scaling.type": scaling_type,
    },
    defaults={
        "hidden_size": 8192,
        "intermediate_size": 22_528,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": None,
        "layer_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "logit_scale": 0.0625,
        "vocab_size": 256_000,
    },
    tensors={**head_norms(), ".post_attention_layernorm": None},
    flags_from_tensors={"use_qk_norm": "blk.*.attn_q_norm.weight"},
    block={"norm": "layer", "rope": "adjacent", "parallel": True},
)

PERIOD = 4  # default without `attention.sliding_window_pattern`

COHERE2 = COHERE.derive(
    name="cohere2",
    hf_classes=("Cohere2ForCausalLM", "Cohere2Model"),
    metadata={
        "context_length": "max_position_embeddings",
        "rope.dimension_count": head_dim,
        "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": unusual_windows(PERIOD),
        "vocab_size": "vocab_size",
    },
    defaults={"head_dim": head_dim, "rope_theta": 10_000.0, "sliding_window": 4096},
    block={"window_period": PERIOD, "rope_layers": "windowed"},
)


def dense(config: Config) -> list[bool]:
    """Return for each layer whether its net is dense."""
    net_types, first = config.get("mlp_layer_types"), config["first_k_dense_replace"]
    return [net_types[i] == "dense" if net_types else i < first for i in range(config["num_hidden_layers"])]


def dense_layers(config: Config) -> int:
    """Return how many leading layers are dense."""
    return [*dense(config), False].index(False)


def window_pattern(config: Config) -> list[bool]:
    first = config["first_k_dense_replace"]

    def windowed(layer: int) -> bool:
        every = config["prefix_dense_sliding_window_pattern" if layer < first else "sliding_window_pattern"]
        return bool((layer - first * (layer >= first) + 1) % every)

    return windowed_layers(config, windowed)


def rope_pattern(config: Config) -> list[bool] | None:
    """Return which layers have rope, if other than the windowed and the dense ones (llama.cpp's rule)."""
    windowed, forced = window_pattern(config), config["prefix_dense_sliding_window_pattern"] == 1
    rotating = [one or (forced and of_dense) for one, of_dense in zip(windowed, dense(config), strict=True)]
    usual = [one or layer < dense_layers(config) for layer, one in enumerate(windowed)]
    return rotating if rotating != usual else None


def hparams_hook(keys: Keys, usual: HParams) -> HParams:
    """Enable rope in dense layers before the first with experts, unless the file lists the layers with rope."""
    listed = keys.get("attention.rope_pattern") is not None
    first = 0 if listed else int(keys.get("leading_dense_block_count"))
    return usual.with_layers(lambda index, own: {"rotates": own.rotates or index < first})


COHERE2_MOE = COHERE2.derive(
    name="cohere2moe",
    hf_classes=("Cohere2MoeForCausalLM",),
    keys={"rope_scaling": Unread()},  # but `rope_parameters`
    metadata={
        "feed_forward_length": "prefix_dense_intermediate_size|intermediate_size",
        "attention.sliding_window_pattern": window_pattern,
        "attention.rope_pattern": rope_pattern,
        "expert_feed_forward_length": "intermediate_size",
        "leading_dense_block_count": dense_layers,
        "expert_gating_func": lambda config: GATING[config["expert_selection_fn"]],
        "expert_weights_norm": lambda config: config["norm_topk_prob"] or config["expert_selection_fn"] == "softmax",
        "expert_shared_count": lambda config: config["num_shared_experts"] or None,
        "expert_shared_feed_forward_length": lambda config: (
            config["intermediate_size"] * config["num_shared_experts"] or None
        ),
    },
    defaults={
        "model_type": "cohere2_moe",
        "head_dim": 128,
        "first_k_dense_replace": 0,
        "prefix_dense_sliding_window_pattern": 1,
        "sliding_window_pattern": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 0,
        "expert_selection_fn": "softmax",
        "norm_topk_prob": True,
    },
    config_from_gguf=lambda keys, tensors: {
        "first_k_dense_replace": keys["leading_dense_block_count"],
        "prefix_dense_intermediate_size": keys["feed_forward_length"],
        "intermediate_size": keys["expert_feed_forward_length"],
        "num_shared_experts": keys.get("expert_shared_count"),
        **net_types(keys, tensors),
        "expert_selection_fn": "sigmoid" if keys["expert_gating_func"] == GATING["sigmoid"] else "softmax",
    },
    rope_parameters="one",
    refused={"shared_expert_combination_strategy": "sum", "rms_norm_eps": lambda eps: eps is not None},
    tensors={".mlp.gate": "ffn_gate_inp", **SEPARATE_EXPERTS, **SHARED},
    layers_vary=True,
    absent={"expert_gating_func": with_experts(GATING["sigmoid"]), "expert_weights_norm": with_experts(False)},
    block={"is_global_layer": first_of_period, "hparams_hook": hparams_hook, "add_shared_expert": ScaledSum(0.5)},
)


def has_rms_epsilon(keys: Keys) -> bool:
    """Return whether the norms are RMS norms, by the epsilon's key."""
    epsilons = [keys.stored(f"attention.layer_norm_{each}epsilon") for each in ("", "rms_")]
    return epsilons[0] is None and epsilons[1] is not None


COHERE2_MOE_RMS = COHERE2_MOE.derive(
    hf_classes=COHERE2_MOE.hf_classes,
    by_variant=True,
    variant=None,
    of_keys=has_rms_epsilon,
    block={"norm": "rms"},
    config_from_gguf=NotExportable("its norms are RMS norms, which transformers' class does not compute"),
)
