"""Models of real widths, made from the small ones of tests/data/absent_keys: keys and shapes, without weights."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from archs.hparams.file_keys import Keys
from archs.hparams.model_hparams import HParams, read_hparams
from archs.layer_types import type_of_layer
from archs.layered import LayeredModel, by_layer
from archs.metadata import Metadata, ValueType
from archs.registry import of_file
from archs.tensor_shapes import OUTSIDE, Part, evaluated
from archs.validation.tensor_validators import matches, parts_of, sizes_of
from quants.format import format_named
from quants.tensor import Tensor
from tests import absent_keys, zoo

TYPES = {"F32": (0, 4), "F16": (1, 2), "I32": (26, 4)}


@dataclass(frozen=True)
class Wide:
    """A model of real widths. small: the one it is made from. keys: without the architecture. sizes: that no key
    gives. layers: the small model's layer for each of its layers.
    """

    small: str
    layers: tuple[int, ...]
    keys: Mapping[str, Any]
    sizes: Mapping[str, int] = field(default_factory=dict)


def empty(name: str, shape: tuple[int, ...], kind: str = "F32") -> Tensor:
    """A tensor without values."""

    def unread(start: int, stop: int) -> Any:
        raise AssertionError(name)

    return Tensor(name, shape, format_named(kind), unread)


def wide(model: Wide) -> tuple[Metadata, dict[str, Tensor]]:
    """The metadata and the tensors of a wide model."""
    before, old = small(model.small)
    architecture = str(before["general.architecture"])
    after = _keys(model, architecture, before)
    grouped = by_layer(old)
    count = 1 + max(int(prefix.split(".")[1]) for prefix in grouped if prefix.startswith("blk."))
    names = {**grouped[""]}
    for index, origin in enumerate(model.layers):
        for role, tensor in grouped[f"blk.{min(origin, count - 1)}."].items():
            names[f"blk.{index}.{role}"] = tensor
    spec = of_file(architecture, before)
    was = LayeredModel(spec, Keys.of(spec, before), grouped)
    now = LayeredModel(spec, Keys.of(spec, after), by_layer(names))
    numbers = read_hparams(spec, before, old), read_hparams(spec, after, names)
    made: dict[str, Tensor] = {}
    for name, tensor in names.items():
        inside = name.startswith("blk.")
        index = int(name.split(".")[1]) if inside else 0
        origin = min(model.layers[index], count - 1) if inside else 0
        role = name.split(".", 2)[2] if inside else name
        sizes, wanted = sizes_of(was, numbers[0], origin), sizes_of(now, numbers[1], index)
        for each in (sizes, wanted):
            for key in ("embedded", "projected"):
                each.setdefault(key, each["width"])
        wanted["pairs"] = int(now.keys.get("rope.dimension_count") or 0) // 2
        parts = _parts(was, numbers[0], origin) if inside else [OUTSIDE]
        made[name] = shaped(name, role, tensor, parts, sizes, {**wanted, **model.sizes})
    after.set("tokenizer.ggml.model", "no_vocab", ValueType.STRING)
    after.set(f"{architecture}.vocab_size", made["token_embd.weight"].shape[0], ValueType.UINT32)
    return after, made


def _parts(model: LayeredModel, hparams: HParams, index: int) -> list[Part]:
    """The parts of a layer of the small model."""
    block, start = model.architecture.block, f"blk.{index}."
    layer_type = type_of_layer(block, model.keys, index, model.grouped[start], hparams.parallel)
    return [part for _, part in parts_of(model, start, hparams.layers[index], layer_type)]


def _keys(model: Wide, architecture: str, before: Metadata) -> Metadata:
    """The small model's keys with the changes."""
    after = Metadata()
    changed = {f"{architecture}.{key}": value for key, value in model.keys.items()}
    changed[f"{architecture}.block_count"] = len(model.layers)
    kept = [key for key in before if not key.startswith("tokenizer.")]
    for key in [*kept, *(key for key in changed if key not in before)]:
        stored = before.value(key) if key in before else None
        value = changed.get(key, stored.data if stored else None)
        if isinstance(value, (list, tuple)) or hasattr(value, "dtype"):
            items = [getattr(each, "item", lambda each=each: each)() for each in value]
            element = stored.element if stored else None
            after.set(key, items, ValueType.ARRAY, element or _type_of(items[0]))
        else:
            after.set(key, value, stored.type if stored and stored.element is None else _type_of(value))
    return after


