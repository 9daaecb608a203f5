"""Drop experts of a mixture: their rows are removed from every stacked tensor and from the router.

An expert's rows of a stacked tensor are contiguous, so the new file is made of ranges of the old one, in any format.
The rest of the layer (shared experts, latent projections) stays. If the router first chooses groups of neighbouring
experts, each group loses equally many, or whole groups are dropped.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from archs.bounded_files import EXPERT_LIST, read_text
from archs.layered import by_layer
from archs.metadata import Metadata
from quants import Tensor
from quants.errors import FileError, ModelError, OptionError

from ...io.gguf.assembly import Stored

STACKED = re.compile(r"ffn_(gate|up|down|gate_up)_exps\.\w+|ffn_gate_inp\.(weight|bias)|exp_probs_b(\.bias)?")
KEPT_WHOLE = re.compile(r"ffn_\w+_shexp\.\w+|ffn_gate_inp(_shexp)?\.\w+|.*\.(input_)?scale|ffn_latent_\w+\.\w+")
MIN_GROUP_SIZE = 2  # routers rank groups by their best two experts
LINE = re.compile(r"(\d{1,6})\s*:\s*(\d{1,6}(?:\s*-\s*\d{1,6})?(?:\s*,\s*\d{1,6}(?:\s*-\s*\d{1,6})?)*)")

Scores = Mapping[int, Sequence[float]]  # by layer: of each expert, how much it is worth
Dropped = Mapping[int, Sequence[int]]  # by layer: experts


@dataclass(frozen=True)
class Mixture:
    """A model's experts. layers: those with experts. groups: of neighbouring experts, some of which are chosen first.

    used: experts of a token; groups_used: groups of a token.
    """

    architecture: str
    layers: tuple[int, ...]
    count: int
    used: int
    groups: int = 1
    groups_used: int = 1


def mixture_of(metadata: Metadata, tensors: Mapping[str, Tensor], path: Path) -> Mixture:
    """Return a model's experts. Raises ModelError for a model without experts, or with unknown types of them."""
    name = str(metadata.get("general.architecture", ""))
    layers = []
    for prefix, roles in by_layer(dict(tensors)).items():
        if prefix and any(STACKED.fullmatch(role) for role in roles):
            layers.append(int(prefix.split(".")[-2]))
            for role, tensor in roles.items():
                _check_role(prefix, role, tensor)
    keys = ("expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count")
    numbers = [metadata.get(f"{name}.{key}", 0) for key in keys]
    for key, number in zip(keys, numbers, strict=True):
        if not isinstance(number, int):
            raise ModelError(f"{path}: '{name}.{key}' is no whole number")
    count, used, groups, groups_used = numbers
    if not layers or count < 2:
        raise ModelError(f"{path} has no experts to drop: '{name}.expert_count' is {count}")
    if groups > 1 and count % groups:
        raise ModelError(f"{path}: '{name}.expert_group_count' is {groups}, which does not divide {count} experts")
    return Mixture(name, tuple(sorted(layers)), count, used, max(1, groups), groups_used or 1)


def _check_role(prefix: str, role: str, tensor: Tensor) -> None:
    """Refuse tensors that may hold something for each expert in an unknown layout."""
    if "exp" not in role and "ffn_gate_inp" not in role and "tid2eid" not in role:
        return
    if not STACKED.fullmatch(role) and not KEPT_WHOLE.fullmatch(role):
        raise ModelError(f"it is not known what {prefix + role!r} holds of each expert: none can be dropped")


def without_experts(
    metadata: Metadata, tensors: Mapping[str, Stored], mixture: Mixture, dropped: Dropped
) -> tuple[Metadata, dict[str, Stored], list[str]]:
    """Return the model without these experts, and warnings. Raises OptionError, ModelError if that is impossible."""
    left, groups = _check_dropped(mixture, dropped)
    remaining = dict(tensors)
    kept = {layer: sorted(set(range(mixture.count)).difference(dropped[layer])) for layer in mixture.layers}
    for prefix, roles in by_layer({name: each.tensor for name, each in tensors.items()}).items():
        for role, tensor in roles.items() if prefix else ():
            if STACKED.fullmatch(role):
                items = tensor.shape[-1] if role.startswith("exp_probs_b") else tensor.shape[0] if tensor.shape else 0
                if items != mixture.count:
                    problem = f"{prefix + role!r} has shape {list(tensor.shape)}; the model has {mixture.count} experts"
                    raise ModelError(problem)
                remaining[prefix + role] = tensors[prefix + role].selected(kept[int(prefix.split(".")[-2])])
    new, warnings = metadata.copy(), []
    new[f"{mixture.architecture}.expert_count"] = left
    if groups < mixture.groups:
        is_choice = mixture.groups_used < groups  # else all are used, which llama.cpp expresses without groups
        new[f"{mixture.architecture}.expert_group_count"] = groups if is_choice else 0
        new[f"{mixture.architecture}.expert_group_used_count"] = mixture.groups_used if is_choice else 0
    if mixture.used > left:
        new[f"{mixture.architecture}.expert_used_count"] = left
        warnings.append(f"a token is given to {left} experts, not to {mixture.used}: no more are left")
    return new, remaining, warnings


