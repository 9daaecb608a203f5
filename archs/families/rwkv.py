"""RWKV 7 and 6: recurrences with a matrix for each head instead of attention, and nets that read the previous token.

ARWKV and QRWKV are Qwen 2 with RWKV 7 or 6 in place of attention, and Qwen's nets, norms and vocabulary. Published
checkpoints have several names for the same tensors; `prepare` unifies them. llama.cpp's files require a value mixture
in the first layer, which nothing reads: its learning-rate mixture is written there again. Reference: BlinkDL's
`rwkv_v7_demo.py`, flash-linear-attention's `models/rwkv7/`, llama.cpp.
"""

import re
from collections.abc import Iterable

import numpy as np

from archs.config import ReadConfig, changed, lookup, other_than
from archs.families.mamba import UNBOUNDED
from archs.spec import (
    BASE,
    Computed,
    Config,
    ConfigKeys,
    GgufKeys,
    Index,
    LayerSpec,
    Target,
    TensorMap,
    Tensors,
    in_layers,
)
from archs.tensor_maps import gated_net
from archs.transforms import Invertible, chain, computed, reordered, reshape, stacked, take, transpose
from quants import Tensor, from_array
from quants.errors import ModelError

HEAD_EPS = 64e-5  # of the norm of heads, for which files have no key
SAME = (
    (r"(^|\.)blocks\.", r"\1layers."),
    (r"\.(self_attn|attn|att)\.(time_mixer\.)?", ".attention."),
    (r"\.ffn\.", ".feed_forward."),
    (r"\.(attn_norm)\.", ".ln1."),
    (r"\.(ffn_norm)\.", ".ln2."),
    (r"\.layers\.0\.(pre_norm|pre_ln)\.", ".pre_ln."),
    (r"\.g_norm\.", ".ln_x."),
    (r"\.([wavg])_lora\.lora\.0\.weight$", r".\g<1>1.weight"),
    (r"\.([wavg])_lora\.lora\.2\.weight$", r".\g<1>2.weight"),
    (r"\.([wavg])_lora\.lora\.2\.bias$", r".\g<1>0"),
)
RANKS = {"w": "decay_low_rank_dim", "a": "a_low_rank_dim", "v": "v_low_rank_dim", "g": "gate_low_rank_dim"}


FLA = (  # flash-linear-attention's names → ours
    (r"^model\.pre_ln\.", "model.layers.0.pre_norm."),
    (r"\.ln1\.", ".attn_norm."),
    (r"\.ln2\.", ".ffn_norm."),
    (r"\.attention\.", ".attn."),
    (r"\.feed_forward\.", ".ffn."),
    (r"\.ln_x\.", ".g_norm."),
    (r"\.([wavg])1\.weight$", r".\g<1>_lora.lora.0.weight"),
    (r"\.([wavg])2\.weight$", r".\g<1>_lora.lora.2.weight"),
    (r"\.([wavg])0$", r".\g<1>_lora.lora.2.bias"),
)
FIRST_VALUES = re.compile(r"model\.layers\.0\.attention\.v[012](\.weight)?")


def one_name(name: str) -> str:
    return renamed(name, SAME)


