"""Clef: Qwen 3.5's layers with a head that decides questions of a text jointly.

The head has layers of its own, `dec.blk.N`: first those in which options read the text, then those in which questions
read each other and the text. Score factors are stored in `decision.scales`, as used. Reference: llama.cpp's converter
and graph.
"""

import math
import re
from collections.abc import Mapping

import numpy as np

from archs.families.qwen3next import QWEN35
from archs.spec import Config, Target, TensorMap, Tensors
from archs.tensor_maps import mtp_layers, not_exportable
from archs.transforms import part
from quants import Tensor, from_array
from quants.errors import ModelError

HEAD = "joint_head."
SCALES = ("prior_logit_scale", "joint_logit_scale", "residual_gate")
PLACES = {
    "residual_scorer.0": "scorer",
    "residual_scorer.3": "scorer_out",
    "feedforward.0": "up",
    "feedforward.3": "down",
}
PLACE = re.compile(r"\b(residual_scorer|feedforward)\.([03])(?=\.)")
LAYER = re.compile(r"^joint_head\.(layers|evidence_layers)\.(\d+)\.")


def prepared(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Return layers of the head under one numbering, and its scales in one tensor."""
    config, tensors = mtp_layers(config, tensors)
    if (routing := (config.get("decision") or {}).get("routing_layers")) is None:
        raise ModelError("the model has no joint_head_config.json, which says how its head is laid out")
    named: dict[str, Tensor] = {}
    scales: dict[str, float] = {}
    for name, tensor in tensors.items():
        if (scale := name.removeprefix(HEAD)) in SCALES:
            scales[scale] = float(tensor.float32().reshape(-1)[0])
            continue
        place = PLACE.sub(lambda match: PLACES[match[0]], name) if name.startswith(HEAD) else name
        named[LAYER.sub(lambda m: f"{HEAD}stack.{int(m[2]) + routing * (m[1] == 'layers')}.", place)] = tensor
    if missing := [name for name in SCALES if name not in scales]:
        raise ModelError(f"the checkpoint's head has no {missing[0]!r}")
    named[f"{HEAD}scales"] = from_array(f"{HEAD}scales", np.asarray(used(scales), np.float32))
    return config, named


def used(scales: Mapping[str, float]) -> list[float]:
    """Return the score factors as used: exponentials of at most 100, and the sigmoid of a gate."""
    prior, joint, gate = (scales[name] for name in SCALES)
    return [math.exp(min(prior, math.log(100))), math.exp(min(joint, math.log(100))), 1 / (1 + math.exp(-gate))]


def attention(source: str, target: str) -> dict[str, Target]:
    """Return torch's attention, with q, k and v fused."""
    targets: dict[str, Target] = {f"{source}.out_proj": f"{target}_o"}
    for suffix in ("weight", "bias"):
        targets[f"{source}.in_proj_{suffix}"] = tuple(
            TensorMap(f"{target}_{letter}.{suffix}", part(i, 3)) for i, letter in enumerate("qkv")
        )
    return targets


STACK: dict[str, Target] = {
    "norm1": "attn_norm",
    **attention("self_attn", "attn"),
    "norm2": "cross_attn_norm",
    "query_norm": "cross_attn_norm",
    **attention("multihead_attn", "cross_attn"),
    **attention("attention", "cross_attn"),
    "memory_norm": "cross_attn_norm_kv",
    "norm3": "ffn_norm",
    "feedforward_norm": "ffn_norm",
    "linear1": "ffn_up",
    "up": "ffn_up",
    "linear2": "ffn_down",
    "down": "ffn_down",
}
OUTSIDE = {
    "hidden_norm": "hidden_norm",
    "memory_projection": "proj_memory",
    "question_projection": "proj_question",
    "option_question_projection": "proj_option_question",
    "global_projection": "proj_global",
    "option_context_projection": "proj_option_context",
    "option_lexical_projection": "proj_option_lexical",
    "option_summary_norm": "option_summary_norm",
    "field_norm": "field_norm",
    "option_norm": "option_norm",
    "scales": "scales",
    "scorer": "scorer",
    "scorer_out": "scorer_out",
}


def placed(target: Target) -> Target:
    if isinstance(target, tuple):
        return tuple(TensorMap(f"dec.blk.{{i}}.{each.name}", each.transform) for each in target)
    return f"dec.blk.{{i}}.{target}"


CLEF = QWEN35.derive(
    name="clef",
    hf_classes=("ClefModel",),
    prepare=prepared,
    prepare_export=None,
    config_from_gguf=not_exportable,
    metadata={
        "decision.routing_block_count": "decision.routing_layers",
        "decision.block_count": "decision.layers",
        "decision.head_count": "decision.heads",
        "attention.layer_norm_epsilon": lambda config: 1e-5,
        "embedding_length_out": None,
    },
    tensors={
        "classifier.out_proj": None,
        f"{HEAD}type_embedding": "token_types",
        **{f"{HEAD}{name}": f"decision.{target}" for name, target in OUTSIDE.items()},
        **{f"{HEAD}stack.{{i}}.{name}": placed(target) for name, target in STACK.items()},
    },
)
