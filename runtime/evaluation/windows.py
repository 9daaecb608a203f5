"""Windows of texts, as models are run on them: their tokens and scored predictions.

Plain text is cut by `perplexity.windows` into equal lengths; conversations are windows of any length, of which only
some predictions count.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import Ids
from .perplexity import windows


@dataclass(frozen=True)
class Window:
    """The input of one run.

    inputs: int64 (n,), token ids, with the token that begins a text if the vocabulary has one. scored: int64 (k,),
    ascending positions in `inputs` whose predictions of the next token count; targets: int64 (k,), the right tokens of
    these predictions. start: its first token's place in the text.
    """

    inputs: Ids
    scored: Ids
    targets: Ids
    start: int = 0

    @property
    def first(self) -> int:
        """Return the first position whose logits are needed; those of `scored` are in rows `scored - first` from there
        on.
        """
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

    tokens: maximum in a group, but at least one window. `np.stack([w.inputs for w in group])` is the argument of
    `Model.lazy_logits`.
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
    """Yield the smallest parts of the windows for which `batched` makes the same groups of a part's windows as of all
    of them, for any of `sizes`.
    """
    ends = [set(np.cumsum([len(group) for group in batched(windows, size)]).tolist()) for size in sizes]
    begin = 0
    for end in sorted(set.intersection(*ends)):
        yield windows[begin:end]
        begin = end
