"""Operations of sparse attention: which keys a token looks at, and entries that stand for several tokens.

As long as all keys are seen nothing is compared: `Candidates` give nothing, and what depends on them is not computed.
"""

from dataclasses import dataclass

from archs.hparams.model_hparams import LayerHParams

from ..layer import Layer
from .operations import Operation, Shape, Value


@dataclass(frozen=True, eq=False)
class CacheKeys(Operation):
    """All keys and values so far, with those of these tokens, which the cache keeps. v: None for none.

    place: among the cache's layers, and those that are not any.
    """

    kind = "attention"
    gives_rows = False
    k: Value
    v: Value | None
    place: int


@dataclass(frozen=True, eq=False)
class Indexing(Operation):
    """A step of an indexer."""

    kind = "attention"
    x: Value
    layer: Layer


class IndexerRope(Indexing):
    """The first values of each head rotated, or the last, as the family has it."""


@dataclass(frozen=True, eq=False)
class LayerNorm(Indexing):
    """A layer norm, whatever the model's are."""

    kind = "norms"
    reads = ("{role}.weight", "{role}.bias")
    role: str
    eps: float


@dataclass(frozen=True, eq=False)
class Candidates(Indexing):
    """What an indexer compares: the cached keys x, or what stands for each `size` of them; nothing where all are seen.

    of: "keys", "values" (the keys are cached in place of values), "blocks", "means", "weighted means", "entries". most:
    how many are seen.
    """

    gives_rows = False
    rows_given = "some"
    reads = ("indexer.k_norm.weight", "indexer_compressor_ape.weight")
    of: str
    most: int
    size: int = 1


@dataclass(frozen=True, eq=False)
class OnlyIf(Operation):
    """x, where something is to be chosen."""

    gives_rows = False
    rows_given = "some"
    is_view = True
    kind = "attention"
    x: Value
    candidates: Value


@dataclass(frozen=True, eq=False)
class IndexerScores(Operation):
    """The sum of relu(x k) of heads, each times its weight, of each candidate k; -inf of those after a token."""

    kind = "attention"
    gives_rows = False
    x: Value
    candidates: Value
    weighed: Value | None
    size: int


@dataclass(frozen=True, eq=False)
class BlockScores(Operation):
    """The best x k of each block of keys for each head; the last `local` blocks come first."""

    kind = "attention"
    gives_rows = False
    x: Value
    candidates: Value
    size: int
    local: int


@dataclass(frozen=True, eq=False)
class TopKeys(Operation):
    """0 for the keys that a token looks at, -inf for others: those of the candidates with the best scores x.

    rest: keys after the last whole candidate before a token are seen, too. heads: that each head's choice is for.
    """

    kind = "attention"
    gives_rows = False
    x: Value
    most: int
    size: int = 1
    rest: bool = False
    heads: int = 1


@dataclass(frozen=True, eq=False)
class RopeTail(Operation):
    """The last values of each head rotated, or (back) turned back, without yarn's temperature (DeepSeek V4)."""

    kind = "attention"
    x: Value
    own: LayerHParams
    back: bool = False


@dataclass(frozen=True, eq=False)
class Compress(Indexing):
    """Entries of whole blocks of tokens so far: means of x, weighted by a softmax of gates for each value."""

    gives_rows = False
    reads = ("{role}_norm.weight", "{role}_ape.weight")
    gates: Value
    role: str
    ratio: int


@dataclass(frozen=True, eq=False)
class CompressedAttention(Operation):
    """Attention to a window of keys, which are values, too, and to entries that stand for blocks (DeepSeek V4).

    chosen: of entries, None for all.
    """

    kind = "attention"
    reads = ("attn_sinks.weight",)
    q: Value
    k: Value
    layer: Layer
    ratio: int
    entries: Value | None = None
    chosen: Value | None = None


@dataclass(frozen=True, eq=False)
class BlockAttention(Operation):
    """Attention of a block that sees all of itself and the keys before it (a draft's)."""

    kind = "attention"
    q: Value
    k: Value
    layer: Layer


@dataclass(frozen=True, eq=False)
class GroupedLinear(Operation):
    """Each group of the values of x times rows of its own."""

    kind = "products"
    reads = ("{role}.weight",)
    x: Value
    layer: Layer
    role: str
    groups: int

    def shape(self) -> Shape:
        return (self.layer.need(f"{self.role}.weight").rows,)
