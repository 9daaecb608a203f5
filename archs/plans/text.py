"""Plan a text model's file: architecture + checkpoint → metadata and lazily transformed tensors. Unknown tensors are
refused.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quants import Tensor
from quants.errors import ModelError

from ..classifier_heads import check_labels
from ..config import lookup, normalized, required, rope_scaling
from ..general import general, pooling_type
from ..hparams.config_keys import KEYS, TOKEN
from ..hparams.file_keys import Keys
from ..metadata import Metadata
from ..prequantized import method_of, settings_of, unpacked, with_settings_file
from ..registry import of_config
from ..rope import BY_KEY, BY_TENSOR, ROPE_TYPES
from ..schema import F32, MODEL, U64
from ..spec import ACTIVATIONS, Architecture, Config, PerLayerScalars, Target, TensorMap, Tensors
from ..transforms import stacked, transpose
from ..typed_json import FieldType, ListOf, read_fields
from ..validation.model_validators import check_shapes
from ..vocab import add_control_tokens, vocabulary
from ..vocab.chat import add_template
from ..vocab.ends import SUPPRESSED, ends, suppressed_ids

NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
PLACE = re.compile(r"\{\w\}")
SUFFIX = re.compile(r"\.(weight|bias)$")
MTP_TENSOR = re.compile(r"(model\.|language_model\.)*mtp(_\w+)?\..+")  # MTP layers, if not `layers.N`

# Changes of a checkpoint's tensors (by their source names, dequantized) before they are mapped.
Change = Callable[[Architecture, Config, Tensors], Tensors]

# Unused buffers, in any family, and encoders, which have no place in a text model's file.
IGNORED = (
    "*.rotary_emb.inv_freq",
    "*.attention.rotary_emb.*",
    "*.masked_bias",
    "*.position_ids",
    "*.rotary_emb.cos_cached",
    "*.rotary_emb.sin_cached",
)
LEFT_OUT = (
    "*vision_tower.*",
    "*vision_model.*",
    "visual.*",
    "*.visual.*",
    "*multi_modal_projector.*",
    "*audio_tower.*",
    "*mm_projector*",
    "*vit_large_projector*",
    "*vision_embed_tokens*",
    "*image_newline*",
    "*.connector.*",
    "*embed_vision.*",
    "*embed_audio.*",
    "*sam_model.*",
    "*qwen2_model.*",
    "*.projector.*",
    "*view_seperator*",
    "*patch_merge_mlp*",
    "mlp_AR.*",
    "vit.*",
    "merger.*",
    "model.merger.*",
    "talker.*",
    "token2wav.*",
    "code2wav.*",
    "model.vision.*",
    "*vqmodel.*",
    "*generation_embeddings*",
    "*generation_aligner*",
    "*generation_head*",
    "*aligner.fc1*",
    "*aligner.hidden_layers*",
    "linear_proj.*",
    "mlp1.*",
    "*layerwise_projectors.*",
    "*spatial_projectors.*",
    "*vision_adapter.*",
    "*vision_projection.*",
)

FLOAT32_MAX = float(np.finfo(np.float32).max)
# Keys that are read of generation_config.json.
GENERATION: dict[str, FieldType] = {
    "eos_token_id": KEYS["eos_token_id"],
    "suppress_tokens": ListOf(TOKEN),
    "bad_words_ids": ListOf(ListOf(TOKEN)),
}
NEEDED = ("block_count", "context_length", "embedding_length")  # required of every model, and above 0

# GGUF names of tensors that stay float32 in every output type.
FLOAT32_NAMES = (
    "*_norm.weight",
    "*ffn_gate_inp*",
    "position_embd.weight",
    "token_types.weight",
    "*ssm_conv1d*",
    "*shortconv.conv*",
    "*indexer.proj.weight",
    "*time_mix_first*",
    "*time_mix_w1*",
    "*time_mix_w2*",
    "*time_mix_decay_w1*",
    "*time_mix_decay_w2*",
    "*time_mix_lerp_fused*",
    "*.bias",
    "*.ssm_a",
    "*.ssm_d",
)


@dataclass(frozen=True)
class Plan:
    """A checkpoint as the GGUF model that it will be: only headers are read yet.

    metadata: all but `general.file_type`, which depends on the formats chosen. ignored: unused source tensors;
    left_out: those of parts without a place in this file (vision encoders, MTP layers). packed: the method that
    quantized the checkpoint's weights, "" for plain weights.
    """

    architecture: Architecture
    metadata: Metadata
    tensors: dict[str, Tensor]
    ignored: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    packed: str = ""


def plan(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Tensors,
    generation_config: Mapping[str, Any] | None = None,
    *,
    pre: str | None = None,
    embed_tokenizer: bool = False,
    change: Change | None = None,
    tokenizer: Path | None = None,
) -> Plan:
    """Plan the conversion of a checkpoint in `folder` (for tokenizer and model card; tensors come as given).

    pre: the pre-tokenizer's GGUF name, where its structure does not tell. embed_tokenizer: also keep tokenizer.json
        itself in the file. change: what is done to the checkpoint's tensors first. tokenizer: its folder, if another.
    Raises ModelError for an unknown class, tensors without a rule or of a wrong shape, VocabularyError.
    """
    architecture = of_config(config)
    full = with_settings_file(folder, normalized(config, architecture.defaults, architecture.keys, tensors))
    if architecture.prepare:
        full, tensors = architecture.prepare(full, tensors)
    mapped = map_tensors(architecture, full, tensors, change)
    for key in NEEDED:
        if isinstance(source := architecture.metadata[key], str):
            required(full, source)
    metadata = general(folder, architecture.name, mapped.tensors.values())
    for key, value in (architecture_metadata(architecture, full) | mapped.metadata(architecture)).items():
        metadata[key] = value
    check_labels(metadata.get(f"{architecture.name}.classifier.output_labels"), mapped.tensors)
    if pooling := pooling_type(folder):
        metadata[f"{architecture.name}.pooling_type"] = pooling
    check_shapes(architecture, metadata, mapped.tensors)
    embedding = mapped.tensors["token_embd.weight"]
    count = embedding.shape[0]
    if (vocab_size := metadata.get(f"{architecture.name}.vocab_size", count)) != count:
        raise ModelError(f'config.json: "vocab_size" is {vocab_size}; {embedding.where} has {count} rows')
    generation_config = read_fields(generation_config or {}, GENERATION, "generation_config.json")
    extra_tokens = architecture.extra_tokens(full) if architecture.extra_tokens else ()
    decision = full.get("decision") or {}
    words = vocabulary(
        (tokenizer or folder) / (decision.get("folder") or ""),
        architecture.vocab,
        full,
        count - len(extra_tokens),
        pre,
        generation_config,
        extra={**architecture.vocab_keys, **(decision.get("vocab") or {})},
        user_defined=architecture.vocab_user_defined,
        embed=embed_tokenizer,
    )
    add_control_tokens(words, extra_tokens)
    for key in words:
        if key not in architecture.metadata:
            metadata[key] = words.value(key)
    if template := decision.get("template"):
        add_template(metadata, "systemone", template)
    if barred := suppressed_ids(generation_config, ends(words)):
        metadata[SUPPRESSED] = barred
    packed = method_of(settings) if (settings := settings_of(full)) else ""
    return Plan(architecture, metadata, mapped.tensors, mapped.ignored, mapped.left_out, packed)


def architecture_metadata(architecture: Architecture, config: Config) -> dict[str, Any]:
    """Return the family's keys with plain values, to be stored as the schema says.

    Raises ModelError for a variant that these keys cannot express.
    """
    for key, wrong in architecture.refused.items():
        value = config.get(key)
        if wrong(value) if callable(wrong) else value == wrong:
            raise ModelError(f"config.json has {key} = {value!r}, which {architecture.name} files cannot express")
    metadata: dict[str, Any] = {}
    for key, source in architecture.metadata.items():
        if source is None:
            continue
        value = source(config) if callable(source) else lookup(config, source)
        if value is not None:
            metadata[full_key(architecture, key)] = _stored(key, value)
    metadata |= _none_values(architecture, metadata)
    if not metadata.get(f"{architecture.name}.expert_count") and metadata.get(f"{architecture.name}.expert_used_count"):
        metadata.pop(f"{architecture.name}.expert_used_count")  # left over in configs of dense models
    activation = lookup(config, architecture.activation) if architecture.activation else None
    if activation is not None and activation not in ACTIVATIONS:
        raise ModelError(f"activation {activation!r} in config.json is not one of {', '.join(ACTIVATIONS)}")
    if activation is not None and ACTIVATIONS[activation] != architecture.block.activation:
        metadata[f"{architecture.name}.hidden_activation"] = activation
    return metadata


def _none_values(architecture: Architecture, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that mean "none" for keys copied from the config, where a file without them would mean
    something else.
    """
    keys, values = Keys.of(architecture, metadata), {}
    for key in architecture.absent:
        copied = isinstance(architecture.metadata.get(key), str)
        if copied and full_key(architecture, key) not in metadata and keys.of_family(key) is not None:
            usual = keys.usual(key)
            values[full_key(architecture, key)] = _stored(key, 0 if usual is None else usual)
    return values


