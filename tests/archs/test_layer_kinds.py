"""Layers as families declare them, beside what tensors of recorded models show."""

from collections.abc import Mapping
from typing import Any

import pytest

from archs.file_keys import Keys
from archs.layer_kinds import LayerKind, layer_kind
from archs.layered import by_layer
from archs.registry import by_gguf_name, of_file
from archs.shapes import check_model, faults
from quants.errors import ModelError
from runtime.model import Model
from tests import absent_keys

MIXERS = (  # the first of which the layer has the tensor
    ("attn_kv", "compressed"), ("attn_kv_b", "mla_widened"), ("attn_kv_a_mqa", "mla"),
    ("shortconv.in_proj", "shortconv"),
    ("ssm_f_a", "kimi_delta"), ("ssm_ba", "gated_delta"), ("ssm_beta", "gated_delta"),
)  # fmt: skip
ARRANGEMENTS = (
    ("altup_predict_coef", "copies"), ("hc_attn_fn", "mixed_streams"), ("hc_attn_down", "streams"),
    ("attn_res_score", "residuals"),
)  # fmt: skip
DECODERS = [
    name for name, each in absent_keys.descriptions().items() if any(row[0][:6] == "blk.0." for row in each.tensors)
]


def mixer(roles: Mapping[str, Any], architecture: str) -> str:
    """What tensors show of a layer's mixer."""
    if "time_mix_output.weight" in roles:
        return "rwkv7" if "7" in architecture else "rwkv6"
    if "attn_norm_2.weight" in roles and architecture == "minimax-01":
        return "lightning"
    if found := next((name for role, name in MIXERS if f"{role}.weight" in roles), None):
        return found
    if "ssm_in.weight" not in roles:
        return "attention" if "attn_output.weight" in roles else "none"
    if "ssm_x.weight" in roles:
        return "mamba_heads" if len(roles["ssm_a"].shape) == 1 else "mamba"
    return "attention+mamba2" if "attn_output.weight" in roles else "mamba2"


def net(roles: Mapping[str, Any]) -> str:
    """What tensors show of a layer's net."""
    dense, experts = ("ffn_up.weight" in roles, "ffn_gate_inp.weight" in roles)
    if "channel_mix_key.weight" in roles:
        return "channel_mix"
    return "+".join(["experts"] * experts + ["dense"] * dense) or "none"


def arrangement(roles: Mapping[str, Any], outside: Mapping[str, Any], architecture: str) -> str:
    found = next((name for role, name in ARRANGEMENTS if f"{role}.weight" in roles), None)
    if found is None and architecture == "minimax-01":
        return "normed"
    return found or ("cycles" if "hrm.z_l_init" in outside else "sequential")


@pytest.mark.parametrize("name", DECODERS)
def test_layers_are_declared_as_their_tensors_show(name: str) -> None:
    description, case = absent_keys.descriptions()[name], absent_keys.cases()[name][0]
    metadata, tensors = description.metadata(case), absent_keys.tensors(description)
    architecture, grouped = of_file(description.architecture, metadata), by_layer(tensors)
    keys = Keys.of(architecture, metadata)
    layers = [prefix for prefix in grouped if prefix.startswith("blk.")]
    assert layers
    for prefix in layers:
        roles, layer = grouped[prefix], int(prefix.split(".")[1])
        shown = mixer(roles, architecture.name), net(roles), arrangement(roles, grouped[""], architecture.name)
        assert layer_kind(architecture.block, keys, layer, roles) == LayerKind(*shown), prefix  # type: ignore[arg-type]


