"""Replace formats of forks (see `quants.dialects`) by llama.cpp's own before quantizing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from quants import Tensor
from quants.errors import FormatError, OptionError
from quants.tensor import restated

from .recipes import Recipe

STOCK = "STOCK"
AS_IT_IS = "COPY"


class Stock(NamedTuple):
    """Hold the tensors to plan an output with. warnings: what was changed. changed: True if any tensor was."""

    tensors: dict[str, Tensor]
    warnings: tuple[str, ...] = ()
    changed: bool = False


def in_stock_formats(tensors: Mapping[str, Tensor], recipes: Sequence[Recipe], path: Path) -> Stock:
    """Return tensors in llama.cpp's own formats if one holds the same values; under the recipe COPY, unchanged.

    Raises OptionError for COPY together with recipes that need changes; FormatError under STOCK for a tensor whose
    values no such format holds, and for one that would have to be decoded and cannot.
    """
    names = [recipe.name for recipe in recipes]
    foreign = [tensor for tensor in tensors.values() if tensor.format.dialect]
    if not foreign:
        idle = (f"every tensor of {path.name} is stored as llama.cpp stores it: nothing is changed",)
        return Stock(dict(tensors), idle if STOCK in names else ())
    if AS_IT_IS in names:
        if set(names) != {AS_IT_IS}:
            form = foreign[0].format
            problem = f"{path.name} has tensors of {form.dialect}'s {form.name}, which COPY keeps and others change"
            raise OptionError(problem, "make the copy by itself")
        return Stock(dict(tensors))
    made = {name: restated(tensor) for name, tensor in tensors.items() if tensor.format.dialect}
    for name, tensor in made.items():
        _check(tensors[name], tensor, STOCK in names)
    counts = Counter((tensors[name].format, tensor.format) for name, tensor in made.items())
    decoded = "decoded: llama.cpp has no format of these values"
    warnings = tuple(
        f"{form.name} of {form.dialect} ({count} tensor{'s' if count > 1 else ''}) is "
        + (decoded if now.dialect else f"read as {now.name}, the same values")
        for (form, now), count in counts.items()
    )
    return Stock({name: made.get(name, tensor) for name, tensor in tensors.items()}, warnings, True)


def _check(tensor: Tensor, made: Tensor, exactly: bool) -> None:
    form, where = tensor.format, f"tensor {tensor.name!r} is {tensor.format.name}, a format of {tensor.format.dialect}"
    if not form.has_codec:
        raise FormatError(f"{where} that is not known here: it can be copied, not decoded", "the recipe COPY keeps it")
    if exactly and made.format.dialect:
        hint = "quantize to Q8_0, or without any rounding to F32, with `allow_requantize`"
        raise FormatError(f"{where} whose values no format of llama.cpp holds exactly", hint)