def _type_of(value: Any) -> ValueType:
    if isinstance(value, bool):
        return ValueType.BOOL
    return ValueType.FLOAT32 if isinstance(value, float) else ValueType.UINT32


def shaped(name: str, role: str, tensor: Tensor, parts: Any, sizes: dict[str, int], wanted: dict[str, int]) -> Tensor:
    """A tensor in the wide model's shape."""
    if role.startswith("rope_f") or role == "rope_freqs.weight":
        return empty(name, (wanted["pairs"],))
    for part in parts:
        for alternative in part.table.get(role, ()):
            own = dict(sizes)
            if not matches(tensor.shape, (alternative,), own):
                continue
            known = {**own, **wanted}
            shape = tuple(evaluated(terms, known) for terms in alternative)
            if None in shape:
                raise SystemExit(f"{name}: sizes of {alternative} are missing")
            return empty(name, shape, kind_of(name, len(shape)))
    if prod(tensor.shape) == 1 or role.endswith(".scale"):
        return empty(name, tensor.shape)
    raise SystemExit(f"{name} {tensor.shape}: no part has it")


def kind_of(name: str, dimensions: int) -> str:
    """The type of a tensor, as converters write it in files of half precision."""
    kept = ("norm", "gate_inp", "ssm_conv1d", "ssm_a", "ssm_d.", "shortconv.conv", "time_mix", "altup", "scale")
    matrix = dimensions > 1 and not any(each in name for each in kept)
    return (
        "F16"
        if matrix
        or "time_mix_key" in name
        or "time_mix_value" in name
        or "time_mix_output" in name
        or "time_mix_receptance" in name
        or "time_mix_gate" in name
        else "F32"
    )


def small(name: str) -> tuple[Metadata, dict[str, Tensor]]:
    """The metadata and the tensors of a model of tests/data/absent_keys."""
    description = absent_keys.descriptions()[name]
    metadata = Metadata()
    for key, value in description.whole.items():
        metadata.set(key, value[-1], *(ValueType[each] for each in value[:-1]))
    return metadata, {row[0]: empty(row[0], tuple(row[2]), row[1]) for row in description.tensors}


def model(name: str) -> tuple[Metadata, dict[str, Tensor]]:
    """A wide model, or a small one."""
    return wide(MODELS[name]) if name in MODELS else small(name)


def write(path: Path, metadata: Metadata, tensors: Mapping[str, Tensor]) -> None:
    """A GGUF file with a hole where the weights would be."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def stored(data: Any, kind: ValueType) -> bytes:
        return text(data) if kind is ValueType.STRING else struct.pack("<" + zoo.NUMBERS[kind], data)

    with path.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)))
        for key in metadata:
            value = metadata.value(key)
            file.write(text(key) + struct.pack("<I", value.type))
            if value.element is None:
                file.write(stored(value.data, value.type))
            else:
                file.write(struct.pack("<IQ", value.element, len(value.data)))
                file.write(b"".join(stored(item, value.element) for item in value.data))
        place = 0
        for name, tensor in tensors.items():
            number, size = TYPES[tensor.format.name]
            shape = tensor.shape
            file.write(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], number, place))
            place += -(-prod(shape) * size // 32) * 32
        file.write(bytes(-file.tell() % 32))
        file.truncate(file.tell() + place)


def attention(heads: int, kv_heads: Any, width: int) -> dict[str, Any]:
    """Keys of attention."""
    return {
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": width,
        "attention.value_length": width,
        "rope.dimension_count": width,
    }


def body(width: int, ffn: Any, context: int = 131072) -> dict[str, Any]:
    """Keys of widths."""
    return {"context_length": context, "embedding_length": width, "feed_forward_length": ffn}


def every(period: int, count: int, one: Any, others: Any) -> list[Any]:
    """`one` in the last layer of each period, `others` else."""
    return [one if i % period == period - 1 else others for i in range(count)]


LATENT = {"attention.key_length": 576, "attention.value_length": 512, "attention.key_length_mla": 192}
LATENT |= {"attention.value_length_mla": 128, "attention.kv_lora_rank": 512, "rope.dimension_count": 64}


def latent(heads: int, **more: Any) -> dict[str, Any]:
    """Keys of DeepSeek's attention."""
    return {"attention.head_count": heads, **LATENT, **{f"attention.{key}": value for key, value in more.items()}}


