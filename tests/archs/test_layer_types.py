"""Layers as families declare them, beside what tensors of recorded models show."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from archs.hparams.file_keys import Keys
from archs.layer_types import LayerType, type_of_layer
from archs.layered import by_layer
from archs.registry import by_gguf_name, of_file
from archs.validation.model_validators import check_model, faults
from quants import from_array
from quants.errors import ModelError
from runtime.model import RunningModel
from tests import absent_keys

MIXERS = (  # the first of which the layer has the tensor
    ("attn_kv", "compressed"),
    ("attn_kv_b", "mla_widened"),
    ("attn_kv_a_mqa", "mla"),
    ("shortconv.in_proj", "shortconv"),
    ("ssm_f_a", "kimi_delta"),
    ("ssm_ba", "gated_delta"),
    ("ssm_beta", "gated_delta"),
)
ARRANGEMENTS = (
    ("altup_predict_coef", "copies"),
    ("hc_attn_fn", "mixed_streams"),
    ("hc_attn_down", "streams"),
    ("attn_res_score", "residuals"),
)
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
        assert type_of_layer(architecture.block, keys, layer, roles) == LayerType(*shown), prefix  # type: ignore[arg-type]


def changed(name: str, keys: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A recorded model's architecture, keys with these among them, and tensors."""
    description = absent_keys.descriptions()[name]
    metadata = dict(description.metadata(absent_keys.cases()[name][0]).items())
    metadata |= {f"{description.architecture}.{key}": value for key, value in keys.items()}
    return by_gguf_name(description.architecture), metadata, dict(absent_keys.tensors(description))


@pytest.mark.parametrize(
    ("name", "keys", "where", "problem"),
    [
        (
            "afmoe",
            {"leading_dense_block_count": 0},
            "blk.0",
            "is declared 'experts' by the keys, but has no tensor 'blk.0.ffn_gate_inp.weight'",
        ),
        (
            "afmoe",
            {"leading_dense_block_count": 2},
            "blk.1",
            "is declared 'dense' by the keys, but has no tensor 'blk.1.ffn_up.weight'",
        ),
        (
            "qwen3-next",
            {"attention.recurrent_layers": [True, True, False, False, False]},
            "blk.2",
            "is declared 'attention' by the keys, but has no tensor 'blk.2.attn_output.weight'",
        ),
        (
            "lfm2",
            {"attention.head_count_kv": [0, 2, 2]},
            "blk.2",
            "is declared 'attention' by the keys, but has no tensor 'blk.2.attn_q.weight'",
        ),
        (
            "llama4",
            {"interleave_moe_layer_step": 4},
            "blk.1",
            "is declared 'dense' by the keys, but has no tensor 'blk.1.ffn_up.weight'",
        ),
    ],
)
def test_tensors_that_contradict_the_declaration(name: str, keys: dict[str, Any], where: str, problem: str) -> None:
    architecture, metadata, tensors = changed(name, keys)
    found = {fault.where: fault.problem for fault in faults(architecture, metadata, tensors)}
    assert found[where] == problem
    with pytest.raises(ModelError, match="is declared"):
        check_model(architecture, metadata, tensors)
    with pytest.raises(ModelError, match=f"'{where}' is declared"):
        RunningModel(metadata, tensors)


@pytest.mark.parametrize(
    ("name", "keys", "tensor", "shape", "kind"),
    [
        (
            "nemotron-h",
            {"feed_forward_length": [160, 160, 0, 0]},
            "blk.0.ssm_in.weight",
            None,
            "mixer 'none', net 'none', arrangement 'sequential'",
        ),
        ("qwen3", {}, "blk.1.ssm_in.weight", (8, 8), "mixer 'attention', net 'dense', arrangement 'sequential'"),
        ("qwen2-moe", {}, "blk.0.ffn_up.weight", (8, 8), "mixer 'attention', net 'experts', arrangement 'sequential'"),
        ("qwen3", {}, "blk.0.ffn_up_shexp.weight", (8, 8), "mixer 'attention', net 'dense', arrangement 'sequential'"),
        ("lfm2", {}, "blk.0.attn_q.weight", (8, 8), "mixer 'shortconv', net 'dense', arrangement 'sequential'"),
        ("deepseek-v3", {}, "blk.0.hc_attn_fn.weight", (8, 8), "mixer 'mla', net 'dense', arrangement 'sequential'"),
    ],
)
def test_tensors_of_other_parts_than_the_layer_has(
    name: str, keys: dict[str, Any], tensor: str, shape: tuple[int, ...] | None, kind: str
) -> None:
    architecture, metadata, tensors = changed(name, keys)
    if shape:
        tensors[tensor] = from_array(tensor, np.zeros(shape, np.float32))
    found = {fault.where: fault.problem for fault in faults(architecture, metadata, tensors)}
    assert found[tensor] == f"is there, but nothing reads it: by the keys, its layer has {kind}"
    with pytest.raises(ModelError):
        RunningModel(metadata, tensors)


def without(tensors: Mapping[str, Any], prefix: str, *roles: str) -> dict[str, Any]:
    return {name: each for name, each in tensors.items() if not name.startswith(tuple(prefix + role for role in roles))}


