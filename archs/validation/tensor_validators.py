"""Parts of a layer: which it has, the sizes that keys give, and tensors with other shapes."""

from collections.abc import Iterable, Iterator

from .. import tensor_shapes
from ..hparams.model_hparams import HParams, LayerHParams
from ..layer_types import ARRANGEMENTS, MIXERS, NETS, LayerType, tensors_of
from ..layered import Fault, LayeredModel, Roles, is_zero, missing
from ..tensor_shapes import Alternatives, Part, evaluated, full_name, has, unknown

INTEGERS = ("I8", "I16", "I32", "I64")
# Sizes that keys give. Tensors show those that are missing or 0.
SIZES = {
    "experts": "expert_count",
    "expert_ffn": "expert_feed_forward_length",
    "shared_ffn": "expert_shared_feed_forward_length",
    "steps": "ssm.time_step_rank",
    "inner": "ssm.inner_size",
    "state": "ssm.state_size",
    "taps": "ssm.conv_kernel",
    "cached": "shortconv.l_cache",
    "latent": "attention.kv_lora_rank",
    "q_rank": "attention.q_lora_rank",
    "key_mla": "attention.key_length_mla",
    "value_mla": "attention.value_length_mla",
    "per_layer": "embedding_length_per_layer_input",
    "copies": "altup.num_inputs",
    "buckets": "attention.relative_buckets_count",
    "groups": "ssm.group_count",
    "routed": "moe_latent_size",
    "kda": "kda.head_dim",
    "index_heads": "attention.indexer.head_count",
    "index_key": "attention.indexer.key_length",
    "wkv": "wkv.head_size",
    "decay_rank": "attention.decay_lora_rank",
    "rate_rank": "attention.iclr_lora_rank",
    "wkv_gate": "attention.gate_lora_rank",
    "mix_rank": "time_mix_extra_dim",
    "fading_rank": "time_decay_extra_dim",
    "streams": "hyper_connection.count",
    "adapters": "adapters.count",
    "lora": "adapters.lora_rank",
    "mixer_rank": "hyper_connection.low_rank",
    "ngram_taps": "ple.conv_kernel",
    "pool": "attention.indexer.kpool",
    "o_groups": "attention.output_group_count",
    "o_rank": "attention.output_lora_rank",
    "channels": "posnet.embedding_length",
    "features": "features_length",
    "norm_groups": "attention.group_norm_groups",
}
Sizes = dict[str, int]


def parts_of(
    model: LayeredModel, start: str, own: LayerHParams, layer_type: LayerType | None
) -> Iterator[tuple[str, Part]]:
    """Return the parts of a layer, with the name by which a family declares each, "" for undeclared ones.

    layer_type: of a decoder's or encoder's layer.
    """
    roles = model.grouped[start]
    if model.encoder_decoder:
        yield "", tensor_shapes.ENCODER if start.startswith("enc") else tensor_shapes.DECODER
    elif layer_type is None:
        yield "", next((part for part in tensor_shapes.AUDIO_PARTS if part.shown_by(roles)), tensor_shapes.SOUND_END)
    else:
        yield "", tensor_shapes.NORMS
        declared = MIXERS[layer_type.mixer], NETS[layer_type.net], ARRANGEMENTS[layer_type.arrangement]
        for name, made_of in zip((layer_type.mixer, layer_type.net, layer_type.arrangement), declared, strict=True):
            for part in made_of:
                yield name, _variant(part, roles, own, model.architecture.block.gated)
        for part in tensor_shapes.OPTIONAL:
            if part.shown_by(roles):
                yield "", _variant(part, roles, own, model.architecture.block.gated)


def _variant(part: Part, roles: Roles, own: LayerHParams, gated: bool) -> Part:
    """Return the variant of a part that a layer with these tensors has."""
    if part is tensor_shapes.ATTENTION and own.kv_source_layer is not None:
        return tensor_shapes.BORROWING
    if part is tensor_shapes.WKV7 and "time_mix_g1.weight" not in roles:
        return tensor_shapes.WKV7_WITHOUT_GATE
    if part is tensor_shapes.KIMI_DELTA:
        return tensor_shapes.kimi_delta("ssm_f_b.weight" in roles, "ssm_g_b.weight" in roles)
    if part is tensor_shapes.DENSE and has(roles, "ffn_norm_exps"):
        return tensor_shapes.SQUARE
    if part is tensor_shapes.DENSE and gated and "ffn_gate.weight" not in roles:
        return tensor_shapes.FUSED_DENSE
    if part is tensor_shapes.SHARED_EXPERT and gated and "ffn_gate_shexp.weight" not in roles:
        return tensor_shapes.FUSED_SHARED
    return part


