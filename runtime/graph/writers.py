"""Writers of single operations: each appends the machine operations that compute it for a few tokens."""

from collections.abc import Callable
from typing import Any

import numpy as np

from archs.spec import sum_factor

from ..kernels import dots, expert_operations
from ..kernels import head_operations as heads_of
from ..kernels import token_parts as parts
from ..layer import Layer
from ..products.gemv import Vectors, product_fields
from . import operations as op
from .lowering import Lowering
from .operations import Operation, Shape, Value

Write = Callable[[Lowering, Any, Value], bool]
WRITERS: dict[type[Operation], Write] = {}
SMALL: frozenset[type[Operation]] = frozenset(
    {op.Scale, op.Clamp, op.Add, op.Activate, op.Gated, op.Columns, op.Combine, op.PlainNorm}
)


def writes(*types: type[Operation]) -> Callable[[Write], Write]:
    """Register a function that writes operations of these types; it returns False for those it does not support."""

    def entered(function: Write) -> Write:
        WRITERS.update(dict.fromkeys(types, function))
        return function

    return entered


def _output(out: Vectors) -> dict[int, Any]:
    return {parts.OUT: out.floats, parts.OUT_WIDTH: out.room, parts.SHORTS: out.shorts, parts.NUMBERS_AT: out.numbers}


@writes(op.Input)
def _input(lowering: Lowering, operation: op.Input, value: Value) -> bool:
    lowering.new(value)
    return len(operation.size) == 1


@writes(op.Norm)
def _norm(lowering: Lowering, operation: op.Norm, value: Value) -> bool:
    if len(value.shape) > 1:
        return False
    x, out = lowering.vectors_of(operation.x), lowering.new(value, True)
    add_norm(lowering, operation.layer, operation.role, x, out, operation.eps)
    return True


def add_norm(lowering: Lowering, layer: Layer, role: str, x: Vectors, out: Vectors, eps: float) -> None:
    """Add a norm of x, as `ForwardContext.norm` computes it. eps: 0 for the model's."""
    width = x.width
    weight, norm = layer.array(f"{role}.weight"), lowering.network.block.norm
    weight = layer.array(role) if weight is None else weight
    weight = np.ones(width, np.float32) if weight is None else weight
    bias = layer.array(f"{role}.bias")
    lowering.add(
        parts.rms_norm if norm.startswith("rms") else parts.layer_norm,
        {
            parts.X: x.floats,
            parts.X_WIDTH: x.room,
            parts.WIDTH: width,
            parts.WEIGHT: weight,
            parts.EPS: float(eps or lowering.network.hparams.eps),
            parts.BIAS: np.zeros(width, np.float32) if bias is None else bias,
            **_output(out),
        },
    )


def supports_product(layer: Layer, role: str) -> bool:
    """Return whether a weight is multiplied from its blocks, with at most a bias."""
    weight = layer.tensors.get(f"{role}.weight")
    return (
        weight is not None
        and len(weight.shape) == 2
        and weight.format.name in dots.OF_FORMAT
        and f"{role}.scale" not in layer
        and f"{role}.lora_a" not in layer
    )


@writes(op.Linear)
def _linear(lowering: Lowering, operation: op.Linear, value: Value) -> bool:
    layer, role = operation.layer, operation.role
    if not supports_product(layer, role):
        return False
    weight, into = layer.need(f"{role}.weight"), sum_of(lowering, value, lowering.number + 1)
    x = (lowering.vectors_of if weight.format.name in dots.OF_FLOATS else lowering.packed)(operation.x)
    out = lowering.new(value) if into is None else lowering.vectors_of(into)
    fields = product_fields(
        x, weight, lowering.bytes_of(weight), layer.array(f"{role}.bias"), out.floats, into is not None, lowering.state
    )
    lowering.list.add(dots.OF_FORMAT[weight.format.name], fields, not _shares_input_with_next(lowering, operation))
    if into is not None:
        lowering.put(value, out)  # the sum's place is written already
    return True


def sum_of(lowering: Lowering, value: Value, following: int) -> Value | None:
    """Return the residual stream that a result is added to, if the next node does so and is the last reader of both."""
    number = lowering.sole_reader(value)
    if number is None or number != following:
        return None
    add = lowering.graph.nodes[number].operation
    if not isinstance(add, op.Add) or add.scale != 1 or add.part is not value or add.x is value:
        return None
    return add.x if lowering.has_rows(add.x) and lowering.is_last_reader(add.x, number) else None


def _shares_input_with_next(lowering: Lowering, operation: op.Linear) -> bool:
    """Return whether the next operation is a product of the same input, which therefore need not wait."""
    if lowering.number + 1 >= len(lowering.graph.nodes):
        return False
    following = lowering.graph.nodes[lowering.number + 1].operation
    if not isinstance(following, op.Linear) or following.x is not operation.x:
        return False
    return supports_product(following.layer, following.role)


@writes(op.Add)
def _add(lowering: Lowering, operation: op.Add, value: Value) -> bool:
    x, part = lowering.vectors_of(operation.x), lowering.vectors_of(operation.part)
    if x is part:  # the product has been added already
        lowering.put(value, x)
        return True
    if lowering.is_last_reader(operation.x, lowering.number):
        out = x
    else:
        out = lowering.new(value)
        lowering.copy(x.floats, out)
    lowering.add(
        parts.add_scaled,
        {
            parts.X: part.floats,
            parts.X_WIDTH: part.room,
            parts.WIDTH: value.width,
            parts.OUT: out.floats,
            parts.OUT_WIDTH: out.room,
            parts.SCALE: float(operation.scale),
        },
    )
    lowering.put(value, out)
    return True


