"""What a file means that lacks a key: as llama.cpp b11434 reads it, key by key.

The values of TABLE were read out of llama.cpp's `src/models/*.cpp`; a file without the key has to be computed as one
that says the value.
"""

from __future__ import annotations

import ast
import gzip
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from archs.config import normalized
from archs.hparams.file_keys import Derived, Keys, assumed, completed
from archs.hparams.model_hparams import HParams, read_hparams
from archs.plans.text import architecture_metadata
from archs.registry import architectures, by_gguf_name, of_file
from archs.schema import MODEL
from archs.validation.model_validators import faults
from quants import from_array
from quants.errors import ModelError
from runtime.rope import RopeScaling, rope_scaling
from tests.conftest import DATA, ROOT

SIZES = {  # of models that tests/data/exports.jsonl.gz has no file of
    "block_count": 6,
    "embedding_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "context_length": 256,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
WINDOWS = {"attention.sliding_window": 8}
EXPERTS = {"expert_count": 8, "expert_used_count": 2}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
SOFTMAX, SIGMOID = 1, 2

# architecture, other keys of the file, the key that is absent, what that means
TABLE: list[tuple[str, Mapping[str, Any], str, Any]] = [
    ("gemma2", WINDOWS, "attn_logit_softcapping", 50.0),
    ("gemma2", WINDOWS, "final_logit_softcapping", 30.0),
    ("gemma2", {}, "attention.sliding_window", 4096),
    ("gemma2", WINDOWS | YARN, "rope.freq_base_swa", 10_000.0),
    ("gemma2", {"block_count": 46, "attention.key_length": 8}, "attention.scale", 16**-0.5),
    ("gemma2", {"block_count": 26, "attention.key_length": 8}, "attention.scale", 8**-0.5),
    ("gemma3", {"block_count": 62, "attention.key_length": 8}, "attention.scale", 16**-0.5),
    ("gemma3", {"block_count": 34, "attention.key_length": 8}, "attention.scale", 8**-0.5),
    ("gemma3", {}, "final_logit_softcapping", 0.0),
    ("gemma3", {}, "attention.sliding_window", 0),
    *(
        (name, {**WINDOWS, "rope.freq_base": 1e6}, "rope.freq_base_swa", 10_000.0)
        for name in ("gemma3", "gemma-embedding", "gemma3n", "gemma4", "mimo2", "modern-bert", "plamo3", "step35")
    ),
    *(
        (name, {**WINDOWS, "rope.freq_base": 1e6}, "rope.freq_base_swa", 1e6)
        for name in ("muse-glimmer", "laguna", "cohere2", "exaone4", "gpt-oss", "olmo2", "smallthinker", "afmoe")
    ),
    ("minicpm", {}, "embedding_scale", 12.0),
    ("minicpm", {}, "residual_scale", 1.4 / math.sqrt(6)),
    ("minicpm", {}, "logit_scale", 64 / 256),  # llama.cpp divides by the inverse: see docs/absent-keys.md
    ("grok", {}, "embedding_scale", 78.38367176906169),
    ("grok", {}, "logit_scale", 0.5773502691896257),
    ("grok", {}, "attn_logit_softcapping", 30.0),
    ("grok", {}, "attention.output_scale", 0.08838834764831845),
    ("grok", YARN, "rope.scaling.yarn_beta_fast", 8.0),
    *(
        (name, EXPERTS, "expert_gating_func", SIGMOID)
        for name in (
            "glm4moe",
            "glm-dsa",
            "afmoe",
            "laguna",
            "hy_v3",
            "step35",
            "cohere2moe",
            "glm5-next",
            "dots1",
            "minimax-m2",
            "hy_v4",
            "deepseek32",
            "kimi-linear",
            "bailingmoe2",
            "smallthinker",
            "mimo2",
            "exaone-moe",
        )
    ),
    ("deepseek2", EXPERTS, "expert_gating_func", SOFTMAX),
    ("qwen3moe", EXPERTS, "expert_gating_func", SOFTMAX),
    ("deepseek2", {**EXPERTS, "block_count": 48, "nextn_predict_layers": 1}, "expert_gating_func", SIGMOID),
    *(
        (name, EXPERTS, "expert_weights_norm", False)
        for name in (
            "afmoe",
            "bailingmoe",
            "bailingmoe2",
            "bailingmoe3",
            "exaone-moe",
            "hy_v3",
            "kimi-k3",
            "laguna",
            "minimax-m3",
            "step35",
            "glm4moe",
            "deepseek2",
            "dots1",
            "cohere2moe",
        )
    ),
    *((name, {}, "final_logit_softcapping", 30.0) for name in ("gemma4", "muse-glimmer", "gemma3n")),
    ("gemma3n", {**WINDOWS, "block_count": 30}, "attention.shared_kv_layers", 10),
    ("gemma3n", {**WINDOWS, "block_count": 30}, "attention.sliding_window_pattern", 5),
    (
        "gemma3n",
        {**WINDOWS, "block_count": 12},
        "activation_sparsity_scale",
        [1.6448533535003662] * 10 + [-math.inf] * 2,
    ),
    ("exaone4", {"block_count": 64}, "attention.sliding_window", 4096),
    ("exaone4", {"block_count": 30}, "attention.sliding_window", 0),
    ("jais", {}, "attention.max_alibi_bias", 0.0),
    ("bloom", {}, "attention.max_alibi_bias", 8.0),
    ("baichuan", {"block_count": 40}, "attention.max_alibi_bias", 8.0),
    ("baichuan", {"block_count": 32}, "attention.max_alibi_bias", 0.0),
    ("mistral3", {"attention.temperature_scale": 0.1}, "attention.temperature_length", 256),
    ("mistral3", {"attention.temperature_scale": 0.1, **YARN}, "attention.temperature_length", 64),
    ("llama4", YARN, "attention.temperature_length", 8192),
    ("cohere2moe", WINDOWS, "attention.sliding_window_pattern", [False, True, True, True, False, True]),
    ("laguna", WINDOWS, "attention.sliding_window_pattern", [False, True, True, True, False, True]),
    ("mellum", WINDOWS, "attention.sliding_window_pattern", 4),
    ("granite", {}, "rope.scaling.finetuned", True),
    ("granite", {"attention.scale": 0.0}, "attention.key_length", 16),
    ("glm5-next", {"swiglu_clamp_exp": 3.0}, "swiglu_clamp_shexp", 3.0),
    ("deepseek4", {"swiglu_clamp_exp": 3.0}, "swiglu_clamp_shexp", 3.0),
    ("laguna", {"attention.head_count": [2, 4] * 3}, "attention.key_length", 32),
    ("llama", {}, "attention.head_count_kv", 4),
    ("llama", {}, "attention.value_length", 16),
    ("llama", {}, "attention.key_length", 16),
    ("llama", {}, "rope.dimension_count", 16),
    ("llama", {}, "rope.freq_base", 10_000.0),
    ("llama", {"rope.scaling.factor": 2.0}, "rope.scaling.type", "linear"),
    ("llama", {"rope.scaling.factor": 2.0}, "rope.scaling.attn_factor", 1.0),
    ("llama", YARN, "rope.scaling.yarn_beta_fast", 32.0),
]
ABSENT_TOO = {  # keys whose absence is in the way of another one's meaning
    "attention.head_count_kv": ("attention.head_count_kv",),
    "attention.key_length": ("attention.key_length",),
}
VOCABULARY = {"tokenizer.ggml.tokens": range(154_880)}  # of GLM 4.7 Flash, which DeepSeek's files are told apart by


def computed(name: str, keys: Mapping[str, Any]) -> tuple[HParams, RopeScaling | None]:
    """All numbers that a model computes with."""
    metadata = {f"{name}.{key}": value for key, value in keys.items()} | VOCABULARY
    architecture = of_file(name, metadata)
    return read_hparams(architecture, metadata), rope_scaling(Keys.of(architecture, metadata), two_lists=False)


def sizes(name: str) -> dict[str, Any]:
    layers = {"attention.compress_rope_freq_base": 1e4, "attention.compress_ratios": [0] * 6}
    extra = {"deepseek4": layers, "graniteswitch": {"adapters.count": 0}}
    other = {"attention.layer_norm_epsilon": 1e-5} if name in ("cohere2", "cohere2moe", "jais", "bloom") else {}
    return {**SIZES, **extra.get(name, {}), **other}


@pytest.mark.parametrize(("name", "others", "key", "meaning"), TABLE)
def test_an_absent_key_means_what_llama_cpp_takes(name: str, others: Mapping[str, Any], key: str, meaning: Any) -> None:
    without = {other: value for other, value in {**sizes(name), **others}.items() if other != key}
    assert computed(name, without) == computed(name, {**without, key: meaning})


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "mimo2", "modern-bert", "plamo3", "step35", "laguna", "olmo2"])
def test_windowed_layers_are_not_scaled_where_llama_cpp_does_not(name: str) -> None:
    layers = computed(name, {**sizes(name), **WINDOWS, **YARN, "attention.sliding_window_pattern": 2})[0].layers
    assert [each.rope_scaled for each in layers] == [each.window is None for each in layers]
    assert len({each.rope_scaled for each in layers}) == 2


