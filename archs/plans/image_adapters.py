"""LoRA adapters of image and video models: pairs in any of the usual names, added to a model's published weights.

A weight becomes W + strength * alpha / rank * B·A; alpha is the rank where a file has none. Names of modules are

    lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight     kohya: dots become underscores; also of diffusers' names
    transformer.transformer_blocks.0.attn.to_q.lora_A.weight    diffusers and PEFT
    diffusion_model.blocks.0.self_attn.q.lora_A.weight          ComfyUI and the models' authors
    …attn1.processor.to_q_lora.down.weight                      diffusers before PEFT

A fused weight gets the pairs of its parts, each in its rows. `.diff` and `.diff_b` are differences as a whole.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quants import Tensor, format_named, from_array
from quants.errors import ModelError

from ..diffusion.from_diffusers.rules import FIELDS, LAST, Rule
from ..diffusion.from_diffusers.unet import rules_of_published
from ..diffusion.spec import DiffusionFamily
from ..spec import Tensors
from ..transforms import computed, reshape

KEY = re.compile(
    r"(?P<module>.+?)(?P<processor>_lora)?\."
    r"(?:lora(?:_linear_layer)?[._](?P<half>down|up|A|B)(?:\.default)?(?:\.weight)?|(?P<old>down|up)\.weight"
    r"|(?P<rest>alpha|diff|diff_b))"
)
HALVES = {"down": "a", "A": "a", "up": "b", "B": "b"}
PREFIXES = (
    "base_model.model.",
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer.",
    "unet.",
    "lora_unet_",
    "lora_transformer_",
    "lycoris_",
    "",
)
TEXT_ENCODERS = re.compile(r"(lora_te\d?_|text_encoders?(_\d)?\.|lora_(clip|t5)|te\d?_|lora_prior_te)")
METHODS = {  # part of a name → what else than LoRA has it
    "dora_scale": "DoRA",
    "lora_magnitude_vector": "DoRA",
    "hada_w": "LoHa",
    "lokr_w": "LoKr",
    "lora_mid": "a LoRA of convolutions with a middle matrix (Tucker)",
    "oft_blocks": "OFT",
    "oft_diag": "OFT",
    ".a1.weight": "GLoRA",
    "reshape_weight": "a LoRA that widens weights",
    "lora_B.bias": "a LoRA with biases",
    "lora_up.bias": "a LoRA with biases",
}
OTHER_MODEL = "the adapter belongs to another model, or to another version of it"
ROWS = (
    64  # rows of a product that are computed at a time, always the same ones, so that its bits do not depend on reads
)
MAX_NAMED = 3


@dataclass
class Parts:
    """The tensors of a file for one module: a (rank, inputs …), b (outputs, rank), alpha, or whole differences."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ImageAdapter:
    """A LoRA file. modules: by their names in it, with prefix. text: how many keys are of text encoders.

    alphas: by parts of module names, as PEFT's configuration has them; "" for all others.
    """

    origin: str
    modules: Mapping[str, Parts]
    text: int = 0
    alphas: Mapping[str, float] = field(default_factory=dict)


class Place(NamedTuple):
    """Where a module's difference goes: a published weight, and for a part of it the rule that makes it of parts."""

    target: str
    rule: Rule | None = None
    part: int = 0


def image_adapter(origin: str, tensors: Tensors, header: Mapping[str, str]) -> ImageAdapter:
    """Return the adapter in a file's tensors. Raises ModelError for another method than LoRA, and for unknown keys."""
    for name in tensors:
        if method := next((method for part, method in METHODS.items() if part in name), ""):
            raise ModelError(f"{origin} is {method}, which is not merged ({name!r})", "LoRA is supported")
    modules: dict[str, Parts] = defaultdict(Parts)
    unknown, text = [], 0
    for name, tensor in tensors.items():
        if TEXT_ENCODERS.match(name):
            text += 1
            continue
        match = KEY.fullmatch(name)
        if match is None:
            unknown.append(name)
            continue
        module = match["module"]
        if match["processor"]:
            module = module.replace(".processor.", ".").replace(".to_out", ".to_out.0")
        role = HALVES.get(match["half"] or match["old"] or "", match["rest"] or "")
        modules[module].tensors[role] = tensor
        modules[module].keys.append(name)
    if unknown:
        raise ModelError(
            f"{origin} has {len(unknown)} tensors that are no part of a LoRA: {_few(unknown)}", OTHER_MODEL
        )
    if not modules:
        what = "changes text encoders alone" if text else "holds no tensors"
        raise ModelError(f"{origin} {what}: there is nothing to merge into the model")
    return ImageAdapter(origin, modules, text, _alphas(origin, header))


