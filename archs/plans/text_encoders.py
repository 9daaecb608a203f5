"""Plan the file of a text encoder that is part of an image model's checkpoint, without config.json and tokenizer."""

from collections.abc import Mapping
from typing import Any

from quants import Tensor
from quants.errors import ModelError

from ..config import normalized
from ..metadata import Metadata
from ..registry import of_config
from ..spec import Tensors
from ..validation.model_validators import check_shapes
from .text import architecture_metadata, map_tensors

T5_LAYER = "encoder.block.{}.layer.0.SelfAttention.q.weight"
T5_HEAD = 64  # values of a head, in all published sizes from "small" on
UMT5_VOCABULARY = 256_384


def plan_t5(tensors: Tensors, name: str) -> tuple[Metadata, dict[str, Tensor]]:
    """Plan the file of a T5 encoder by its tensors alone; it has no tokenizer keys.

    Raises ModelError for other tensors, and for umT5, whose tokenizer ComfyUI-GGUF needs.
    """
    config = _t5_config(tensors)
    architecture = of_config(config)
    full = normalized(config, architecture.defaults, architecture.keys, tensors)
    mapped = map_tensors(architecture, full, tensors)
    metadata = Metadata({"general.architecture": architecture.name, "general.type": "model", "general.name": name})
    for key, value in (architecture_metadata(architecture, full) | mapped.metadata(architecture)).items():
        metadata[key] = value
    check_shapes(architecture, metadata, mapped.tensors)
    return metadata, mapped.tensors


def _t5_config(tensors: Tensors) -> dict[str, Any]:
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    embedding = shapes.get("shared.weight", shapes.get("encoder.embed_tokens.weight", ()))
    query = shapes.get(T5_LAYER.format(0), ())
    buckets = shapes.get("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", ())
    if not len(embedding) == len(query) == len(buckets) == 2:
        raise ModelError("these are no tensors of a T5 encoder: an embedding, queries and distances were expected")
    if embedding[0] == UMT5_VOCABULARY:
        raise ModelError(
            "umT5 needs its tokenizer", "convert a diffusers folder of it, with text_encoder and tokenizer"
        )
    gate = "encoder.block.0.layer.1.DenseReluDense.wi_0.weight"
    up = shapes.get(gate, shapes.get("encoder.block.0.layer.1.DenseReluDense.wi.weight", (0,)))
    return {
        "architectures": ["T5EncoderModel"],
        "model_type": "t5",
        "vocab_size": embedding[0],
        "d_model": embedding[1],
        "d_kv": query[0] // buckets[1] if buckets[1] else T5_HEAD,
        "num_heads": buckets[1],
        "d_ff": up[0],
        "num_layers": _count(shapes),
        "relative_attention_num_buckets": buckets[0],
        "feed_forward_proj": "gated-gelu" if gate in shapes else "relu",
    }


def _count(shapes: Mapping[str, tuple[int, ...]]) -> int:
    count = 0
    while T5_LAYER.format(count) in shapes:
        count += 1
    return count