def full_key(architecture: Architecture, key: str) -> str:
    """Return a key with the architecture's name in front, if it needs that."""
    return key if key.startswith(("general.", "xielu.", "diffusion.", "tokenizer.")) else f"{architecture.name}.{key}"


def _stored(key: str, value: Any) -> Any:
    """Return a value in its key's type, integers in 32 bits. Raises ModelError for one that does not fit."""
    value, listed = value.item() if isinstance(value, np.generic) else value, isinstance(value, (list, tuple))
    known = MODEL.get(key)
    minimum = int(known.minimum) if known and known.minimum is not None and known.minimum < 0 else int(key in NEEDED)
    limit = 2**63 if known and known.type is U64 else 2**31 if listed else 2**32
    if isinstance(value, float) and not abs(value) <= FLOAT32_MAX:
        raise ModelError(f"config.json makes {key} {value}, which no float32 can be")
    for each in value if listed else [value]:
        if type(each) is int and not minimum <= each < limit:
            raise ModelError(f"config.json makes {key} {each}; a number from {minimum} to {limit - 1} was expected")
    return float(value) if known and known.type is F32 and not listed else value


@dataclass
class Mapped:
    """Tensors by GGUF name, those that become metadata (by key and layer), and those that are dropped.

    stacks: experts to be stacked into one tensor each, by their number, with their common rule.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    stacks: dict[str, tuple[TensorMap, dict[int, Tensor]]] = field(default_factory=dict)

    def metadata(self, architecture: Architecture) -> dict[str, list[float]]:
        """Return the arrays whose numbers are stored as tensors, one a layer."""
        return {
            full_key(architecture, key): [float(of_layer[i].float32().reshape(-1)[0]) for i in sorted(of_layer)]
            for key, of_layer in self.numbers.items()
        }


def _refuse_lost_rotation(architecture: Architecture, config: Config, generated: Mapping[str, Tensor]) -> None:
    """Raise ModelError if files of the family cannot express the config's rotary scaling."""
    block, rope_type = architecture.block, rope_scaling(config, "rope_type")
    if rope_type not in ROPE_TYPES or block.rope == "none" or block.alibi:
        return
    if rope_type in BY_TENSOR:
        expressed = BY_TENSOR[rope_type] in generated
    else:
        expressed = any(architecture.metadata.get(key) is not None for key in BY_KEY)
    if not expressed or (block.rope_layers == "windowed" and not block.scales_windowed_rope):
        problem = f"config.json scales its rotation as {rope_type} does, which files of {architecture.name} do not say"
        raise ModelError(problem)