def _alphas(origin: str, header: Mapping[str, str]) -> dict[str, float]:
    """Return the alphas in the header of diffusers' files."""
    try:
        settings = json.loads(header.get("lora_adapter_metadata", "{}"))
    except ValueError as error:
        raise ModelError(f"{origin}: lora_adapter_metadata is not valid JSON: {error}") from error
    by_key = {}
    for part in ("transformer", "unet"):
        alpha = settings.get(f"{part}.lora_alpha") if isinstance(settings, dict) else None
        if alpha is not None:
            by_key[""] = _positive(origin, alpha)
            patterns = settings.get(f"{part}.alpha_pattern") or {}
            by_key |= {str(name): _positive(origin, each) for name, each in dict(patterns).items()}
    return by_key


def _positive(origin: str, alpha: object) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha < math.inf:
        raise ModelError(f"{origin} has the alpha {alpha!r:.50}; a positive number was expected")
    return float(alpha)


def merging(adapters: Sequence[tuple[ImageAdapter, float]]) -> Callable[[DiffusionFamily, Tensors], Tensors]:
    """Return a change of a model's published tensors: every adapter added, multiplied by its strength."""

    def change(family: DiffusionFamily, tensors: Tensors) -> Tensors:
        merged = dict(tensors)
        places = places_of(family, tensors)
        for adapter, strength in adapters:
            _merge(merged, places, adapter, strength)
        return merged

    return change


def places_of(family: DiffusionFamily, tensors: Tensors) -> dict[str, list[Place]]:
    """Return each module's places by its names: published and diffusers', with dots and with underscores.

    A module of diffusers whose halves are two published ones has two places, all others one.
    """
    by_key = {name.removesuffix(".weight"): [Place(name)] for name in tensors if not name.endswith(".bias")}
    of_diffusers: dict[str, list[Place]] = defaultdict(list)
    for name, place in _in_diffusers(family, tensors):
        of_diffusers[name].append(place)
    by_key = {**of_diffusers, **by_key}
    return {**{name.replace(".", "_"): places for name, places in by_key.items()}, **by_key}


def _in_diffusers(family: DiffusionFamily, tensors: Tensors) -> Iterator[tuple[str, Place]]:
    """Yield the modules of a model in diffusers' layout, with their places."""
    rules = getattr(family.from_diffusers, "rules", ())
    if family.rearranged:  # a U-Net
        rules = rules_of_published(tensors)
    taken: set[str] = set()
    for rule in rules:
        stem = rule.target.partition(LAST)[0] if LAST in rule.target else ""
        last = max((int(n[1]) for name in tensors if (n := re.match(rf"{re.escape(stem)}(\d+)\.", name))), default=0)
        pattern = re.escape(rule.target.replace(LAST, str(last)))
        for letter, values in FIELDS.items():
            pattern = pattern.replace(re.escape(f"{{{letter}}}"), f"(?P<{letter}>{values})")
        target = re.compile(pattern)
        for name in tensors:
            if name.endswith(".weight") and name not in taken and (match := target.fullmatch(name)):
                taken.add(name)
                for part, source in enumerate(rule.sources):
                    filled = source.replace(LAST, str(last))
                    for letter, value in match.groupdict().items():
                        filled = filled.replace(f"{{{letter}}}", value)
                    yield filled.removesuffix(".weight"), Place(name, rule, part)


