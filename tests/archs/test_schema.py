"""What a key may hold, told from plain data."""

from __future__ import annotations

import numpy as np
import pytest

from archs.metadata import ValueType
from archs.schema import MODEL, TINY, Key

TEXT, FLAG, COUNT = Key(ValueType.STRING), Key(ValueType.BOOL), Key(ValueType.UINT32, 0)
POSITIVE, STRINGS = Key(ValueType.FLOAT32, TINY), Key(ValueType.STRING, array=True)
NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("rule", "data", "wrong"),
    [
        (COUNT, 3, None), (COUNT, np.uint32(3), None), (COUNT, -1, "0 or more"), (COUNT, 1 << 40, "at most"),
        (COUNT, 1.0, "whole number"), (COUNT, True, "whole number"), (COUNT, [1], "is a list"),
        (COUNT, "3", "whole number"), (POSITIVE, 1, None), (POSITIVE, 0.0, "more than 0"), (POSITIVE, NAN, "finite"),
        (POSITIVE, INFINITY, "finite"), (FLAG, True, None), (FLAG, 1, None), (FLAG, "yes", "true or false"),
        (TEXT, "x", None), (TEXT, b"\xff", "a text"), (TEXT, 3, "a text"), (STRINGS, "x", "a list"),
        (MODEL["rope.scaling.type"], "yarnn", "known are none, linear, yarn, longrope"),
        (MODEL["expert_gating_func"], 9, "known are"), (MODEL["ssm.time_step_max"], INFINITY, None),
        (MODEL["attention.scale"], [1.0, 2.0], None), (MODEL["attention.scale"], np.array([1.0, NAN]), "not finite"),
        (MODEL["attention.scale"], ["a"], "another kind"), (MODEL["attention.head_count_kv"], [0, -1], "the item -1"),
        (MODEL["activation_sparsity_scale"], [-INFINITY, 1.0], None),
        (MODEL["activation_sparsity_scale"], [NAN], "not finite"),
        (MODEL["attention.sliding_window_pattern"], np.array([True, False]), None),
        (MODEL["attention.sliding_window_pattern"], 6, None), (COUNT, 10**400, "at most"), (Key(COUNT.type), -5, None),
    ],
)  # fmt: skip
def test_wrong(rule, data, wrong):
    said = rule.wrong(data)
    assert said is None if wrong is None else wrong in said, said
