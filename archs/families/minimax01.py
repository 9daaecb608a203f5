"""MiniMax Text-01 and M1: lightning attention in seven of eight layers, routed experts; the residual is the normed
input of a part, times a constant.

Reference: transformers `models/minimax/`; published configs use other keys.
"""

from archs.config import lookup
from archs.families.llama import MIXTRAL
from archs.families.llama_like import MINIMAX_M2
from archs.layer_types import recurrent_layers
from archs.spec import Config, ConfigKeys, GgufKeys, Tensors
from quants.errors import ModelError

PERIOD = 8
PARTS = {
    "layernorm_full_attention_{}": "full_attn_{}_factor",
    "layernorm_linear_attention_{}": "linear_attn_{}_factor",
    "layernorm_mlp_{}": "mlp_{}_factor",
}


def residual_scale(config: Config) -> float:
    """Raise ModelError if parts differ, which files cannot express."""
    names = [(one.format(factor), other.format(factor)) for one, other in PARTS.items() for factor in ("alpha", "beta")]
    values = [float(lookup(config, f"{one}|{other}") or 1.0) for one, other in names]
    if len({*values[::2]}) > 1 or {*values[1::2]} != {1.0}:
        raise ModelError(f'config.json weighs parts by {values} ("layernorm_…"); one alpha and betas of 1 are expected')
    return values[0]


def recurrent(config: Config) -> list[bool] | None:
    """Return which layers have no full attention, if not all but every eighth."""
    layer_types, count = config.get("layer_types"), config["num_hidden_layers"]
    numbers = config.get("attn_type_list") or [(i + 1) % 2 for i in range(count)]  # transformers' own rule
    full = (
        [layer_type == "full_attention" for layer_type in layer_types]
        if layer_types
        else [bool(each) for each in numbers]
    )
    return None if full == [i % PERIOD == PERIOD - 1 for i in range(len(full))] else [not each for each in full]


def config_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    """Return the config under transformers' names."""
    count = keys["block_count"]
    linear = keys.get("attention.recurrent_layers") or [i % PERIOD != PERIOD - 1 for i in range(count)]
    scale, head = keys["residual_scale"], keys.get("attention.key_length")
    return {
        "layer_types": ["linear_attention" if each else "full_attention" for each in linear],
        "head_dim": head,
        "partial_rotary_factor": keys.get("rope.dimension_count") / head,
        "sliding_window": None,
        **{f"{part}_alpha_factor": scale for part in ("full_attn", "linear_attn", "mlp")},
    }


def full_outputs(config: Config, tensors: Tensors) -> Tensors:
    """Return full attention's output matrix under its own name."""
    full = [f"model.layers.{i}.self_attn." for i, each in enumerate(config["layer_types"]) if each == "full_attention"]
    names = {f"{layer}out_proj.weight": f"{layer}o_proj.weight" for layer in full}
    return {names.get(name, name): tensor.renamed(names.get(name, name)) for name, tensor in tensors.items()}


MINIMAX01 = MIXTRAL.derive(
    name="minimax-01",
    hf_classes=("MiniMaxForCausalLM", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"),
    vocab=("bpe",),
    config_from_gguf=config_from_gguf,
    prepare_export=full_outputs,
    rope_parameters="one",
    metadata={
        "vocab_size": None,
        "residual_scale": residual_scale,
        "rope.dimension_count": MINIMAX_M2.metadata["rope.dimension_count"],
        "attention.recurrent_layers": recurrent,
    },
    defaults={"model_type": "minimax", "max_position_embeddings": 131_072, "partial_rotary_factor": None},
    refused={"shared_intermediate_size": lambda width: bool(width), "postnorm": False},
    tensors={
        ".self_attn.q_proj": "attn_q",
        ".self_attn.k_proj": "attn_k",
        ".self_attn.qkv_proj": "attn_qkv",
        ".self_attn.output_gate": "attn_gate",
        ".self_attn.norm": "attn_norm_2",
        ".self_attn.out_proj": "attn_output",
    },
    ignored=("layers.*.self_attn.slope_rate", "layers.*.self_attn.*_decay"),
    layers_vary=True,
    block={"rope": "halves", "mixer": recurrent_layers("lightning", PERIOD), "arrangement": "normed"},
)
