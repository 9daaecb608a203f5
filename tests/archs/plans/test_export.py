"""Every transform that says it can be undone, undone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from archs.classifier_heads import headed
from archs.families.phi import phimoe_config
from archs.plans.export import plan_export
from archs.registry import architectures
from archs.transforms import Invertible, concatenated, negative_exp, reshape, scaled, scaled_rows, take
from quants import Tensor, from_array
from quants.errors import ModelError

from ..test_transforms import CASES, CONFIG

WHOLE = {name: case for name, case in CASES.items() if isinstance(case[0], Invertible) and case[0].rows is None}
LOSES = ("skip_rows", "unit_rows_if")


@pytest.mark.parametrize("name", [name for name in WHOLE if not name.startswith(LOSES)])
def test_undo(name):
    transform, given, _ = WHOLE[name]
    tensor = from_array("x", given)
    back = transform.invert(transform(tensor, CONFIG), CONFIG).float32()
    assert back.size == given.size
    assert np.allclose(back.reshape(given.shape), given, rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in CASES if getattr(CASES[name][0], "rows", None)])
def test_shares_name_their_rows(name):
    transform, given, _ = CASES[name]
    config = CONFIG | {"num_experts": given.shape[0]}
    result = transform.invert(transform(from_array("x", given), config), config)
    flat = given.reshape(-1) if len(result.shape) == 1 else given.reshape(-1, given.shape[-1])
    rows, shape = transform.rows(len(flat), result.shape, config)
    assert np.array_equal(take(from_array("x", flat), rows).float32().reshape(-1), result.float32().reshape(-1))
    assert np.prod(shape) == given.size


FACTORS = np.linspace(0.1, 3, 64, dtype=np.float32)
SOLVED = [negative_exp, scaled("factor"), scaled("factor", "other"), scaled_rows(lambda config: FACTORS)]


@pytest.mark.parametrize("transform", SOLVED)
def test_what_was_undone_gives_the_same_again(transform):
    config = {"factor": 0.6180339887, "other": 3.3}
    given = from_array("x", np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32))
    once = transform(given, config)
    again = transform(transform.invert(once, config), config)
    assert np.array_equal(once.raw(), again.raw())


def test_concatenation_is_what_take_undoes():
    parts = [from_array(str(i), np.full((2, 4), i, np.float32)) for i in range(3)]
    whole = take(concatenated(parts, "x"), np.argsort([4, 5, 0, 1, 2, 3]))
    assert reshape(whole, (24,)).float32().tolist() == [1.0] * 8 + [2.0] * 8 + [0.0] * 8


def test_unknown_architecture():
    with pytest.raises(ModelError, match="none-such"):
        plan_export({"general.architecture": "none-such"}, {})


def tiny() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata and tensors of a Llama model."""
    shapes = {
        "token_embd": (8, 4),
        "output_norm": (4,),
        "blk.0.attn_norm": (4,),
        "blk.0.ffn_norm": (4,),
        "blk.0.ffn_gate": (6, 4),
        "blk.0.ffn_up": (6, 4),
        "blk.0.ffn_down": (4, 6),
    }
    shapes |= {f"blk.0.attn_{name}": (4, 4) for name in ("q", "k", "v", "output")}
    named = {f"{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
    tensors = {name: from_array(name, values) for name, values in named.items()}
    keys = {
        "block_count": 1,
        "embedding_length": 4,
        "feed_forward_length": 6,
        "attention.head_count": 2,
        "attention.head_count_kv": 2,
        "attention.key_length": 2,
        "attention.value_length": 2,
        "vocab_size": 8,
        "context_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": 2,
        "rope.freq_base": 1e4,
    }
    return {"general.architecture": "llama"} | {f"llama.{key}": value for key, value in keys.items()}, tensors


def test_switches_follow_from_the_tensors():
    metadata, tensors = tiny()
    plain = plan_export(metadata, tensors).config
    assert (plain["attention_bias"], plain["mlp_bias"]) == (False, False)
    names = [f"blk.0.attn_{name}.bias" for name in ("q", "k", "v", "output")]
    more = {name: from_array(name, np.ones(4, np.float32)) for name in names}
    biased = plan_export(metadata, tensors | more).config
    assert (biased["attention_bias"], biased["mlp_bias"]) == (True, False)
    del more["blk.0.attn_output.bias"]  # which Llama's class would look for
    assert plan_export(metadata, tensors | more).architecture.hf_classes == ("InternLM3ForCausalLM",)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.scale", 0.3),
        ("logit_scale", 2.0),
        ("attention.clamp_kqv", 3.0),
        ("rope.scaling.attn_factor", 2.0),
        ("rope.scaling.factor", 4.0),
        ("attn_logit_softcapping", 30.0),
        ("attention.causal", False),
    ],
)
def test_keys_that_a_checkpoint_cannot_express_are_refused(key, value):
    metadata, tensors = tiny()
    with pytest.raises(ModelError, match=f"{key} = nothing, not {value}"):
        plan_export(metadata | {f"llama.{key}": value}, tensors)


