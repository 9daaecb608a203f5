"""Tensors in diffusers' layout → the published ones, by rules that are data.

Diffusers renames tensors, cuts fused projections into parts, and exchanges the halves of some modulations. A rule names
a published tensor and the parts that it is made of. Nothing is read until rows of a result are; rows keep their stored
bits, and parts of different formats become float32.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from quants import Tensor
from quants.errors import ModelError

from ...spec import Tensors
from ...transforms import as_float32, concatenated, reshape, take

Change = Callable[[Sequence[Tensor], str], Tensor]  # of the parts and the published name

NUMBER = "0|[1-9][0-9]{0,4}"
FIELDS = {"i": NUMBER, "j": NUMBER, "p": "weight|bias"}
LAST = "{last}"


class Made(NamedTuple):
    """The names of parts in diffusers' layout, and what a published tensor is made of them by.

    shared: other published tensors are made of the same part, and their rules follow.
    """

    sources: tuple[str, ...]
    change: Change
    shared: bool = False


Source = str | tuple[str, ...] | Made  # one tensor; equal parts that are joined; or parts with another change


class Rule(NamedTuple):
    """A published tensor and its parts in diffusers' layout.

    Names have fields: {i} and {j} for numbers of blocks, {last} for the number of the last block, {p} for "weight" or
    "bias". All parts of a tensor have the same fields.
    """

    target: str
    sources: tuple[str, ...]
    change: Change
    shared: bool = False


@dataclass(frozen=True)
class DiffusersLayout:
    """A family's layout in diffusers.

    rules: the first that fits a tensor counts, and if its part is shared, all that share it. A function of the tensors
        where published numbers of blocks depend on how many there are.
    signatures: sets of names in diffusers' layout; a model has all names of one set, and no model of another family
        has, but for relatives with more tensors. absent: names of those.
    """

    rules: tuple[Rule, ...] | Callable[[Tensors], tuple[Rule, ...]]
    signatures: tuple[tuple[str, ...], ...]
    absent: tuple[str, ...] = ()

    def __call__(self, tensors: Tensors) -> Tensors:
        """Return the published tensors.

        Raises ModelError for a tensor without a rule, for a published tensor that lacks a part, and for shapes that do
        not fit.
        """
        if callable(self.rules):
            rules = self.rules(tensors)
            return published(tensors, rules, places(rules))
        return published(tensors, self.rules, self._places)

    @cached_property
    def _places(self) -> "Places":
        return {} if callable(self.rules) else places(self.rules)


def modules(entries: Mapping[str, Source], to: str = "", of: str = "") -> tuple[Rule, ...]:
    """Return rules of modules' weights and biases: published name → names in diffusers.

    to, of: what stands before the published names and before those of diffusers, such as a block.
    """
    return tuple(
        Rule(f"{to}{target}.{{p}}", tuple(f"{of}{name}.{{p}}" for name in made.sources), made.change, made.shared)
        for target, made in _made(entries)
    )


def parameters(entries: Mapping[str, Source], to: str = "", of: str = "") -> tuple[Rule, ...]:
    """Return rules of single tensors, as `modules` has them of modules."""
    return tuple(
        Rule(f"{to}{target}", tuple(f"{of}{name}" for name in made.sources), made.change, made.shared)
        for target, made in _made(entries)
    )


def same(*names: str) -> dict[str, Source]:
    """Return entries of names that are the same in both layouts."""
    return {name: name for name in names}


def _made(entries: Mapping[str, Source]) -> list[tuple[str, Made]]:
    return [(target, source if isinstance(source, Made) else _plain(source)) for target, source in entries.items()]


def _plain(source: str | tuple[str, ...]) -> Made:
    return Made((source,), _unchanged) if isinstance(source, str) else Made(source, _equal_parts)


def joined(*names: str) -> Made:
    """Return parts whose rows are joined; they may have different numbers of rows."""
    return Made(names, _joined)


def swapped(name: str) -> Made:
    """Return a tensor whose halves are exchanged: diffusers reads scale before shift, published models the reverse."""
    return Made((name,), _swapped)


def halves(first: str, second: str, name: str) -> dict[str, Source]:
    """Return entries of the two published tensors that the halves of a tensor are."""
    return {
        first: Made((name,), lambda parts, target: _half(parts[0], 0), shared=True),
        second: Made((name,), lambda parts, target: _half(parts[0], 1), shared=True),
    }


def flat(name: str) -> Made:
    """Return a tensor as a vector."""
    return Made((name,), lambda parts, target: reshape(parts[0], (parts[0].size,)))


def of_channels(name: str) -> Made:
    """Return a vector of channels in the shape that is added to images: (1, channels, 1, 1)."""
    return Made((name,), lambda parts, target: reshape(parts[0], (1, parts[0].size, 1, 1)))


def _unchanged(parts: Sequence[Tensor], target: str) -> Tensor:
    return parts[0]


def _joined(parts: Sequence[Tensor], target: str) -> Tensor:
    """Return the rows of all parts. Raises ModelError for parts of different widths."""
    first = parts[0]
    if not first.shape:
        raise ModelError(f"{first.where} is a single number; rows were expected")
    for other in parts:
        if len(other.shape) != len(first.shape) or other.shape[1:] != first.shape[1:]:
            shapes = " and ".join(f"{each.where} has {list(each.shape)}" for each in (first, other))
            raise ModelError(f"{target!r} is made of tensors of one width, but {shapes}")
    if len({part.format for part in parts}) > 1 or any(part.tail is not None for part in parts):
        parts = [as_float32(part) for part in parts]
    return concatenated(parts, target)


def _equal_parts(parts: Sequence[Tensor], target: str) -> Tensor:
    first = parts[0]
    for other in parts:
        if other.shape != first.shape:
            shapes = " and ".join(f"{each.where} has {list(each.shape)}" for each in (first, other))
            raise ModelError(f"{target!r} is made of tensors of one shape, but {shapes}")
    return _joined(parts, target)


def _swapped(parts: Sequence[Tensor], target: str) -> Tensor:
    return _rows(parts[0], (1, 0))


def _half(tensor: Tensor, number: int) -> Tensor:
    return _rows(tensor, (number,))


def _rows(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return halves of a tensor's rows in this order. Raises ModelError for an odd number of rows."""
    if not tensor.shape or tensor.shape[0] % 2:
        raise ModelError(f"{tensor.where} has the shape {list(tensor.shape)}; two halves were expected")
    rows = np.arange(tensor.shape[0]).reshape(2, -1)
    return take(tensor, rows[list(order)].reshape(-1))


