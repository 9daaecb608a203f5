"""Build graphs of tensors as ggml does: shapes, strides, views and the order of evaluation, without any data.

A tensor is either a leaf (a weight, a cache, an input) or the result of an operation. What is recorded of an operation
is what decides about memory: its sources, whether the result is a view, and whether it may overwrite a source.
Dimensions are in ggml's order, the innermost first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod

from quants.format import format_named

IN_PLACE = frozenset(  # operations that may overwrite a source
    ("fill", "scale", "add", "add_id", "add1", "sub", "mul", "div", "sqr", "sqrt", "log", "unary", "rope", "rms_norm")
) | {"clamp", "soft_max"}
Shape = tuple[int, int, int, int]


@cache
def block_of(kind: str) -> tuple[int, int]:
    """Return how many values are in how many bytes."""
    form = format_named(kind)
    return form.block_size, form.block_bytes


@dataclass(eq=False, slots=True)
class Node:
    """A tensor of a graph. place: the number of the device that holds or computes it, -1 if not decided yet.

    stored: it has memory of its own (weights, caches). view_of: the tensor whose memory it shares. scratch: bytes that
    its operation needs after the result.
    """

    operation: str
    type: str
    shape: Shape
    strides: Shape
    sources: tuple[Node, ...] = ()
    view_of: Node | None = None
    name: str = ""
    stored: bool = False
    weight: bool = False
    input: bool = False
    output: bool = False
    place: int = -1
    scratch: int = 0

    @property
    def nbytes(self) -> int:
        """Return the bytes from the first to the last value."""
        block, size = block_of(self.type)
        if block == 1:
            return size + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        first = self.shape[0] * self.strides[0] // block
        return first + sum((n - 1) * stride for n, stride in zip(self.shape[1:], self.strides[1:], strict=True))

    @property
    def contiguous(self) -> bool:
        """Return whether the values follow one another."""
        return self.strides == packed(self.type, self.shape)


def packed(kind: str, shape: Shape) -> Shape:
    """Return the strides of a tensor whose rows follow one another, in bytes."""
    block, size = block_of(kind)
    row = size * (shape[0] // block)
    return size, row, row * shape[1], row * shape[1] * shape[2]


def row_bytes(kind: str, count: int) -> int:
    """Return the bytes of so many values."""
    block, size = block_of(kind)
    return size * count // block


def of_four(sizes: Sequence[int]) -> Shape:
    """Return a shape with four dimensions."""
    a, b, c, d = (*sizes, 1, 1, 1, 1)[:4]
    return a, b, c, d


@dataclass(eq=False)
class Graph:
    """A graph under construction: leaves and nodes in the order in which ggml meets them."""

    leaves: list[Node] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    visited: set[int] = field(default_factory=set)

    def expand(self, node: Node) -> None:
        """Append a tensor after all tensors that it needs."""
        stack: list[tuple[Node, int]] = [(node, 0)]
        while stack:
            current, turn = stack.pop()
            if not turn:
                if id(current) in self.visited:
                    continue
                self.visited.add(id(current))
            if turn < len(current.sources):
                stack.append((current, turn + 1))
                stack.append((current.sources[turn], 0))
            elif current.operation == "none":
                self.leaves.append(current)
            else:
                self.nodes.append(current)


# Leaves


def leaf(kind: str, *sizes: int, name: str = "", stored: bool = False, weight: bool = False) -> Node:
    """Return a weight or a cache (stored), or an input of the graph."""
    shape = of_four(sizes)
    return Node("none", kind, shape, packed(kind, shape), name=name, stored=stored, weight=weight, input=not stored)


# Operations


def result(operation: str, kind: str, sizes: Sequence[int], *sources: Node | None) -> Node:
    """Return a new contiguous tensor."""
    shape = of_four(sizes)
    return Node(operation, kind, shape, packed(kind, shape), tuple(each for each in sources if each is not None))


def same(operation: str, a: Node, *others: Node | None) -> Node:
    """Return a contiguous tensor of the first one's shape and type."""
    return result(operation, a.type, a.shape, a, *others)


def viewed(operation: str, a: Node, sizes: Sequence[int], strides: Sequence[int], *others: Node) -> Node:
    """Return a tensor in the memory of another one."""
    s = (*strides,)
    return Node(operation, a.type, of_four(sizes), (s[0], s[1], s[2], s[3]), (a, *others), a.view_of or a)


