"""What happens to a tensor between checkpoint and GGUF: each answers a row range of its result, lazily.

Moves of whole values keep the stored format and its bits; arithmetic gives float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quants import FormatError, Tensor, format_named

from .config import lookup
from .spec import Config, Transform

LN2_BY_128_HIGH = np.float32(round(math.log(2) * 1024) / 131_072)  # a product with a whole number < 2^14 is exact
LN2_BY_128_LOW = np.float32(math.log(2) / 128 - float(LN2_BY_128_HIGH))


def take(tensor: Tensor, index: NDArray[np.intp]) -> Tensor:
    """Entries `index` of the first dimension, in that order."""
    shape = (len(index), *tensor.shape[1:])
    if len(tensor.shape) == 1:
        dtype = _elements(tensor)
        return replace(tensor, shape=shape, read=lambda a, b: tensor.raw().view(dtype)[:, index].view(np.uint8)[a:b])
    inner = math.prod(tensor.shape[1:-1])

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        row = np.arange(start, stop)
        rows = index[row // inner] * inner + row % inner
        if not len(rows):
            return tensor.raw(0, 0)
        low, high = int(rows.min()), int(rows.max()) + 1
        raw = tensor.raw(low, high)
        return raw if high - low == len(rows) and np.all(np.diff(rows) == 1) else raw[rows - low]

    return replace(tensor, shape=shape, read=read)


def reshape(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same values in another shape of the same size."""
    if math.prod(shape) != tensor.size:
        raise FormatError(f"{tensor.origin or tensor.name}: shape {tensor.shape} cannot become {shape}")
    if shape and tensor.shape and shape[-1] == tensor.shape[-1]:
        return replace(tensor, shape=shape)
    dtype = _elements(tensor)
    row_bytes = (shape[-1] if shape else 1) * dtype.itemsize

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        flat = np.ascontiguousarray(tensor.raw()).reshape(-1)
        return flat[start * row_bytes : stop * row_bytes].reshape(stop - start, row_bytes)

    return replace(tensor, shape=shape, read=read)


def transposed(tensor: Tensor) -> Tensor:
    """The last two dimensions exchanged."""
    *outer, rows, width = tensor.shape
    dtype = _elements(tensor)

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        out = np.empty((stop - start, rows), dtype)
        at = start
        while at < stop:  # a matrix at a time; only the columns asked for are copied
            matrix, column = divmod(at, width)
            end = min(stop, (matrix + 1) * width)
            source = tensor.raw(matrix * rows, (matrix + 1) * rows).view(dtype)
            out[at - start : end - start] = source[:, column : column + end - at].T
            at = end
        return out.view(np.uint8)

    return replace(tensor, shape=(*outer, width, rows), read=read)


def stacked(tensors: Sequence[Tensor], name: str) -> Tensor:
    """Tensors of one shape and format, put on top of each other in a new first dimension."""
    first = tensors[0]
    for other in tensors[1:]:
        if other.shape != first.shape or other.format != first.format:
            raise FormatError(
                f"{other.origin} is {other.format.name} {other.shape}, "
                f"but {first.origin} is {first.format.name} {first.shape}"
            )
    return replace(_rows_of(tensors), name=name, shape=(len(tensors), *first.shape))


def concatenated(tensors: Sequence[Tensor], name: str) -> Tensor:
    """Tensors of one width and format, one after the other in their first dimension."""
    length = sum(t.shape[0] for t in tensors)
    if len(tensors[0].shape) == 1:
        join = np.concatenate
        return replace(
            tensors[0], name=name, shape=(length,), read=lambda a, b: join([t.raw() for t in tensors], axis=1)[a:b]
        )
    return replace(_rows_of(tensors), name=name, shape=(length, *tensors[0].shape[1:]))


def _rows_of(tensors: Sequence[Tensor]) -> Tensor:
    ends = np.cumsum([t.rows for t in tensors])

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        parts = []
        for tensor, end in zip(tensors, ends, strict=True):
            begin = int(end) - tensor.rows
            low, high = max(start, begin), min(stop, int(end))
            if low < high:
                parts.append(tensor.raw(low - begin, high - begin))
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [tensors[0].raw(0, 0)])

    return replace(tensors[0], read=read)