@pytest.mark.parametrize("name", ["cohere2", "gemma2", "exaone4", "gpt-oss", "maple", "smallthinker", "afmoe"])
def test_windowed_layers_are_scaled_as_the_others_elsewhere(name: str) -> None:
    keys = {**sizes(name), **WINDOWS, **YARN, "attention.sliding_window_pattern": 2, "rope.freq_base_swa": 5000.0}
    layers = computed(name, keys)[0].layers
    assert {each.rope_scaled for each in layers} == {True}
    assert {each.rope_base for each in layers} == {5000.0, 10_000.0}


def test_a_key_that_llama_cpp_does_not_look_at_means_nothing() -> None:
    keys = {**sizes("exaone-moe"), **WINDOWS, "rope.freq_base": 1e6}
    assert computed("exaone-moe", keys) == computed("exaone-moe", {**keys, "rope.freq_base_swa": 5000.0})


def test_layers_of_afmoe_without_a_window_rotate_but_every_fourth() -> None:
    layers = computed("afmoe", sizes("afmoe"))[0].layers
    assert [each.rotates for each in layers] == [True, True, True, False, True, True]


@pytest.mark.parametrize("name", ["ernie4_5", "ernie4_5-moe", "deepseek32", "glm-dsa"])
def test_sections_change_no_pairs_where_llama_cpp_keeps_them(name: str) -> None:
    sections = {"rope.dimension_sections": [4, 2, 2, 0]}
    assert computed(name, {**sizes(name), **sections})[0].rope == by_gguf_name(name).block.rope == "adjacent"
    assert computed("glm4", {**sizes("glm4"), **sections})[0].rope == "halves"
    assert computed("glm4", {**sizes("glm4"), "rope.dimension_sections": [0, 0, 0, 0]})[0].rope == "adjacent"