def _step(lowering: Lowering, x: Vectors, out: Vectors, shape: Shape, code: int, fields: dict[int, Any]) -> None:
    """Add a step of `head_operations.prepare_heads` with each number, or with heads of this shape."""
    heads, width = (1, shape[0]) if len(shape) == 1 else shape
    lowering.list.add(
        heads_of.prepare_heads,
        {
            heads_of.STATE: lowering.state,
            heads_of.X: x.floats,
            heads_of.X_WIDTH: x.room,
            heads_of.OUT: out.floats,
            heads_of.OUT_WIDTH: out.room,
            heads_of.HEADS: heads,
            heads_of.HEAD_WIDTH: width,
            heads_of.X_APART: width,
            heads_of.OUT_APART: width,
            heads_of.STEPS: code,
            **fields,
        },
    )


@writes(op.Scale)
def _scale(lowering: Lowering, operation: op.Scale, value: Value) -> bool:
    x, out = lowering.vectors_of(operation.x), lowering.new(value)
    _step(lowering, x, out, value.shape, heads_of.MULTIPLY, {heads_of.SCALE: float(operation.factor)})
    return True


@writes(op.Clamp)
def _clamp(lowering: Lowering, operation: op.Clamp, value: Value) -> bool:
    x, out = lowering.vectors_of(operation.x), lowering.new(value)
    _step(lowering, x, out, value.shape, heads_of.CLAMP, {heads_of.LIMIT: float(operation.limit)})
    return True


@writes(op.PlainNorm)
def _plain_norm(lowering: Lowering, operation: op.PlainNorm, value: Value) -> bool:
    x, out = lowering.vectors_of(operation.x), lowering.new(value)
    _step(lowering, x, out, value.shape, heads_of.PLAIN_RMS, {heads_of.PLAIN_EPS: float(operation.eps)})
    return True


@writes(op.ScaleAndSkip)
def _scale_and_skip(lowering: Lowering, operation: op.ScaleAndSkip, value: Value) -> bool:
    """Write only a scale: embeddings that are added to it are in no rows."""
    factor = operation.layer.need_array("layer_output_scale.weight")
    if lowering.network.block.embedding_skip or factor.size != 1:
        return False
    x, out = lowering.vectors_of(operation.x), lowering.new(value)
    _step(lowering, x, out, value.shape, heads_of.MULTIPLY, {heads_of.SCALE: float(factor.reshape(-1)[0])})
    return True


@writes(op.Combine)
def _combine(lowering: Lowering, operation: op.Combine, value: Value) -> bool:
    factor = sum_factor(operation.function)
    if factor is None:
        return False
    routed, shared = map(lowering.vectors_of, (operation.routed, operation.shared))
    out = lowering.new(value)
    _step(lowering, routed, out, value.shape, heads_of.MULTIPLY, {heads_of.SCALE: float(factor)})
    lowering.add(
        parts.add_scaled,
        {
            parts.X: shared.floats,
            parts.X_WIDTH: shared.room,
            parts.WIDTH: value.width,
            parts.OUT: out.floats,
            parts.OUT_WIDTH: out.room,
            parts.SCALE: float(factor),
        },
    )
    return True


@writes(op.Activate, op.Gated)
def _gated(lowering: Lowering, operation: op.Gated | op.Activate, value: Value) -> bool:
    if operation.activation not in expert_operations.ACTIVATIONS:
        return False
    first = lowering.vectors_of(operation.gate if isinstance(operation, op.Gated) else operation.x)
    out = lowering.new(value, True)
    fields = {
        expert_operations.STATE: lowering.state,
        expert_operations.X: first.floats,
        expert_operations.X_WIDTH: first.room,
        expert_operations.OUT: out.floats,
        expert_operations.OUT_WIDTH: out.room,
        expert_operations.WIDTH: value.width,
        expert_operations.SHORTS: out.shorts,
        expert_operations.NUMBERS_AT: out.numbers,
        expert_operations.ACTIVATION: expert_operations.ACTIVATIONS[operation.activation],
        expert_operations.LIMIT: np.inf,
        expert_operations.CLAMPS: expert_operations.CLAMPS_GATE,
    }
    if isinstance(operation, op.Gated):
        up = lowering.vectors_of(operation.up)
        fields |= {expert_operations.Y: up.floats, expert_operations.Y_WIDTH: up.room}
        if operation.clamps_both or operation.activation == "swiglu_oai":
            fields[expert_operations.LIMIT] = float(operation.limit)
        if not operation.clamps_gate_first and operation.activation != "swiglu_oai":
            fields[expert_operations.CLAMPS] = expert_operations.CLAMPS_ACTIVATED
    lowering.list.add(expert_operations.activate, fields)
    return True


@writes(op.Columns)
def _columns(lowering: Lowering, operation: op.Columns, value: Value) -> bool:
    if len(operation.x.shape) > 1:
        return False
    x, out = lowering.vectors_of(operation.x), lowering.new(value, True)
    lowering.copy(x.floats[:, operation.start :], out)
    return True