@pytest.mark.parametrize("key", ["attention.value_length", "vocab_size", "rope.dimension_count", "rope.freq_base"])
def test_keys_that_other_converters_leave_out(key):
    metadata, tensors = tiny()
    wanted = plan_export(metadata, tensors)
    del metadata[f"llama.{key}"]
    found = plan_export(metadata, tensors)
    assert {**wanted.config, **found.config} == wanted.config
    assert wanted.differing == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 9),
        ("rope.scaling.finetuned", False),
        ("rope.scaling.type", "none"),
        ("tensor_data_layout", "x"),
        ("attention.sliding_window", 0),
        ("expert_weights_scale", 1.0),
        ("pooling_type", 1),
    ],
)
def test_keys_that_say_nothing_may_be_lost(key, value):
    metadata, tensors = tiny()
    found = plan_export(metadata | {f"llama.{key}": value}, tensors)
    assert found.config == plan_export(metadata, tensors).config
    assert list(found.differing) == [f"llama.{key}"]


def test_scaling_that_a_file_leaves_out_is_not_made_up():
    metadata, tensors = tiny()
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 8}
    metadata |= {f"llama.rope.scaling.{key}": value for key, value in scaling.items()}
    assert plan_export(metadata, tensors).config["rope_scaling"]["original_max_position_embeddings"] == 8
    del metadata["llama.rope.scaling.original_context_length"]
    with pytest.raises(ModelError, match="original_context_length = 16, which the file does not have"):
        plan_export(metadata, tensors)


def test_phimoe_says_the_factor_of_longrope_under_its_two_names() -> None:
    """Without them transformers takes no config of it."""
    keys = {"context_length": 131072, "rope.scaling.original_context_length": 4096}
    assert phimoe_config(keys, {})["max_position_embeddings"] == 131072
    assert "rope_scaling" not in phimoe_config(keys, {})
    names = {"rope_factors_long.weight": [1.0, 2.6], "rope_factors_short.weight": [1.0, 1.1]}
    tensors = {name: from_array(name, np.array(values, np.float32)) for name, values in names.items()}
    found = phimoe_config({**keys, "rope.scaling.attn_factor": 1.25}, tensors)["rope_scaling"]
    assert found == {
        "rope_type": "longrope",
        "long_factor": [1.0, 2.6],
        "short_factor": [1.0, 1.1],
        "short_mscale": 1.25,
        "long_mscale": 1.25,
        "original_max_position_embeddings": 4096,
    }


@pytest.mark.parametrize("labels", [["LABEL_0"], ["good", "bad", "neither"]])
def test_a_decoder_with_a_classifiers_head_becomes_its_class(labels: list[str]) -> None:
    metadata, tensors = tiny()
    head = from_array("cls.output.weight", np.ones((len(labels), 4), np.float32))
    said = {"llama.pooling_type": 4, "llama.classifier.output_labels": labels}
    plan = plan_export(metadata | said, tensors | {head.name: head})
    assert plan.config["architectures"] == ["LlamaForSequenceClassification"]
    assert plan.config["model_type"] == "llama"
    assert plan.config["id2label"] == {str(i): name for i, name in enumerate(labels)}
    assert plan.config["label2id"] == {name: i for i, name in enumerate(labels)}
    assert plan.tensors["score.weight"].shape == (len(labels), 4)
    assert not plan.differing


def test_an_encoder_with_a_classifiers_head_becomes_its_class() -> None:
    bert = next(each for each in architectures() if each.hf_classes[0] == "BertModel")
    head = from_array("cls.output.weight", np.ones((3, 4), np.float32))
    found = headed(bert, {head.name: head})
    assert found.hf_classes == ("BertForSequenceClassification",)
    assert headed(bert, {}) is bert
    tensors = {head.name: head, "token_types.weight": from_array("token_types.weight", np.ones((2, 4), np.float32))}
    assert found.config_from_gguf is not None
    said = found.config_from_gguf({}, tensors)
    assert said["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    assert said["type_vocab_size"] == 2


@pytest.mark.parametrize(
    ("hf_class", "classifier"),
    [
        ("Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"),
        ("GPT2LMHeadModel", "GPT2ForSequenceClassification"),
        ("Qwen3_5ForCausalLM", "Qwen3_5TextForSequenceClassification"),
        ("OLMoForCausalLM", "OlmoForSequenceClassification"),
        ("Gemma2ForCausalLM", "Gemma2ForSequenceClassification"),
    ],
)
def test_a_classifiers_class_is_that_of_the_model_type(hf_class: str, classifier: str) -> None:
    """Others have the name that one would expect, and are for images, too."""
    decoder = next(each for each in architectures() if hf_class in each.hf_classes)
    head = from_array("cls.output.weight", np.ones((3, 4), np.float32))
    assert headed(decoder, {head.name: head}).hf_classes == (classifier,)


@pytest.mark.parametrize(("hf_class", "with_bias"), [("Qwen2ForCausalLM", True), ("KORMoForCausalLM", False)])
def test_qwen2s_class_is_named_only_where_the_file_has_its_biases(hf_class: str, with_bias: bool) -> None:
    """Which it always has: transformers would make them up."""
    metadata, tensors = tiny()
    metadata = {
        key.replace("llama.", "qwen2."): "qwen2" if value == "llama" else value for key, value in metadata.items()
    }
    biases = {
        name: from_array(name, np.ones(tensors[name.replace("bias", "weight")].shape[0], np.float32))
        for name in (f"blk.0.attn_{which}.bias" for which in "qkv")
    }
    plan = plan_export(metadata, tensors | (biases if with_bias else {}))
    assert plan.config["architectures"] == [hf_class]
