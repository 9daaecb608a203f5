"""What a key may hold, told from plain data."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from archs.experts import GATING
from archs.metadata import ValueType
from archs.schema import KEYS, MODEL, TINY, Key
from archs.spec import ACTIVATIONS

from ..conftest import ROOT

TEXT, FLAG, COUNT = Key(ValueType.STRING), Key(ValueType.BOOL), Key(ValueType.UINT32, 0)
POSITIVE, STRINGS = Key(ValueType.FLOAT32, TINY), Key(ValueType.STRING, array=True)
NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("rule", "data", "wrong"),
    [
        (COUNT, 3, None),
        (COUNT, np.uint32(3), None),
        (COUNT, -1, "0 or more"),
        (COUNT, 1 << 40, "at most"),
        (COUNT, 1.0, "whole number"),
        (COUNT, True, "whole number"),
        (COUNT, [1], "is a list"),
        (COUNT, "3", "whole number"),
        (POSITIVE, 1, None),
        (POSITIVE, 0.0, "more than 0"),
        (POSITIVE, NAN, "finite"),
        (POSITIVE, INFINITY, "finite"),
        (FLAG, True, None),
        (FLAG, 1, None),
        (FLAG, "yes", "true or false"),
        (TEXT, "x", None),
        (TEXT, b"\xff", "a text"),
        (TEXT, 3, "a text"),
        (STRINGS, "x", "a list"),
        (MODEL["rope.scaling.type"], "yarnn", "known are none, linear, yarn, longrope"),
        (MODEL["expert_gating_func"], 9, "known are"),
        (MODEL["ssm.time_step_max"], INFINITY, None),
        (MODEL["attention.scale"], [1.0, 2.0], None),
        (MODEL["attention.scale"], np.array([1.0, NAN]), "not finite"),
        (MODEL["attention.scale"], ["a"], "another type"),
        (MODEL["attention.head_count_kv"], [0, -1], "the item -1"),
        (MODEL["activation_sparsity_scale"], [-INFINITY, 1.0], None),
        (MODEL["activation_sparsity_scale"], [NAN], "not finite"),
        (MODEL["attention.sliding_window_pattern"], np.array([True, False]), None),
        (MODEL["attention.sliding_window_pattern"], 6, None),
        (COUNT, 10**400, "at most"),
        (Key(COUNT.type), -5, None),
    ],
)
def test_wrong(rule, data, wrong):
    said = rule.wrong(data)
    assert said is None if wrong is None else wrong in said, said


def keys_read() -> set[str]:
    """What code asks keys for, without the architecture: `keys.get("…")`, `keys["…"]`, `Keys(…).need("…")`."""
    found = set()
    for path in (path for package in ("archs", "runtime") for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                method, owner, key = node.func.attr, node.func.value, node.args[0]
            elif isinstance(node, ast.Subscript):
                method, owner, key = "get", node.value, node.slice
            else:
                continue
            name = ast.unparse(owner)
            if method in ("get", "need", "of_layer") and (name.endswith("keys") or name.startswith("Keys(")):
                found |= {key.value} if isinstance(key, ast.Constant) else set()
    return {key for key in found if isinstance(key, str)}


def test_every_key_that_is_read_is_in_the_schema():
    keys = keys_read()
    assert len(keys) > 60
    encoders = {key.removeprefix("clip.") for key in KEYS}  # as exports read them
    assert not keys - MODEL.keys() - KEYS.keys() - encoders


def test_choices_are_those_of_the_code():
    assert MODEL["hidden_activation"].choices == tuple(ACTIVATIONS)
    assert MODEL["expert_gating_func"].choices == (0, *GATING.values())
