"""Multiple choice: which of several answers a model finds likeliest, and how tasks are batched.

The score of an answer is the mean of log(probability) over its scored tokens. Which these are, and which logits are
used, follows llama.cpp's `llama-perplexity`, in its peculiarities too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from quants.errors import ModelError

from ..arrays import Ids
from ..branches import Branches, Tree
from ..head import LazyLogits

MIN_TAIL = 3  # tokens; in Winogrande's sentences with more after the common ones, the choice itself does not count

# (token ids (sequences, n), first position needed) → the logits of those from there on.
Forward = Callable[[Ids, int], LazyLogits]
Branched = Callable[[Branches], LazyLogits]
Lengths = dict[tuple[int, int], int]  # by task and sequence: how many of its tokens are needed
# Logits, and by task and sequence: position → row of x.
Computed = tuple[LazyLogits, dict[tuple[int, int], Callable[[int], int]]]


class Prediction(NamedTuple):
    """The prediction of `token` by the logits at `position` of the task's sequence of that number."""

    sequence: int
    position: int
    token: int


@dataclass(frozen=True)
class Choices:
    """One task. sequences: token ids of the context with each answer; common: length of their common prefix; scored:
    the scored predictions of each answer.
    """

    sequences: tuple[Sequence[int], ...]
    common: int
    scored: tuple[tuple[Prediction, ...], ...]

    @property
    def tokens(self) -> int:
        """Return the number of tokens of all answers, common ones once."""
        return self.common + sum(len(sequence) - self.common for sequence in self.sequences)


def common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """Return the length of the common prefix."""
    columns = enumerate(zip(*sequences, strict=False))
    return next((i for i, column in columns if len(set(column)) > 1), min(map(len, sequences)))


def continuations(sequences: Sequence[Sequence[int]]) -> Choices:
    """Return a task of HellaSwag or multiple choice: every token after the common prefix counts.

    If one answer is a prefix of all others, its last token counts in all, so that none is left without a score.
    """
    common = common_prefix(sequences)
    first = max(1, min(common, *(len(sequence) - 1 for sequence in sequences)))
    scored = (
        tuple(Prediction(i, at - 1, sequence[at]) for at in range(first, len(sequence)))
        for i, sequence in enumerate(sequences)
    )
    return Choices(tuple(sequences), common, tuple(scored))


def substitutions(sequences: Sequence[Sequence[int]], bases: Sequence[int]) -> Choices:
    """Return a task of Winogrande, a sentence with either choice in its gap. bases: tokens up to the end of each choice
    alone.

    Scored are the tokens after the choices, if there are enough, else all after the common prefix; without the last
    token if there are more. If the first token after the common prefix counts, llama-perplexity takes the second
    sentence's from the logits after the first sentence's end, which is reproduced here.
    """
    common = common_prefix(sequences)
    has_tail = all(len(sequence) - common > MIN_TAIL for sequence in sequences)
    scored = []
    for i, sequence in enumerate(sequences):
        first = bases[i] if has_tail else common
        last = len(sequence) - (len(sequence) - first > 1)
        own = (Prediction(i, at - 1, sequence[at]) for at in range(max(1, first), last))
        slipped = len(sequences[0]) - 1
        scored.append(
            tuple(p._replace(sequence=0, position=slipped) if i and p.position == common - 1 else p for p in own)
        )
    return Choices(tuple(sequences), common, tuple(scored))


def mean_log_probabilities(
    tasks: Sequence[Choices], forward: Forward, tokens_at_once: int, branched: Branched | None = None
) -> list[list[float]]:
    """Return the score of each answer of each task, rounded to float32; NaN for one without scored tokens.

    branched: a function that computes a task's common tokens once, None if the model has none. Raises ModelError for
    logits that are not finite.
    """
    wanted = _wanted(tasks)
    lengths = _lengths(wanted)
    logs: dict[tuple[int, Prediction], float] = {}
    passes = (
        _padded(tasks, lengths, forward, tokens_at_once)
        if branched is None
        else (_branched(tasks, lengths, branched, tokens_at_once))
    )
    for logits, rows in passes:
        asked = [(key[0], each, row(each.position)) for key, row in rows.items() for each in wanted[key]]
        x = logits.x.reshape(-1, logits.x.shape[-1])[[at for _, _, at in asked]]
        losses = replace(logits, x=x).losses(np.array([each.token for _, each, _ in asked], np.int64))
        if not np.isfinite(losses).all():
            raise ModelError(f"logits are not finite, though all layers are: {logits.weight.name!r} is damaged")
        logs.update(((number, each), -float(loss)) for (number, each, _), loss in zip(asked, losses, strict=True))
    return [
        [_mean([logs[number, each] for each in answer]) for answer in task.scored] for number, task in enumerate(tasks)
    ]


