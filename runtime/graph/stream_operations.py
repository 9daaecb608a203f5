"""Operations on several streams or copies of hidden states, which are concatenated in a token's row."""

from dataclasses import dataclass

from quants.errors import ModelError

from ..layer import Layer
from .operations import Operation, Shape, Value


@dataclass(frozen=True, eq=False)
class Repeat(Operation):
    """x repeated: the streams begin equal."""

    x: Value
    times: int

    def shape(self) -> Shape:
        return (self.times * self.x.width,)


@dataclass(frozen=True, eq=False)
class StreamMean(Operation):
    """The mean of a token's rows of this width in x."""

    x: Value
    width: int

    def shape(self) -> Shape:
        return (self.width,)


@dataclass(frozen=True, eq=False)
class KeepStreams(Operation):
    """x, kept for MTP layers."""

    is_view = True
    x: Value


@dataclass(frozen=True, eq=False)
class StreamFactors(Operation):
    """scale * x + base of the columns of one of several parts. number: of the part. count: number of streams."""

    reads = ("{role}_scale.weight", "{role}_base.weight")
    x: Value
    layer: Layer
    role: str
    number: int
    count: int

    def shape(self) -> Shape:
        return (self.count,)


@dataclass(frozen=True, eq=False)
class BalanceStreams(Operation):
    """Weights (from, to) between streams whose rows and columns almost sum to one (Sinkhorn and Knopp 1967)."""

    reads = ("{role}_scale.weight", "{role}_base.weight")
    x: Value
    layer: Layer
    role: str
    count: int
    rounds: int
    eps: float

    def shape(self) -> Shape:
        return self.count, self.count


@dataclass(frozen=True, eq=False)
class SumStreams(Operation):
    """The sum of the streams x, each times its factor."""

    x: Value
    factors: Value

    def shape(self) -> Shape:
        return (self.x.width // self.factors.width,)


@dataclass(frozen=True, eq=False)
class MixStreams(Operation):
    """The streams x mixed by weights (from, to), or (to, from)."""

    x: Value
    between: Value
    to_first: bool = False


@dataclass(frozen=True, eq=False)
class AddToStreams(Operation):
    """The streams x with a part added to each, times its factor."""

    x: Value
    part: Value
    factors: Value

    def shape(self) -> Shape:
        if self.x.width != self.part.width * self.factors.width or self.x.rows != self.part.rows:
            raise ModelError(f"{self.factors.width} times {self.part.width} values are added to {self.x.width}")
        return self.x.shape


@dataclass(frozen=True, eq=False)
class Stack(Operation):
    """Concatenated values, as streams."""

    parts: tuple[Value, ...]

    def shape(self) -> Shape:
        return (sum(part.width for part in self.parts),)


@dataclass(frozen=True, eq=False)
class AsLong(Operation):
    """x scaled to the norm of another value."""

    x: Value
    other: Value


@dataclass(frozen=True, eq=False)
class AddToOthers(Operation):
    """The streams x with a part added to all but the first."""

    overwrites = "x"
    x: Value
    part: Value
