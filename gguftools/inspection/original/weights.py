"""Compare hyperparameters and weights of a file with those of its original."""

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from archs.hparams.model_hparams import read_hparams
from archs.registry import by_gguf_name
from quants.spelling import quote
from quants.tensor import all_readable

from ...metadata.text import brief, plain
from ...models.model import Model
from ..weight_errors import weight_errors
from .result import Check, judged

KEYS, WEIGHTS = "keys", "weights"
# Apart from layers' matrices; their biases and gates may be zero.
NEVER_ZERO = ("token_embd.weight", "output_norm.weight", "output.weight")
MIN_SQNR = 3.0  # dB: IQ1_S and Q2_K leave 5 and more; rows in another order are at -3, zeros at 0
OTHERWISE = ("context_length", "pooling_type", "vocab_size")  # may be changed on purpose, or have their own check
RELATIVE = 1e-5
ROWS = 64  # of a matrix that are looked at
DERIVED = {"output.weight"}  # may be tied to the embedding


def check_keys(model: Model, original: Model) -> Check:
    """Check that the architecture's keys have the original's values, also where one side leaves a key out."""
    ours, theirs = model.metadata, original.metadata
    if model.architecture != original.architecture:
        fault = f"general.architecture is {quote(model.architecture)}; the original's is {quote(original.architecture)}"
        return judged(KEYS, [fault], "")
    begins = f"{model.architecture}."
    both = [key for key in theirs if key.startswith(begins) and key in ours]
    faults, lines = list[str](), list[str]()
    for key in both:
        if not _alike(plain(ours.value(key)), plain(theirs.value(key))):
            difference = f"{key} is {brief(ours.value(key))}; the original's is {brief(theirs.value(key))}"
            (lines if key.removeprefix(begins) in OTHERWISE else faults).append(difference)
    missing = [
        f"{key} is missing; the original's is {brief(theirs.value(key))}"
        for key in theirs
        if key.startswith(begins) and key not in ours
    ]
    if not faults:
        comparison = "where a key is missing; the original's is"
        faults = [f"{name} is {a} {comparison} {b}" for name, a, b in _numbers(model, original)]
    lines = [*missing, *lines]
    return judged(KEYS, faults, f"{len(both)} keys of {model.architecture} have the original's values", lines)


def _alike(a: Any, b: Any) -> bool:
    """Return whether values are equal: floats within float32's precision, one value for all layers like a list
    of it.
    """
    if isinstance(a, (bool, str)) or isinstance(b, (bool, str)):
        return bool(a == b)
    try:
        one, other = (np.asarray(each, np.float64) for each in (a, b))
        return bool(np.all(np.isclose(one, other, rtol=RELATIVE, atol=0, equal_nan=True)))
    except (TypeError, ValueError):
        return bool(a == b)


def _numbers(model: Model, original: Model) -> Iterator[tuple[str, Any, Any]]:
    """Yield hyperparameters that differ, also those that follow from missing keys: of the model, and of the first layer
    that differs.
    """
    architecture = by_gguf_name(model.architecture)
    ours, theirs = (read_hparams(architecture, each.metadata) for each in (model, original))
    for field in fields(ours):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name not in ("context", "layers") and not _alike(a, b):
            yield field.name, a, b
    reported = set[str]()
    for i, (a, b) in enumerate(zip(ours.layers, theirs.layers, strict=False)):
        for field in fields(a):
            one, other = getattr(a, field.name), getattr(b, field.name)
            if not _alike(one, other) and field.name not in reported:
                reported.add(field.name)
                yield f"{field.name} of layer {i}", one, other


def check_zeros(model: Model) -> Check:
    """Check that no matrix and no last norm is all zeros, by rows spread over it."""
    looked, faults = 0, list[str]()
    for name, tensor in all_readable(model.tensors).items():
        if name not in NEVER_ZERO and (not name.startswith("blk.") or len(tensor.shape) < 2):
            continue
        looked += 1
        step = max(1, tensor.rows // ROWS)
        if not any(np.any(tensor[row : row + 1]) for row in range(0, tensor.rows, step)):
            faults.append(f"{name} is zero throughout")
    return judged(WEIGHTS, faults, f"none of {looked} tensors is zero; there is no original to compare with")


def check_weights(model: Model, original: Model, threads: int | None) -> Check:
    """Check that each tensor is the original's, apart from rounding by its format."""
    comparison = weight_errors(original, model, threads=threads)
    turned = {name for name in comparison.only_a if name.replace("ffn_down.", "ffn_down_t.") in comparison.only_b}
    faults = [f"{name} is missing" for name in comparison.only_a if name not in DERIVED | turned]
    faults += [f"{name} is {list(b)}; the original's is {list(a)}" for name, a, b in comparison.shapes]
    lowest, lowest_name = math.inf, ""
    for tensor in comparison.tensors:
        errors = tensor.errors
        sqnr = math.inf if errors.squares == 0 else -math.inf if errors.power == 0 else (errors.sqnr or 0.0)
        if errors.non_finite:
            faults.append(f"{tensor.name} has {errors.non_finite} values that are not finite on one side only")
        elif sqnr < MIN_SQNR:
            faults.append(f"{tensor.name} ({tensor.b}) is not the original's: {sqnr:.1f} dB above the difference")
        if sqnr < lowest:
            lowest, lowest_name = sqnr, f"{tensor.name} ({tensor.b})"
    lines = [f"{name} is not in the original" for name in comparison.only_b]
    exact = lowest == math.inf
    seen = "all values are the original's" if exact else f"least signal above noise: {lowest:.1f} dB, {lowest_name}"
    figure = lowest if math.isfinite(lowest) else None
    count = len(comparison.tensors)
    return judged(WEIGHTS, faults, f"{count} tensors; {seen}", lines, tensors=count, least_sqnr=figure)
