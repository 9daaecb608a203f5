"""Transforms of tensors between checkpoint and GGUF: each lazily computes row ranges of its result.

Moves of whole values keep the stored format and its bits; arithmetic gives float32.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quants import FormatError, Tensor, format_named

from .cached_rows import CachedRows, element_type
from .config import lookup, required
from .spec import Config, Floats, Index, Transform, unchanged

LN2_BY_128_HIGH = np.float32(round(math.log(2) * 1024) / 131_072)  # a product with an integer < 2^14 is exact
LN2_BY_128_LOW = np.float32(math.log(2) / 128 - float(LN2_BY_128_HIGH))


def take(tensor: Tensor, index: Index) -> Tensor:
    """Return the entries `index` of the first dimension, in that order."""
    if len(index) and not 0 <= index.min() <= index.max() < tensor.shape[0]:
        raise FormatError(f"{tensor.where} has {tensor.shape[0]} rows; config.json means more")
    shape = (len(index), *tensor.shape[1:])
    if len(tensor.shape) == 1:
        dtype = element_type(tensor)
        return replace(tensor, shape=shape, read=lambda a, b: tensor.raw().view(dtype)[:, index].view(np.uint8)[a:b])
    inner = math.prod(tensor.shape[1:-1])

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        row = np.arange(start, stop)
        rows = index[row // inner] * inner + row % inner
        if not len(rows):
            return tensor.raw(0, 0)
        low, high = int(rows.min()), int(rows.max()) + 1
        if high - low > 2 * len(rows):  # such as the keys among fused rows, far apart
            runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
            return np.concatenate([tensor.raw(int(run[0]), int(run[-1]) + 1) for run in runs])
        raw = tensor.raw(low, high)
        return raw if high - low == len(rows) and np.all(np.diff(rows) == 1) else raw[rows - low]

    return replace(tensor, shape=shape, read=read)


def reshape(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the same values in another shape of the same size."""
    if math.prod(shape) != tensor.size:
        raise FormatError(f"{tensor.where}: shape {tensor.shape} cannot become {shape}")
    if shape and tensor.shape and shape[-1] == tensor.shape[-1]:
        return replace(tensor, shape=shape)
    row_bytes = (shape[-1] if shape else 1) * element_type(tensor).itemsize

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        flat: NDArray[np.uint8] = span(tensor.raw, tensor.row_bytes, start * row_bytes, stop * row_bytes)
        return flat.reshape(stop - start, row_bytes)

    return replace(tensor, shape=shape, read=read)