def test_norms_of_cohere_by_the_epsilon_that_there_is() -> None:
    keys = {f"cohere2moe.{key}": value for key, value in SIZES.items()}
    assert of_file("cohere2moe", keys).block.norm == "rms"
    assert of_file("cohere2moe", keys | {"cohere2moe.attention.layer_norm_epsilon": 1e-5}).block.norm == "layer"


def test_old_spelling_of_a_stretched_rotation() -> None:
    old, new = ({**SIZES, f"rope.{key}": 4.0} for key in ("scale_linear", "scaling.factor"))
    assert computed("llama", old) == computed("llama", new) == computed("llama", {**new, "rope.scaling.type": "linear"})
    assert computed("llama", old) != computed("llama", SIZES)
    assert computed("llama", {**old, "rope.scaling.factor": 2.0})[1].factor == 2  # the current name goes first
    assert computed("llama", {**old, "rope.scaling.type": "none"}) == computed("llama", SIZES)


@pytest.mark.parametrize("name", ["hunyuan-dense", "hunyuan_vl"])
def test_a_base_before_it_was_stretched(name: str) -> None:
    layers = computed(name, {**SIZES, "rope.scaling.alpha": 1000.0})[0].layers
    assert layers[0].rope_base == pytest.approx(10_000 * 1000 ** (16 / 14))
    assert computed(name, {**SIZES, "rope.scaling.alpha": 0.0}) == computed(name, SIZES)


def test_a_factor_of_cos_and_sin_counts_without_a_type() -> None:
    assert computed("llama", {**SIZES, "rope.scaling.attn_factor": 1.5})[1].attn_factor == 1.5


def test_experts_in_a_tensor_each_are_refused_by_name() -> None:
    name = "blk.0.ffn_gate.0.weight"
    found = faults(by_gguf_name("llama"), {}, {name: from_array(name, np.zeros((2, 2), np.float32))})[0]
    assert found.where == name
    assert "before April 2024; blk.0.ffn_gate_exps.weight is expected" in found.problem


