"""Low-rank adapters as PEFT stores them: pairs A (rank, inputs), B (outputs, rank) whose product is added to a weight.

Reference: peft `tuners/lora`. A weight becomes W + scale * B·A with scale = alpha / rank (`use_rslora`: alpha / √rank),
alpha and rank being those that `alpha_pattern` and `rank_pattern` name for the module. Weights stored as (in, out), and
embeddings, get the product transposed. Modules that were trained as a whole are stored as a whole.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import Tensor, format_named, from_array
from quants.errors import ModelError
from quants.patterns import Pattern, compile_pattern

from .config import lookup
from .hparams.config_keys import ANYTHING, FLAG, TEXT, TOKEN
from .plans.text import NUMBER, Change, Mapped, is_left_out, targets, without_prefix
from .spec import COMMON, Architecture, Config, Tensors, Transform, unchanged
from .transforms import computed, stacked, transposed
from .typed_json import Either, ListOf, MapOf, read_fields

PREFIX = "base_model.model."
PAIR = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.default)?(?:\.weight)?")
WRAPPER = re.compile(r"\.(base_layer|original_module|modules_to_save(?:\.default)?)\.")
# rows of a product computed at a time, always the same ones, so that its bits don't depend on the rows asked for
ROWS = 64

# Initializations that change the base weights, so that the pairs don't fit the published weights.
MAX_ALPHA_PATTERNS = 10_000
CHANGES_BASE = ("pissa", "olora", "corda", "lora_ga", "loftq")
REFUSED = {
    "use_dora": "DoRA scales whole rows anew, which a pair of matrices cannot say",
    "lora_bias": "biases next to the matrices have no place in the weight",
    "layer_replication": "layers were copied before training",
    "target_parameters": "parameters that are no module's weight were adapted",
    "trainable_token_indices": "single rows of the embedding were trained",
}

ANOTHER_BASE, MERGE = "the adapter belongs to another base model", "merge the adapter instead (`merge_lora`)"

SETTINGS = {  # keys read of adapter_config.json, besides required numbers
    "peft_type": TEXT,
    "use_rslora": FLAG,
    "init_lora_weights": Either((FLAG, TEXT)),
    "alpha_pattern": MapOf(ANYTHING),
    "alora_invocation_tokens": ListOf(TOKEN),
}


@dataclass(frozen=True)
class Pair:
    """The change of the weight of `module`: scale * B·A. a: (rank, inputs), b: (outputs, rank).

    embedding: of an embedding, whose inputs are tokens: the product is (width, tokens), the weight (tokens, width).
    """

    module: str
    a: Tensor
    b: Tensor
    scale: float
    embedding: bool = False


@dataclass(frozen=True)
class Adapter:
    """An adapter in names of the base checkpoint.

    alpha: `lora_alpha`, times √r with `use_rslora`, so that alpha / rank is a usual pair's scale.
    whole: tensors that were trained as a whole. originals: weights under pairs, as the adapter knew them (embeddings
    that were resized come along so).
    invocation_tokens: ids that switch the adapter on (aLoRA).
    """

    origin: str
    alpha: float
    pairs: tuple[Pair, ...]
    whole: Tensors = field(default_factory=dict)
    originals: Tensors = field(default_factory=dict)
    invocation_tokens: tuple[int, ...] = ()


def adapter_of(origin: str, config: Mapping[str, Any], tensors: Tensors) -> Adapter:
    """Return the adapter that adapter_config.json and its tensors describe. Raises ModelError for other types than
    LoRA.
    """
    config = read_fields(config, SETTINGS, f"{origin}: adapter_config.json")
    peft_type = (config.get("peft_type") or "LORA").upper()
    if peft_type != "LORA":
        raise ModelError(f"{origin} is an adapter of type {peft_type}; LORA is supported")
    for key, why in REFUSED.items():
        if config.get(key):
            raise ModelError(f"{origin} has {key}, which is not supported: {why}")
    if any("lora_magnitude_vector" in name for name in tensors):
        raise ModelError(f"{origin} has magnitude vectors: DoRA is not supported, it {REFUSED['use_dora'][5:]}")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGES_BASE):
        hint = "save it with peft's path_initial_model_for_weight_conversion, which makes it a plain LoRA"
        raise ModelError(f"{origin} was started by {start}, which changed the base model's weights, too", hint)
    halves: dict[tuple[str, bool], dict[str, Tensor]] = {}
    whole: dict[str, Tensor] = {}
    originals: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        bare = name.removeprefix(PREFIX)
        match = PAIR.fullmatch(bare)
        if match:
            halves.setdefault((match[1], bool(match[2])), {})[match[3]] = tensor
        elif not bare.endswith((".weight", ".bias")) or ".lora_" in bare:
            raise ModelError(f"{origin}: tensor {name!r} is neither half of a pair nor a whole weight")
        elif ".original_module." not in bare:
            is_original = bare.endswith(".base_layer.weight")
            (originals if is_original else whole)[WRAPPER.sub(".", bare)] = tensor
    alpha = _number(origin, "lora_alpha", config.get("lora_alpha"))
    alphas = _alpha_patterns(origin, config)
    pairs = tuple(
        _pair(origin, config, _alpha_of(origin, module, alphas, alpha), module, embedding, both)
        for (module, embedding), both in halves.items()
    )
    if not pairs and not whole:
        raise ModelError(f"{origin} holds no tensors")
    root = math.sqrt(_number(origin, "r", config.get("r"))) if config.get("use_rslora") else 1.0
    tokens = tuple(config.get("alora_invocation_tokens") or ())
    return Adapter(origin, alpha * root, pairs, whole, originals, tokens)


def _number(origin: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 < value < math.inf):
        raise ModelError(f"{origin}: {key} in adapter_config.json is {value!r}; a positive number was expected")
    return float(value)


def _alpha_patterns(origin: str, config: Mapping[str, Any]) -> list[tuple[Pattern, Any]]:
    """Return the config's alpha_pattern: expressions that match a module or the end of its path, with their alpha."""
    given: Mapping[str, Any] = config.get("alpha_pattern") or {}
    if len(given) > MAX_ALPHA_PATTERNS:
        raise ModelError(f"{origin}: alpha_pattern has {len(given):,} entries; at most {MAX_ALPHA_PATTERNS:,} are read")
    what = f"{origin}: alpha_pattern"
    return [
        (compile_pattern(rf"\A(?:.*\.)?(?:{pattern})\Z", what, error=ModelError), alpha)
        for pattern, alpha in given.items()
    ]