def sizes_of(model: LayeredModel, hparams: HParams, index: int) -> Sizes:
    """Return the sizes of a layer that keys give."""
    own = hparams.layers[min(index, len(hparams.layers) - 1)]
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
    if ngram_size := int(model.keys.get("ple.ngram_size") or 0):
        sizes["looked_up"] = (
            (ngram_size - 1) * int(model.keys.get("ple.heads_per_ngram") or 0) * sizes.get("per_layer", 0)
        )
    if not has(model.grouped.get(f"blk.{index}.", {}), "ffn_latent_down ffn_routed_down"):
        sizes["routed"] = hparams.width
    if "wkv" in sizes:
        sizes["wkv_heads"] = hparams.width // sizes["wkv"]
        sizes["wkv_keys"] = own.kv_heads * sizes["wkv"] or hparams.width
    return sizes | {
        "width": hparams.width,
        "layers": len(hparams.layers),
        "heads": heads,
        "kv_heads": own.kv_heads,
        "key": own.key_width,
        "value": own.value_width,
        "rotated": own.rope_width,
        "group_inner": inner // groups,
        "queries": heads * own.key_width * (2 if "gates" in model.architecture.block.qkv_steps else 1),
        "keys": own.kv_heads * own.key_width,
        "values": own.kv_heads * own.value_width,
        "mixed": heads * own.value_width,
    }


def net_width(model: LayeredModel, index: int) -> int:
    """Return the width of a layer's net; 0 where no key gives it."""
    value = model.keys.get("feed_forward_length")
    width = int(value if not hasattr(value, "__len__") else value[index] if index < len(value) else 0)
    return width // 2 if model.architecture.block.length_of_both else width


def contradictions(start: str, roles: Roles, declared: Iterable[tuple[str, Part]]) -> Iterator[Fault]:
    """Return declared parts of a layer of which it has no tensors."""
    for name, part in declared:
        if name and not part.shown_by(roles):
            first = next(iter(_lacking(roles, part)), full_name(part.marks.split()[0]))
            yield Fault(start[:-1], f"is declared {name!r} by the keys, but has no tensor '{start}{first}'")


def unread_tensors(start: str, roles: Roles, layer_type: LayerType) -> Iterator[Fault]:
    """Return tensors of other mixers, nets or arrangements than the layer's, which nothing would read."""
    made_of = (
        *MIXERS[layer_type.mixer],
        *NETS[layer_type.net],
        *ARRANGEMENTS[layer_type.arrangement],
        tensor_shapes.NORMS,
    )
    read = tensors_of(made_of) | {full_name(name) for part in made_of for name in part.ignored.split()}
    others = tensors_of(*MIXERS.values(), *NETS.values(), *ARRANGEMENTS.values())
    if layer_type.net.startswith("experts"):
        read |= tensors_of(tensor_shapes.WITH_EXPERTS)
    for role in sorted((others | tensors_of(tensor_shapes.WITH_EXPERTS)) & roles.keys() - read):
        made = f"mixer {layer_type.mixer!r}, net {layer_type.net!r}, arrangement {layer_type.arrangement!r}"
        yield Fault(f"{start}{role}", f"is there, but nothing reads it: by the keys, its layer has {made}")


def _lacking(roles: Roles, part: Part) -> list[str]:
    """Return required tensors that the part lacks."""
    needed = ([full_name(name) for name in group.split("|")] for group in part.needs.split())
    return [names[0] for names in needed if not any(name in roles for name in names)]


def validate_tensors(model: LayeredModel, start: str, roles: Roles, part: Part, sizes: Sizes) -> Iterator[Fault]:
    """Return keys and tensors that a part lacks, and tensors of other shapes or formats than it has."""
    for key in part.keys.split():
        if (value := model.keys.stored(key)) is None or is_zero(value):
            yield model.fault(key, f"is {'missing' if value is None else value}; {start}* needs it to be 1 or more")
    yield from (missing(f"{start}{name}") for name in _lacking(roles, part))
    for role, alternatives in part.table.items():
        tensor = roles.get(role)
        if tensor is None:
            continue
        name = f"{start}{role}"
        # ggml drops outer dimensions of 1: a quantizing program may have stored (1, 64) as (64,)
        shape = (1, *tensor.shape) if role == "token_types.weight" and len(tensor.shape) == 1 else tensor.shape
        if not matches(shape, alternatives, sizes):
            wanted = " or ".join(_written_shape(each, sizes) for each in alternatives)
            yield Fault(name, f"has shape {list(tensor.shape)}; the model's keys and other tensors mean {wanted}")
        elif tensor.format.name in INTEGERS or not tensor.format.has_codec:
            yield Fault(name, f"is {tensor.format.name}; floats or blocks that can be decoded are expected")


def matches(shape: tuple[int, ...], alternatives: Alternatives, sizes: Sizes) -> bool:
    """Return whether a shape matches one of the alternatives; sizes that only this tensor shows are added."""
    for dimensions in alternatives:
        if len(dimensions) != len(shape) or min(shape, default=0) < 1:
            continue
        solved: Sizes = {}
        for size, terms in zip(shape, dimensions, strict=True):
            known = {**sizes, **solved} if solved else sizes
            wanted, open_size = evaluated(terms, known), unknown(terms, known)
            if open_size is not None and size % open_size[1] == 0:
                solved[open_size[0]] = size // open_size[1]
            elif open_size is not None or wanted not in (None, size):
                break
        else:
            sizes |= solved
            return True
    return False


def _written_shape(dimensions: tuple[tensor_shapes.Terms, ...], sizes: Sizes) -> str:
    """Return [64 (queries), 32 (width)]"""
    words = ["+".join("*".join((str(n),) * (n > 1 or not names) + names) for n, names in terms) for terms in dimensions]
    numbers = [evaluated(terms, sizes) for terms in dimensions]
    pairs = zip(numbers, words, strict=True)
    return f"[{', '.join(word if number is None else f'{number} ({word})' for number, word in pairs)}]"
