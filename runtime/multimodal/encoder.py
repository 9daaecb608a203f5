"""Shared by vision encoders: keys, patches, positions, squares of patches, rotation."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from archs.unsupported_encoders import absent_value, activation, merged_key
from quants import Tensor
from quants.errors import ModelError, OptionError

from ..arrays import Floats, Ids
from ..rope import apply_rope
from .layers import Rotation, Vit, Weights, encoder_key

ROPE_BASE = 10_000.0
LARGEST_PATCH, LARGEST = 256, 8192  # pixels a side; more would fill the memory
SAM = "v.sam.patch_embd.weight"  # of encoders that begin with SAM's


class Parts:
    """A file's keys and weights, as the encoder types read them. progress(layers done, of how many)."""

    def __init__(
        self, projector: str, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], threads: int
    ) -> None:
        self.projector, self.metadata, self.weights = projector, metadata, Weights(tensors, threads)
        self.patch_size = self.key("patch_size")
        if SAM in tensors:  # keys are those of the encoder after it
            self.patch_size = self.weights.need(SAM).shape[-1]
        if self.patch_size > LARGEST_PATCH:
            raise ModelError(f"the file has patches of {self.patch_size} pixels a side; {LARGEST_PATCH} are the most")
        self.progress: Callable[[int, int], None] | None = None

    def key(self, name: str, otherwise: Any = None) -> Any:
        """Return a value of `clip.vision.NAME`, or its default. Raises ModelError if there is none."""
        absent = absent_value(self.projector, f"vision.{name}", self.metadata)
        return encoder_key(self.metadata, f"vision.{name}", otherwise if absent is None else absent)

    @property
    def token_side(self) -> int:
        """Return the pixels a side of a token, for encoders with a merge factor."""
        side = int(self.patch_size) * self.merged
        if side > LARGEST:
            raise ModelError(f"the file has tokens of {side} pixels a side; {LARGEST:,} are the most that are run")
        return side

    @property
    def merged(self) -> int:
        """Return the patches a side of a token."""
        return int(self.key(merged_key(self.projector).removeprefix("vision."), 1))

    @property
    def heads(self) -> int:
        return int(self.key("attention.head_count"))

    @property
    def image_size(self) -> int:
        """Return the pixels a side, for encoders of one image size."""
        side = int(self.key("image_size"))
        if SAM in self.weights.tensors:
            side = int(self.patch_size * (1, *self.weights.need("v.sam.pos_embd.weight").shape)[-2])
        if side > LARGEST:
            raise ModelError(f"the file has images of {side} pixels a side; {LARGEST:,} are the most that are run")
        return side

    def optional_key(self, name: str) -> Any:
        """Return an optional key's value: None if it is missing."""
        return self.key(name) if f"clip.vision.{name}" in self.metadata else None

    def vit(self, activation: str, **more: Any) -> Vit:
        """Return the layers, as the file's keys say."""
        eps = float(self.key("attention.layer_norm_epsilon"))
        return Vit(self.heads, int(self.key("block_count")), eps, activation, progress=self.progress, **more)

    @property
    def activation(self) -> str:
        return activation(self.metadata)

    def patches(self, pixels: Floats, colours_last: bool = False) -> Floats:
        """Return embedded patches by row and column, float32 (patches, width), without positions.

        colours_last: the matrix reads pixels with interleaved colours, where others read one colour after the other.
        """
        side, weights = self.patch_size, self.weights
        rows, columns = pixels.shape[1] // side, pixels.shape[2] // side
        kernel = weights.values("v.patch_embd.weight")
        inside = (2, 4, 0) if colours_last else (0, 2, 4)
        each = pixels.reshape(3, rows, side, columns, side).transpose(1, 3, *inside).reshape(rows * columns, -1)
        if "v.patch_embd.weight.1" in weights.tensors:  # of two frames, which are the same image
            kernel = kernel + weights.values("v.patch_embd.weight.1")
        product: Floats = np.ascontiguousarray(each) @ kernel.reshape(len(kernel), -1).T
        bias = weights.vector("v.patch_embd.bias")
        return product if bias is None else product + bias

    def grid(self, pixels: Floats) -> tuple[int, int]:
        return pixels.shape[1] // self.patch_size, pixels.shape[2] // self.patch_size

    def positioned(self, x: Floats) -> Floats:
        """Return x with learned positions. Raises OptionError for another number of patches."""
        table = self.weights.values("v.position_embd.weight").reshape(-1, x.shape[1])
        if len(table) != len(x):
            raise OptionError(f"{len(x)} patches; the encoder is for {len(table)}", f"{self.image_size} pixels a side")
        return x + table

    def stretched(self, rows: int, columns: int, how: str) -> Floats:
        """Return learned positions of a grid interpolated to another grid, float32 (rows * columns, width).

        how: "corners" (linear, aligned corners), "linear", "zeros" (linear, with zeros around the grid), "cubic" or
        "smooth" (linear, antialiased). Raises ModelError if the file's are a matrix of no square.
        """
        table = self.weights.values("v.position_embd.weight")
        high, wide = table.shape[:2] if table.ndim == 3 else (round(len(table) ** 0.5),) * 2
        if high * wide * table.shape[-1] != table.size:
            raise ModelError(f"{len(table)} positions of patches make no square")
        across = table.reshape(high, wide, -1)
        across = np.einsum("rs,sct->rct", sampling(high, rows, how), across)
        across = np.einsum("kc,rct->rkt", sampling(wide, columns, how), across)
        return np.ascontiguousarray(across, np.float32).reshape(rows * columns, -1)

    def nearest(self, rows: int, columns: int) -> Floats:
        """Return learned positions of a square grid for another grid, by nearest neighbour."""
        table = self.weights.values("v.position_embd.weight")
        side = math.isqrt(len(table))
        near_row, near_column = (np.arange(count) * side // count for count in (rows, columns))
        positions: Floats = table[(near_row[:, None] * side + near_column).reshape(-1)]
        return positions


def sampling(given: int, wanted: int, how: str) -> Floats:
    """Return the weights of stored values for each wanted one, float32 (wanted, given).

    how: see `Parts.stretched`; also "smooth cubic", antialiased, as for shrunk images.
    """
    weights = np.zeros((wanted, given))
    at = np.linspace(0, given - 1, wanted) if how == "corners" else (np.arange(wanted) + 0.5) * given / wanted - 0.5
    if how == "smooth cubic" or (how == "smooth" and wanted < given):
        far = np.abs(np.arange(given) - at[:, None]) / max(given / wanted, 1)
        weights = np.maximum(0, 1 - far) if how == "smooth" else _cubic(far, -0.5)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float32)
    if how not in ("cubic", "zeros"):
        at = np.clip(at, 0, given - 1)
    first = np.floor(at).astype(np.int64)
    part = at - first
    taps = {0: 1 - part, 1: part} if how != "cubic" else {step: _cubic(np.abs(part - step)) for step in (-1, 0, 1, 2)}
    for step, share in taps.items():
        if how == "zeros":
            share = np.where((first + step >= 0) & (first + step < given), share, 0)
        np.add.at(weights, (np.arange(wanted), np.clip(first + step, 0, given - 1)), share)
    return weights.astype(np.float32)


