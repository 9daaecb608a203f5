"""What the experts of a mixture are worth on a text: REAP's scores, from which those to drop are chosen.

An expert's score is the norm of what it gives to a token, times the weight that the router gives it there, averaged
over the tokens that are routed to it; 0 where none is.

Source: Lasby et al. 2025, "REAP the Experts" (arXiv 2510.13999), section 4.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quants.arguments import PathLike
from quants.errors import ModelError

from ...measurement.perplexity import Progress, windows_at_once
from ...measurement.text_tokens import tokens_of
from ...models.model import Model

if TYPE_CHECKING:
    from runtime.arrays import Floats


@dataclass
class ExpertSums:
    """Of each layer: norms of what experts gave (experts,), float64; routed (experts,): tokens that each was given."""

    experts: int
    norms: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    routed: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def observe(self, layer: int, expert: int, given: "Floats") -> None:
        """Add what one expert gave, weighted: float32 (tokens, width)."""
        if layer not in self.norms:
            self.norms[layer], self.routed[layer] = np.zeros(self.experts), np.zeros(self.experts, np.int64)
        self.norms[layer][expert] += float(np.sqrt(np.square(given, dtype=np.float64).sum(axis=1)).sum())
        self.routed[layer][expert] += len(given)

    @property
    def scores(self) -> dict[int, NDArray[np.float64]]:
        """By layer: of each expert the mean over the tokens that it was given."""
        return {layer: norms / np.maximum(self.routed[layer], 1) for layer, norms in self.norms.items()}


def expert_scores(
    model: Model,
    text: PathLike,
    *,
    n_ctx: int = 512,
    chunks: int | None = None,
    with_mtp: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ExpertSums:
    """Let the model read a text in windows, as `imatrix` does.

    n_ctx: tokens of a window; chunks: the first so many windows. further: let the layer that predicts a token further
    read it, too. progress(windows done, of how many, 0.0).
    Raises FileError, OptionError (too short a text), ModelError, VocabularyError.
    """
    from runtime.evaluation.perplexity import windows
    from runtime.model import Model as RunningModel

    net = RunningModel(model.metadata, model.tensors, threads=threads)
    sums = ExpertSums(int(model.metadata.get(f"{model.architecture}.expert_count", 0)))
    net.observe_experts = sums.observe
    if with_mtp:
        _ = net.next_tokens  # which a model that has none says before anything runs
    tokens, bos = tokens_of(model, text)
    plan = windows(len(tokens), n_ctx, chunks=chunks)
    done = 0
    for inputs, _ in plan.batches(tokens, bos, windows_at_once(model, n_ctx)):
        read = net.lazy_logits(inputs)
        if with_mtp:
            net.mtp_logits(inputs, read.states)
        done += len(inputs)
        if progress:
            progress(done, len(plan.starts), 0.0)
    for layer, norms in sums.norms.items():
        if not np.isfinite(norms).all():
            raise ModelError(f"what experts of layer {layer} give is no longer finite", "the file is damaged")
    return sums