def _alpha_of(origin: str, module: str, patterns: Sequence[tuple[Pattern, Any]], default: float) -> float:
    """Return a module's alpha: of the first pattern that matches it, if that has one."""
    alpha = next((alpha for pattern, alpha in patterns if pattern.search(module)), None)
    return default if alpha is None else _number(origin, "alpha_pattern", alpha)


def _pair(origin: str, config: Mapping[str, Any], alpha: float, module: str, embedding: bool, both: Tensors) -> Pair:
    if both.keys() != {"A", "B"}:
        raise ModelError(f"{origin}: {module} has one half of its pair, lora_{'B' if 'A' in both else 'A'} is missing")
    a, b = both["A"], both["B"]
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or not a.shape[0]:
        shapes = f"A of shape {list(a.shape)} and B of shape {list(b.shape)}"
        raise ModelError(f"{origin}: {module} has {shapes}, which don't multiply")
    rank = a.shape[0]
    return Pair(module, a, b, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank), embedding)


def merging(adapters: Sequence[tuple[Adapter, float]]) -> Change:
    """Return a change of a checkpoint's tensors: every adapter added, multiplied by its strength.

    Raises ModelError, naming the module, where an adapter does not fit the checkpoint.
    """

    def change(architecture: Architecture, config: Config, tensors: Tensors) -> dict[str, Tensor]:
        merged = dict(tensors)
        for adapter, strength in adapters:
            _merge(architecture, config, merged, adapter, strength)
        return merged

    return change