def _wanted(tasks: Sequence[Choices]) -> dict[tuple[int, int], list[Prediction]]:
    """Return the scored predictions by task and sequence."""
    wanted: dict[tuple[int, int], list[Prediction]] = {}
    for number, task in enumerate(tasks):
        for prediction in (each for answer in task.scored for each in answer):
            wanted.setdefault((number, prediction.sequence), []).append(prediction)
    return wanted


def _lengths(wanted: Mapping[tuple[int, int], Sequence[Prediction]]) -> Lengths:
    return {key: 1 + max(each.position for each in predictions) for key, predictions in wanted.items()}


def asked_for(tasks: Sequence[Choices], tokens_at_once: int) -> Iterator[Ids]:
    """Yield the ids that `mean_log_probabilities` asks its `forward` for, without `branched`."""
    lengths = _lengths(_wanted(tasks))
    for keys in _batches(lengths, tokens_at_once):
        yield _rows_of(tasks, lengths, keys)


def _rows_of(tasks: Sequence[Choices], lengths: Lengths, keys: Sequence[tuple[int, int]]) -> Ids:
    """Return whole sequences, the longest first, padded with zeros."""
    ids = np.zeros((len(keys), lengths[keys[0]]), np.int64)
    for row, (number, sequence) in zip(ids, keys, strict=True):
        length = lengths[number, sequence]
        row[:length] = tasks[number].sequences[sequence][:length]
    return ids


def _padded(tasks: Sequence[Choices], lengths: Lengths, forward: Forward, tokens_at_once: int) -> Iterator[Computed]:
    """Yield logits of whole sequences, padded with zeros at the end, which earlier tokens do not see."""
    for keys in _batches(lengths, tokens_at_once):
        ids = _rows_of(tasks, lengths, keys)
        logits = forward(ids, 0)
        starts = range(0, ids.size, ids.shape[1])
        yield logits, {key: start.__add__ for key, start in zip(keys, starts, strict=True)}


def _branched(
    tasks: Sequence[Choices], lengths: Lengths, branched: Branched, tokens_at_once: int
) -> Iterator[Computed]:
    """Yield logits with the common prefix computed once."""
    trees = [
        _tree(task, [lengths.get((number, i), 0) for i in range(len(task.sequences))])
        for number, task in enumerate(tasks)
    ]
    numbers = [number for number, tree in enumerate(trees) if tree.tokens]
    while numbers:
        count, tokens = 1, trees[numbers[0]].tokens
        while count < len(numbers) and tokens + trees[numbers[count]].tokens <= tokens_at_once:
            tokens += trees[numbers[count]].tokens
            count += 1
        some, numbers = numbers[:count], numbers[count:]
        branches = Branches(tuple(trees[number] for number in some))
        rows: dict[tuple[int, int], Callable[[int], int]] = {
            (number, i): partial(_row, start, trees[number], i)
            for number, start in zip(some, branches.starts, strict=True)
            for i in range(len(trees[number].branches))
            if (number, i) in lengths
        }
        yield branched(branches), rows


def _tree(task: Choices, lengths: Sequence[int]) -> Tree:
    """Return the tree of a task. lengths: the needed length of each sequence."""
    common = min(task.common, max(lengths))
    ends = (sequence[common:length] for sequence, length in zip(task.sequences, lengths, strict=True))
    return Tree(task.sequences[0][:common], tuple(ends))


def _row(start: int, tree: Tree, branch: int, position: int) -> int:
    return start + tree.offset(branch, position)


def _batches(lengths: Lengths, tokens_at_once: int) -> Iterator[list[tuple[int, int]]]:
    """Return batches of sequences of similar lengths, the longest first: about that many tokens each, padded."""
    order = sorted(lengths, key=lambda key: -lengths[key])
    while order:
        count = max(1, tokens_at_once // lengths[order[0]])
        yield order[:count]
        del order[:count]


def _mean(values: Sequence[float]) -> float:
    return float(np.float32(sum(values) / len(values))) if values else float("nan")