def _merge(
    tensors: dict[str, Tensor], places: Mapping[str, list[Place]], adapter: ImageAdapter, strength: float
) -> None:
    """Replace the weights that an adapter changes.

    Raises ModelError for a module without a place, and for shapes that do not fit.
    """
    parts_of: dict[tuple[str, int], dict[int, Tensor]] = defaultdict(dict)  # a weight and its rule → parts
    rules: dict[int, Rule] = {}
    unplaced = []
    for module, parts in adapter.modules.items():
        own = next((places[bare] for bare in _bare(module) if bare in places), None)
        if own is None:
            unplaced.append(module)
            continue
        if "diff_b" in parts.tensors:
            _add_bias(tensors, own[0], parts.tensors["diff_b"], adapter, strength)
        if not parts.tensors.keys() - {"diff_b", "alpha"}:
            continue
        difference = _difference(adapter, module, parts, strength)
        for place in own:
            if place.rule is None:
                tensors[place.target] = _sum(tensors[place.target], difference, adapter, module)
            else:
                rules[id(place.rule)] = place.rule
                parts_of[place.target, id(place.rule)][place.part] = difference
    if unplaced:
        problem = f"{adapter.origin} changes {len(unplaced)} modules that the model does not have: {_few(unplaced)}"
        raise ModelError(problem, OTHER_MODEL)
    for (target, rule), changed in parts_of.items():
        whole = _whole(rules[rule], changed, tensors[target], adapter)
        tensors[target] = _sum(tensors[target], whole, adapter, target)


def _bare(module: str) -> Iterator[str]:
    """Yield a module's name without what may stand before it."""
    for prefix in PREFIXES:
        if module.startswith(prefix):
            yield module.removeprefix(prefix)


def _difference(adapter: ImageAdapter, module: str, parts: Parts, strength: float) -> Tensor:
    """Return the difference that a module's tensors make, in float32. Raises ModelError for parts that do not fit."""
    where = f"{adapter.origin}: {module}"
    if "diff" in parts.tensors:
        if "a" in parts.tensors or "b" in parts.tensors:
            raise ModelError(f"{where} has a pair and a whole difference")
        return computed(parts.tensors["diff"], lambda values: values * np.float32(strength))
    if not {"a", "b"} <= parts.tensors.keys():
        raise ModelError(f"{where} has one half of its pair: {', '.join(parts.keys)}")
    a, b = parts.tensors["a"], parts.tensors["b"]
    if (
        len(a.shape) < 2
        or len(b.shape) < 2
        or math.prod(b.shape[2:]) != 1
        or a.shape[0] != b.shape[1]
        or not a.shape[0]
    ):
        raise ModelError(f"{where} has A of shape {list(a.shape)} and B of shape {list(b.shape)}, which don't multiply")
    rank = a.shape[0]
    factor = np.float32(strength * _alpha(adapter, module, parts.tensors.get("alpha"), rank) / rank)
    return product(a, b, factor, module)


def _alpha(adapter: ImageAdapter, module: str, stored: Tensor | None, rank: int) -> float:
    if stored is None:
        named = (alpha for name, alpha in adapter.alphas.items() if name and module.endswith(name))
        return next(named, adapter.alphas.get("", float(rank)))
    values = stored.float32().reshape(-1)
    if len(values) != 1 or not np.isfinite(values[0]):
        raise ModelError(f"{adapter.origin}: the alpha of {module} is {values[:3]}; a number was expected")
    return float(values[0])


def product(a: Tensor, b: Tensor, factor: np.float32, name: str) -> Tensor:
    """Return factor * B·A in float32: (outputs, …), as rows are read. a: (rank, …), b: (outputs, rank)."""
    rank, shape = a.shape[0], (b.shape[0], *a.shape[1:])
    inner = math.prod(shape[1:-1])

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        right = a.float32().reshape(rank, -1)
        first, last = start // inner if inner else 0, -(-stop // inner) if inner else 0
        begin, blocks = first - first % ROWS, []
        for low in range(begin, last, ROWS):
            left = b.float32(*_rows(b, low, min(low + ROWS, shape[0]))).reshape(-1, rank)
            blocks.append(factor * (left @ right))
        rows = np.concatenate(blocks or [np.zeros((0, right.shape[1]), np.float32)]).reshape(-1, shape[-1])
        return np.ascontiguousarray(rows[start - begin * inner : stop - begin * inner], "<f4").view(np.uint8)

    return Tensor(name, shape, format_named("F32"), read, a.origin)