class Place(NamedTuple):
    """A part of a rule's target. pattern: matches its names in diffusers' layout."""

    rule: int
    part: int
    pattern: re.Pattern[str] | None  # None for a name with {last}


Places = Mapping[str, Sequence[Place]]  # by names with # for each number


def places(rules: Sequence[Rule]) -> Places:
    """Return the parts of all rules' targets, by names in which # stands for numbers."""
    by_name: dict[str, list[Place]] = {}
    for number, rule in enumerate(rules):
        for part, name in enumerate(rule.sources):
            pattern = None if LAST in name else _pattern(name)
            endings = ("weight", "bias") if name.endswith("{p}") else ("",)
            for ending in endings:
                key = _key(name.replace("{p}", ending).replace("{i}", "0").replace("{j}", "0").replace(LAST, "0"))
                by_name.setdefault(key, []).append(Place(number, part, pattern))
    return by_name


def _key(name: str) -> str:
    return ".".join("#" if word.isdecimal() else word for word in name.split("."))


def _pattern(name: str) -> re.Pattern[str]:
    pattern = re.escape(name)
    for field, values in FIELDS.items():
        pattern = pattern.replace(re.escape(f"{{{field}}}"), f"(?P<{field}>{values})")
    return re.compile(pattern)


def published(tensors: Tensors, rules: Sequence[Rule], where: Places) -> dict[str, Tensor]:
    """Return the published tensors that rules make of those in diffusers' layout; see `DiffusersLayout`."""
    last = _last_blocks(tensors, rules)
    groups: dict[tuple[int, str], dict[int, Tensor]] = {}  # rule, target → parts
    fields: dict[tuple[int, str], Mapping[str, str]] = {}
    for name, tensor in tensors.items():
        for place, values in _places_of(name, rules, where, last):
            target = _filled(rules[place.rule].target, values)
            groups.setdefault((place.rule, target), {})[place.part] = tensor
            fields[place.rule, target] = values
    result: dict[str, Tensor] = {}
    for (number, target), parts in groups.items():
        rule = rules[number]
        for part, source in enumerate(rule.sources):
            if part not in parts:
                missing = _filled(source, fields[number, target])
                raise ModelError(f"{target!r} needs {missing!r}, which is missing", "a shard may be missing")
        if target in result:
            raise ModelError(f"several tensors become {target!r}: {result[target].where}, {parts[0].where}")
        made = rule.change([parts[part] for part in range(len(rule.sources))], target)
        result[target] = replace(made, name=target)
    return result


def _places_of(
    name: str, rules: Sequence[Rule], where: Places, last: Mapping[str, str]
) -> list[tuple[Place, Mapping[str, str]]]:
    """Return where a tensor belongs, and the values of its name's fields. Raises ModelError if no rule has it."""
    by_name: list[tuple[Place, Mapping[str, str]]] = []
    for place in where.get(_key(name), ()):
        source = rules[place.rule].sources[place.part]
        number = last.get(source.partition(LAST)[0], "") if place.pattern is None else ""
        pattern = place.pattern or _pattern(source.replace(LAST, number))
        if (not by_name or rules[place.rule].shared) and (match := pattern.fullmatch(name)):
            by_name.append((place, {**match.groupdict(), "last": number}))
            if not rules[place.rule].shared:
                break
    if not by_name:
        raise ModelError(f"no published name is known for the tensor {name!r} of a model in diffusers' layout")
    return by_name


def _filled(template: str, values: Mapping[str, str]) -> str:
    for field, value in values.items():
        template = template.replace(f"{{{field}}}", value)
    return template


def _last_blocks(tensors: Tensors, rules: Sequence[Rule]) -> dict[str, str]:
    """Return what stands before {last} in names → the highest number there."""
    stems = {name.partition(LAST)[0] for rule in rules for name in rule.sources if LAST in name}
    by_name = {}
    for stem in stems:
        numbers = (name[len(stem) :].partition(".")[0] for name in tensors if name.startswith(stem))
        by_name[stem] = str(max((int(number) for number in numbers if re.fullmatch(NUMBER, number)), default=0))
    return by_name