def map_tensors(
    architecture: Architecture, config: Config, tensors: Tensors, change: Change | None = None, whole: bool = True
) -> Mapped:
    """Map every source tensor by its rule. Raises ModelError naming those that no rule covers.

    whole: these are all tensors of a model, so that embedding and layers must be there.
    """
    plain = unpacked(config, tensors)
    count = layer_count(architecture, config)
    rules = rules_of(architecture.tensors)
    result, unknown = Mapped(ignored=plain.ignored), list[str]()
    for generate in architecture.generated:
        result.tensors |= {t.name: t for t in generate(config)}
    _refuse_lost_rotation(architecture, config, result.tensors)
    sources = _as_stored_plainly(architecture, config, tensors, plain.tensors)
    sources = change(architecture, config, sources) if change else sources
    for name, tensor in sources.items():
        if is_left_out(name):
            result.left_out.append(name)
            continue
        bare = without_prefix(name, architecture.prefixes)
        if _matches(bare, architecture.ignored) or _matches(name, IGNORED):
            result.ignored.append(name)
            continue
        numbers = [int(n) for n in NUMBER.findall("." + bare)]
        if bare.startswith("layers.") and numbers and numbers[0] >= count:
            # left out if the config says that they are MTP layers (DeepSeek)
            if numbers[0] >= count + int(config.get("num_nextn_predict_layers") or 0):
                hint = "config.json and weights belong to different models"
                raise ModelError(f"config.json says {count} layers; the checkpoint has {name!r}", hint)
            result.left_out.append(name)
            continue
        rule = rule_of(rules, bare)
        if rule is None:
            is_mtp = not architecture.draft and MTP_TENSOR.fullmatch(name)
            (result.left_out if is_mtp else unknown).append(name)
        elif isinstance(rule[0], PerLayerScalars):
            result.numbers.setdefault(rule[0].key, {})[numbers[0]] = tensor
        else:
            for each in maps_of(rule[0]):
                place(each, rule[1], numbers, tensor, config, result)
    if unknown:
        more = f" and {len(unknown) - 1} more tensors" if len(unknown) > 1 else ""
        hint = "the checkpoint is of another variant, or is quantized in a way this version does not read"
        family = f"{architecture.name} ({', '.join(architecture.hf_classes)})"
        raise ModelError(f"{family} has no rule for {unknown[0]!r}{more}", hint)
    stack_experts(result, config)
    if whole:
        _check_layers(architecture, config, result)
    return result


