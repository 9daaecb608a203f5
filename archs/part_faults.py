"""Parts of a layer: which there are, the sizes that keys give, and tensors of other shapes than these mean."""

from collections.abc import Iterable, Iterator

from . import parts
from .hyper import Hyper, LayerHyper
from .layer_kinds import ARRANGEMENTS, MIXERS, NETS, LayerKind, tensors_of
from .layered import Fault, LayeredModel, Roles, is_zero, missing
from .parts import Alternatives, Part, evaluated, full_name, has, unknown

INTEGERS = ("I8", "I16", "I32", "I64")
# Sizes that keys give. A tensor shows those that are missing or 0.
SIZES = {
    "experts": "expert_count", "expert_ffn": "expert_feed_forward_length",
    "shared_ffn": "expert_shared_feed_forward_length", "steps": "ssm.time_step_rank", "inner": "ssm.inner_size",
    "state": "ssm.state_size", "taps": "ssm.conv_kernel", "cached": "shortconv.l_cache",
    "latent": "attention.kv_lora_rank", "q_rank": "attention.q_lora_rank", "key_mla": "attention.key_length_mla",
    "value_mla": "attention.value_length_mla", "per_layer": "embedding_length_per_layer_input",
    "copies": "altup.num_inputs", "buckets": "attention.relative_buckets_count", "groups": "ssm.group_count",
    "routed": "moe_latent_size", "kda": "kda.head_dim", "index_heads": "attention.indexer.head_count",
    "index_key": "attention.indexer.key_length", "wkv": "wkv.head_size", "decay_rank": "attention.decay_lora_rank",
    "rate_rank": "attention.iclr_lora_rank",
    "wkv_gate": "attention.gate_lora_rank", "mix_rank": "time_mix_extra_dim",
    "fading_rank": "time_decay_extra_dim",
    "streams": "hyper_connection.count", "adapters": "adapters.count", "lora": "adapters.lora_rank",
    "mixer_rank": "hyper_connection.low_rank", "ngram_taps": "ple.conv_kernel",
    "pool": "attention.indexer.kpool", "o_groups": "attention.output_group_count",
    "o_rank": "attention.output_lora_rank", "channels": "posnet.embedding_length", "features": "features_length",
    "norm_groups": "attention.group_norm_groups",
}  # fmt: skip
Sizes = dict[str, int]


def parts_of(model: LayeredModel, start: str, own: LayerHyper, kind: LayerKind | None) -> Iterator[tuple[str, Part]]:
    """What the layer is made of, with what a family declares it by, "" for what it does not declare.

    kind: of a decoder's or encoder's layer.
    """
    roles = model.grouped[start]
    if model.encoder_decoder:
        yield "", parts.ENCODER if start.startswith("enc") else parts.DECODER
    elif kind is None:
        yield "", next((part for part in parts.SOUND_PARTS if part.shown_by(roles)), parts.SOUND_END)
    else:
        yield "", parts.NORMS
        declared = MIXERS[kind.mixer], NETS[kind.net], ARRANGEMENTS[kind.arrangement]
        for name, made_of in zip((kind.mixer, kind.net, kind.arrangement), declared, strict=True):
            for part in made_of:
                yield name, _variant(part, roles, own, model.architecture.block.gated)
        for part in parts.OPTIONAL:
            if part.shown_by(roles):
                yield "", _variant(part, roles, own, model.architecture.block.gated)


def _variant(part: Part, roles: Roles, own: LayerHyper, gated: bool) -> Part:
    """The part as a layer with these tensors has it."""
    if part is parts.ATTENTION and own.kv_source_layer is not None:
        return parts.BORROWING
    if part is parts.WKV7 and "time_mix_g1.weight" not in roles:
        return parts.WKV7_WITHOUT_GATE
    if part is parts.KIMI_DELTA:
        return parts.kimi_delta("ssm_f_b.weight" in roles, "ssm_g_b.weight" in roles)
    if part is parts.DENSE and has(roles, "ffn_norm_exps"):
        return parts.SQUARE
    if part is parts.DENSE and gated and "ffn_gate.weight" not in roles:
        return parts.FUSED_DENSE
    if part is parts.SHARED_EXPERT and gated and "ffn_gate_shexp.weight" not in roles:
        return parts.FUSED_SHARED
    return part


def sizes_of(model: LayeredModel, numbers: Hyper, index: int) -> Sizes:
    """What keys say of a layer."""
    own = numbers.layers[min(index, len(numbers.layers) - 1)]
    sizes = {name: value for name, key in SIZES.items() if (value := int(model.keys.stored_of_layer(key, index) or 0))}
    if width := net_width(model, index):
        sizes["ffn"] = width
    heads, groups, inner = own.heads, sizes.setdefault("groups", 1), sizes.get("inner", 0)
    if "steps" in sizes:
        sizes["head_inner"] = inner // sizes["steps"]
    if own.window is not None:
        for name in ("latent", "key_mla", "value_mla"):
            if (local := model.keys.stored(f"{SIZES[name]}_swa")) is not None:
                sizes[name] = int(local)
        sizes = {name: size for name, size in sizes.items() if size}
    if "key_mla" in sizes:
        sizes["plain"] = sizes["key_mla"] - own.rope_width
    if each := int(model.keys.get("experts_per_group")):
        sizes["groups_of_experts"] = sizes.get("experts", 0) // each
    if "altup_proj.weight" in model.outside:
        sizes["others"] = model.outside["altup_proj.weight"].shape[0]
        sizes["copies"] = sizes["others"] + 1
    if most := int(model.keys.get("ple.ngram_size") or 0):
        sizes["looked_up"] = (most - 1) * int(model.keys.get("ple.heads_per_ngram") or 0) * sizes.get("per_layer", 0)
    if not has(model.grouped.get(f"blk.{index}.", {}), "ffn_latent_down ffn_routed_down"):
        sizes["routed"] = numbers.width
    if "wkv" in sizes:
        sizes["wkv_heads"] = numbers.width // sizes["wkv"]
        sizes["wkv_keys"] = own.kv_heads * sizes["wkv"] or numbers.width
    return sizes | {
        "width": numbers.width, "layers": len(numbers.layers), "heads": heads, "kv_heads": own.kv_heads,
        "key": own.key_width, "value": own.value_width, "rotated": own.rope_width, "group_inner": inner // groups,
        "queries": heads * own.key_width * (2 if "gates" in model.architecture.block.qkv_steps else 1),
        "keys": own.kv_heads * own.key_width, "values": own.kv_heads * own.value_width,
        "mixed": heads * own.value_width,
    }  # fmt: skip