def span(read: Callable[[int, int], NDArray[Any]], width: int, begin: int, end: int) -> NDArray[Any]:
    """Return items begin … end of consecutive rows, reading only the rows that hold them. width: of a row."""
    each = max(1, width)
    return np.ascontiguousarray(read(begin // each, -(-end // each))).reshape(-1)[begin % each :][: end - begin]


def transposed(tensor: Tensor) -> Tensor:
    """Return the last two dimensions exchanged. Raises FormatError for a tensor with one dimension."""
    if len(tensor.shape) < 2:
        raise FormatError(f"{tensor.where} has shape {list(tensor.shape)}; a matrix was expected")
    *outer, rows, width = tensor.shape
    dtype = element_type(tensor)
    matrices = [CachedRows(tensor, i * rows, (i + 1) * rows) for i in range(math.prod(outer))]

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        out = np.empty((stop - start, rows), dtype)
        at = start
        while at < stop:  # a matrix at a time; only the requested columns are copied
            matrix, column = divmod(at, width)
            end = min(stop, (matrix + 1) * width)
            source = matrices[matrix].elements()
            out[at - start : end - start] = source[:, column : column + end - at].T
            at = end
        return out.view(np.uint8)

    return replace(tensor, shape=(*outer, width, rows), read=read)


def stacked(tensors: Sequence[Tensor], name: str) -> Tensor:
    """Return tensors of one shape stacked in a new first dimension; as float32 where formats differ."""
    if len({tensor.format for tensor in tensors}) > 1:  # some experts quantized, or differently
        tensors = [as_float32(tensor) for tensor in tensors]
    first = tensors[0]
    for other in tensors[1:]:
        if other.shape != first.shape:
            what, wanted = (f"{each.origin} is {each.format.name} {each.shape}" for each in (other, first))
            raise FormatError(f"{what}, but {wanted}")
    return replace(_rows_of(tensors), name=name, shape=(len(tensors), *first.shape))


def concatenated(tensors: Sequence[Tensor], name: str) -> Tensor:
    """Return tensors of one width and format, concatenated in their first dimension."""
    whole = _rows_of(tensors)
    if len(tensors[0].shape) == 1:
        whole = replace(whole, read=lambda a, b: np.concatenate([t.raw() for t in tensors], axis=1)[a:b])
    return replace(whole, name=name, shape=(sum(t.shape[0] for t in tensors), *tensors[0].shape[1:]))


def side_by_side(tensors: Sequence[Tensor], name: str) -> Tensor:
    """Return matrices with equal rows and format, concatenated along the columns."""
    first = tensors[0]

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        return np.concatenate([tensor.raw(start, stop) for tensor in tensors], axis=1)

    return replace(first, name=name, shape=(*first.shape[:-1], sum(each.width for each in tensors)), read=read)


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


def computed(tensor: Tensor, function: Callable[..., Floats], *of_rows: Floats) -> Tensor:
    """Return a function of some rows' values, in float32. of_rows: more arguments, indexed by the same rows."""

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        values = function(tensor.float32(start, stop), *(each[start:stop] for each in of_rows))
        return np.ascontiguousarray(values, "<f4").view(np.uint8)

    return replace(tensor, format=format_named("F32"), read=read)


def ternary(tensor: Tensor, config: Config) -> Tensor:
    """Return a matrix rounded to -1, 0 and 1 under one scale, the mean of its magnitudes: BitNet b1.58's rounding."""

    @cache
    def scale() -> Floats:
        step = max(1, (1 << 22) // max(1, tensor.width))
        parts = (tensor.float32(start, start + step) for start in range(0, tensor.rows, step))
        total = sum(float(np.abs(each).sum(dtype=np.float64)) for each in parts)
        return np.asarray(np.float32(1) / np.float32(max(total / tensor.size, 1e-5)))

    def rounded(x: Floats) -> Floats:
        whole: Floats = np.clip(np.rint(x * scale()), np.float32(-1), np.float32(1))
        return np.divide(whole, scale(), out=whole)

    return computed(tensor, rounded)


def as_float32(tensor: Tensor) -> Tensor:
    """Return the same values in float32."""
    return tensor if tensor.format.name == "F32" else computed(tensor, lambda x: x)


def zeros(like: Tensor, rows: int) -> Tensor:
    """Return `rows` rows of zeros."""
    empty = np.zeros((rows, like.row_bytes), np.uint8)
    return replace(like, shape=(rows, *like.shape[1:]), read=lambda a, b: empty[a:b])


# Transforms for family modules; most have an inverse.

Rows = Callable[[int, tuple[int, ...], Config], tuple[Index, tuple[int, ...]]]
Order = Callable[[int, Config], Index]


@dataclass(frozen=True)
class Invertible:
    """A Transform with an inverse, so that a file can be exported as a checkpoint.

    invert: returns the source tensor. rows: of a transform that takes a share of the source's rows (of vectors:
    values): from the number of all rows and the share's shape, which rows these are, and the source's shape.
    invert_multimodal: the remaining inverse when all shares are one tensor again.
    """

    forward: Transform
    invert: Transform = unchanged
    rows: Rows | None = None
    invert_multimodal: Transform = unchanged

    def __call__(self, tensor: Tensor, config: Config) -> Tensor:
        return self.forward(tensor, config)


def reordered(order: Order) -> Invertible:
    """Return rows (of a vector: values) in an order given by their number and the config."""

    def index(tensor: Tensor, config: Config) -> Index:
        try:
            return order(tensor.shape[0], config)
        except FormatError as error:
            raise FormatError(f"{tensor.where} has {error}") from None

    return Invertible(
        lambda tensor, config: take(tensor, index(tensor, config)),
        lambda tensor, config: take(tensor, np.argsort(index(tensor, config))),
    )


def share(order: Order) -> Invertible:
    """Return some rows, in an order given by the number of all of them and the config; other shares have the rest."""
    forward = reordered(order).forward
    return Invertible(forward, rows=lambda total, shape, config: (order(total, config), (total, *shape[1:])))


def _picked(
    pick: Callable[[tuple[int, ...], Config], Index], source: Callable[[int, tuple[int, ...], Config], tuple[int, ...]]
) -> Invertible:
    """Return some rows of the matrices in a tensor, counted through all of them (of a vector: values).

    pick: which ones, from the source's shape, as many a matrix as the index has columns. source: that shape, from the
    number of all rows and the share's shape.
    """

    def transform(tensor: Tensor, config: Config) -> Tensor:
        index = pick(tensor.shape, config)
        rows = tensor if len(tensor.shape) == 1 else reshape(tensor, (tensor.rows, tensor.width))
        return replace(take(rows, index.reshape(-1)), shape=(*index.shape, *rows.shape[1:]))

    def rows(total: int, shape: tuple[int, ...], config: Config) -> tuple[Index, tuple[int, ...]]:
        whole = source(total, shape, config)
        return pick(whole, config).reshape(-1), whole

    return Invertible(transform, rows=rows)


def solved(values: Floats, guess: NDArray[Any], forward: Callable[[Floats], Floats]) -> Floats:
    """Return those of the numbers next to `guess` that `forward` turns into `values` exactly; `guess` where there are
    none.
    """
    guess = np.asarray(guess, np.float32)
    numbers: Floats = guess.copy()
    wrong = forward(numbers) != values
    for direction in (np.float32(-np.inf), np.float32(np.inf)):
        near = guess
        for _ in range(4):
            near = np.asarray(np.nextafter(near, direction), np.float32)
            better = wrong & (forward(near) == values)
            numbers[better] = near[better]
            wrong &= ~better
    return numbers


def interleave_rope(heads: str, rotating: Callable[[Config], int] | None = None) -> Invertible:
    """Re-order the rows of each head so that the pairs that rotate together, half a head apart in HF, are adjacent.

    heads: the config key (alternatives as in `lookup`) that counts them. rotating: how many rows of a head rotate, the
    first ones; None for all.
    """

    def order(rows: int, config: Config) -> Index:
        count = required(config, heads)
        if rows % (2 * count):
            raise FormatError(f"{rows} rows; {count} heads ({heads}) of an even width don't divide them")
        index: Index = np.arange(rows).reshape(count, -1)
        rotated = rotating(config) if rotating else index.shape[1]
        if rotated % 2 or rotated > index.shape[1]:
            raise FormatError(f"{rotated} rows of heads that have {index.shape[1]} can't rotate in pairs")
        index[:, :rotated] = index[:, :rotated].reshape(count, 2, -1).swapaxes(1, 2).reshape(count, rotated)
        return index.reshape(-1)

    return reordered(order)


def ungroup(heads: str, kv_heads: str | Callable[[Config], int], pick: str = "qkv") -> Invertible:
    """Return fused q/k/v rows, stored by key-value head (its queries, its key, its value), as all q, all k, all v rows.

    heads, kv_heads: the config keys that count them (or a function). pick: which of q, k, v the result has.
    """

    def order(count: int, config: Config) -> Index:
        groups = kv_heads(config) if callable(kv_heads) else required(config, kv_heads)
        each = required(config, heads) // groups + 2
        if count % (groups * each):
            raise FormatError(f"{count} rows; {groups} groups of {each} don't fit")
        rows = np.arange(count).reshape(groups, each, -1)
        parts = {"q": rows[:, :-2], "k": rows[:, -2], "v": rows[:, -1]}
        return np.concatenate([parts[letter].reshape(-1) for letter in pick])

    return reordered(order) if pick == "qkv" else share(order)


def projection(which: str) -> Invertible:
    """Return q, k or v of fused rows that are all q, all k, all v; with as many k and v as config keys say, or as q."""

    def order(count: int, config: Config) -> Index:
        heads = required(config, "num_attention_heads|n_head")
        groups = int(lookup(config, "num_key_value_heads|num_query_groups") or heads)
        if count % (heads + 2 * groups):
            raise FormatError(f"{count} rows; {heads} heads and twice {groups} don't divide them")
        width = count // (heads + 2 * groups)
        start, stop = {"q": (0, heads), "k": (heads, heads + groups), "v": (heads + groups, heads + 2 * groups)}[which]
        return np.arange(start * width, stop * width)

    return share(order)


def _transpose(tensor: Tensor, config: Config) -> Tensor:
    """Return weights stored as (in, out), as GPT-2's Conv1D does, transposed; biases stay."""
    return tensor if len(tensor.shape) < 2 else transposed(tensor)


def _negative_exp(tensor: Tensor, config: Config) -> Tensor:
    """Return decays of a state space, stored as the logarithm of their negative; one a head gets its own column."""
    result = computed(tensor, lambda x: -_exp(x))
    return column(result, config) if len(tensor.shape) == 1 else result


def _log_of_negative(tensor: Tensor, config: Config) -> Tensor:
    flat = reshape(tensor, tensor.shape[:1]) if tensor.shape[1:] == (1,) else tensor
    return computed(flat, lambda x: solved(x, np.log(-x.astype(np.float64)), lambda y: -_exp(y)))


def _exp(x: Floats) -> Floats:
    """Return e^x of float32 values, to 0.56 units of the last place, with the same bits on every machine.

    llama.cpp's own bits depend on the processor it runs on. These are its bits where products are not fused with
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
    result: Floats = np.ldexp(high + (low + high * p), exponent).astype(np.float32)
    return result


transpose = Invertible(_transpose, _transpose)
negative_exp = Invertible(_negative_exp, _log_of_negative)


def added(number: float) -> Invertible:
    """Return a norm weight that is stored minus this number."""
    return Invertible(
        lambda tensor, config: computed(tensor, lambda x: x + np.float32(number)),
        lambda tensor, config: computed(tensor, lambda x: x - np.float32(number)),
    )


add_one = added(1)
# a vector as a matrix of one column
column = Invertible(
    lambda tensor, config: reshape(tensor, (*tensor.shape, 1)),
    lambda tensor, config: reshape(tensor, tensor.shape[:-1]),
)
flat = Invertible(column.invert, column.forward)
# a matrix of one row as a vector
flat_row = Invertible(
    lambda tensor, config: reshape(tensor, tensor.shape[1:]), lambda tensor, config: reshape(tensor, (1, *tensor.shape))
)
# the weight of a depthwise convolution, (channels, 1, taps), without the middle dimension
channels_and_taps = Invertible(
    lambda tensor, config: reshape(tensor, tensor.shape[::2]) if len(tensor.shape) == 3 else tensor,
    lambda tensor, config: reshape(tensor, (tensor.shape[0], 1, tensor.shape[1])) if len(tensor.shape) == 2 else tensor,
)


def in_groups(groups: str) -> Transform:
    """Return a vector as a matrix with a row for each group; groups: the config key that counts them."""
    return Invertible(
        lambda tensor, config: reshape(tensor, (int(config[groups]), tensor.shape[0] // int(config[groups]))),
        lambda tensor, config: reshape(tensor, (tensor.size,)),
    )


def scaled(*keys: str) -> Transform:
    """Return the tensor multiplied by config values, one after the other, each product rounded to float32."""

    def product(x: Floats, config: Config) -> Floats:
        return reduce(lambda y, key: y * np.float32(required(config, key)), keys, x)

    def quotient(x: Floats, config: Config) -> Floats:
        exact = reduce(lambda y, key: y / float(np.float32(required(config, key))), keys[::-1], x.astype(np.float64))
        return solved(x, exact, lambda y: product(y, config))

    return Invertible(
        lambda tensor, config: computed(tensor, lambda x: product(x, config)),
        lambda tensor, config: computed(tensor, lambda x: quotient(x, config)),
    )


def scaled_rows(factors: Callable[[Config], Floats]) -> Invertible:
    """Return each row (of a vector: value) multiplied by its own factor, in float32."""

    def by_rows(function: Callable[[Floats, Floats], Floats]) -> Transform:
        def transform(tensor: Tensor, config: Config) -> Tensor:
            numbers, rows = factors(config), tensor.shape[0]
            if len(numbers) != rows:
                raise FormatError(f"{tensor.where} has {rows} rows; config.json means {len(numbers)}")
            return computed(tensor, function, numbers[:, None] if len(tensor.shape) > 1 else numbers[None])

        return transform

    return Invertible(
        by_rows(np.multiply), by_rows(lambda x, factor: solved(x, x.astype(np.float64) / factor, lambda y: y * factor))
    )


def skip_rows(count: int | Callable[[Config], int]) -> Transform:
    """Return the tensor without its first rows, which nothing reads; their number may depend on the config."""

    def skipped(config: Config) -> int:
        return count(config) if callable(count) else count

    return Invertible(
        lambda tensor, config: take(tensor, np.arange(skipped(config), tensor.shape[0])),
        lambda tensor, config: concatenated([zeros(tensor, skipped(config)), tensor], tensor.name),
    )


def frame(number: int) -> Transform:
    """Return a frame of a convolution over time, (out, in, frames, height, width), as one over an image."""

    def transform(tensor: Tensor, config: Config) -> Tensor:
        if len(tensor.shape) != 5 or tensor.shape[2] <= number:
            wanted = f"(out, in, {number + 1} or more frames, height, width)"
            raise FormatError(f"{tensor.where} has the shape {tensor.shape}; {wanted} was expected")
        out, into, frames, height, width = tensor.shape
        each = reshape(tensor, (out * into * frames, height * width))
        return reshape(take(each, np.arange(number, out * into * frames, frames)), (out, into, height, width))

    def rows(total: int, shape: tuple[int, ...], config: Config) -> tuple[Index, tuple[int, ...]]:
        out, into, height, width = shape
        frames = max(1, total // (out * into * height))
        index: Index = np.arange(out * into * frames * height).reshape(out * into, frames, height)
        return index[:, number].reshape(-1), (out, into, frames, height, width)

    return Invertible(transform, rows=rows)


def _patches(tensor: Tensor, config: Config) -> Tensor:
    out, values = tensor.shape if len(tensor.shape) == 2 else (0, 0)
    side = math.isqrt(values // 3)
    if not out or side * side * 3 != values:
        raise FormatError(f"{tensor.where} has the shape {tensor.shape}; (out, height * width * 3) was expected")
    dtype = element_type(tensor)

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        first, last = start // (3 * side), -(-stop // (3 * side))
        pixels = np.ascontiguousarray(tensor.raw(first, last)).view(dtype).reshape(-1, side * side, 3)
        rows = np.ascontiguousarray(pixels.transpose(0, 2, 1)).reshape(-1, side)
        return rows[start - first * 3 * side : stop - first * 3 * side].view(np.uint8)

    return replace(tensor, shape=(out, 3, side, side), read=read)


def _pixels(tensor: Tensor, config: Config) -> Tensor:
    if len(tensor.shape) != 4 or tensor.shape[1] != 3:
        raise FormatError(f"{tensor.where} has the shape {tensor.shape}; (out, 3, height, width) was expected")
    out, _, height, width = tensor.shape
    dtype = element_type(tensor)

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        raw = np.ascontiguousarray(tensor.raw(start * 3 * height, stop * 3 * height)).view(dtype)
        colours = raw.reshape(stop - start, 3, height * width).transpose(0, 2, 1)
        return np.ascontiguousarray(colours).reshape(stop - start, -1).view(np.uint8)

    return replace(tensor, shape=(out, 3 * height * width), read=read)


# a matrix over pixels of square patches, (out, height * width * 3), as a convolution (out, 3, height, width)
patches_of_pixels = Invertible(_patches, _pixels)


def part(number: int, parts: int) -> Transform:
    """Return one of several equal parts of the first dimension (of the one before last where experts stand in
    front).
    """

    def pick(shape: tuple[int, ...], config: Config) -> Index:
        experts, rows = shape[:2] if len(shape) > 2 else (1, shape[0])
        size = rows // parts
        index: Index = np.arange(experts)[:, None] * rows + number * size + np.arange(size)
        return index if len(shape) > 2 else index[0]

    def source(total: int, shape: tuple[int, ...], config: Config) -> tuple[int, ...]:
        return (total, *shape[1:]) if len(shape) < 3 else (shape[0], total // shape[0], shape[2])

    return _picked(pick, source)


def every_second(first: int) -> Transform:
    """Return rows first, first + 2, … of each expert's matrix; of biases (experts, rows) the values."""

    def source(total: int, shape: tuple[int, ...], config: Config) -> tuple[int, ...]:
        experts = int(lookup(config, "num_local_experts|num_experts"))
        return experts, total // experts, *shape[2:]

    def transform(tensor: Tensor, config: Config) -> Tensor:
        if len(tensor.shape) > 2:
            return matrices(tensor, config)
        return transposed(take(transposed(tensor), np.arange(first, tensor.shape[1], 2)))

    def flat(tensor: Tensor, config: Config) -> Tensor:
        return reshape(tensor, (tensor.size,)) if len(tensor.shape) == 2 else tensor

    matrices = _picked(lambda s, config: np.arange(first, s[0] * s[1], 2).reshape(s[0], -1), source)
    return replace(matrices, forward=transform, invert=flat)


def head_rows(heads: str, start: str, stop: str) -> Transform:
    """Return rows start … stop of each head's equal share, from (heads, rows, width); sums of config keys, "" counts as
    0.
    """

    def pick(shape: tuple[int, ...], config: Config) -> Index:
        rows, count = shape[0], int(required(config, heads))
        low, high = (sum(int(required(config, key)) for key in keys.split("+") if key) for keys in (start, stop))
        if rows % count or high > rows // count:
            raise FormatError(f"{rows} rows don't hold {count} heads ({heads}) of {high} or more each")
        return np.arange(count)[:, None] * (rows // count) + np.arange(low, high)

    return _picked(pick, lambda total, shape, config: (total, shape[-1]))


def chain(*transforms: Transform) -> Transform:
    """Return transforms applied one after the other; at most one of them may take a share of the rows."""

    def transform(tensor: Tensor, config: Config) -> Tensor:
        return reduce(lambda result, step: step(result, config), transforms, tensor)

    steps = [each for each in transforms if isinstance(each, Invertible)]
    shares = [i for i, step in enumerate(steps) if step.rows]
    if len(steps) < len(transforms) or len(shares) > 1:
        return transform
    cut = shares[0] if shares else 0

    def inverse(steps: Sequence[Invertible]) -> Transform:
        return lambda tensor, config: reduce(lambda result, step: step.invert(result, config), reversed(steps), tensor)

    return Invertible(transform, inverse(steps[cut:]), steps[cut].rows, inverse(steps[:cut]))


def unit_rows_if(condition: Callable[[Config], bool]) -> Transform:
    """Return rows normalized to length one, for configs that require it."""

    def normalize(x: Floats) -> Floats:
        lengths = np.linalg.norm(x, axis=1, keepdims=True).astype(np.float32)
        normal: Floats = x / np.maximum(lengths, np.float32(1e-12))
        return normal

    return Invertible(lambda tensor, config: computed(tensor, normalize) if condition(config) else tensor)
