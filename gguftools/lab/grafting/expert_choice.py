"""Choose which experts of a mixture to drop: listed ones, or the worst by a text or an importance matrix."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quants.arguments import PathLike, as_path, wrong
from quants.errors import ModelError, OptionError

from ...conversion import mtp_layers
from ...models.model import Model
from ...quantization.imatrix import read_imatrix
from .experts import Mixture, Scores, read_list, worst_experts, worst_groups

GROUPS = r"(\d{1,5})groups?"
EXPERTS_WANTED = "as 25%, 8, 2groups, or a file of lines such as 3: 0,5-7"


def list_of_experts(drop_experts: Any) -> Path | None:
    """Return the file that lists experts, if there is one."""
    if isinstance(drop_experts, Path):
        return drop_experts
    if isinstance(drop_experts, str) and not re.fullmatch(rf"\d+(\.\d+)?%|\d+|{GROUPS}", drop_experts):
        return Path(drop_experts)
    return None


def _as_amount(drop_experts: Any) -> int | float:
    """Return a number of experts, or a share of them. Raises OptionError."""
    if isinstance(drop_experts, str):
        number = float(drop_experts.removesuffix("%"))
        drop_experts = number / 100 if drop_experts.endswith("%") else int(number)
    if isinstance(drop_experts, bool) or not isinstance(drop_experts, (int, float)):
        raise wrong("drop_experts", drop_experts, EXPERTS_WANTED)
    if isinstance(drop_experts, float) and not 0 < drop_experts < 1:
        raise OptionError(f"{drop_experts:.0%} of the experts cannot be dropped", hint=EXPERTS_WANTED)
    return drop_experts


@dataclass(frozen=True)
class ExpertOptions:
    """Which experts of each layer to drop, and whether to merge them.

    drop: a share of each layer's ("25%" or .25), a number ("2groups": of groups), a file that lists them, or a mapping
    of layers to experts. text, imatrix: how to rank experts for a share or number: by a text that the model reads
    (REAP's scores), or by the counts of an importance matrix. merge: average dropped experts into the most similar
    remaining ones; allow_requantize: encode blocks again for that.
    """

    drop: Any
    text: PathLike | None = None
    imatrix: PathLike | None = None
    merge: bool = False
    allow_requantize: bool = False


@dataclass(frozen=True)
class Ranking:
    """Scores and counts of use of each expert, by layer; empty if not measured."""

    scores: Scores = field(default_factory=dict)
    counts: Scores = field(default_factory=dict)


def chosen_experts(
    model: Model,
    mixture: Mixture,
    experts: ExpertOptions,
    listed: Path | None,
    n_ctx: int,
    chunks: int | None,
    threads: int | None,
    progress: Callable[[int, int, float], None] | None,
) -> tuple[dict[int, tuple[int, ...]], Ranking]:
    """Return the experts to drop, by layer, and their ranking.

    listed: the file that lists them, if any. n_ctx, chunks: the text's windows. Raises OptionError, ModelError,
    FileError.
    """
    wanted, text, imatrix = experts.drop, experts.text, experts.imatrix
    if listed is not None or isinstance(wanted, Mapping):
        if text is not None or imatrix is not None:
            raise OptionError("the experts to drop are listed: no text or matrix is needed", "leave it out")
        if listed is not None and not listed.exists():
            raise OptionError(f"{str(listed)!r} is neither a number, a share nor a file", hint=EXPERTS_WANTED)
        dropped = read_list(listed) if listed is not None else _as_numbers(wanted)
        return {layer: tuple(sorted(set(numbers))) for layer, numbers in dropped.items()}, Ranking()
    of_groups = re.fullmatch(GROUPS, wanted) if isinstance(wanted, str) else None
    amount = int(of_groups[1]) if of_groups else _as_amount(wanted)
    if (text is None) == (imatrix is None):
        raise OptionError(
            "experts to drop are chosen by a text or by an importance matrix",
            hint="`text` scores them by REAP, `imatrix` by how often they were used",
        )
    if text is not None:
        ranking = _ranked_by_text(model, mixture, text, n_ctx, chunks, threads, progress)
    else:
        counts = _counts_of_matrix(mixture, imatrix)
        ranking = Ranking(counts, counts)
    if of_groups:
        return worst_groups(mixture, ranking.scores, int(amount)), ranking
    return worst_experts(mixture, ranking.scores, amount), ranking


def _as_numbers(wanted: Mapping[Any, Any]) -> dict[int, tuple[int, ...]]:
    """Return a mapping of layers to experts. Raises OptionError for anything else."""
    try:
        return {int(layer): tuple(int(number) for number in numbers) for layer, numbers in wanted.items()}
    except (TypeError, ValueError):
        raise wrong("drop_experts", wanted, "a mapping of layers to experts") from None


def _ranked_by_text(
    model: Model,
    mixture: Mixture,
    text: PathLike,
    n_ctx: int,
    chunks: int | None,
    threads: int | None,
    progress: Callable[[int, int, float], None] | None,
) -> Ranking:
    from .expert_scores import expert_scores

    with_mtp = mixture.layers[-1] >= mtp_layers.counts(model.metadata, model.path)[1]
    sums = expert_scores(model, text, n_ctx=n_ctx, chunks=chunks, with_mtp=with_mtp, threads=threads, progress=progress)
    for layer in mixture.layers:
        if layer not in sums.scores:
            raise ModelError(f"layer {layer} has experts, but the model runs without it", hint="list what to drop")
    tables = ({layer: each[layer].tolist() for layer in mixture.layers} for each in (sums.scores, sums.routed))
    return Ranking(*tables)


def _counts_of_matrix(mixture: Mixture, imatrix: PathLike | None) -> Scores:
    matrix = read_imatrix(as_path(imatrix or "", "the importance matrix"))
    counts_by_layer = {}
    for layer in mixture.layers:
        names = [f"blk.{layer}.ffn_{role}_exps.weight" for role in ("down", "up", "gate_up")]
        entry = next((matrix.entries[name] for name in names if name in matrix.entries), None)
        if entry is None or len(entry.counts) != mixture.count:
            what = "has nothing on" if entry is None else f"counts {len(entry.counts)} experts in"
            hint = "measure it with `nextn`" if entry is None else "it is of another model, or of the legacy form"
            raise ModelError(f"{matrix.path} {what} layer {layer}; the model has {mixture.count} experts", hint)
        counts = np.asarray(entry.counts, np.float64)
        if not np.isfinite(counts).all():
            raise ModelError(f"{matrix.path} has a count that is no number in layer {layer}")
        counts_by_layer[layer] = counts.tolist()
    return counts_by_layer
