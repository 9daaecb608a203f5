"""Plans account for every tensor: each is mapped, listed as holding nothing or as left out, or the plan is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from archs.families.gpt import BLOOM
from archs.families.llama import LLAMA, MIXTRAL
from archs.families.llama_like import APERTUS, STABLELM
from archs.metadata import Metadata
from archs.plans.mmproj import left_to_encoders
from archs.plans.text import Mapped, architecture_metadata, is_left_out, map_tensors, stays_float32, without_prefix
from archs.registry import by_gguf_name, by_hf_class
from archs.spec import Architecture
from archs.validation.model_validators import check_shapes
from quants import Tensor, from_array
from quants.errors import ModelError
from tests.archs import checkpoints

CONFIG = {
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-6,
    "vocab_size": 10,
    "rope_theta": 10_000.0,
    "num_local_experts": 3,
}
LAYER = {
    "input_layernorm": (8,),
    "self_attn.q_proj": (8, 8),
    "self_attn.k_proj": (4, 8),
    "self_attn.v_proj": (4, 8),
    "self_attn.o_proj": (8, 8),
    "post_attention_layernorm": (8,),
}
DENSE = {"mlp.gate_proj": (12, 8), "mlp.up_proj": (12, 8), "mlp.down_proj": (8, 12)}


def checkpoint(prefix: str = "model.", layer: Mapping[str, tuple[int, ...]] = LAYER | DENSE) -> dict[str, Tensor]:
    """A tiny model of two layers; the head stands outside the prefix, as published."""
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}embed_tokens.weight": (10, 8), f"{prefix}norm.weight": (8,)}
    for i in range(2):
        shapes |= {f"{prefix}layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    shapes["lm_head.weight"] = (10, 8)
    return {name: tensor(name, *shape) for name, shape in shapes.items()}


def tensor(name: str, *shape: int, value: float = 0.0) -> Tensor:
    return from_array(name, np.full(shape, value, np.float32), f"model.safetensors: {name}")


def mapped(tensors: Mapping[str, Tensor], architecture: Architecture = LLAMA, **changes: Any) -> Mapped:
    return map_tensors(architecture, {**CONFIG, **changes}, tensors)


def test_names_and_shapes() -> None:
    found = mapped(checkpoint()).tensors
    assert len(found) == 3 + 2 * 9
    assert found["blk.1.attn_k.weight"].shape == (4, 8)
    assert all(name == each.name for name, each in found.items())


@pytest.mark.parametrize("prefix", ["", "model.", "model.language_model.", "language_model.model.", "transformer."])
def test_wrappers_in_front_of_names(prefix: str) -> None:
    assert set(mapped(checkpoint(prefix)).tensors) == set(mapped(checkpoint()).tensors)


def test_a_prefix_is_only_cut_off_in_front() -> None:
    assert without_prefix("model.layers.0.model.weight", ("model",)) == "layers.0.model.weight"
    assert without_prefix("model", ("model",)) == "model"


def test_an_unknown_class_suggests_the_nearest() -> None:
    with pytest.raises(ModelError, match="LamaForCausalLM is not supported") as caught:
        by_hf_class(["LamaForCausalLM"])
    assert "LlamaForCausalLM" in str(caught.value.hint)
    with pytest.raises(ModelError, match="none in config"):
        by_hf_class([])
    with pytest.raises(ModelError, match="'qwen9' is not one") as caught:
        by_gguf_name("qwen9")
    assert "qwen2" in str(caught.value.hint)


def test_the_first_known_of_several_classes_is_taken() -> None:
    assert by_hf_class(["MyOwnWrapper", "LlamaForCausalLM"]) is LLAMA


def test_unmapped_tensors_are_named() -> None:
    tensors = checkpoint()
    for name in ("model.layers.0.mlp.gate.weight", "model.layers.1.mlp.gate.weight"):
        tensors[name] = tensor(name, 3, 8)
    with pytest.raises(ModelError, match=r"no rule for 'model\.layers\.0\.mlp\.gate\.weight' and 1 more"):
        mapped(tensors)


def test_buffers_are_ignored_and_vision_encoders_left_out() -> None:
    tensors = checkpoint("model.language_model.")
    buffer, encoder = "model.layers.0.self_attn.rotary_emb.inv_freq", "model.vision_tower.blocks.0.attn.qkv.weight"
    tensors |= {buffer: tensor(buffer, 2), encoder: tensor(encoder, 24, 8)}
    found = mapped(tensors)
    assert found.ignored == [buffer]
    assert found.left_out == [encoder]
    assert set(found.tensors) == set(mapped(checkpoint()).tensors)


def test_a_missing_layer_is_named() -> None:
    with pytest.raises(ModelError, match="says 3 layers; the checkpoint lacks layer 2"):
        mapped(checkpoint(), num_hidden_layers=3)


def test_a_layer_too_many_is_named() -> None:
    with pytest.raises(ModelError, match=r"says 1 layers; the checkpoint has 'model\.layers\.1\."):
        mapped(checkpoint(), num_hidden_layers=1)


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    found = mapped(checkpoint(), num_hidden_layers=1, num_nextn_predict_layers=1)
    assert len(found.left_out) == 9
    assert not any(name.startswith("blk.1.") for name in found.tensors)


def test_numbers_in_rules_after_the_layer_stand_for_themselves() -> None:
    rules = {f"layers.{{i}}.part.{part}.norm": f"blk.{{i}}.{name}_norm" for part, name in enumerate(("attn", "ffn"))}
    rules["shared"] = "token_embd"
    architecture = Architecture("x", (), metadata={"block_count": "num_hidden_layers"}, tensors=rules)
    names = ["shared.weight", *(f"layers.{i}.part.{part}.norm.weight" for i in (0, 1) for part in (0, 1))]
    found = mapped({name: tensor(name, 8) for name in names}, architecture).tensors
    assert found["blk.1.attn_norm.weight"].origin.endswith("layers.1.part.0.norm.weight")
    assert found["blk.0.ffn_norm.weight"].origin.endswith("layers.0.part.1.norm.weight")


def test_a_tensor_missing_in_one_layer_is_named() -> None:
    tensors = checkpoint()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ModelError, match=r"layer 1 lacks 'ffn_up\.weight'"):
        mapped(tensors)


def test_a_missing_embedding_is_named() -> None:
    tensors = checkpoint()
    del tensors["model.embed_tokens.weight"]
    with pytest.raises(ModelError, match="the embedding is missing"):
        mapped(tensors)


def test_a_wrong_shape_names_tensor_and_both_sizes() -> None:
    tensors = checkpoint()
    tensors["model.layers.0.self_attn.v_proj.weight"] = tensor("model.layers.0.self_attn.v_proj.weight", 8, 8)
    found = mapped(tensors)
    metadata = Metadata()
    for key, value in architecture_metadata(LLAMA, CONFIG).items():
        metadata[key] = value
    with pytest.raises(ModelError, match=r"layers\.0\.self_attn\.v_proj\.weight has shape \[8, 8\].* mean \[4 "):
        check_shapes(LLAMA, metadata, found.tensors)


def test_experts_are_stacked_in_order_of_their_numbers() -> None:
    found = mapped(mixture(), MIXTRAL).tensors["blk.1.ffn_up_exps.weight"]
    assert found.shape == (3, 12, 8)
    assert found.float32()[:, 0, 0].tolist() == [0, 1, 2]


def test_a_missing_expert_is_named() -> None:
    tensors = mixture()
    del tensors["model.layers.1.block_sparse_moe.experts.1.w2.weight"]
    with pytest.raises(ModelError, match=r"'blk\.1\.ffn_down_exps\.weight' lacks the expert 1"):
        mapped(tensors, MIXTRAL)


def mixture() -> dict[str, Tensor]:
    """Three experts a layer, stored in reverse; all values of an expert are its number."""
    tensors = checkpoint(layer=LAYER)
    for i in range(2):
        gate = f"model.layers.{i}.block_sparse_moe.gate.weight"
        tensors[gate] = tensor(gate, 3, 8)
        for expert in (2, 1, 0):
            for part, shape in (("w1", (12, 8)), ("w2", (8, 12)), ("w3", (12, 8))):
                name = f"model.layers.{i}.block_sparse_moe.experts.{expert}.{part}.weight"
                tensors[name] = tensor(name, *shape, value=expert)
    return tensors


def test_a_tied_head_stored_twice_is_taken_once() -> None:
    tensors = checkpoint()
    tensors["model.lm_head.weight"] = tensor("model.lm_head.weight", 10, 8)
    found = mapped(tensors)
    assert found.tensors["output.weight"].origin == "model.safetensors: lm_head.weight"
    assert found.ignored == ["model.lm_head.weight"]


def test_two_different_tensors_of_one_name_are_refused() -> None:
    tensors = checkpoint()
    tensors["model.lm_head.weight"] = tensor("model.lm_head.weight", 11, 8)
    with pytest.raises(ModelError, match=r"both become 'output\.weight'"):
        mapped(tensors)


def test_norms_of_heads_are_stacked_too() -> None:
    tensors = checkpoint()
    for i in range(2):
        for part, heads in (("q", 2), ("k", 1)):
            for head in range(heads):
                name = f"model.layers.{i}.self_attn.{part}_layernorm.norms.{head}.weight"
                tensors[name] = tensor(name, 4)
    found = mapped(tensors, STABLELM).tensors
    assert found["blk.0.attn_q_norm.weight"].shape == (2, 4)
    assert found["blk.0.attn_k_norm.weight"].shape == (1, 4)


def test_numbers_of_layers_become_a_metadata_array() -> None:
    names = {"input_layernorm": "attention_layernorm", "post_attention_layernorm": "feedforward_layernorm"}
    layer = {names.get(name, name): shape for name, shape in (LAYER | DENSE).items() if name != "mlp.gate_proj"}
    tensors = checkpoint(layer=layer)
    for i in (1, 0):
        name = f"model.layers.{i}.mlp.act_fn.alpha_n"
        tensors[name] = tensor(name, 1, value=i + 0.5)
    found = mapped(tensors, APERTUS)
    assert found.metadata(APERTUS) == {"xielu.alpha_n": [0.5, 1.5]}
    assert not [name for name in found.tensors if "alpha" in name]


def test_metadata_takes_defaults_and_alternatives() -> None:
    found = architecture_metadata(LLAMA, {**CONFIG, "num_key_value_heads": 2})
    assert found["llama.attention.head_count_kv"] == 2
    assert found["llama.rope.freq_base"] == 10_000.0
    assert "llama.attention.sliding_window" not in found


def test_an_unusual_activation_is_written_and_an_unknown_one_refused() -> None:
    found = architecture_metadata(LLAMA, {**CONFIG, "hidden_act": "gelu"})
    assert found["llama.hidden_activation"] == "gelu"
    assert "llama.hidden_activation" not in architecture_metadata(LLAMA, {**CONFIG, "hidden_act": "silu"})
    with pytest.raises(ModelError, match="activation 'mish'"):
        architecture_metadata(LLAMA, {**CONFIG, "hidden_act": "mish"})


def test_variants_that_cannot_be_expressed_are_refused() -> None:
    with pytest.raises(ModelError, match="apply_residual_connection_post_layernorm = True"):
        architecture_metadata(BLOOM, {**CONFIG, "n_head": 2, "apply_residual_connection_post_layernorm": True})


def test_what_stays_float32() -> None:
    assert stays_float32("blk.0.attn_norm.weight", (8,))
    assert stays_float32("blk.0.ffn_gate_inp.weight", (3, 8))
    assert not stays_float32("blk.0.attn_q.weight", (8, 8))
    assert stays_float32("blk.0.own.weight", (8, 8), ("*.own.weight",))


@pytest.mark.parametrize("entry", sorted({*checkpoints.encoders()} - {"pocket-tts", "qwen3-tts"}))  # these speak
def test_a_text_model_without_its_encoders_knows_their_tensors(entry: str) -> None:
    folder = checkpoints.ENCODERS / entry
    config, spec = (json.loads((folder / name).read_text()) for name in ("config.json", "spec.json"))
    assert left_to_encoders(config, [name for name, *_ in spec["tensors"] if is_left_out(name)]) == []