def prepare(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return one name for each tensor, all mixtures of a layer in one, and the ranks of low-rank matrices.

    Raises ModelError for layers without a recurrence.
    """
    named = {name: tensor.renamed(name) for old, tensor in tensors.items() if (name := one_name(old))}
    for layer in sorted({match[1] for name in named if (match := re.match(r"(.*layers\.\d+\.)attention\.", name))}):
        _prepare_layer(f"{layer}attention.", named)
    ranks = {key: _rank(named, letter) for letter, key in RANKS.items()}
    width = next((t.shape[0] for name, t in named.items() if name.endswith("feed_forward.key.weight")), None)
    return ReadConfig({**config, **ranks, "intermediate_size": config.get("intermediate_size") or width}), named


def _prepare_layer(at: str, tensors: dict[str, Tensor]) -> None:
    letters = [letter for letter in "rwkvag" if f"{at}x_{letter}" in tensors]
    if letters:
        parts = [tensors.pop(f"{at}x_{letter}") for letter in letters]
        flat = [reshape(part, (1, 1, part.size)) for part in parts]
        tensors[f"{at}x_x"] = stacked(flat, f"{at}x_x")
    elif f"{at}x_x" not in tensors:
        raise ModelError(f"{at}* has no mixtures of tokens: models whose layers are not all RWKV's cannot be converted")
    if at.endswith("layers.0.attention."):
        for name in [name for name in tensors if re.fullmatch(re.escape(at) + r"v[012](\.weight)?", name)]:
            del tensors[name]
        for name in [name for name in tensors if re.fullmatch(re.escape(at) + r"a[012](\.weight)?", name)]:
            copied = at + "v" + name.removeprefix(f"{at}a")
            tensors[copied] = tensors[name].renamed(copied)


def _rank(tensors: Tensors, letter: str) -> int | None:
    """Return the rank of a low-rank matrix, of the last layer: the first one's may be a copy of another."""
    pattern = re.compile(rf"layers\.(\d+)\.attention\.{letter}2(\.weight)?$")
    matches = ((pattern.search(name), tensor.shape) for name, tensor in tensors.items())
    ranks = {int(match[1]): shape[-1] if match[2] else shape[0] for match, shape in matches if match and shape}
    return ranks[max(ranks)] if ranks else None


def head_size(config: Config) -> int:
    """Return the head size. Raises ModelError for a head norm's epsilon that files cannot express."""
    size, eps = lookup(config, "head_size|head_dim") or 64, lookup(config, "layer_norm_epsilon|norm_eps")
    if eps is not None and abs(size * eps / HEAD_EPS - 1) > 1e-6:
        raise ModelError(f"config.json means {size * eps:g} for the norm of heads, which files cannot express (6.4e-4)")
    return int(size)


def vector(name: str) -> TensorMap:
    """Return a vector that may be stored as (1, 1, width)."""
    return TensorMap(f"{name}.weight", Invertible(lambda tensor, config: reshape(tensor, (tensor.size,))))


def wide(tensor: Tensor) -> Tensor:
    """Return a vector as published: (1, 1, width)."""
    return reshape(tensor, (1, 1, tensor.size))


def apart(tensors: dict[str, Tensor], name: str, letters: str, called: str) -> None:
    """Return the mixtures of a layer as separate tensors. called: their names' prefix."""
    whole = tensors.pop(name)
    flat = reshape(whole, (len(letters), whole.size // len(letters)))
    for i, letter in enumerate(letters):
        tensors[f"{called}{letter}"] = wide(take(flat, np.arange(i, i + 1)))


def published7(config: Config, tensors: Tensors) -> Tensors:
    """Return flash-linear-attention's names. The first layer has no value mixture: files repeat another one."""
    named = {name: tensor for name, tensor in tensors.items() if not FIRST_VALUES.fullmatch(name)}
    for name in [name for name in named if name.endswith(".attention.x_x")]:
        apart(named, name, "rwkvag"[: named[name].shape[0]], name.removesuffix("x"))
    for name in [name for name in named if name.endswith(".attention.r_k")]:
        named[name] = reshape(named[name], (named[name].size // config["head_dim"], config["head_dim"]))
    return {renamed(name, FLA): tensor for name, tensor in named.items()}


def renamed(name: str, names: Iterable[tuple[str, str]]) -> str:
    for pattern, instead in names:
        name = re.sub(pattern, instead, name)
    return name


def narrow(letter: str) -> dict[str, Target]:
    """Return the pair of low-rank matrices of a type: as linear layers, or transposed where they are parameters."""
    pairs = {f".attention.{letter}{i}": TensorMap(f"time_mix_{letter}{i}.weight", transpose) for i in (1, 2)}
    linear: dict[str, Target] = {f"{name}.weight": f"time_mix_{name[-2:]}.weight" for name in pairs}
    return {**pairs, **linear, f".attention.{letter}0": vector(f"time_mix_{letter}0")}


RANK_KEYS: dict[str, str | Computed | None] = {
    f"attention.{use}_lora_rank": key
    for use, key in zip(("decay", "iclr", "value_residual_mix", "gate"), RANKS.values(), strict=True)
}
MATRICES = {"receptance": "r_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
MIX7: dict[str, Target] = {
    **{f".attention.{name}": f"time_mix_{name}" for name in MATRICES},
    **{f".attention.{other}": f"time_mix_{name}" for name, other in MATRICES.items()},
    ".attention.ln_x": "time_mix_ln",
    ".attention.x_x": TensorMap(
        "time_mix_lerp_fused.weight",
        Invertible(lambda tensor, config: reshape(tensor, (tensor.shape[0], 1, 1, tensor.size // tensor.shape[0]))),
    ),
    **{f".attention.{name}": vector(f"time_mix_{name}") for name in ("k_k", "k_a", "r_k")},
    **{name: target for letter in RANKS for name, target in narrow(letter).items()},
}

WITHOUT = ("rope_scaling", "rope_theta", "attention_bias", "mlp_bias")


def config7_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    width, size = keys["embedding_length"], keys["wkv.head_size"]
    return {
        "head_dim": size,
        "num_heads": width // size,
        "hidden_ratio": keys["feed_forward_length"] / width,
        "hidden_act": "sqrelu",
        "norm_first": "token_embd_norm.weight" in tensors,
        "norm_bias": True,
        "attn": None,
        "attn_mode": "chunk",
        **dict.fromkeys(WITHOUT, ...),
    }


RWKV7 = BASE.derive(
    name="rwkv7",
    hf_classes=("RWKV7ForCausalLM", "Rwkv7ForCausalLM"),
    vocab=("rwkv",),
    prepare=prepare,
    metadata={
        "context_length": lambda config: UNBOUNDED,
        "attention.layer_norm_epsilon": "layer_norm_epsilon|norm_eps",
        "attention.layer_norm_rms_epsilon": None,
        "attention.head_count": lambda config: 0,
        "attention.head_count_kv": None,
        "attention.key_length": None,
        "attention.value_length": None,
        "rope.freq_base": None,
        "wkv.head_size": head_size,
        **RANK_KEYS,
    },
    defaults={"norm_eps": lambda config: lookup(config, "layer_norm_epsilon") or 1e-5},
    refused={"hidden_act": other_than("sqrelu"), "attn": bool},
    activation="",
    tensors={
        **MIX7,
        "embeddings": "token_embd",
        "emb": "token_embd",
        "pre_ln": "token_embd_norm",
        ".ln1": "attn_norm",
        ".ln2": "attn_norm_2",
        ".feed_forward.x_k": vector("channel_mix_lerp_k"),
        ".feed_forward.key": "channel_mix_key",
        ".feed_forward.value": "channel_mix_value",
        "norm": "output_norm",
        "ln_out": "output_norm",
        "lm_head": "output",
        "head": "output",
    },
    prefixes=("model", "rwkv"),
    config_from_gguf=config7_from_gguf,
    prepare_export=published7,
    legacy_names=("emb", "ln_out", "head"),
    block=vars(LayerSpec(norm="layer", rope="none", gated=False, mixer="rwkv7", net="channel_mix")),
)

QWENS: dict[str, Target] = {  # Qwen 2's parts around the mixers
    "embed_tokens": "token_embd",
    ".input_layernorm": "attn_norm",
    ".post_attention_layernorm": "ffn_norm",
    **gated_net("mlp"),
    "norm": "output_norm",
    "lm_head": "output",
}
QWENS_KEYS: dict[str, str | Computed | None] = {
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": None,
    "token_shift_count": lambda config: 1,
}
QWENS_BLOCK = {"norm": "rms", "gated": True, "net": "dense"}


def published_arwkv7(config: Config, tensors: Tensors) -> Tensors:
    """Return the names of ARWKV's own code: vectors as published, and in the first layer a value mixture that nothing
    reads.
    """
    named, width = dict(tensors), int(config["hidden_size"])
    rank = max(_rank(named, "v") or 1, 1)
    for name in [name for name in named if name.endswith(".attention.x_x")]:
        apart(named, name, "rwkvag"[: named[name].shape[0]], name.removesuffix("x"))
    for name in [name for name in named if VECTOR7.search(name)]:
        named[name] = wide(named[name])
    for name in [name for name in named if name.endswith(".attention.r_k")]:
        named[name] = reshape(named[name], (named[name].size // config["head_size"], config["head_size"]))
    shapes = {"0": (1, 1, width), "1": (width, rank), "2": (rank, width)}
    for name in [name for name in named if FIRST_VALUES.fullmatch(name)]:
        named[name] = from_array(name, np.zeros(shapes[name[-1]], np.float32))
    return {name.replace(".attention.", ".self_attn.time_mixer."): tensor for name, tensor in named.items()}


def arwkv7_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    heads = keys["embedding_length"] // keys["wkv.head_size"]
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "num_wkv_heads": heads,
        "head_size_divisor": 8,
        "hidden_act": "silu",
        "wkv_version": 7,
        "wkv_layers": "all",
        "wkv_has_gate": "blk.0.time_mix_g1.weight" in tensors,
        "gate_low_rank_dim": keys["attention.gate_lora_rank"],
        "wkv_has_group_norm": "blk.0.time_mix_ln.weight" in tensors,
        **dict.fromkeys(WITHOUT, ...),
    }


VECTOR7 = re.compile(r"\.attention\.(k_k|k_a|[wavg]0)$")
OF_FLA = (
    *(f"{letter}{i}.weight" for letter in RANKS for i in (1, 2)),
    *MATRICES.values(),
)  # names in other checkpoints

ARWKV7 = RWKV7.derive(
    name="arwkv7",
    hf_classes=("RwkvHybridForCausalLM",),
    vocab=("sentencepiece", "bpe"),
    metadata={
        **QWENS_KEYS,
        "wkv.head_size": "head_size",
        "attention.gate_lora_rank": lambda config: config.get("gate_low_rank_dim") or 0,
    },
    defaults={
        "norm_eps": None,
        "model_type": "rwkv_hybrid",
        "rms_norm_eps": 1e-6,
        "head_size": 64,
        "wkv_version": 7,
        "vocab_size": 152_064,
    },
    refused={"hidden_act": other_than("silu"), "attn": None, "wkv_version": other_than(7)},
    tensors={**dict.fromkeys(RWKV7.tensors), **QWENS, **MIX7},
    block=QWENS_BLOCK,
    config_from_gguf=arwkv7_from_gguf,
    prepare_export=published_arwkv7,
    derived_keys=tuple(RANKS.values()),
    legacy_names=tuple(in_layers({f".attention.{name}": None for name in OF_FLA})),
)


BY_TENSORS = {  # config keys that tensors show: the key, the dimension, and its divisor
    "attention.time_maa_w1": ("lora_rank_tokenshift", -1, 5),
    "attention.time_decay_w1": ("lora_rank_decay", -1, 1),
    "feed_forward.key.weight": ("intermediate_size", 0, 1),
}


HALVED = ("attention.output.weight", "feed_forward.value.weight")
BLOCKS = ((r"^rwkv\.pre_ln\.", "rwkv.blocks.0.pre_ln."), (r"\.layers\.", ".blocks."))


def prepare6(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return RWKV 6's tensors: all mixtures of a layer but the first in one, and weights halved by layer as the
    config's `rescale_every` says.
    """
    named = {name: tensor.renamed(name) for old, tensor in tensors.items() if (name := one_name(old))}
    period, full = config.get("rescale_every") or 0, dict(config)
    for name in [name for name in named if name.endswith(".attention.time_maa_x")]:
        at = name.removesuffix("x")
        mixtures = [f"{at}{letter}" for letter in "wkvrg"]
        if missing := [each for each in mixtures if each not in named]:
            raise ModelError(f"the checkpoint lacks {missing[0]!r}", "a shard may be missing")
        flat = [named.pop(each) for each in mixtures]
        named[f"{at}all"] = stacked([reshape(each, (1, 1, each.size)) for each in flat], f"{at}all")
    for name, tensor in named.items():
        place = re.search(r"layers\.(\d+)\.(.*)", name)
        layer, rest = (int(place[1]), place[2]) if place else (0, "")
        if period and layer >= period and rest in HALVED:
            factors = np.full((tensor.rows, 1), 0.5 ** (layer // period), np.float32)
            named[name] = computed(tensor, np.multiply, factors)
        if rest in BY_TENSORS and tensor.shape:
            key, dimension, parts = BY_TENSORS[rest]
            full[key] = tensor.shape[dimension] // parts
    return ReadConfig(full), named


MIX6: dict[str, Target] = {
    ".attention.time_maa_x": vector("time_mix_lerp_x"),
    ".attention.time_maa_all": "time_mix_lerp_fused.weight",
    ".attention.time_maa_w1": TensorMap("time_mix_w1.weight", transpose),
    ".attention.time_maa_w2": TensorMap("time_mix_w2.weight", transpose),
    ".attention.time_decay": vector("time_mix_decay"),
    ".attention.time_decay_w1": TensorMap("time_mix_decay_w1.weight", transpose),
    ".attention.time_decay_w2": TensorMap("time_mix_decay_w2.weight", transpose),
    ".attention.gate": "time_mix_gate",
    ".attention.ln_x": "time_mix_ln",
}
RANKS6: dict[str, str | Computed | None] = {
    **dict.fromkeys(RANK_KEYS),
    "time_mix_extra_dim": "lora_rank_tokenshift",
    "time_decay_extra_dim": "lora_rank_decay",
}

VECTOR6 = re.compile(r"\.(attention\.time_(maa_x|decay)|feed_forward\.time_maa_[kr])$")


def published6(config: Config, tensors: Tensors) -> Tensors:
    """Return mixtures as separate tensors, halvings undone, blocks."""
    named, period = dict(tensors), config.get("rescale_every") or 0
    for name in [name for name in named if name.endswith(".attention.time_maa_all")]:
        apart(named, name, "wkvrg", name.removesuffix("all"))
    for name, tensor in named.items():
        place = re.search(r"layers\.(\d+)\.(.*)", name)
        layer, rest = (int(place[1]), place[2]) if place else (0, "")
        if VECTOR6.search(name):
            named[name] = wide(tensor)
        elif period and layer >= period and rest in HALVED:
            named[name] = computed(tensor, np.multiply, np.full((tensor.rows, 1), 2.0 ** (layer // period), np.float32))
    return {renamed(name, BLOCKS): tensor for name, tensor in named.items()}


def published_qwen6(config: Config, tensors: Tensors) -> Tensors:
    named = published6(changed(config, rescale_every=0), tensors)
    return {name.replace(".blocks.", ".layers.").replace(".attention.", ".self_attn."): t for name, t in named.items()}


def config6_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    return {
        "attention_hidden_size": keys["embedding_length"],
        "head_size_divisor": 8,
        "num_attention_heads": 64,  # in all of them, whatever heads they have
        **dict.fromkeys(WITHOUT, ...),
    }


def qwen6_from_gguf(keys: GgufKeys, tensors: Tensors) -> ConfigKeys:
    return {
        "num_attention_heads": keys["embedding_length"] // keys["wkv.head_size"],
        "hidden_act": "silu",
        "lora_rank_tokenshift": keys["time_mix_extra_dim"],
        "lora_rank_decay": keys["time_decay_extra_dim"],
        **dict.fromkeys(WITHOUT, ...),
        "attention_bias": "blk.0.time_mix_key.bias" in tensors,
    }


RWKV6 = RWKV7.derive(
    name="rwkv6",
    hf_classes=("Rwkv6ForCausalLM",),
    prepare=prepare6,
    prepare_export=published6,
    config_from_gguf=config6_from_gguf,
    prefixes=("rwkv", "model"),
    legacy_names=("emb", "norm", "lm_head"),
    derived_keys=("lora_rank_tokenshift", "lora_rank_decay"),
    metadata={**RANKS6, "rescale_every_n_layers": "rescale_every", "wkv.head_size": "head_size"},
    defaults={"layer_norm_epsilon": 1e-5, "norm_eps": None, "head_size": 64, "rescale_every": 6, "vocab_size": 65_536},
    refused={"head_size_divisor": other_than(8)},
    tensors={
        **dict.fromkeys(in_layers(MIX7)),
        **MIX6,
        **{f".attention.{name}": f"time_mix_{name}" for name in MATRICES},
        ".attention.time_faaaa": "time_mix_first.weight",
        ".feed_forward.x_k": None,
        **{f".feed_forward.time_maa_{letter}": vector(f"channel_mix_lerp_{letter}") for letter in "kr"},
        ".feed_forward.receptance": "channel_mix_receptance",
    },
    block={"mixer": "rwkv6"},
)

# QRWKV's five mixtures are those of r, k, v, w, g; RWKV's of w, k, v, r, g.
WKVRG = np.array([3, 1, 2, 0, 4])


def wkvrg(rows: int, config: Config) -> Index:
    return (WKVRG[:, None] * (rows // 5) + np.arange(rows // 5)).reshape(-1)


RWKV6_QWEN2 = RWKV6.derive(
    name="rwkv6qwen2",
    hf_classes=("RWKV6Qwen2ForCausalLM",),
    vocab=("sentencepiece", "bpe"),
    derived_keys=(),
    prepare_export=published_qwen6,
    config_from_gguf=qwen6_from_gguf,
    prefixes=("model", "rwkv"),
    legacy_names=(),
    metadata={
        **QWENS_KEYS,
        "rescale_every_n_layers": None,
        "attention.head_count_kv": "num_key_value_heads",
        "wkv.head_size": lambda config: config["hidden_size"] // config["num_attention_heads"],
    },
    defaults={
        "layer_norm_epsilon": None,
        "head_size": None,
        "rescale_every": None,
        "rms_norm_eps": 1e-6,
        "model_type": "rwkv6qwen2",
        "vocab_size": 152_064,
    },
    refused={"hidden_act": other_than("silu")},
    tensors={
        **dict.fromkeys(RWKV6.tensors),
        **QWENS,
        **MIX6,
        ".attention.time_maa_w1": TensorMap("time_mix_w1.weight", chain(transpose, reordered(wkvrg))),
        ".attention.time_maa_w2": TensorMap("time_mix_w2.weight", chain(transpose, reordered(wkvrg))),
        **{f".attention.{name}_proj": f"time_mix_{role}" for name, role in zip("qkvo", MATRICES, strict=True)},
    },
    block=QWENS_BLOCK,
)
