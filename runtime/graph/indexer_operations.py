"""Operations of sparse attention: key selection, and compressed entries for several tokens.

As long as all keys are visible nothing is compared: `Candidates` give nothing, and what depends on them is not
computed.
"""

from dataclasses import dataclass

from archs.hparams.model_hparams import LayerHParams

from ..layer import Layer
from .operations import Operation, Shape, Value


@dataclass(frozen=True, eq=False)
class CacheKeys(Operation):
    """All keys and values so far, including those of these tokens, which are appended to the cache. v: None for none.

    place: a number among the cache's layers, possibly of no real layer.
    """

    category = "attention"
    gives_rows = False
    k: Value
    v: Value | None
    place: int


@dataclass(frozen=True, eq=False)
class Indexing(Operation):
    """A step of an indexer."""

    category = "attention"
    x: Value
    layer: Layer


class IndexerRope(Indexing):
    """The first or the last values of each head rotated, by the family."""


@dataclass(frozen=True, eq=False)
class LayerNorm(Indexing):
    """A layer norm, whatever type the model's norms are."""

    category = "norms"
    reads = ("{role}.weight", "{role}.bias")
    role: str
    eps: float


@dataclass(frozen=True, eq=False)
class Candidates(Indexing):
    """The candidates of an indexer: the cached keys x, or a summary of each `size` of them; nothing if all are visible.

    of: "keys", "values" (the keys are cached in place of values), "blocks", "means", "weighted means", "entries".
    top_k: how many are visible.
    """

    gives_rows = False
    rows_given = "some"
    reads = ("indexer.k_norm.weight", "indexer_compressor_ape.weight")
    of: str
    top_k: int
    size: int = 1


@dataclass(frozen=True, eq=False)
class OnlyIf(Operation):
    """x, if a selection is needed."""

    gives_rows = False
    rows_given = "some"
    is_view = True
    category = "attention"
    x: Value
    candidates: Value


@dataclass(frozen=True, eq=False)
class IndexerScores(Operation):
    """The sum of relu(x k) of heads, each times its weight, for each candidate k; -inf for those after a token."""

    category = "attention"
    gives_rows = False
    x: Value
    candidates: Value
    weighed: Value | None
    size: int


@dataclass(frozen=True, eq=False)
class BlockScores(Operation):
    """The best x k of each block of keys for each head; the last `local` blocks come first."""

    category = "attention"
    gives_rows = False
    x: Value
    candidates: Value
    size: int
    local: int


@dataclass(frozen=True, eq=False)
class TopKeys(Operation):
    """0 for the selected keys of a token, -inf for others: those of the candidates with the best scores x.

    rest: keys after the last whole candidate before a token are visible, too. heads: number of heads that share each
    selection.
    """

    category = "attention"
    gives_rows = False
    x: Value
    top_k: int
    size: int = 1
    rest: bool = False
    heads: int = 1


@dataclass(frozen=True, eq=False)
class RopeTail(Operation):
    """The last values of each head rotated, or (back) rotated back, without YaRN's attention factor (DeepSeek V4)."""

    category = "attention"
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
    """Attention to a window of keys, which are also values, and to compressed entries (DeepSeek V4).

    chosen: of entries, None for all.
    """

    category = "attention"
    reads = ("attn_sinks.weight",)
    q: Value
    k: Value
    layer: Layer
    ratio: int
    entries: Value | None = None
    chosen: Value | None = None


@dataclass(frozen=True, eq=False)
class BlockAttention(Operation):
    """Attention of a block to all of itself and the keys before it (a draft model's)."""

    category = "attention"
    q: Value
    k: Value
    layer: Layer


@dataclass(frozen=True, eq=False)
class GroupedLinear(Operation):
    """Each group of the values of x times its own rows."""

    category = "products"
    reads = ("{role}.weight",)
    x: Value
    layer: Layer
    role: str
    groups: int

    def shape(self) -> Shape:
        return (self.layer.need(f"{self.role}.weight").rows,)
