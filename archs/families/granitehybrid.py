"""Granite 4 hybrids: Mamba-2 and attention layers, each followed by routed experts, a shared one, or just a dense net.

Reference: transformers `models/granitemoehybrid/modeling_granitemoehybrid.py`. Without rope (`position_embedding_type`
"nope") the file says `rope.scaling.finetuned` = false, as llama.cpp does. Models of this class that have attention
layers only (Granite 4.0 Micro) become files of Granite or Granite MoE.
"""


from archs.config import other_than
from archs.families.granite import GRANITE, GRANITE_MOE
from archs.families.mamba import UNBOUNDED
from archs.layouts import MAMBA2_KEYS, MAMBA_BIASES, mamba2, step_limits
from archs.spec import Architecture, Config, ConfigKeys, GgufKeys, TensorMap, Tensors, Transform, in_layers
from archs.transforms import part


def rotates(config: Config) -> bool:
    return config.get("position_embedding_type") == "rope"


def attends(config: Config) -> list[bool]:
    """Which layers are attention layers."""
    return [kind in ("attention", "full_attention") for kind in config["layer_types"]]


def kv_heads(config: Config) -> list[int]:
    """Key-value heads of each layer; none in those that are no attention layers."""
    return [config["num_key_value_heads"] if each else 0 for each in attends(config)]


def without_state_space(config: Config) -> Architecture | None:
    """What llama.cpp makes of models that have attention layers only."""
    if not config.get("layer_types") or not all(attends(config)):
        return None
    return ATTENTION_AND_EXPERTS if config.get("num_experts_per_tok", 8) else ATTENTION_ALONE


def shared(part_of_net: str, transform: Transform | None = None) -> TensorMap:
    """A weight of the net that all tokens share; without routed experts it is the layer's only one."""
    name = f"blk.{{i}}.ffn_{part_of_net}"
    return TensorMap(lambda config: f"{name}_shexp" if config.get("num_local_experts") else name, transform)


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    groups, rotating = keys["attention.head_count_kv"], keys.get("rope.scaling.finetuned", False)
    return {
        "layer_types": ["attention" if count else "mamba" for count in groups],
        "num_key_value_heads": max(groups), "mamba_expand": keys["ssm.inner_size"] / keys["embedding_length"],
        "position_embedding_type": "rope" if rotating else "nope", "max_position_embeddings": keys["context_length"],
        "shared_intermediate_size": keys.get("expert_shared_feed_forward_length", 0), **step_limits(keys),
    }  # fmt: skip


GRANITE_HYBRID = GRANITE_MOE.derive(
    name="granitehybrid",
    hf_classes=("GraniteMoeHybridForCausalLM",),
    vocab_keys={"add_space_prefix": None},
    metadata={
        "context_length": lambda config: config["max_position_embeddings"] if rotates(config) else UNBOUNDED,
        "attention.head_count_kv": kv_heads,
        "rope.scaling.finetuned": rotates,
        **MAMBA2_KEYS,
    },
    defaults={
        "layer_types": lambda config: ["mamba"] * config["num_hidden_layers"], "shared_intermediate_size": 1024,
        "mamba_d_conv": 4, "mamba_d_state": 256, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 128,
    },
    refused={"hidden_act": other_than("silu", "swish")},
    variant=without_state_space,
    config_from_gguf=config_from_gguf,
    flags_from_tensors=MAMBA_BIASES,
    tensors={
        **in_layers({**mamba2("mamba", "mamba_n_groups")}),
        "layers.{i}.shared_mlp.input_linear": (shared("gate", part(0, 2)), shared("up", part(1, 2))),
        "layers.{i}.shared_mlp.output_linear": shared("down"),
    },
    layers_vary=True,
)  # fmt: skip

ATTENTION_AND_EXPERTS = GRANITE_HYBRID.derive(
    name="granitemoe",
    metadata={"context_length": "max_position_embeddings"},
    variant=None,
    by_variant=True,
    refused={"hidden_act": None},
)

ATTENTION_ALONE = ATTENTION_AND_EXPERTS.derive(name="granite", block=GRANITE.block)