def _merge(
    architecture: Architecture, config: Config, tensors: dict[str, Tensor], adapter: Adapter, strength: float
) -> None:
    """Replace the weights that the adapter changes; a tied output layer that it changes becomes untied."""
    if adapter.invocation_tokens:
        raise ModelError(f"{adapter.origin} works from its invocation tokens on only: it cannot be merged")
    names = {without_prefix(name, architecture.prefixes): name for name in tensors}

    def base(name: str) -> str:
        bare = without_prefix(name, architecture.prefixes)
        if bare == "lm_head.weight" and bare not in names:
            for embedding in tensors:
                if any(each == "token_embd.weight" for _, each in targets(architecture, config, embedding)):
                    tensors[name], names[bare] = tensors[embedding].renamed(name), name
                    break
        if bare not in names:
            hint = "the adapter belongs to another base model, or to another version of its layers"
            raise ModelError(f"{adapter.origin} adapts {name!r}, which the checkpoint does not have", hint)
        return names[bare]

    for name, tensor in (*adapter.originals.items(), *adapter.whole.items()):
        place = base(name)
        old, new = tensors[place].shape, tensor.shape
        if old != new:
            hint = "an adapter that adds tokens needs a base model that has them: resize its embeddings first"
            raise ModelError(f"{adapter.origin}: {name!r} has shape {list(new)}, the base model's {list(old)}", hint)
        tensors[place] = tensor.renamed(place)
    for pair in adapter.pairs:
        place = base(f"{pair.module}.weight")
        weight = tensors[place]
        turned = pair.embedding or _stored_transposed(architecture, config, weight)
        shape = (pair.b.shape[0], pair.a.shape[1])
        expected = shape[::-1] if turned else shape
        if weight.shape != expected:
            both = f"{list(expected)}, the base model's weight is {list(weight.shape)}"
            raise ModelError(f"{adapter.origin}: the pair for {pair.module!r} makes {both}", ANOTHER_BASE)
        tensors[place] = _sum(weight, pair, np.float32(pair.scale * strength), turned)


def _stored_transposed(architecture: Architecture, config: Config, weight: Tensor) -> bool:
    """Return whether the checkpoint stores a weight as (in, out): its transform transposes it."""
    rules = targets(architecture, config, weight.name)
    effects = {_effect(rule.transform, config, weight.shape[0]) for rule, _ in rules if rule.transform is not unchanged}
    return len(weight.shape) == 2 and effects == {"transposed"}


def _effect(transform: Transform, config: Config, rows: int) -> str:
    """Return the effect of a transform on a matrix of `rows` rows: moves "rows", leaves it "transposed", or something
    "other".
    """
    width = 3 if rows == 2 else 2
    numbers = np.arange(rows * width, dtype=np.float64).reshape(rows, width).astype(np.float32)
    result = transform(from_array("probe", numbers), config)
    values = result.float32()
    if values.shape == (width, rows) and np.array_equal(values, numbers.T):
        return "transposed"
    moved = values.ndim == 2 and values.shape[1] == width and not np.any(values[:, 0] % width)
    return "rows" if moved and np.array_equal(values, values[:, :1] + np.arange(width)) else "other"


def _sum(weight: Tensor, pair: Pair, factor: np.float32, turned: bool) -> Tensor:
    """Return weight + factor * B·A (turned: its transpose), float32, by rows."""

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        result = np.array(weight.float32(start, stop), np.float32)
        right = pair.b.float32().T if turned else pair.a.float32()
        columns = pair.a.float32() if turned else None
        for first in range(start - start % ROWS, stop, ROWS):
            last = min(first + ROWS, weight.rows)
            left = pair.b.float32(first, last) if columns is None else columns[:, first:last].T
            low, high = max(first, start), min(last, stop)
            result[low - start : high - start] += factor * (left @ right)[low - first : high - first]
        return result.view(np.uint8)

    return Tensor(weight.name, weight.shape, format_named("F32"), read, f"{weight.origin} + {pair.a.origin}")


