"""HRM-Text: two stacks of Llama's layers with gated attention alternate over the same tokens, a low one several times
before each pass of a high one. Norms have no weights.

The file has the low stack's layers, then the high one's; `block_count` counts all passes, each of which has keys and
values of its own. Attention is causal: bidirectional attention within instructions (`prefix_lm`) is recorded in the
file and not run, as in llama.cpp. Reference: transformers `models/hrm_text/`.
"""

import re
from functools import partial

from archs.experts import gate_and_up
from archs.families.llama import HALVES
from archs.hparams.config_keys import SOME_LAYERS
from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import HParams
from archs.spec import Config, Target, TensorMap, Tensors, in_layers
from archs.transforms import part
from quants.errors import ModelError

STACK = re.compile(r"(?<=\b)([LH])_module\.layers\.(\d+)\.")
LAYER = re.compile(r"(?<=\b)layers\.(\d+)\.")


def stack(config: Config) -> int:
    """Return the number of layers of one stack; configs as first published use the other key."""
    return int(config.get("num_layers_per_stack") or config["num_hidden_layers"])


def passes(config: Config) -> int:
    """Return the number of passes, one after the other."""
    return stack(config) * int(config["H_cycles"]) * (int(config["L_cycles"]) + 1)


def is_low(number: int, low_passes: int) -> bool:
    """Return whether a pass is one of the low stack."""
    return number % (low_passes + 1) < low_passes


def numbered(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return layers under one numbering: those of the low stack, then those of the high one."""
    named, count = {}, stack(config)
    for name, tensor in tensors.items():
        if (match := STACK.search(name)) and int(match[2]) >= count:
            raise ModelError(f"config.json says {count} layers a stack; the checkpoint has {name!r}")
        named[STACK.sub(lambda m: f"layers.{int(m[2]) + count * (m[1] == 'H')}.", name)] = tensor
    return config, named


def by_stacks(config: Config, tensors: Tensors) -> Tensors:
    """Return the stacks' own names."""

    def named(count: int, match: re.Match[str]) -> str:
        high, number = divmod(int(match[1]), count)
        return f"{'LH'[high]}_module.layers.{number}."

    names = {name: LAYER.sub(partial(named, stack(config)), name) for name in tensors}
    return {names[name]: tensor.renamed(names[name]) for name, tensor in tensors.items()}


def hparams_hook(keys: Keys, usual: HParams) -> HParams:
    """Set the file's layer of each pass."""
    count, low = int(keys.need("hrm.layers_per_stack")), int(keys.need("hrm.l_cycles"))
    return usual.with_layers(lambda i, own: {"stored": i % count + (0 if is_low(i // count, low) else count)})


def _fused(suffix: str) -> dict[str, Target]:
    """Return matrices that published checkpoints fuse. transformers fuses only weights; their biases, which no
    published model has, it keeps apart.
    """
    return {
        f".attn.gqkv_proj.{suffix}": tuple(
            TensorMap(f"attn_{which}.{suffix}", part(i, 4)) for i, which in enumerate(("gate", "q", "k", "v"))
        ),
        f".mlp.gate_up_proj.{suffix}": gate_and_up(f".{suffix}"),
    }


HRM_TEXT = HALVES.derive(
    name="hrm_text",
    hf_classes=("HrmTextForCausalLM",),
    prepare=numbered,
    prepare_export=by_stacks,
    keys={"num_hidden_layers": SOME_LAYERS},  # of all passes
    stored_layers=lambda config: 2 * stack(config),
    metadata={
        "block_count": passes,
        "rope.dimension_count": "head_dim",
        "embedding_scale": "embedding_scale",
        "attention.head_count_kv": None,
        "hrm.layers_per_stack": stack,
        "hrm.h_cycles": "H_cycles",
        "hrm.l_cycles": "L_cycles",
        "hrm.prefix_lm": lambda config: bool(config.get("prefix_lm", True)),
    },
    defaults={
        "model_type": "hrm_text",
        "hidden_size": 1536,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "num_attention_heads": 12,
        "head_dim": 128,
        "vocab_size": 151_808,
        "H_cycles": 2,
        "L_cycles": 3,
        "max_position_embeddings": 2048,
        "num_key_value_heads": None,
        "embedding_scale": lambda config: 1 / (config.get("initializer_range") or 0.02),
    },
    config_from_gguf=lambda keys, tensors: {
        "num_layers_per_stack": keys["hrm.layers_per_stack"],
        "prefix_lm": keys.get("hrm.prefix_lm"),
    },
    tensors={
        ".input_layernorm": None,
        ".post_attention_layernorm": None,
        "norm": None,
        "z_L_init": "hrm.z_l_init",
        ".self_attn.gate_proj": "attn_gate",
        ".attn.o_proj": "attn_output",
        **_fused("weight"),
        **_fused("bias"),
    },
    legacy_names=tuple(in_layers(_fused("bias"))),
    block={"norm": "rms_without_weights", "hparams_hook": hparams_hook, "arrangement": "cycles"},
)
