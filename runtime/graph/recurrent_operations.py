"""Operations of layers with memory of fixed size: convolutions, scans, delta rules, RWKV.

The cache keeps a text's states by the layer's number: the last inputs of its convolution first, then the state of its
recurrence. A recurrence comes after the operation that counts the tokens: `Convolution`, `TokenShift`, or itself.
"""

from dataclasses import dataclass

from quants import Tensor
from quants.errors import ModelError

from ..layer import Layer
from .operations import Operation, Shape, Value, tensors_of


@dataclass(frozen=True, eq=False)
class Recurrent(Operation):
    """A step of such a layer. x: a value of the result's shape."""

    category = "recurrence and convolution"
    x: Value
    layer: Layer


@dataclass(frozen=True, eq=False)
class Convolution(Recurrent):
    """Each channel's convolution over the last tokens of its text, in encoders over those around it.

    taps: roles of weights (channels, count), of some channels each; the last count - 1 inputs are kept.
    """

    taps: tuple[str, ...] = ()

    def weights(self) -> tuple[Tensor, ...]:
        return tensors_of(self.layer, *(f"{role}.{each}" for role in self.taps for each in ("weight", "bias")))

    def shape(self) -> Shape:
        weights = [self.layer.need(f"{role}.weight") for role in self.taps]
        if sum(weight.rows for weight in weights) != self.x.width:
            raise ModelError(f"{weights[0].name!r} has {weights[0].rows} channels; {self.x.width} are convolved")
        return self.x.shape


@dataclass(frozen=True, eq=False)
class TokenShift(Recurrent):
    """The previous token's row minus x; zeros come before the first token. state: where the last row is kept."""

    state: int = 0


@dataclass(frozen=True, eq=False)
class ChannelScan(Recurrent):
    """h = exp(a dt) h + dt x b, y = c h with a state of each channel (Gu and Dao 2023). dt like x; b, c (size,)."""

    reads = ("ssm_a",)
    dt: Value
    b: Value
    c: Value

    def shape(self) -> Shape:
        size = self.layer.need("ssm_a").shape[-1]
        if self.dt.shape != self.x.shape or self.b.shape != (size,) or self.c.shape != (size,):
            raise ModelError(f"steps {self.dt.shape}, B {self.b.shape} and C {self.c.shape} of states of {size}")
        return self.x.shape


@dataclass(frozen=True, eq=False)
class HeadScan(Recurrent):
    """`ChannelScan` with a matrix for each head of x and a step dt for each (Dao and Gu 2024). b, c (groups, size)."""

    reads = ("ssm_a",)
    dt: Value
    b: Value
    c: Value

    def shape(self) -> Shape:
        if self.b.shape != self.c.shape or self.x.shape[0] % self.b.shape[0] or self.dt.shape != self.x.shape[:1]:
            raise ModelError(f"{self.x.shape} values, {self.dt.shape} steps, B {self.b.shape} and C {self.c.shape}")
        return self.x.shape


@dataclass(frozen=True, eq=False)
class LightningScan(Recurrent):
    """h = exp(-rate) h + k x, y = q h of each head (lightning attention). rates: of heads. Counts the tokens."""

    q: Value
    k: Value
    rates: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class DeltaRule(Recurrent):
    """h = decay h, h = h + beta k (x - k h), y = q h of each head (Yang et al. 2024).

    decay: a number for each head, or (Kimi) for each channel of its keys.
    """

    q: Value
    k: Value
    decay: Value
    beta: Value

    def shape(self) -> Shape:
        heads = self.x.shape[:1]
        if self.q.shape != self.k.shape or self.decay.shape not in (heads, self.k.shape) or self.beta.shape != heads:
            shapes = self.q.shape, self.k.shape, self.x.shape, self.decay.shape, self.beta.shape
            raise ModelError("queries {}, keys {}, values {}, decays {} and betas {} do not fit".format(*shapes))
        return self.x.shape


@dataclass(frozen=True, eq=False)
class Wkv(Recurrent):
    """RWKV 6's recurrence: y = r h, h = w h + k x of each head; x are values (Peng et al. 2024)."""

    r: Value
    k: Value
    w: Value


@dataclass(frozen=True, eq=False)
class Wkv7(Recurrent):
    """RWKV 7's: h = w h + b (a h) + k x, y = r h of each head; x are values (Peng et al. 2025)."""

    r: Value
    w: Value
    k: Value
    a: Value
    b: Value


@dataclass(frozen=True, eq=False)
class CurrentTokenBonus(Recurrent):
    """sum(r k weight) x of each head: the current token's bonus (RWKV). role: "" for no weights."""

    reads = ("{role}.weight",)
    r: Value
    k: Value
    role: str


@dataclass(frozen=True, eq=False)
class Lerp(Recurrent):
    """x + difference * share. share: one of the rows of a weight, plus `added` for each token."""

    reads = ("{role}.weight",)
    difference: Value
    role: str
    row: int = 0
    added: Value | None = None


@dataclass(frozen=True, eq=False)
class KeepValues(Recurrent):
    """x, kept for later layers (RWKV 7's first)."""

    is_view = True


@dataclass(frozen=True, eq=False)
class MixValues(Recurrent):
    """x + (the first layer's kept values - x) * gate."""

    gate: Value


@dataclass(frozen=True, eq=False)
class L2Norm(Operation):
    """Heads scaled to length one: x / sqrt(sum(x²) + eps), or x / max(length, eps) if `eps_is_minimum`."""

    category = "norms"
    x: Value
    eps: float
    eps_is_minimum: bool = False


@dataclass(frozen=True, eq=False)
class GroupNorm(Operation):
    """RMS norm (layer norm where `centered`) of groups of this width, all of x."""

    category = "norms"
    reads = ("{role}.weight", "{role}.bias")
    x: Value
    layer: Layer
    role: str
    eps: float
    width: int
    centered: bool = False


@dataclass(frozen=True, eq=False)
class RepeatHeads(Operation):
    """As many heads as asked for: each repeated several times in a row, or (`in_turns`) all one after another again."""

    category = "recurrence and convolution"
    x: Value
    heads: int
    in_turns: bool = False

    def shape(self) -> Shape:
        if self.heads % self.x.shape[0]:
            raise ModelError(f"{self.x.shape[0]} heads serve {self.heads}")
        return self.heads, *self.x.shape[1:]