def stack_experts(result: Mapped, config: Config) -> None:
    """Stack experts stored one by one into one tensor each. Raises ModelError if one is missing."""
    for name, (stack, parts) in result.stacks.items():
        if missing := sorted(set(range(max(parts) + 1)) - set(parts)):
            raise ModelError(f"{name!r} lacks the expert{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}")
        tensor = stacked([parts[i] for i in range(len(parts))], name)
        result.tensors[name] = stack.transform(tensor, config).renamed(name)


def targets(architecture: Architecture, config: Config, name: str) -> list[tuple[TensorMap, str]]:
    """Return the targets of the source tensor `name`: each rule with its GGUF name; empty if there is no rule."""
    bare = without_prefix(name, architecture.prefixes)
    target, suffix = rule_of(rules_of(architecture.tensors), bare) or (None, "")
    numbers = [int(n) for n in NUMBER.findall("." + bare)]
    return [(each, _target_name(each, suffix, numbers, config)) for each in maps_of(target)]


def unplaced(architecture: Architecture, config: Config, tensors: Tensors) -> list[str]:
    """Return the names of the source tensors that a text model's family has no rule for."""
    if architecture.prepare:
        config, tensors = architecture.prepare(config, tensors)
    rules, count = rules_of(architecture.tensors), layer_count(architecture, config)
    mtp_layers = range(count, count + int(config.get("num_nextn_predict_layers") or 0))

    def is_known(name: str) -> bool:
        bare = without_prefix(name, architecture.prefixes)
        if bare.startswith("layers.") and (number := NUMBER.search("." + bare)) and int(number[0]) in mtp_layers:
            return True  # as in the conversion of the text model
        ignored = _matches(bare, architecture.ignored) or _matches(name, IGNORED)
        return ignored or rule_of(rules, bare) is not None or bool(MTP_TENSOR.fullmatch(name))

    return [name for name in tensors if not is_known(name)]


def _as_stored_plainly(architecture: Architecture, config: Config, stored: Tensors, whole: Tensors) -> Tensors:
    """Return weights from quantized parts in the orientation that the family stores.

    Libraries that quantize make each layer a linear one, (outputs, inputs), also where it was a GPT-2's (in, out).
    """
    every = (rule for target in architecture.tensors.values() for rule in maps_of(target))
    if not any(rule.transform is transpose for rule in every):
        return whole

    def turned(name: str, tensor: Tensor) -> bool:
        rules = [] if stored.get(name) is tensor else targets(architecture, config, name)
        return any(rule.transform is transpose for rule, _ in rules)

    return {name: transpose(tensor, config) if turned(name, tensor) else tensor for name, tensor in whole.items()}


def is_left_out(name: str) -> bool:
    """Return whether a source tensor belongs to a part without a place in a text model's file."""
    return _matches(name, LEFT_OUT)


def rules_of(tensors: Mapping[str, Target]) -> dict[str, Target]:
    """Return targets by the pattern that `rule_of` looks up."""
    return {PLACE.sub("#", pattern): target for pattern, target in tensors.items()}