def _check_dropped(mixture: Mixture, dropped: Dropped) -> tuple[int, int]:
    """Return the numbers of experts and groups that each layer keeps."""
    if unknown := [layer for layer in dropped if layer not in mixture.layers]:
        raise OptionError(f"layer {unknown[0]} has no experts; those that have are {_some(mixture.layers)}")
    counts = {}
    for layer in mixture.layers:
        numbers = dropped.get(layer, ())
        for number in numbers:
            if not 0 <= number < mixture.count:
                problem = f"there is no expert {number} in layer {layer}: it has the experts 0 to {mixture.count - 1}"
                raise OptionError(problem)
        counts[layer] = len(set(numbers))
    if len(set(counts.values())) > 1:
        lowest, highest = (pick(counts, key=lambda layer: counts[layer]) for pick in (min, max))
        problem = f"layer {lowest} loses {counts[lowest]} experts, layer {highest} loses {counts[highest]}"
        raise OptionError(problem, hint="a file has one number of experts for all layers")
    left = mixture.count - next(iter(counts.values()))
    if left < 1:
        raise OptionError(f"no expert would be left of {mixture.count}")
    return left, _groups_left(mixture, dropped, left) if mixture.groups > 1 else mixture.groups


def _groups_left(mixture: Mixture, dropped: Dropped, left: int) -> int:
    """Return the number of remaining groups: each loses equally many experts, or whole groups are dropped."""
    size, groups = mixture.count // mixture.groups, mixture.groups
    lost = {
        layer: np.bincount([number // size for number in set(dropped.get(layer, ()))], minlength=groups)
        for layer in mixture.layers
    }
    if all(np.isin(each, (0, size)).all() for each in lost.values()):
        groups = left // size
    for layer, each in lost.items() if groups == mixture.groups else ():
        if each.min() != each.max():
            problem = f"in layer {layer}, groups of experts lose {each.min()} to {each.max()} of {size}"
            raise OptionError(problem, hint=f"each of the {groups} groups must lose as many, or whole groups go")
    of_group, used = left // groups, min(mixture.groups_used, groups)
    if of_group < MIN_GROUP_SIZE or of_group * used < min(mixture.used, left):
        problem = f"{of_group} experts would be left in each of {groups} groups"
        raise OptionError(problem, hint=f"a token is given to {mixture.used} experts of {used} groups")
    return groups


def worst_experts(mixture: Mixture, scores: Scores, wanted: int | float) -> dict[int, tuple[int, ...]]:
    """Return the experts of each layer with the lowest scores. wanted: number in a layer, or (a fraction) share.

    A share is rounded down, to the same number for every group. Raises OptionError for an impossible number.
    """
    step = mixture.groups
    if isinstance(wanted, float):
        count = int(wanted * mixture.count + 1e-9) // step * step
        if not count:
            evenly = f", or none of each of {step} groups" if step > 1 else ""
            raise OptionError(f"{wanted:.1%} of {mixture.count} experts is none{evenly}", hint="drop more")
    else:
        count = wanted
    if count % step:
        raise OptionError(f"{count} experts cannot be dropped evenly from {step} groups", f"drop a multiple of {step}")
    if not 0 < count < mixture.count:
        raise OptionError(f"{count} of {mixture.count} experts cannot be dropped: 1 to {mixture.count - 1} can")
    worst_by_layer = {}
    for layer in mixture.layers:
        of_groups = np.asarray(scores[layer], np.float64).reshape(mixture.groups, -1)
        # of equals the last one goes
        order = np.argsort(of_groups[:, ::-1], axis=1, kind="stable")[:, : count // step]
        size = of_groups.shape[1]
        worst = [group * size + size - 1 - place for group, places in enumerate(order) for place in places]
        worst_by_layer[layer] = tuple(sorted(int(number) for number in worst))
    return worst_by_layer


def worst_groups(mixture: Mixture, scores: Scores, count: int) -> dict[int, tuple[int, ...]]:
    """Return the experts of the groups of each layer with the lowest sum of scores. Raises OptionError for an
    impossible number.
    """
    if not 0 < count < mixture.groups:
        allowed = f"1 to {mixture.groups - 1} can" if mixture.groups > 1 else "its router has none"
        raise OptionError(f"{count} of {mixture.groups} groups of experts cannot be dropped: {allowed}")
    size, worst_by_layer = mixture.count // mixture.groups, {}
    for layer in mixture.layers:
        sums = np.asarray(scores[layer], np.float64).reshape(mixture.groups, size).sum(axis=1)
        worst = mixture.groups - 1 - np.argsort(sums[::-1], kind="stable")[:count]  # of equals the last one goes
        worst_by_layer[layer] = tuple(sorted(int(group) * size + place for group in worst for place in range(size)))
    return worst_by_layer


def read_list(path: Path) -> dict[int, tuple[int, ...]]:
    """Read experts by layer from a file: lines such as `3: 0,5-7`, comments after #. Raises FileError."""
    lines = read_text(path, EXPERT_LIST).splitlines()
    experts: dict[int, tuple[int, ...]] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = LINE.fullmatch(text)
        if match is None:
            problem = f"{path}, line {number}: {text[:60]!r} is no layer and its experts"
            raise FileError(problem, hint="for example 3: 0,5-7")
        layer = int(match[1])
        if layer in experts:
            raise FileError(f"{path}, line {number}: layer {layer} is there twice")
        experts[layer] = tuple(_numbers(match[2]))
    if not experts:
        raise FileError(f"{path} names no experts", hint="a line for each layer, such as 3: 0,5-7")
    return experts


def _numbers(text: str) -> Iterable[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _some(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} … {numbers[-1]}" if len(numbers) > 3 else ", ".join(map(str, numbers))
