"""Options of a quantization besides recipe, matrix and texts: one object, made once and passed on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from quants.arguments import as_count, as_mapping, wrong
from quants.errors import OptionError

from ..writing.options import shown
from .recipes import Options


class Splitting(NamedTuple):
    """Choose the files of an output. keep: the source's shards. max_bytes: of tensor data of a file."""

    keep: bool = False
    max_bytes: int | None = None
    max_tensors: int | None = None


@dataclass(frozen=True)
class QuantizeOptions:
    """Options of an output besides its recipe.

    rules: regular expression → format, such as {"attn_v": "Q8_0"}; the first that matches a tensor's name decides.
    pure: the recipe's main format for every tensor. output_type, token_embedding_type: formats of output.weight and
    token_embd.weight. leave_output: keep output.weight as it is. prune_layers: layers to leave out; the rest is
    renumbered. override: metadata to set, plain data or Values; new: also unknown keys. include_weights,
    exclude_weights: parts of names; only these, or all but these, entries of the importance matrix are used.
    allow_missing_experts: go on if the matrix has no data for many experts. keep_split: a shard for each of the
    source's. max_size, max_tensors: bytes of tensor data, tensors of a shard. allow_requantize: also encode quantized
    tensors again. no_fallback: raise FormatError if a tensor cannot have its recipe's format. check_tensors: first look
    for NaN in all tensors. Raises OptionError for invalid rules and numbers.
    """

    rules: Mapping[str, str] | Iterable[tuple[str, str]] = ()
    pure: bool = False
    output_type: str | None = None
    token_embedding_type: str | None = None
    leave_output: bool = False
    prune_layers: Sequence[int] = ()
    override: Mapping[str, Any] | None = None
    new: bool = False
    include_weights: Sequence[str] = ()
    exclude_weights: Sequence[str] = ()
    allow_missing_experts: bool = False
    keep_split: bool = False
    max_size: int | None = None
    max_tensors: int | None = None
    allow_requantize: bool = False
    no_fallback: bool = False
    check_tensors: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", pairs(self.rules))
        for name in ("max_size", "max_tensors"):
            if (given := getattr(self, name)) is not None:
                as_count(given, name, 1)

    def __repr__(self) -> str:
        return shown(self)

    @cached_property
    def formats(self) -> Options:
        """Return the options that choose formats."""
        return Options(
            self.pure, self.output_type, self.token_embedding_type, self.leave_output, tuple(pairs(self.rules))
        )

    @property
    def splitting(self) -> Splitting:
        return Splitting(self.keep_split, self.max_size, self.max_tensors)

    @property
    def overrides(self) -> Mapping[str, Any]:
        """Return the metadata to set, by key. Raises OptionError unless it is a mapping."""
        return as_mapping(self.override, "override")


def pairs(rules: Mapping[str, str] | Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return rules as (regular expression, format).

    Raises OptionError unless they are a mapping or pairs of strings.
    """
    if not isinstance(rules, Iterable):
        raise wrong("rules", rules, "a mapping of regular expressions to formats")
    items = tuple(rules.items() if isinstance(rules, Mapping) else rules)
    for rule in items:
        if not isinstance(rule, tuple) or len(rule) != 2 or not all(isinstance(each, str) for each in rule):
            raise OptionError(f"rules has {rule!r}; a regular expression and a format were expected")
    return items