def changed(name: str, keys: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A recorded model's architecture, keys with these among them, and tensors."""
    description = absent_keys.descriptions()[name]
    metadata = dict(description.metadata(absent_keys.cases()[name][0]).items())
    metadata |= {f"{description.architecture}.{key}": value for key, value in keys.items()}
    return by_gguf_name(description.architecture), metadata, dict(absent_keys.tensors(description))


@pytest.mark.parametrize(
    ("name", "keys", "where", "problem"),
    [
        ("afmoe", {"leading_dense_block_count": 0}, "blk.0",
         "is declared 'experts' by the keys, but has no tensor 'blk.0.ffn_gate_inp.weight'"),
        ("afmoe", {"leading_dense_block_count": 2}, "blk.1",
         "is declared 'dense' by the keys, but has no tensor 'blk.1.ffn_up.weight'"),
        ("qwen3-next", {"attention.recurrent_layers": [True, True, False, False, False]}, "blk.2",
         "is declared 'attention' by the keys, but has no tensor 'blk.2.attn_output.weight'"),
        ("lfm2", {"attention.head_count_kv": [0, 2, 2]}, "blk.2",
         "is declared 'attention' by the keys, but has no tensor 'blk.2.attn_q.weight'"),
        ("llama4", {"interleave_moe_layer_step": 4}, "blk.1",
         "is declared 'dense' by the keys, but has no tensor 'blk.1.ffn_up.weight'"),
        ("nemotron-h", {"feed_forward_length": [160, 160, 0, 0]}, "blk.0",
         "is declared 'dense' by the keys, but has no tensor 'blk.0.ffn_up.weight'"),
    ],
)  # fmt: skip
def test_tensors_that_contradict_the_declaration(name: str, keys: dict[str, Any], where: str, problem: str) -> None:
    architecture, metadata, tensors = changed(name, keys)
    found = {fault.where: fault.problem for fault in faults(architecture, metadata, tensors)}
    assert found[where] == problem
    with pytest.raises(ModelError, match="is declared"):
        check_model(architecture, metadata, tensors)
    with pytest.raises(ModelError, match=f"'{where}' is declared"):
        Model(metadata, tensors)


def test_keys_that_name_no_layer_of_experts_leave_it_to_the_tensors() -> None:
    architecture, metadata, tensors = changed("ernie4-5-moe", {})
    del metadata["ernie4_5-moe.interleave_moe_layer_step"]
    check_model(architecture, metadata, tensors)
    kinds = [Model(metadata, tensors).network.kind(layer).net for layer in Model(metadata, tensors).network.layers]
    assert kinds == ["dense", "experts", "experts"]


@pytest.mark.parametrize(("name", "mixer", "period"), [("qwen3next", "gated_delta", 4), ("minimax-01", "lightning", 8)])
def test_layers_of_full_attention_where_no_key_says_them(name: str, mixer: str, period: int) -> None:
    architecture = by_gguf_name(name)
    keys = Keys.of(architecture, {f"{name}.block_count": 16})
    mixers = [layer_kind(architecture.block, keys, i, ()).mixer for i in range(16)]
    assert mixers == [*[mixer] * (period - 1), "attention"] * (16 // period)


@pytest.mark.parametrize(
    "name", ["ernie4_5-moe", "exaone-moe", "hy_v3", "jamba", "mimo2", "qwen2moe", "qwen3moe", "step35"]
)
def test_tensors_say_which_layers_have_experts_where_keys_cannot(name: str) -> None:
    architecture = by_gguf_name(name)
    keys = Keys.of(
        architecture, {f"{name}.block_count": 4, f"{name}.expert_count": 4, f"{name}.attention.head_count": 2}
    )
    nets = [layer_kind(architecture.block, keys, 3, {role}).net for role in ("ffn_up.weight", "ffn_gate_inp.weight")]
    assert nets == ["dense", "experts"]
    assert layer_kind(architecture.block, keys, 3, ()).net == "experts"  # what it is refused for


def test_a_layer_of_latents_may_be_of_an_old_conversion() -> None:
    block = by_gguf_name("deepseek2").block
    found = [layer_kind(block, Keys("deepseek2", {"deepseek2.expert_count": 0}), 0, roles).mixer for roles in (
        {"attn_kv_a_mqa.weight", "attn_kv_b.weight"}, {"attn_kv_a_mqa.weight", "attn_k_b.weight"},
    )]  # fmt: skip
    assert found == ["mla_widened", "mla"]
