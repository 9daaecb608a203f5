"""Windows of a text are those that perplexity runs, and only what is alike is run together."""

from __future__ import annotations

import numpy as np

from runtime.evaluation.perplexity import windows
from runtime.evaluation.windows import Window, batched, text_windows


def test_as_perplexity_cuts_them():
    tokens = list(range(100, 150))
    for stride in (0, 3):
        plan = windows(len(tokens), 16, stride=stride)
        found = text_windows(tokens, 16, bos=1, stride=stride)
        assert [each.start for each in found] == plan.starts
        for each, (inputs, targets) in zip(found, plan.batches(tokens, 1), strict=True):
            assert np.array_equal(each.inputs, inputs[0])
            assert np.array_equal(each.targets, targets[0])
            assert each.first == plan.first
            assert [tokens[each.start + i + 1] for i in each.scored] == each.targets.tolist()


def test_only_what_is_alike_is_run_together():
    def window(length: int, first: int) -> Window:
        return Window(np.zeros(length, np.int64), np.array([first, length - 1]), np.zeros(2, np.int64))

    given = [window(8, 3), window(8, 3), window(8, 3), window(8, 2), window(9, 2), window(40, 2), window(40, 2)]
    groups = list(batched(given, 16))
    assert [len(group) for group in groups] == [2, 1, 1, 1, 1, 1]
    assert [id(each) for group in groups for each in group] == [id(each) for each in given]
    assert list(batched([], 16)) == []
