"""Checkpoints of tests/data/families through the whole road: converted, compared with the reference's record, run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from archs.config import text_part
from archs.families.mimo import MIMO2
from archs.families.step import prepare
from archs.metadata import Metadata, ValueType
from archs.plans.export import plan_export
from archs.registry import architectures, by_hf_class, of_config
from quants import Tensor
from quants.errors import ModelError
from runtime.model import RunningModel
from tests.archs import checkpoints
from tests.zoo import CLOSE, closeness, logit_errors, planned_once

LONG = 64  # elements; records keep a hash of longer arrays

# Keys that we add, without the architecture in front: what the reference drops though the model depends on it.
ADDED = {
    **{entry: {"tokenizer.ggml.eom_token_id"} for entry in ("chatglm", "glm-ocr", "glmasr-first")},
    "gemma-embedding": {"attention.sliding_window_pattern"},
    "gemma4-e": {"tokenizer.huggingface.added_tokens"},
    "gemma4-moe": {"tokenizer.huggingface.added_tokens"},
    "kimi-linear": {"attention.latent_norm_epsilon"},
    "glm-moe-dsa": {"attention.latent_norm_epsilon"},
    "glm4-moe-lite": {"attention.latent_norm_epsilon", "expert_gating_func"},
    "granite-swa": {"attention.rope_pattern"},
    "llama-embed": {"attention.causal"},
    "llama4": {"attention.chunk_length", "attention.temperature_length", "attention.temperature_scale"},
    "minimax-text-01": {"attention.recurrent_layers"},
    "minimax-m3": {"swiglu_limit"},
    "mistral4": {"attention.temperature_scale"},
    "nemotron-h-moe": {"ssm.time_step_min"},
    "umt5": {"logit_scale"},
    "xlm-roberta": {"tokenizer.huggingface.added_tokens"},
}


# Entries whose files don't become checkpoints again: text parts of other models, or the file does not tell all.
ONE_WAY = {"glm4v", "glm4v-moe", "qwen2-5-vl", "qwen2-vl", "qwen3-vl", "qwen3-vl-moe"}
WITHOUT_WRAPPER = {
    "mistral3": "Ministral3ForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
    "gemma3n": "Gemma3nForCausalLM",
    "llama4": "Llama4ForCausalLM",
    "gemma4-e": "Gemma4ForCausalLM",
    "gemma4-moe": "Gemma4ForCausalLM",
    "idefics3": "LlamaForCausalLM",
    "internvl": "Qwen2ForCausalLM",
    "llava": "LlamaForCausalLM",
    "qwen2-audio": "Qwen2ForCausalLM",
    "smolvlm": "LlamaForCausalLM",
    "voxtral": "LlamaForCausalLM",
}


@pytest.mark.parametrize("entry", checkpoints.entries())
def test_entry(entry: str, tmp_path: Path) -> None:
    checkpoints.build(entry, tmp_path / entry)
    with planned_once():
        for outtype in ("f32", "bf16"):
            gguftools.convert(tmp_path / entry, tmp_path / f"{outtype}.gguf", outtype)
    model = gguftools.load(tmp_path / "f32.gguf")
    record = recorded(entry, "reference.json")
    check_keys(entry, model, record["keys"])
    tensors = {name: described_tensor(tensor) for name, tensor in model.tensors.items()}
    for name in recorded(entry, "spec.json").get("inexact", ()):
        tensors[name]["sha256"] = record["tensors"][name]["sha256"]
    assert tensors == record["tensors"]
    check_way_back(entry, model)
    narrow = gguftools.load(tmp_path / "bf16.gguf").tensors
    routers = recorded(entry, "spec.json").get("float32", [])
    assert sorted(record["float32_in_bf16"] + routers) == sorted(matrices(narrow, "F32"))
    plain = [t for t in narrow.values() if t.shape[1:] and t.format.name not in ("MXFP4", "I32")]
    assert len(matrices(narrow, "F32") + matrices(narrow, "BF16")) == len(plain)
    once, cached = logit_errors(model, np.load(checkpoints.FAMILIES / entry / "logits.npz"))
    assert once < CLOSE, (once, cached)
    assert (cached or 0.0) < closeness(model), (once, cached)


@pytest.mark.parametrize(
    ("entry", "vocabulary"),
    [("xlm-roberta", "xlm-roberta"), ("gemma4-moe", "gemma"), ("rwkv7", "rwkv"), ("plamo3", "plamo")],
)
def test_tokenizer(entry: str, vocabulary: str, tmp_path: Path) -> None:
    checkpoints.build(entry, tmp_path / entry)
    gguftools.convert(tmp_path / entry, tmp_path / "f32.gguf", "f32")
    tokenizer = gguftools.open(tmp_path / "f32.gguf").tokenizer
    recorded = checkpoints.FAMILIES / "tokenizers" / vocabulary / "encodings.json"
    for text, wanted in json.loads(recorded.read_text(encoding="utf-8")):
        assert tokenizer.encode(text, parse_special=True) == wanted, text


@pytest.mark.parametrize(
    ("hf_class", "text", "wanted"),
    [
        ("LlavaForConditionalGeneration", {"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        (
            "LlavaForConditionalGeneration",
            {"architectures": ["NobodysForCausalLM"], "model_type": "phi3"},
            "Phi3ForCausalLM",
        ),
        ("NobodysForConditionalGeneration", {"model_type": "qwen3_moe"}, "Qwen3MoeForCausalLM"),
        ("VoxtralForConditionalGeneration", {"model_type": "llama"}, "LlamaForCausalLM"),
        ("Qwen2AudioForConditionalGeneration", {"model_type": "qwen2"}, "Qwen2ForCausalLM"),
        ("AudioFlamingo3ForConditionalGeneration", {"model_type": "qwen2"}, "Qwen2ForCausalLM"),
        ("JanusForConditionalGeneration", {"model_type": "llama"}, "LlamaForCausalLM"),
        ("UltravoxModel", {"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ("KimiVLForConditionalGeneration", {"model_type": "deepseek_v3"}, "DeepseekV3ForCausalLM"),
        ("Qwen3ASRForConditionalGeneration", {"model_type": "qwen3"}, "Qwen3ForCausalLM"),
        (
            "Qwen3ASRForConditionalGeneration",
            {"model_type": "qwen3", "rope_parameters": {"mrope_section": [2, 3, 3]}},
            "Qwen3ASRForConditionalGeneration",
        ),
        ("Gemma4UnifiedForConditionalGeneration", {"model_type": "gemma4_text"}, "Gemma4ForConditionalGeneration"),
        ("KimiK25ForConditionalGeneration", {"model_type": "kimi_k2"}, "DeepseekV3ForCausalLM"),
        ("Exaone4_5_ForConditionalGeneration", {"model_type": "exaone4_5_text"}, "Exaone4_5_ForConditionalGeneration"),
        ("DeepseekOCRForCausalLM", {"architectures": ["DeepseekV2ForCausalLM"]}, "DeepseekOCRForCausalLM"),
        ("Gemma3ForConditionalGeneration", {"model_type": "gemma3_text"}, "Gemma3ForCausalLM"),
        ("Mistral3ForConditionalGeneration", {"model_type": "mistral"}, "Mistral3ForConditionalGeneration"),
        ("Mistral3ForConditionalGeneration", {"model_type": "ministral3"}, "Ministral3ForCausalLM"),
        ("Mistral3ForConditionalGeneration", {"model_type": "mistral4"}, "Mistral4ForCausalLM"),
        ("Qwen2VLForConditionalGeneration", {"model_type": "qwen2_vl_text"}, "Qwen2VLForConditionalGeneration"),
        ("Step3p7ForConditionalGeneration", {"model_type": "step3p5"}, "Step3p5ForCausalLM"),
        ("MiniMaxM3SparseForConditionalGeneration", {"model_type": "minimax_m3_vl_text"}, "MiniMaxM3SparseForCausalLM"),
        ("NobodysForConditionalGeneration", {"model_type": "glm_moe_dsa"}, "GlmMoeDsaForCausalLM"),
    ],
)
def test_text_parts_of_wrappers(hf_class: str, text: dict[str, Any], wanted: str) -> None:
    assert of_config({"architectures": [hf_class], "text_config": text}).hf_classes[0] == wanted


def test_wrappers_whose_text_part_does_not_say_its_kind() -> None:
    wrappers = {name: each for each in architectures() for name in each.wrappers}
    assert len(wrappers) == sum(len(each.wrappers) for each in architectures())
    for name, usual in wrappers.items():
        for text in ({}, {"text_config": {"hidden_size": 8}}):
            assert of_config({"architectures": [name], **text}) is usual
    assert of_config({"architectures": [*wrappers][:1], "text_config": {"model_type": "phi3"}}).name == "phi3"


@pytest.mark.parametrize(
    ("hf_class", "kind"),
    [("NobodysForConditionalGeneration", "nobodys"), ("PaliGemmaForConditionalGeneration", "gemma")],
)
def test_text_parts_that_are_unknown_or_not_alone_are_refused(hf_class: str, kind: str) -> None:
    with pytest.raises(ModelError, match=f"{hf_class} is not supported"):
        of_config({"architectures": [hf_class], "text_config": {"model_type": kind}})


def matrices(tensors: Mapping[str, Tensor], kind: str) -> list[str]:
    return [name for name, tensor in tensors.items() if tensor.shape[1:] and tensor.format.name == kind]


def recorded(entry: str, file: str) -> Any:
    return json.loads((checkpoints.FAMILIES / entry / file).read_text(encoding="utf-8"))


def check_way_back(entry: str, model: RunningModel) -> None:
    export = recorded(entry, "spec.json").get("export")
    if entry in ONE_WAY or export == "none":
        with pytest.raises(ModelError):
            plan_export(model.metadata, model.tensors)
        return
    config = recorded(entry, "config.json")
    rebuilt = plan_export(model.metadata, model.tensors)
    wanted = WITHOUT_WRAPPER.get(entry) or export or by_hf_class(config["architectures"]).hf_classes[0]
    assert (rebuilt.config["architectures"], rebuilt.differing) == ([wanted], {})


def test_plain_bpe_comes_back(tmp_path: Path) -> None:
    checkpoints.build("gemma4-e", tmp_path / "source")
    gguftools.convert(tmp_path / "source", tmp_path / "first.gguf", "f32")
    done = gguftools.export(tmp_path / "first.gguf", tmp_path / "back")
    kept = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
    ours, theirs = (json.loads((tmp_path / name / "tokenizer.json").read_text("utf-8")) for name in ("back", "source"))
    assert (done.differing, {key: ours[key] for key in kept[:4]}) == ((), {key: theirs[key] for key in kept[:4]})
    assert ours["model"]["merges"] == theirs["model"]["merges"]


def check_keys(entry: str, model: RunningModel, record: dict[str, Any]) -> None:
    metadata = model.metadata
    assert isinstance(metadata, Metadata)
    found = {key: described(metadata, key) for key in metadata}
    for key in record:
        assert found.get(key) == record[key], key
    added = {key.removeprefix(f"{model.architecture.name}.") for key in set(found) - set(record)}
    assert added == ADDED.get(entry, set()) | set(recorded(entry, "spec.json").get("added", ()))


def described(metadata: Metadata, key: str) -> dict[str, Any]:
    """A value as reference.json has it."""
    value = metadata.value(key)
    if value.type is not ValueType.ARRAY:
        return {"type": value.type.name, "value": as_stored(value.data, value.type)}
    assert value.element is not None
    data = [as_stored(item, value.element) for item in metadata[key]]
    kind = f"ARRAY {value.element.name}"
    if len(data) <= LONG:
        return {"type": kind, "value": data}
    return {"type": kind, "count": len(data), "sha256": hashlib.sha256(json.dumps(data).encode()).hexdigest()}


def as_stored(data: Any, kind: ValueType) -> Any:
    plain = data.item() if isinstance(data, np.generic) else data
    return float(np.float32(plain)) if kind is ValueType.FLOAT32 else plain


def described_tensor(tensor: Tensor) -> dict[str, Any]:
    return {
        "shape": list(tensor.shape[::-1]),
        "type": tensor.format.name,
        "sha256": hashlib.sha256(tensor.raw().tobytes()).hexdigest(),
    }


def test_what_a_wrapper_means_by_keys_its_text_part_leaves_out() -> None:
    part = {"model_type": "llama", "rms_norm_eps": 1e-6}
    assert text_part({"model_type": "voxtral", "text_config": part})["rope_theta"] == 1e8
    assert text_part({"model_type": "voxtral", "text_config": part})["rms_norm_eps"] == 1e-6
    assert text_part({"model_type": "llava", "text_config": part}) == part
    assert text_part({"model_type": "voxtral"}) == {}


@pytest.mark.parametrize(
    ("config", "wanted"), [({"sliding_window": 128, "sliding_window_size": 128}, 129), ({"sliding_window": 9}, 9)]
)
def test_mimo_sees_so_many_tokens_beside_a_token_itself(config: dict[str, Any], wanted: int) -> None:
    size = MIMO2.metadata["attention.sliding_window"]
    assert callable(size)
    assert size(config) == wanted


def test_step_rotates_half_of_heads_in_full_layers_alone() -> None:
    layers = {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "layer_types": ["full_attention", "sliding_attention"],
    }
    found, _ = prepare({**layers, "partial_rotary_factors": [0.5, 1.0], "rope_theta": [5e6, 1e4]}, {})
    assert (found["full_base"], found["rope_local_base_freq"]) == (5e6, 1e4)
    with pytest.raises(ModelError, match="rotate"):
        prepare({**layers, "partial_rotary_factors": [0.5, 0.5]}, {})
    for bases in ([], [1e4]):
        with pytest.raises(ModelError, match=f'"rope_theta" has {len(bases)} entries'):
            prepare({**layers, "partial_rotary_factors": [0.5, 1.0], "rope_theta": bases}, {})
    with pytest.raises(ModelError, match="\"swiglu_limits\" has 'a'; numbers"):
        prepare({**layers, "partial_rotary_factors": [0.5, 1.0], "swiglu_limits": [None, "a"]}, {})
