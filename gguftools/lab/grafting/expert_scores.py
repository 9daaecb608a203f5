"""Score the experts of a mixture on a text by REAP, to choose those to drop.

An expert's score is the norm of its output for a token times its router weight, averaged over the tokens routed to it;
0 without any.

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
    """Sums by layer: norms of experts' outputs, float64 (experts,); routed: tokens of each expert, int64 (experts,)."""

    experts: int
    norms: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    routed: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def observe(self, layer: int, expert: int, given: "Floats") -> None:
        """Add the weighted output of one expert: float32 (tokens, width)."""
        if layer not in self.norms:
            self.norms[layer], self.routed[layer] = np.zeros(self.experts), np.zeros(self.experts, np.int64)
        self.norms[layer][expert] += float(np.sqrt(np.square(given, dtype=np.float64).sum(axis=1)).sum())
        self.routed[layer][expert] += len(given)

    @property
    def scores(self) -> dict[int, NDArray[np.float64]]:
        """Return by layer the mean norm over the tokens of each expert."""
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
    """Sum the experts' outputs while the model reads a text in windows, as in `imatrix`.

    n_ctx: tokens of a window; chunks: the first so many windows. with_mtp: also run the MTP layer. progress(windows
    done, of how many, 0.0). Raises FileError, OptionError (a text that is too short), ModelError, VocabularyError.
    """
    from runtime.evaluation.perplexity import windows
    from runtime.model import RunningModel

    net = RunningModel(model.metadata, model.tensors, threads=threads)
    sums = ExpertSums(int(model.metadata.get(f"{model.architecture}.expert_count", 0)))
    net.observe_experts = sums.observe
    if with_mtp:
        _ = net.next_tokens  # raises for a model without MTP layers before anything runs
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