def computed(tensor: Tensor, function: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Tensor:
    """A function of each value, in float32."""
    return replace(
        tensor, format=format_named("F32"),
        read=lambda a, b: np.ascontiguousarray(function(tensor.float32(a, b)), "<f4").view(np.uint8),
    )  # fmt: skip


def _elements(tensor: Tensor) -> np.dtype[np.generic]:
    dtype = tensor.format.elements
    if dtype is None:
        raise FormatError(
            f"{tensor.origin or tensor.name} is {tensor.format.name}; its values cannot be moved one by one"
        )
    return dtype


# Words for family files: each is, or makes, a Transform.


def interleave_rope(heads: str) -> Transform:
    """Re-order the rows of each head so that the pairs that rotate together, half a head apart in HF, are adjacent.

    heads: the config key (alternatives as in `lookup`) that counts them.
    """

    def transform(tensor: Tensor, config: Config) -> Tensor:
        count = lookup(config, heads)
        rows = tensor.shape[0]
        if rows % (2 * count):
            raise FormatError(
                f"{tensor.origin} has {rows} rows; {count} heads ({heads}) of an even width don't divide them"
            )
        index = np.arange(rows).reshape(count, 2, rows // count // 2).swapaxes(1, 2).reshape(-1)
        return take(tensor, index)

    return transform


def ungroup(heads: str, kv_heads: str | Callable[[Config], int], pick: str = "qkv") -> Transform:
    """Fused q/k/v rows stored by key-value head (its queries, its key, its value) → all q, all k, all v rows.

    heads, kv_heads: the config keys that count them (or a function). pick: which of q, k, v the result has.
    """

    def transform(tensor: Tensor, config: Config) -> Tensor:
        groups = kv_heads(config) if callable(kv_heads) else lookup(config, kv_heads)
        each = lookup(config, heads) // groups + 2
        if tensor.shape[0] % (groups * each):
            raise FormatError(f"{tensor.origin} has {tensor.shape[0]} rows; {groups} groups of {each} don't fit")
        rows = np.arange(tensor.shape[0]).reshape(groups, each, -1)
        kinds = {"q": rows[:, :-2], "k": rows[:, -2], "v": rows[:, -1]}
        return take(tensor, np.concatenate([kinds[kind].reshape(-1) for kind in pick]))

    return transform


def transpose(tensor: Tensor, config: Config) -> Tensor:
    """Weights stored as (in, out), as GPT-2's Conv1D does; biases stay."""
    return tensor if len(tensor.shape) < 2 else transposed(tensor)


def add_one(tensor: Tensor, config: Config) -> Tensor:
    """A norm weight stored minus one."""
    return computed(tensor, lambda x: x + np.float32(1))


def negative_exp(tensor: Tensor, config: Config) -> Tensor:
    """Decays of a state space, stored as the logarithm of their negative; one a head gets a column of its own."""
    result = computed(tensor, lambda x: -_exp(x))
    return column(result, config) if len(tensor.shape) == 1 else result


def _exp(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """e^x of float32 values, to 0.56 units of the last place, with the same bits on every machine.

    The reference's own bits depend on the processor it runs on. These are its bits where products are not fused with
    sums: x = n ln(2) / 128 + r, e^x = 2^(n / 128) * (1 + r + r * r / 2), the power as the sum of two float32.
    """
    n = np.rint(x * np.float32(128 / math.log(2)))
    r = x - n * LN2_BY_128_HIGH - n * LN2_BY_128_LOW
    p = r + r * r * np.float32(0.5)
    place = n.astype(np.int64) & 127
    power = np.exp2(place / 128)
    high = power.astype(np.float32)
    low = (power - high).astype(np.float32)
    exponent = (n.astype(np.int64) - place) // 128
    result: NDArray[np.float32] = np.ldexp(high + (low + high * p), exponent).astype(np.float32)
    return result


def column(tensor: Tensor, config: Config) -> Tensor:
    """A vector as a matrix of one column."""
    return reshape(tensor, (*tensor.shape, 1))


def channels_and_taps(tensor: Tensor, config: Config) -> Tensor:
    """The weight of a convolution over each channel by itself, (channels, 1, taps), without the middle dimension."""
    return reshape(tensor, (tensor.shape[0], tensor.shape[2])) if len(tensor.shape) == 3 else tensor


def in_groups(groups: str) -> Transform:
    """A vector as a matrix with a row for each group; groups: the config key that counts them."""

    def transform(tensor: Tensor, config: Config) -> Tensor:
        count = int(config[groups])
        return reshape(tensor, (count, tensor.shape[0] // count))

    return transform


def scaled(*keys: str) -> Transform:
    """Multiplied with config values, one after the other, each product rounded to float32."""

    def transform(tensor: Tensor, config: Config) -> Tensor:
        factors = [np.float32(lookup(config, key)) for key in keys]

        def multiply(x: NDArray[np.float32]) -> NDArray[np.float32]:
            for factor in factors:
                x = x * factor
            return x

        return computed(tensor, multiply)

    return transform


def scaled_rows(factors: Callable[[Config], NDArray[np.float32]]) -> Transform:
    """Each row multiplied with its own factor, in float32."""

    def transform(tensor: Tensor, config: Config) -> Tensor:
        each = factors(config)[:, None]

        def read(start: int, stop: int) -> NDArray[np.uint8]:
            return np.ascontiguousarray(tensor.float32(start, stop) * each[start:stop], "<f4").view(np.uint8)

        return replace(tensor, format=format_named("F32"), read=read)

    return transform


def skip_rows(count: int) -> Transform:
    """Leave out the first rows."""
    return lambda tensor, config: take(tensor, np.arange(count, tensor.shape[0]))


def part(number: int, parts: int) -> Transform:
    """One of several equal parts of the first dimension (of the one before last where experts stand in front)."""

    def transform(tensor: Tensor, config: Config) -> Tensor:
        if len(tensor.shape) < 3:
            size = tensor.shape[0] // parts
            return take(tensor, np.arange(number * size, (number + 1) * size))
        experts, rows, width = tensor.shape
        flat = take(reshape(tensor, (experts * rows, width)), _part_rows(experts, rows, number, parts))
        return replace(flat, shape=(experts, rows // parts, width))

    return transform


def _part_rows(experts: int, rows: int, number: int, parts: int) -> NDArray[np.intp]:
    size = rows // parts
    return (np.arange(experts)[:, None] * rows + number * size + np.arange(size)[None]).reshape(-1)


def every_second(first: int) -> Transform:
    """Rows first, first + 2, … of each expert's matrix; of biases (experts, rows) the values."""

    def transform(tensor: Tensor, config: Config) -> Tensor:
        if len(tensor.shape) == 2:
            return transposed(take(transposed(tensor), np.arange(first, tensor.shape[1], 2)))
        experts, rows, width = tensor.shape
        flat = take(reshape(tensor, (experts * rows, width)), np.arange(first, experts * rows, 2))
        return replace(flat, shape=(experts, rows // 2, width))

    return transform


def head_rows(heads: str, start: str, stop: str) -> Transform:
    """Rows start … stop of each head's equal share, as (heads, rows, width); sums of config keys, "" counts as 0."""

    def transform(tensor: Tensor, config: Config) -> Tensor:
        count = int(config[heads])
        rows, width = tensor.shape
        low, high = (sum(int(config[key]) for key in keys.split("+") if key) for keys in (start, stop))
        each = np.arange(count)[:, None] * (rows // count) + np.arange(low, high)
        return replace(take(tensor, each.reshape(-1)), shape=(count, high - low, width))

    return transform


def chain(*transforms: Transform) -> Transform:
    """One after the other."""

    def transform(tensor: Tensor, config: Config) -> Tensor:
        for each in transforms:
            tensor = each(tensor, config)
        return tensor

    return transform


def unit_rows_if(condition: Callable[[Config], bool]) -> Transform:
    """Rows scaled to length one, for configs that mean that."""

    def normalize(x: NDArray[np.float32]) -> NDArray[np.float32]:
        lengths = np.linalg.norm(x, axis=1, keepdims=True).astype(np.float32)
        scaled: NDArray[np.float32] = x / np.maximum(lengths, np.float32(1e-12))
        return scaled

    return lambda tensor, config: computed(tensor, normalize) if condition(config) else tensor
