"""Deliberate differences from llama.cpp b11434 in the meaning of files, with reasons.

All other keys of a file, present or absent, are read as llama.cpp reads them: see `archs.hparams.file_keys`.
`docs/absent-keys.md` shows this table in words.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..experts import GATING
from ..spec import Architecture
from .file_keys import Keys

ENCODERS = ("bert", "eurobert", "jina-bert-v2", "jina-bert-v3", "llama-embed", "modern-bert", "neo-bert", "nomic-bert")
WITHOUT_WINDOWS = (
    "command-r",
    "deci",
    "llama",
    "llama-embed",
    "minicpm",
    "mistral3",
    "phi3",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "starcoder2",
)
WITHOUT_SCALE = (
    "apertus",
    "arcee",
    "deci",
    "deepseek",
    "falcon-h1",
    "gemma-embedding",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "llama",
    "mistral3",
    "nanbeige",
    "qwen2",
    "qwen3",
    "seed_oss",
    "smollm3",
)
SUMS_TO_ONE = (
    "arctic",
    "dbrx",
    "ernie4_5-moe",
    "gemma4",
    "granite",
    "granitemoe",
    "granitehybrid",
    "granite_swa",
    "grovemoe",
    "hunyuan-moe",
    "kimi-linear",
    "lfm2moe",
    "llama",
    "maple",
    "mellum",
    "mimo2",
    "minimax-01",
    "minimax-m2",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
    "qwen3vlmoe",
    "qwen4exp",
    "rnd1",
    "smallthinker",
)
DOES_NOT_SUM = ("deepseek", "gpt-oss", "jamba", "llada-moe", "llama4", "olmoe", "qwen2moe")
READ_YARN = ("grok", "mistral3")


@dataclass(frozen=True)
class Deviation:
    """One deliberate difference. architectures: () for all. llama_cpp, here: what each computes. applies: whether a
    file hits it, by its keys.
    """

    key: str
    architectures: tuple[str, ...]
    llama_cpp: str
    here: str
    reason: str
    applies: Callable[[Keys], bool]


def _says(key: str, *neutral: Any) -> Callable[[Keys], bool]:
    """Return a test for files whose key has a value other than these."""

    def applies(keys: Keys) -> bool:
        value = keys.stored(key)
        return value is not None and (hasattr(value, "__len__") or value not in neutral)

    return applies


def _lacks(key: str) -> Callable[[Keys], bool]:
    return lambda keys: keys.stored(key) is None


def _other_than_assumed(key: str) -> Callable[[Keys], bool]:
    def applies(keys: Keys) -> bool:
        value, meaning = keys.stored(key), keys.meaning(key)
        if value is None:
            return False
        return list(value) != list(meaning) if hasattr(value, "__len__") else bool(value != meaning)

    return applies


def _rotates_in_part(keys: Keys) -> bool:
    return bool(keys.get("rope.dimension_count") != keys.get("attention.key_length"))


def _yarn_of_its_own(keys: Keys) -> bool:
    if keys.architecture in READ_YARN or keys.get("rope.scaling.type") != "yarn":
        return False
    settings = ("yarn_beta_fast", "yarn_beta_slow", "yarn_attn_factor")
    stored = {key: keys.stored(f"rope.scaling.{key}") for key in settings}
    usual = {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}
    return any(value is not None and value != usual.get(key) for key, value in stored.items())


def _two_bases(keys: Keys) -> bool:
    local, usual = keys.get("rope.freq_base_swa"), keys.get("rope.freq_base")
    return bool(keys.get("attention.sliding_window")) and local not in (None, usual)


def _is_stretched(keys: Keys) -> bool:
    return keys.get("rope.scaling.type") != "none" and float(keys.get("rope.scaling.factor")) not in (0, 1)


DEVIATIONS = (
    Deviation(
        "logit_scale",
        ("minicpm",),
        "divides logits by 256 / embedding_length",
        "divides by embedding_length / 256",
        "files that have the key, and the model's own code, divide by the latter",
        _lacks("logit_scale"),
    ),
    Deviation(
        "attention.sliding_window",
        WITHOUT_WINDOWS,
        "no window",
        "the file's window",
        "the model's own code hides these keys",
        _says("attention.sliding_window", 0),
    ),
    Deviation(
        "attention.sliding_window",
        ("smallthinker",),
        "4096, whatever the file says",
        "the file's window",
        "the model's own code has the config's",
        _says("attention.sliding_window", 0, 4096),
    ),
    Deviation(
        "attention.sliding_window",
        ("exaone4",),
        "no window but in 64 layers, and rope in every layer",
        "the file's window; layers without it do not rotate",
        "as transformers computes it",
        lambda keys: bool(keys.stored("attention.sliding_window")) and keys.layer_count != 64,
    ),
    Deviation(
        "attention.sliding_window",
        ("llama4",),
        "with 0, all layers rotate and queries do not grow",
        "layers without rope stay, and their queries grow",
        "as transformers computes it",
        lambda keys: keys.stored("attention.sliding_window") == 0,
    ),
    *(
        Deviation(
            key,
            ("llama4",),
            "chunks of 8192 tokens, after which queries grow by 0.1",
            "as the file says",
            "written where the model differs",
            _other_than_assumed(key),
        )
        for key in ("attention.chunk_length", "attention.temperature_scale", "attention.temperature_length")
    ),
    Deviation(
        "attention.scale",
        WITHOUT_SCALE,
        "1 / √(width of a head)",
        "the file's factor",
        "written where the model has another one",
        _says("attention.scale", 0),
    ),
    Deviation(
        "attention.scale",
        ("bailingmoe", "gpt-oss"),
        "1 / √rope.dimension_count",
        "1 / √(width of a head)",
        "as the model's own code",
        _rotates_in_part,
    ),
    Deviation(
        "rope.dimension_count",
        ("deci", "falcon", "llama", "llama-embed"),
        "refused",
        "a part of each head rotates",
        "the key says so",
        _rotates_in_part,
    ),
    Deviation(
        "rope.scaling.yarn_beta_fast",
        (),
        "32, 1 and yarn's own factor, but in grok and mistral3",
        "the file's yarn_beta_fast, yarn_beta_slow and yarn_attn_factor",
        "as transformers computes it",
        _yarn_of_its_own,
    ),
    Deviation(
        "rope.scaling.yarn_truncate",
        (),
        "the range of pairs is rounded to whole ones",
        "it is not, as the file says",
        "written where the model does not round",
        _says("rope.scaling.yarn_truncate", True),
    ),
    Deviation(
        "rope.scaling.yarn_log_multiplier",
        ("deepseek2", "deepseek32", "glm-dsa", "mistral4"),
        "absent: q·k grows with the square of YaRN's temperature",
        "it does not",
        "as transformers computes configs without mscale_all_dim",
        lambda keys: keys.stored("rope.scaling.yarn_log_multiplier") is None and _is_stretched(keys),
    ),
    Deviation(
        "rope.scaling.type",
        ("deepseek2", "deepseek32", "dots3note", "glm-dsa", "mistral4"),
        "q·k grows by YaRN's temperature though positions are stretched linearly",
        "it does not",
        "as transformers",
        lambda keys: keys.get("rope.scaling.type") == "linear" and _is_stretched(keys),
    ),
    Deviation(
        "rope.freq_base_swa",
        ("mellum",),
        "layers with a window rotate by rope.freq_base, not stretched",
        "they rotate by their own base",
        "the config has a rotation for each kind of layers",
        _two_bases,
    ),
    Deviation(
        "attention.causal",
        ENCODERS,
        "tokens see those before them alone",
        "tokens see all tokens",
        "encoders do, and converters say so",
        _lacks("attention.causal"),
    ),
    Deviation(
        "attention.max_alibi_bias",
        ("baichuan",),
        "rope in 32 layers, penalties in 40, neither in others",
        "penalties where the key is above 0, else rope",
        "the model's own code has one of both",
        lambda keys: keys.layer_count not in (32, 40),
    ),
    Deviation(
        "attention.temperature_length",
        ("deepseek2", "mistral4"),
        "stops",
        "rope.scaling.original_context_length",
        "as transformers takes it",
        lambda keys: (
            bool(keys.get("attention.temperature_scale")) and keys.stored("attention.temperature_length") is None
        ),
    ),
    Deviation(
        "attention.shared_kv_layers",
        ("gemma3n",),
        "the first 20 layers have keys and values of their own",
        "as many as the file says",
        "the config says it",
        _other_than_assumed("attention.shared_kv_layers"),
    ),
    Deviation(
        "final_logit_softcapping",
        ("gemma3n",),
        "30",
        "the file's cap",
        "the config says it",
        _other_than_assumed("final_logit_softcapping"),
    ),
    Deviation(
        "expert_weights_norm",
        SUMS_TO_ONE,
        "chosen experts' weights sum to one",
        "they do not, as the file says",
        "written where the model differs",
        _says("expert_weights_norm", True, 1),
    ),
    Deviation(
        "expert_weights_norm",
        DOES_NOT_SUM,
        "chosen experts' weights stay",
        "they sum to one, as the file says",
        "written where the model differs",
        _says("expert_weights_norm", False, 0),
    ),
    Deviation(
        "expert_weights_norm",
        ("deepseek2", "mistral4"),
        "rescales weights that are a softmax",
        "leaves them",
        "transformers' DeepSeek V2 does not read `norm_topk_prob`",
        lambda keys: bool(keys.get("expert_weights_norm")) and keys.get("expert_gating_func") == GATING["softmax"],
    ),
    Deviation(
        "expert_group_count",
        (),
        "a group counts as the sum of its best two experts",
        "as its best one",
        "DeepSeek V2's own code, whose routers are a softmax",
        lambda keys: int(keys.get("expert_group_count")) > 1 and keys.get("expert_gating_func") == GATING["softmax"],
    ),
    Deviation(
        "router_logit_softcapping",
        ("grok",),
        "chosen experts' weights sum to one; the router has no cap",
        "they stay; the router's cap holds",
        "as the model's own server",
        lambda keys: True,
    ),
    Deviation(
        "expert_router_jitter",
        ("phimoe",),
        "RMS norms, and a softmax of the router's logits",
        "layer norms and sparsemixer",
        "as transformers",
        lambda keys: True,
    ),
)


def deviations(architecture: Architecture, metadata: Mapping[str, Any]) -> tuple[Deviation, ...]:
    """Return the deviations that apply to a file. Raises ModelError as `archs.hparams.file_keys.Keys.need`."""
    keys = Keys.of(architecture, metadata)
    mine = (each for each in DEVIATIONS if not each.architectures or architecture.name in each.architectures)
    return tuple(each for each in mine if each.applies(keys))