def _cubic(distance: Any, a: float = -0.75) -> Any:
    """Return Keys' kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def squares(x: Any, rows: int, columns: int, side: int) -> Any:
    """Return squares of patches by row and column, and in each its patches likewise: (squares, side * side, width)."""
    if rows % side or columns % side:
        raise OptionError(f"{rows} × {columns} patches are no squares of {side} × {side}")
    parts = x.reshape(rows // side, side, columns // side, side, -1).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(parts).reshape(-1, side * side, x.shape[1])


def rotation(angles: Any, rope_type: str) -> Rotation:
    """Return rotation of pairs by these angles (patches, head width / 2)."""
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return lambda x: apply_rope(x, cos, sin, rope_type)


def angles(patches: Ids, columns: int, width: int, first: int = 0, base: float = ROPE_BASE) -> tuple[Any, Any]:
    """Return angles of patches with these numbers by rows and by columns, (patches, width / 2) each. first: of both
    counts.
    """
    frequencies = base ** -(np.arange(0, width, 2, dtype=np.float64) / width)
    row, column = np.divmod(patches, columns)
    return np.outer(row + first, frequencies), np.outer(column + first, frequencies)


def turned(patches: Ids, columns: int, width: int) -> Rotation:
    """Return rotation of patches with these numbers: the first half of a head's pairs by rows, the second by
    columns.
    """
    return rotation(np.concatenate(angles(patches, columns, width // 2), axis=1), "halves")


def turned_apart(spans: Sequence[tuple[int, Any]]) -> Rotation:
    """Return rotation of parts of a head, whose halves make pairs: the start of each, and its angles."""
    turns = [(start, start + 2 * by.shape[1], rotation(by, "halves")) for start, by in spans]

    def rotate(x: Floats) -> Floats:
        for start, stop, turn in turns:
            x[:, :, start:stop] = turn(np.ascontiguousarray(x[:, :, start:stop]))
        return x

    return rotate


def in_halves(first: Ids, second: Ids, width: int) -> Rotation:
    """Return rotation of neighbours: in the first half of a head by a patch's one coordinate, in the second by the
    other.
    """
    frequencies = ROPE_BASE ** -(np.arange(0, width // 2, 2, dtype=np.float64) / (width // 2))
    return rotation(np.concatenate([np.outer(place, frequencies) for place in (first, second)], axis=1), "adjacent")


def square_order(rows: int, columns: int) -> Any:
    """Return numbers of patches by row and column, so that squares of 2 × 2 are consecutive."""
    return squares(np.arange(rows * columns)[:, None], rows, columns, 2).reshape(-1)