def reshape(a: Node, *sizes: int) -> Node:
    """Return the same values in another shape. At most one size is -1."""
    if -1 in sizes:
        known = prod(size for size in sizes if size != -1)
        sizes = tuple(prod(a.shape) // known if size == -1 else size for size in sizes)
    assert prod(sizes) == prod(a.shape), (sizes, a.shape)
    return viewed("reshape", a, sizes, packed(a.type, of_four(sizes)))


def view(a: Node, sizes: Sequence[int], strides: Sequence[int] = ()) -> Node:
    """Return a part of a tensor. strides: of the dimensions after the first."""
    shape, (size, *_) = of_four(sizes), a.strides
    known = [size, *strides]
    while len(known) < 4:
        last = len(known) - 1
        known.append(known[last] * shape[last] if last else row_bytes(a.type, shape[0]))
    return viewed("view", a, shape, known)


def permute(a: Node, *order: int) -> Node:
    """Move each dimension to the place that `order` gives."""
    shape, strides = [0] * 4, [0] * 4
    for old, new in enumerate(order):
        shape[new], strides[new] = a.shape[old], a.strides[old]
    return viewed("permute", a, shape, strides)


def transpose(a: Node) -> Node:
    """Exchange the first two dimensions."""
    return viewed("transpose", a, (a.shape[1], a.shape[0], *a.shape[2:]), (a.strides[1], a.strides[0], *a.strides[2:]))


def cont(a: Node, *sizes: int) -> Node:
    """Return a contiguous copy, in another shape if sizes are given."""
    return result("cont", a.type, sizes or a.shape, a)


def mul_mat(weight: Node, x: Node) -> Node:
    """Return a matrix product."""
    assert weight.shape[0] == x.shape[0], (weight.name, weight.shape, x.shape)
    return result("mul_mat", "F32", (weight.shape[1], *x.shape[1:]), weight, x)


def mul_mat_id(weight: Node, x: Node, ids: Node) -> Node:
    """Return products with chosen experts."""
    return result("mul_mat_id", "F32", (weight.shape[1], ids.shape[0], x.shape[2]), weight, x, ids)


def get_rows(a: Node, ids: Node) -> Node:
    """Return chosen rows."""
    kind = "I32" if a.type == "I32" else "F32"
    return result("get_rows", kind, (a.shape[0], *ids.shape[:3]), a, ids)


def set_rows(target: Node, rows: Node, ids: Node) -> Node:
    """Write rows into a tensor."""
    made = viewed("set_rows", target, target.shape, target.strides)
    made.sources = (rows, ids, target)
    return made


def copy_into(a: Node, target: Node) -> Node:
    """Write values into a tensor."""
    made = viewed("cpy", target, target.shape, target.strides)
    made.sources = (a, target)
    return made


def concat(a: Node, b: Node, dimension: int) -> Node:
    """Join two tensors."""
    sizes = [n + b.shape[i] if i == dimension else n for i, n in enumerate(a.shape)]
    return result("concat", a.type, sizes, a, b)


def add(a: Node, b: Node) -> Node:
    """Return a sum."""
    return same("add", a, b)


def mul(a: Node, b: Node) -> Node:
    """Return a product by elements."""
    return same("mul", a, b)


def scale(a: Node) -> Node:
    """Multiply by a number."""
    return same("scale", a)


def unary(a: Node) -> Node:
    """Apply a function to each value."""
    return same("unary", a)


def glu(a: Node, b: Node | None = None) -> Node:
    """Return a gated unit of two tensors, or of the halves of one."""
    return result("glu", a.type, a.shape if b is not None else (a.shape[0] // 2, *a.shape[1:]), a, b)


def repeat(a: Node, *sizes: int) -> Node:
    """Repeat a tensor up to these sizes."""
    return result("repeat", a.type, sizes, a)


def rms_norm(a: Node) -> Node:
    """Normalize rows."""
    return same("rms_norm", a)


def rope(a: Node, positions: Node, factors: Node | None = None) -> Node:
    """Rotate rows by their positions."""
    return same("rope", a, positions, factors)


def argsort_top(a: Node, count: int) -> Node:
    """Return the places of the largest values of each row."""
    order = result("argsort", "I32", a.shape, a)
    return view(order, (count, *a.shape[1:]), order.strides[1:])


def sum_rows(a: Node) -> Node:
    """Return the sum of each row."""
    return result("sum_rows", a.type, (1, *a.shape[1:]), a)


def pad(a: Node, *more: int) -> Node:
    """Append zeros in each dimension."""
    extra = of_four((*more, 0, 0, 0, 0))
    return result("pad", a.type, [n + extra[i] if i < len(more) else n for i, n in enumerate(a.shape)], a)
