"""Windows of texts, as models are run on them: their tokens, and which of their predictions are scored.

Those of plain text are cut by `perplexity.windows`, all of one length; conversations are windows of any length, of
which only some predictions count.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Ids
from .perplexity import windows


@dataclass(frozen=True)
class Window:
    """What a model is given at once.

    inputs: int64 (n,), token ids, with what begins a text where the vocabulary has such a token. scored: int64 (k,),
    rising positions in `inputs` whose predictions of the next token count; targets: int64 (k,), the right tokens of
    these predictions. start: where in the text's tokens it begins.
    """

    inputs: Ids
    scored: Ids
    targets: Ids
    start: int = 0

    @property
    def first(self) -> int:
        """The first position whose logits are needed; those of `scored` are in rows `scored - first` from there on."""
        return int(self.scored[0])


def text_windows(
    tokens: Sequence[int] | Ids, n_ctx: int, *, bos: int | None, chunks: int | None = None, stride: int = 0
) -> list[Window]:
    """Return the windows of a plain text, as `perplexity.windows` cuts them. Raises OptionError as it does."""
    plan = windows(len(tokens), n_ctx, chunks=chunks, stride=stride)
    scored = np.arange(plan.first, plan.last + 1)
    batches = zip(plan.starts, plan.batches(tokens, bos), strict=True)
    return [Window(inputs[0], scored, targets[0], start) for start, (inputs, targets) in batches]


def batched(given: Iterable[Window], tokens: int) -> Iterator[list[Window]]:
    """Yield the windows in their order, in groups that can be run together: of one length and one first position.

    tokens: at most so many in a group, but at least one window. `np.stack([w.inputs for w in group])` is what
    `Model.lazy_logits` is given.
    """
    group: list[Window] = []
    for window in given:
        alike = group and len(window.inputs) == len(group[0].inputs) and window.first == group[0].first
        if group and not (alike and (len(group) + 1) * len(window.inputs) <= tokens):
            yield group
            group = []
        group.append(window)
    if group:
        yield group


def grouped_alike(windows: Sequence[Window], sizes: Iterable[int]) -> Iterator[Sequence[Window]]:
    """Yield the windows in parts as small as they can be for `batched` to make the same groups of a part's windows as
    of these windows among all, whichever of `sizes` it is called with.
    """
    ends = [set(np.cumsum([len(group) for group in batched(windows, size)]).tolist()) for size in sizes]
    begin = 0
    for end in sorted(set.intersection(*ends)):
        yield windows[begin:end]
        begin = end