def _rows(tensor: Tensor, low: int, high: int) -> tuple[int, int]:
    """Return the rows of items low … high of the first dimension."""
    each = math.prod(tensor.shape[1:-1])
    return low * each, high * each


def _whole(rule: Rule, changed: Mapping[int, Tensor], weight: Tensor, adapter: ImageAdapter) -> Tensor:
    """Return the difference of a weight that a rule makes of parts, zero in parts without one."""
    given = next(iter(changed.values()))
    rows = _rows_of_parts(rule, {part: each.shape[0] for part, each in changed.items()}, weight, adapter)
    parts = [changed.get(part, _zeros((count, *given.shape[1:]))) for part, count in enumerate(rows)]
    if len(rule.sources) > 1 and any(part.shape[1:] != given.shape[1:] for part in parts):
        raise ModelError(f"{adapter.origin}: the parts of {weight.name!r} have different widths", OTHER_MODEL)
    return rule.change(parts, weight.name)


def _rows_of_parts(rule: Rule, known: Mapping[int, int], weight: Tensor, adapter: ImageAdapter) -> list[int]:
    """Return how many rows of a weight each part has: queries, keys and values as many, another part the rest."""
    count, total = len(rule.sources), weight.shape[0] if weight.shape else 0
    if count == 1:
        return [known[0]]
    alike = min(count, 3)
    own = next((rows for part, rows in known.items() if part < alike), None)
    rest = count - alike
    if own is None:  # only the last part is known
        own = (total - sum(known.values())) // alike
    left = total - own * alike
    rows = [own] * alike + ([left] if rest == 1 else [left // rest] * rest if rest else [])
    fits = sum(rows) == total and min(rows) >= 0 and all(rows[part] == each for part, each in known.items())
    if rest > 1 or not fits:
        problem = f"{adapter.origin}: the parts of {weight.name!r} have {sorted(known.values())} of its {total} rows"
        raise ModelError(problem, OTHER_MODEL)
    return rows


def _zeros(shape: tuple[int, ...]) -> Tensor:
    def read(start: int, stop: int) -> NDArray[np.uint8]:
        return np.zeros((stop - start, 4 * shape[-1]), np.uint8)

    return Tensor("zeros", shape, format_named("F32"), read)


def _add_bias(
    tensors: dict[str, Tensor], place: Place, difference: Tensor, adapter: ImageAdapter, strength: float
) -> None:
    """Add the difference of a bias."""
    name = place.target.removesuffix("weight") + "bias"
    rule = place.rule
    if name not in tensors or (rule is not None and (rule.shared or len(rule.sources) > 1)):
        raise ModelError(f"{adapter.origin} changes the bias {name!r}, which the model does not have", OTHER_MODEL)
    values = difference.float32().reshape(-1) * np.float32(strength)
    whole = from_array(name, np.asarray(values, np.float32))
    tensors[name] = _sum(tensors[name], rule.change([whole], name) if rule else whole, adapter, name)


def _sum(weight: Tensor, difference: Tensor, adapter: ImageAdapter, module: str) -> Tensor:
    """Return a weight and its difference added, in float32. Raises ModelError for shapes that do not fit."""
    same_rows = weight.shape[:1] == difference.shape[:1] and weight.size == difference.size
    if weight.shape != difference.shape and not (same_rows and _without_ones(weight) == _without_ones(difference)):
        shapes = f"{list(difference.shape)}, the weight is {list(weight.shape)}"
        raise ModelError(f"{adapter.origin}: the difference of {module!r} is {shapes}", OTHER_MODEL)
    added = reshape(difference, weight.shape)

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        values = weight.float32(start, stop) + added.float32(start, stop)
        return np.ascontiguousarray(values, "<f4").view(np.uint8)

    origin = f"{weight.where} + {difference.where}"
    return Tensor(weight.name, weight.shape, format_named("F32"), read, origin)


def _without_ones(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