def rule_of(rules: Mapping[str, Target], bare: str) -> tuple[Target, str] | None:
    """Return the rule of a source name and the suffix that carries over; an exact rule goes first and carries none.

    Numbers match the rule's placeholders, or all but the first match literally.
    """
    for places in (0, 1):
        key = NUMBER.sub("#", "." + bare, count=places)[1:]
        if key in rules:
            return rules[key], ""
        suffix = SUFFIX.search(key)
        if suffix and key[: suffix.start()] in rules:
            return rules[key[: suffix.start()]], suffix[0]
    return None


def maps_of(target: Target) -> tuple[TensorMap, ...]:
    """Return the maps of a source tensor; none for one that becomes metadata."""
    places = (TensorMap(target),) if isinstance(target, str) else target if isinstance(target, tuple) else (target,)
    return tuple(each for each in places if isinstance(each, TensorMap))


def _target_name(each: TensorMap, suffix: str, numbers: Sequence[int], config: Config) -> str:
    pattern = each.name if isinstance(each.name, str) else each.name(config)
    name = pattern.replace("{i}", str(numbers[0]) if numbers else "")
    name = name.replace("{j}", str(numbers[1])) if len(numbers) > 1 else name
    return name if SUFFIX.search(name) else name + suffix


def place(each: TensorMap, suffix: str, numbers: list[int], tensor: Tensor, config: Config, result: Mapped) -> None:
    """Store a source tensor under its rule's name. Raises ModelError if another one is there."""
    name = _target_name(each, suffix, numbers, config)
    if name == suffix:
        result.ignored.append(tensor.name)
        return
    if each.stack:
        result.stacks.setdefault(name, (each, {}))[1][numbers[-1]] = tensor
        result.tensors.setdefault(name, tensor)  # holds its position in the file's order
        return
    placed = each.transform(tensor, config)
    if (there := result.tensors.get(name)) is None:
        result.tensors[name] = placed.renamed(name)
    elif there.shape == placed.shape:
        result.ignored.append(tensor.name)
    else:
        raise ModelError(f"{tensor.origin} and {there.origin} both become {name!r}")


def layer_count(architecture: Architecture, config: Config) -> int:
    """Return how many layers a checkpoint with this config has."""
    source = architecture.stored_layers or architecture.metadata["block_count"]
    return int((source(config) if callable(source) else lookup(config, source or "")) or 0)


def _check_layers(architecture: Architecture, config: Config, result: Mapped) -> None:
    """Check that every layer is there, and (unless layers vary) with the same tensors."""
    if "token_embd.weight" not in result.tensors:
        owner = f"{architecture.name}'s token_embd.weight"
        raise ModelError(f"no tensor of the checkpoint becomes {owner}: the embedding is missing")
    if architecture.block.convolutions:
        return  # which `archs.validation.model_validators` requires
    layers: dict[int, set[str]] = {}
    for match in filter(None, (re.match(r"(?:enc\.)?blk\.(\d+)\.(.*)", name) for name in result.tensors)):
        layers.setdefault(int(match[1]), set()).add(match[2])
    count = layer_count(architecture, config)
    if "nextn_predict_layers" in architecture.metadata:  # which transformers omits when it saves such a model
        count -= config.get("num_nextn_predict_layers") or 0
    missing = sorted(set(range(count)) - set(layers))
    if missing:
        lacking = ", ".join(map(str, missing[:5]))
        raise ModelError(f"config.json says {count} layers; the checkpoint lacks layer {lacking}")
    if architecture.layers_vary:
        return
    union = set().union(*layers.values())
    for layer, names in sorted(layers.items()):
        if absent := sorted(union - names):
            raise ModelError(f"layer {layer} lacks {absent[0]!r}, which other layers have", "a shard may be missing")


def without_prefix(name: str, prefixes: Iterable[str]) -> str:
    """Return a source name without the wrappers in front ("model.language_model.layers.0…" → "layers.0…")."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in prefixes:
        parts.pop(0)
    return ".".join(parts)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def stays_float32(name: str, shape: tuple[int, ...], extra: Iterable[str] = ()) -> bool:
    """Return whether a tensor is float32 in every output type: vectors, norms, routers and other small ones."""
    return len(shape) < 2 or _matches(name, FLOAT32_NAMES) or _matches(name, extra)