@pytest.mark.parametrize(
    ("entry", "changes", "said"),
    [
        ("gemma2", {"attn_logit_softcapping": None}, {"attn_logit_softcapping": 0.0}),
        ("gemma2", {"final_logit_softcapping": None}, {"final_logit_softcapping": 0.0}),
        ("gemma2", {"sliding_window": None}, {"attention.sliding_window": 0}),
        ("gemma2", {"num_hidden_layers": 46, "query_pre_attn_scalar": 256}, {"attention.scale": 1 / 16}),
        ("gemma2", {"num_hidden_layers": 46, "query_pre_attn_scalar": 2304 // 8}, {}),
        ("gemma2", {}, {}),
        ("exaone4", {"num_hidden_layers": 64, "sliding_window": None}, {"attention.sliding_window": 0}),
        ("exaone4", {"num_hidden_layers": 30, "sliding_window": None}, {}),
        ("dots1", {"norm_topk_prob": False}, {"expert_weights_norm": False}),
    ],
)
def test_a_config_without_what_absence_means_says_so(
    entry: str, changes: Mapping[str, Any], said: Mapping[str, Any]
) -> None:
    """A conversion writes what says "none" where a file without the key would mean something."""
    architecture = by_gguf_name(entry)
    config = {"architectures": list(architecture.hf_classes), "model_type": entry, "hidden_size": 2304, **changes}
    written = architecture_metadata(architecture, normalized(config, architecture.defaults, architecture.keys))
    assert {key: written.get(f"{entry}.{key}") for key in said} == dict(said)
    numbers = read_hparams(architecture, written)
    assert (numbers.attention_softcap, numbers.logit_softcap) == tuple(
        config.get(key, architecture.defaults.get(key)) for key in ("attn_logit_softcapping", "final_logit_softcapping")
    )
    assert {each.window for each in numbers.layers} <= {None, config.get("sliding_window", 4096)}


def test_assumed_values_are_told() -> None:
    metadata = {f"gemma3.{key}": value for key, value in {**SIZES, **WINDOWS, "block_count": 62}.items()}
    found = {each.key: (each.value, each.reason) for each in assumed(by_gguf_name("gemma3"), metadata)}
    assert found == {
        "gemma3.rope.freq_base_swa": (10_000.0, "absent: llama.cpp's default"),
        "gemma3.attention.scale": (0.25, "absent: 1 / √(embedding_length / attention.head_count), as in the 27B model"),
    }
    assert assumed(by_gguf_name("gemma3"), metadata | {key: value for key, (value, _) in found.items()}) == ()
    assert assumed(by_gguf_name("gemma3"), {f"gemma3.{key}": value for key, value in SIZES.items()}) == ()


def test_a_completed_file_assumes_nothing_and_computes_the_same() -> None:
    for architecture in architectures():
        keys = {f"{architecture.name}.{key}": value for key, value in sizes(architecture.name).items()}
        full = completed(architecture, keys)
        assert assumed(architecture, full) == ()
        try:
            assert read_hparams(architecture, full) == read_hparams(architecture, keys)
        except ModelError:  # needs more keys
            continue


def test_every_declared_key_is_in_the_schema() -> None:
    """Of families, of old spellings, and of values that are another key's."""
    for architecture in architectures():
        assert not architecture.absent.keys() - MODEL.keys(), architecture.name
        assert not set(architecture.unread) - MODEL.keys()
    for known in MODEL.values():
        assert not set(known.old) - MODEL.keys()
    rules = [rule for each in architectures() for rule in each.absent.values()] + [k.absent for k in MODEL.values()]
    assert not {rule[1:] for rule in rules if isinstance(rule, str) and rule.startswith("=")} - MODEL.keys()
    assert any(isinstance(rule, Derived) for rule in rules)


def readers() -> list[tuple[str, ast.Call]]:
    """Calls that read a file's keys, but for those of encoders of images and sounds and of vocabularies."""
    found = []
    for path in sorted(path for package in ("archs", "runtime") for path in (ROOT / package).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if any(part in name for part in ("encoder", "multimodal", "vocab", "wrapper", "tokenizer", "prequantized")):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner, method = ast.unparse(node.func.value), node.func.attr
                if owner.lower().rstrip(")").endswith("keys") and method in ("get", "stored", "need", "of_layer"):
                    found.append((f"{name}:{node.lineno}", node))
    return found


def test_no_caller_has_a_default_of_its_own() -> None:
    calls = readers()
    assert len(calls) > 200
    most = {"get": 1, "stored": 1, "need": 1, "of_layer": 2}
    assert [where for where, call in calls if len(call.args) + len(call.keywords) > most[call.func.attr]] == []  # type: ignore[attr-defined]


with gzip.open(DATA / "exports.jsonl.gz", "rt", encoding="utf-8") as lines:
    FILES = {record["name"]: record["keys"] for record in map(json.loads, lines)}


@pytest.mark.parametrize("entry", ["gemma3", "gemma2", "deepseek-v2-lite", "glm4-moe", "grok1", "exaone-moe"])
def test_conversion_leaves_out_nothing_that_means_something_else(entry: str) -> None:
    """Files as they are converted mean the same with what they leave out."""
    keys = FILES[entry]
    architecture = by_gguf_name(keys["general.architecture"])
    assert read_hparams(architecture, completed(architecture, keys)) == read_hparams(architecture, keys)