def experts(count: int, used: int, ffn: int, **more: int) -> dict[str, Any]:
    """Keys of experts."""
    return {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": ffn, **more}


def states(inner: int, state: int, steps: int, groups: int | None = None) -> dict[str, Any]:
    """Keys of state spaces."""
    own = {"ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": steps, "ssm.conv_kernel": 4}
    return own if groups is None else {**own, "ssm.group_count": groups}


MODELS = {  # widths of published models, with fewer layers
    "llama-2-7b": Wide("llama2-spm", (0,) * 4, body(4096, 11008, 4096) | attention(32, 32, 128), {"vocabulary": 32000}),
    "llama-3.2-1b": Wide(
        "llama3-gqa-rope-tied", (0,) * 4, body(2048, 8192) | attention(32, 8, 64), {"vocabulary": 128256}
    ),
    "qwen2.5-7b": Wide("qwen2", (0,) * 4, body(3584, 18944) | attention(28, 4, 128), {"vocabulary": 152064}),
    "qwen3-8b": Wide("qwen3", (0,) * 4, body(4096, 12288, 40960) | attention(32, 8, 128), {"vocabulary": 151936}),
    "phi-3-mini": Wide(
        "phi3",
        (0,) * 4,
        body(3072, 8192, 4096) | attention(32, 32, 96) | {"attention.sliding_window": 2047},
        {"vocabulary": 32064},
    ),
    "gemma-2-2b": Wide(
        "gemma2",
        (0,) * 6,
        body(2304, 9216, 8192) | attention(8, 4, 256) | {"attention.sliding_window": 4096},
        {"vocabulary": 256000},
    ),
    "gemma-3-4b": Wide(
        "gemma3",
        (0,) * 12,
        body(2560, 10240) | attention(8, 4, 256) | {"attention.sliding_window": 1024},
        {"vocabulary": 262144},
    ),
    "gemma-3n-e4b": Wide(
        "gemma3n",
        (0,) * 22,
        body(2048, [16384] * 22, 32768)
        | attention(8, 2, 256)
        | {
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": every(5, 22, False, True),
            "attention.shared_kv_layers": 2,
            "activation_sparsity_scale": [1.644] * 10 + [float("-inf")] * 12,
        },
        {"vocabulary": 262400},
    ),
    "gemma-4-e": Wide(
        "gemma4-e",
        tuple(3 if i % 5 == 4 else 0 for i in range(10)),
        body(1536, [6144] * 5 + [12288] * 5)
        | attention(8, 1, 512)
        | {
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": every(5, 10, False, True),
            "attention.shared_kv_layers": 5,
            "embedding_length_per_layer_input": 256,
            "attention.key_length_swa": 256,
            "attention.value_length_swa": 256,
            "rope.dimension_count_swa": 256,
        },
        {"vocabulary": 262144},
    ),
    "gpt-oss-20b": Wide(
        "gpt-oss-bf16",
        (0,) * 4,
        body(2880, 2880) | attention(64, 8, 64) | experts(32, 4, 2880) | {"attention.sliding_window": 128},
        {"vocabulary": 201088},
    ),
    "mixtral-8x7b": Wide(
        "mixtral",
        (0,) * 3,
        body(4096, 14336, 32768) | attention(32, 8, 128) | experts(8, 2, 14336),
        {"vocabulary": 32000},
    ),
    "qwen3-30b-a3b": Wide(
        "qwen3-moe",
        (0,) * 4,
        body(2048, 6144, 40960) | attention(32, 4, 128) | experts(128, 8, 768),
        {"vocabulary": 151936},
    ),
    "deepseek-v2-lite": Wide(
        "deepseek-v2-lite-27l",
        (0, *[1] * 26),
        body(2048, 10944, 163840) | latent(16) | experts(64, 6, 1408, expert_shared_count=2),
        {"vocabulary": 102400, "shared_ffn": 2816},
    ),
    "deepseek-v3": Wide(
        "deepseek-v3",
        (0, 0, 0, 1, 1, 1),
        body(7168, 18432, 163840)
        | latent(128, q_lora_rank=1536)
        | experts(256, 8, 2048, expert_shared_count=1)
        | {"expert_group_count": 8, "expert_group_used_count": 4, "leading_dense_block_count": 3},
        {"vocabulary": 129280, "shared_ffn": 2048},
    ),
    "mamba-2.8b": Wide("mamba", (0,) * 4, {"embedding_length": 2560, **states(5120, 16, 160)}, {"vocabulary": 50280}),
    "mamba2-2.7b": Wide(
        "mamba2", (0,) * 4, {"embedding_length": 2560, **states(5120, 128, 80, 1)}, {"vocabulary": 50288}
    ),
    "qwen3-next-80b": Wide(
        "qwen3-next",
        (0, 0, 0, 3) * 2,
        body(2048, 5120, 262144)
        | attention(16, 2, 256)
        | experts(512, 10, 512, expert_shared_feed_forward_length=512)
        | states(4096, 128, 32, 16)
        | {
            "rope.dimension_count": 64,
            "nextn_predict_layers": 0,
            "attention.recurrent_layers": every(4, 8, False, True),
        },
        {"vocabulary": 151936},
    ),
    "granite-4-h-tiny": Wide(
        "granite-hybrid",
        tuple(1 if i == 5 else 0 for i in range(8)),
        body(1536, 512)
        | attention(12, [4 if i == 5 else 0 for i in range(8)], 128)
        | experts(64, 6, 512, expert_shared_feed_forward_length=1024)
        | states(3072, 128, 48, 1),
        {"vocabulary": 100352},
    ),
    "jamba-mini": Wide(
        "jamba",
        (0, 1, 0, 3, 0, 3, 0, 3),
        body(4096, 14336, 262144)
        | {"attention.head_count": 32, "attention.head_count_kv": [0, 8, 0, 0, 0, 0, 0, 0]}
        | {"expert_count": 16, "expert_used_count": 2}
        | states(8192, 16, 256),
        {"vocabulary": 65536, "expert_ffn": 14336},
    ),
    "falcon-h1-1.5b": Wide(
        "falcon-h1", (0,) * 4, body(2048, 4096) | attention(8, 2, 128) | states(3072, 256, 48, 1), {"vocabulary": 65537}
    ),
    "lfm2-1.2b": Wide(
        "lfm2",
        (0, 0, 1, 0, 0, 1),
        body(2048, 8192)
        | {"attention.head_count": 32, "attention.head_count_kv": [0, 0, 8, 0, 0, 8], "shortconv.l_cache": 3},
        {"vocabulary": 65536},
    ),
    "rwkv-7-1.5b": Wide(
        "rwkv7",
        (0, *[1] * 3),
        body(2048, 8192)
        | {
            "attention.decay_lora_rank": 96,
            "attention.iclr_lora_rank": 64,
            "attention.value_residual_mix_lora_rank": 64,
            "attention.gate_lora_rank": 256,
        },
        {"vocabulary": 65536, "value_rank": 64},
    ),
    "rwkv-6-1.6b": Wide("rwkv6", (0,) * 4, body(2048, 7168), {"vocabulary": 65536}),
    "nemotron-h-8b": Wide(
        "nemotron-h",
        (0, 1, 3, 1, 0, 1),
        body(4096, [0, 21504, 0, 21504, 0, 21504]) | attention(32, [0, 0, 8, 0, 0, 0], 128) | states(8192, 128, 128, 8),
        {"vocabulary": 131072},
    ),
}