def adapter_tensors(architecture: Architecture, config: Config, adapter: Adapter) -> Mapped:
    """Return NAME.lora_a, NAME.lora_b for each adapted weight, and norms that were trained as a whole, in file order;
    modules that the file has no place for are left out.

    config: the base model's, normalized. Raises ModelError for what such a file cannot hold.
    """
    result = Mapped()
    for name, tensor in adapter.whole.items():
        rules = targets(architecture, config, name)
        for rule, target in rules:
            if "_norm" in target and len(tensor.shape) == 1:
                result.tensors[target] = rule.transform(tensor, config).renamed(target)
        if not any(target in result.tensors for _, target in rules):
            what = f"{adapter.origin} holds {name!r} as a whole (modules_to_save)"
            raise ModelError(f"{what}, for which an adapter file has no place", MERGE)
    stacks: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}
    for pair in adapter.pairs:
        weight, what = f"{pair.module}.weight", f"{adapter.origin} adapts {pair.module!r}"
        if is_left_out(weight):
            result.left_out.append(pair.module)
            continue
        rules = targets(architecture, config, weight)
        if not rules:
            raise ModelError(f"{what}, for which {architecture.name} has no rule", ANOTHER_BASE)
        if pair.module.endswith("lm_head") and config.get("tie_word_embeddings") is True:
            hint = f"{MERGE}: the output layer becomes one of its own"
            raise ModelError(f"{what}, but the base model shares that weight with the embedding", hint)
        for rule, name in rules:
            a, b = _moved(rule.transform, config, adapter, pair)
            if rule.stack:
                expert = int(NUMBER.findall("." + without_prefix(pair.module, architecture.prefixes))[-1])
                stacks.setdefault(name, {})[expert] = (a, b)
            _add(result.tensors, name, a, b)  # of a stack: keeps its place
    for name, experts in stacks.items():
        _add(result.tensors, name, *_stacked(config, adapter, name, experts))
    return result


def _add(tensors: dict[str, Tensor], name: str, a: Tensor, b: Tensor) -> None:
    for suffix, tensor in (("lora_a", a), ("lora_b", b)):
        tensors[f"{name}.{suffix}"] = tensor.renamed(f"{name}.{suffix}")


def _moved(transform: Transform, config: Config, adapter: Adapter, pair: Pair) -> tuple[Tensor, Tensor]:
    """Return A and B as the file has them: B's rows in the order of the GGUF weight's, scaled to the file's alpha.

    A pair maps inputs to outputs however the base stores its weight, so transposing the weight changes nothing.
    """
    factor = np.float32(pair.scale * pair.a.shape[0] / adapter.alpha)
    b = pair.b if abs(factor - 1) < 1e-6 else computed(pair.b, lambda x: x * factor)
    if transform is unchanged:
        return (transposed(pair.a) if pair.embedding else pair.a), b
    effect = "other" if pair.embedding else _effect(transform, config, b.shape[0])
    if effect == "rows":
        return pair.a, transform(b, config)
    if effect == "transposed":
        return pair.a, b
    way = "whose weight is changed in a way on its way into the file that a pair of matrices cannot follow"
    raise ModelError(f"{adapter.origin} adapts {pair.module!r}, {way}", MERGE)


def _stacked(
    config: Config, adapter: Adapter, name: str, experts: Mapping[int, tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return the pairs of all experts on top of each other. Raises ModelError where some lack one, or ranks differ."""
    count = int(lookup(config, str(COMMON["expert_count"])) or max(experts) + 1)
    missing = next((i for i in range(count) if i not in experts), None)
    if missing is not None or len({a.shape for a, _ in experts.values()}) > 1:
        what = "their ranks differ" if missing is None else f"expert {missing} lacks one"
        raise ModelError(f"{adapter.origin}: {name!r} needs a pair of one rank for every expert, but {what}", MERGE)
    a, b = (stacked([experts[i][half] for i in range(count)], name) for half in (0, 1))
    return a, b