def net_width(model: LayeredModel, index: int) -> int:
    """The width of a layer's net; 0 where no key gives it."""
    value = model.keys.get("feed_forward_length")
    width = int(value if not hasattr(value, "__len__") else value[index] if index < len(value) else 0)
    return width // 2 if model.architecture.block.length_of_both else width


def contradictions(start: str, roles: Roles, declared: Iterable[tuple[str, Part]]) -> Iterator[Fault]:
    """What a layer is declared by its family and the keys, and has none of the tensors of."""
    for name, part in declared:
        if name and not part.shown_by(roles):
            first = next(iter(_lacking(roles, part)), full_name(part.marks.split()[0]))
            yield Fault(start[:-1], f"is declared {name!r} by the keys, but has no tensor '{start}{first}'")


def unread_tensors(start: str, roles: Roles, kind: LayerKind) -> Iterator[Fault]:
    """Tensors of other mixers, nets or arrangements than the layer has, which nothing would read."""
    made_of = (*MIXERS[kind.mixer], *NETS[kind.net], *ARRANGEMENTS[kind.arrangement], parts.NORMS)
    read = tensors_of(made_of) | {full_name(name) for part in made_of for name in part.ignored.split()}
    others = tensors_of(*MIXERS.values(), *NETS.values(), *ARRANGEMENTS.values())
    if kind.net.startswith("experts"):
        read |= tensors_of(parts.WITH_EXPERTS)
    for role in sorted((others | tensors_of(parts.WITH_EXPERTS)) & roles.keys() - read):
        made = f"mixer {kind.mixer!r}, net {kind.net!r}, arrangement {kind.arrangement!r}"
        yield Fault(f"{start}{role}", f"is there, but nothing reads it: by the keys, its layer has {made}")


def _lacking(roles: Roles, part: Part) -> list[str]:
    """Tensors that the part cannot do without."""
    needed = ([full_name(name) for name in group.split("|")] for group in part.needs.split())
    return [names[0] for names in needed if not any(name in roles for name in names)]


def part_faults(model: LayeredModel, start: str, roles: Roles, part: Part, sizes: Sizes) -> Iterator[Fault]:
    """Keys and tensors that a part lacks, and tensors of other shapes or formats than it has."""
    for key in part.keys.split():
        if (value := model.keys.stored(key)) is None or is_zero(value):
            yield model.fault(key, f"is {'missing' if value is None else value}; {start}* needs it to be 1 or more")
    yield from (missing(f"{start}{name}") for name in _lacking(roles, part))
    for role, alternatives in part.table.items():
        tensor = roles.get(role)
        if tensor is None:
            continue
        name = f"{start}{role}"
        # ggml does not count outer dimensions of 1: what quantized a file may have stored (1, 64) as (64,)
        shape = (1, *tensor.shape) if role == "token_types.weight" and len(tensor.shape) == 1 else tensor.shape
        if not _matches(shape, alternatives, sizes):
            wanted = " or ".join(_written_shape(each, sizes) for each in alternatives)
            yield Fault(name, f"has shape {list(tensor.shape)}; the model's keys and other tensors mean {wanted}")
        elif tensor.format.name in INTEGERS or not tensor.format.has_codec:
            yield Fault(name, f"is {tensor.format.name}; floats or blocks that can be decoded are expected")


def _matches(shape: tuple[int, ...], alternatives: Alternatives, sizes: Sizes) -> bool:
    """Whether a shape is one of those; sizes that only it tells are added."""
    for dimensions in alternatives:
        if len(dimensions) != len(shape) or min(shape, default=0) < 1:
            continue
        told: Sizes = {}
        for size, terms in zip(shape, dimensions, strict=True):
            known = {**sizes, **told} if told else sizes
            wanted, open_size = evaluated(terms, known), unknown(terms, known)
            if open_size is not None and size % open_size[1] == 0:
                told[open_size[0]] = size // open_size[1]
            elif open_size is not None or wanted not in (None, size):
                break
        else:
            sizes |= told
            return True
    return False


def _written_shape(dimensions: tuple[parts.Terms, ...], sizes: Sizes) -> str:
    """[64 (queries), 32 (width)]"""
    words = ["+".join("*".join((str(n),) * (n > 1 or not names) + names) for n, names in terms) for terms in dimensions]
    numbers = [evaluated(terms, sizes) for terms in dimensions]
    pairs = zip(numbers, words, strict=True)
    return f"[{', '.join(word if number is None else f'{number} ({word})' for number, word in pairs)}]"