@pytest.mark.parametrize(
    ("name", "layer", "roles", "lacks"),
    [
        ("qwen3-next", 0, ("ssm", "attn_qkv", "attn_gate"), "mixer"),
        ("qwen3-next", 3, ("attn_",), "mixer"),
        ("qwen3-next", 0, ("ffn_",), "net"),
        ("lfm2", 0, ("shortconv",), "mixer"),
        ("deepseek-v3", 1, ("ffn_", "exp_"), "net"),
        ("deepseek-v3", 0, ("attn_q", "attn_k", "attn_v", "attn_output"), "mixer"),
    ],
)
def test_layers_without_any_tensor_of_a_mixer_or_a_net_have_none(
    name: str, layer: int, roles: tuple[str, ...], lacks: str
) -> None:
    _, metadata, whole = changed(name, {})
    tensors = without(whole, f"blk.{layer}.", *roles)
    model = RunningModel(metadata, tensors)
    kind = model.network.layer_type(model.network.layers[layer])
    assert getattr(kind, lacks) == "none"
    assert "none" not in (kind.mixer if lacks == "net" else kind.net)
    assert np.isfinite(model.forward(np.arange(5))).all()


@pytest.mark.parametrize(
    ("name", "roles", "problem"),
    [
        ("deepseek-v3", ("attn_kv_a_mqa",), "is declared 'mla_widened' by the keys"),
        ("deepseek-v3", ("attn_output",), "'blk.0.attn_output.weight' is missing"),
        ("qwen2-moe", ("ffn_gate_inp.",), "'blk.0.ffn_gate_inp.weight' is missing"),
        ("deepseek-v4", ("hc_",), "is declared 'mixed_streams' by the keys"),
    ],
)
def test_layers_with_some_tensors_of_what_they_are_declared(name: str, roles: tuple[str, ...], problem: str) -> None:
    _, metadata, tensors = changed(name, {})
    with pytest.raises(ModelError, match=problem):
        RunningModel(metadata, without(tensors, "blk.0.", *roles))


@pytest.mark.parametrize("roles", [("attn_q", "attn_k", "attn_v", "attn_output"), ("ffn_up", "ffn_down")])
def test_layers_of_parallel_parts_have_both(roles: tuple[str, ...]) -> None:
    _, metadata, tensors = changed("falcon-7b-style", {})
    with pytest.raises(ModelError, match=f"'blk.0.{roles[-1]}.weight' is missing"):
        RunningModel(metadata, without(tensors, "blk.0.", *roles))


def test_what_some_converters_wrote_twice_is_ignored() -> None:
    """One matrix that widens latents, and the two that were made of it."""
    _, metadata, tensors = changed("deepseek-v3-first", {})
    whole = RunningModel(metadata, tensors).forward(np.arange(5))
    for role in ("attn_k_b", "attn_v_b"):
        tensors[f"blk.0.{role}.weight"] = from_array(f"blk.0.{role}.weight", np.zeros((2, 2, 2), np.float32))
    np.testing.assert_array_equal(RunningModel(metadata, tensors).forward(np.arange(5)), whole)


def test_keys_that_name_no_layer_of_experts_leave_it_to_the_tensors() -> None:
    architecture, metadata, tensors = changed("ernie4-5-moe", {})
    del metadata["ernie4_5-moe.interleave_moe_layer_step"]
    check_model(architecture, metadata, tensors)
    kinds = [
        RunningModel(metadata, tensors).network.layer_type(layer).net
        for layer in RunningModel(metadata, tensors).network.layers
    ]
    assert kinds == ["dense", "experts", "experts"]


@pytest.mark.parametrize(("name", "mixer", "period"), [("qwen3next", "gated_delta", 4), ("minimax-01", "lightning", 8)])
def test_layers_of_full_attention_where_no_key_says_them(name: str, mixer: str, period: int) -> None:
    architecture = by_gguf_name(name)
    keys = Keys.of(architecture, {f"{name}.block_count": 16})
    mixers = [type_of_layer(architecture.block, keys, i, ("attn_qkv.weight",)).mixer for i in range(16)]
    assert mixers == [*[mixer] * (period - 1), "attention"] * (16 // period)


@pytest.mark.parametrize(
    "name", ["ernie4_5-moe", "exaone-moe", "hy_v3", "jamba", "mimo2", "qwen2moe", "qwen3moe", "step35"]
)
def test_tensors_say_which_layers_have_experts_where_keys_cannot(name: str) -> None:
    architecture = by_gguf_name(name)
    keys = Keys.of(
        architecture, {f"{name}.block_count": 4, f"{name}.expert_count": 4, f"{name}.attention.head_count": 2}
    )
    roles = "ffn_up.weight", "ffn_gate_inp.weight"
    nets = [type_of_layer(architecture.block, keys, 3, {role}).net for role in roles]
    assert nets == ["dense", "experts"]
    assert (
        type_of_layer(architecture.block, keys, 3, {"ffn_up_shexp.weight"}).net == "experts"
    )  # what it is refused for


def test_a_layer_of_latents_may_be_of_an_old_conversion() -> None:
    block = by_gguf_name("deepseek2").block
    found = [
        type_of_layer(block, Keys("deepseek2", {"deepseek2.expert_count": 0}), 0, roles).mixer
        for roles in ({"attn_kv_a_mqa.weight", "attn_kv_b.weight"}, {"attn_kv_a_mqa.weight", "attn_k_b.weight"})
    ]
    assert found == ["mla_widened", "mla"]
