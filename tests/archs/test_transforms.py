"""What happens to tensors on the way: whole results against numpy, and every row range against the whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from archs import transforms
from quants import FormatError, Tensor, format_named, from_array

Array = NDArray[np.float32]
GENERATOR = np.random.default_rng(5)
MATRIX = GENERATOR.standard_normal((24, 6), np.float32)
VECTOR = GENERATOR.standard_normal(24, np.float32)
STACK = GENERATOR.standard_normal((3, 8, 6), np.float32)
CONFIG = {"heads": 4, "kv_heads": 2, "low": 1, "high": 3, "half": 0.5, "third": 1 / 3}


def interleaved(x: Array, heads: int) -> Array:
    """Row 2j of a head is its row j, row 2j + 1 the one half a head later."""
    width = len(x) // heads
    rows = [head * width + j + half * width // 2 for head in range(heads) for j in range(width // 2) for half in (0, 1)]
    return x[rows]


def ungrouped(x: Array, pick: str) -> Array:
    """24 rows: 2 groups of 2 queries, a key and a value, of 3 rows each."""
    parts: dict[str, list[Array]] = {"q": [], "k": [], "v": []}
    for start in (0, 12):
        parts["q"].append(x[start : start + 6])
        parts["k"].append(x[start + 6 : start + 9])
        parts["v"].append(x[start + 9 : start + 12])
    return np.concatenate([part for kind in pick for part in parts[kind]])


CASES: dict[str, tuple[transforms.Transform, Array, Array]] = {
    "interleave_rope": (transforms.interleave_rope("heads"), MATRIX, interleaved(MATRIX, 4)),
    "interleave_rope, bias": (transforms.interleave_rope("heads"), VECTOR, interleaved(VECTOR, 4)),
    "ungroup": (transforms.ungroup("heads", "kv_heads"), MATRIX, ungrouped(MATRIX, "qkv")),
    "ungroup, bias": (transforms.ungroup("heads", "kv_heads"), VECTOR, ungrouped(VECTOR, "qkv")),
    "ungroup, k alone": (transforms.ungroup("heads", lambda config: 2, "k"), MATRIX, ungrouped(MATRIX, "k")),
    "transpose": (transforms.transpose, MATRIX, MATRIX.T),
    "transpose, stack": (transforms.transpose, STACK, STACK.swapaxes(1, 2)),
    "transpose, bias": (transforms.transpose, VECTOR, VECTOR),
    "add_one": (transforms.add_one, MATRIX, MATRIX + 1),
    "skip_rows": (transforms.skip_rows(2), MATRIX, MATRIX[2:]),
    "part": (transforms.part(1, 3), MATRIX, MATRIX[8:16]),
    "part, bias": (transforms.part(2, 3), VECTOR, VECTOR[16:]),
    "part, stack": (transforms.part(1, 2), STACK, STACK[:, 4:]),
    "unit_rows_if": (
        transforms.unit_rows_if(lambda config: True),
        MATRIX,
        MATRIX / np.linalg.norm(MATRIX, axis=1, keepdims=True),
    ),
    "unit_rows_if, not": (transforms.unit_rows_if(lambda config: False), MATRIX, MATRIX),
    "negative_exp": (transforms.negative_exp, MATRIX, -np.exp(MATRIX)),
    "negative_exp, one a head": (transforms.negative_exp, VECTOR, -np.exp(VECTOR)[:, None]),
    "column": (transforms.column, VECTOR, VECTOR[:, None]),
    "channels_and_taps": (transforms.channels_and_taps, MATRIX.reshape(24, 1, 6), MATRIX),
    "in_groups": (transforms.in_groups("heads"), VECTOR, VECTOR.reshape(4, 6)),
    "scaled": (transforms.scaled("half", "third"), MATRIX, MATRIX * np.float32(0.5) * np.float32(1 / 3)),
    "scaled_rows": (transforms.scaled_rows(lambda config: VECTOR), MATRIX, MATRIX * VECTOR[:, None]),
    "every_second": (transforms.every_second(1), STACK, STACK[:, 1::2]),
    "every_second, biases": (transforms.every_second(0), STACK[0], STACK[0][:, ::2]),
    "head_rows": (transforms.head_rows("heads", "low", "low+high"), MATRIX, MATRIX.reshape(4, 6, 6)[:, 1:4]),
    "chain": (
        transforms.chain(transforms.part(0, 2), transforms.interleave_rope("kv_heads")),
        MATRIX,
        interleaved(MATRIX[:12], 2),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("format", ["F32", "F16"])
def test_transform(case: str, format: str) -> None:
    transform, source, wanted = CASES[case]
    tensor = stored(source, format)
    result = transform(tensor, CONFIG)
    assert result.shape == wanted.shape
    tolerance = 2e-6 if format == "F32" else 1e-2
    np.testing.assert_allclose(result.float32().reshape(wanted.shape), wanted, tolerance, tolerance)
    assert_ranges_agree(result)


def stored(values: Array, format: str) -> Tensor:
    """A tensor of `values` in a format of one value a block."""
    tensor = from_array("source", values)
    if format == "F32":
        return tensor
    raw = values.astype("<f2").view(np.uint8).reshape(tensor.rows, -1)
    return Tensor("source", tensor.shape, format_named("F16"), lambda start, stop: raw[start:stop], "source")


def assert_ranges_agree(tensor: Tensor) -> None:
    whole = np.asarray(tensor.raw())
    for start in range(tensor.rows + 1):
        for stop in range(start, tensor.rows + 1):
            assert np.array_equal(tensor.raw(start, stop), whole[start:stop])


def test_rows_far_apart_are_read_without_those_between() -> None:
    values, read = np.arange(800, dtype=np.float32).reshape(400, 2), [0]

    def rows(start: int, stop: int) -> NDArray[np.uint8]:
        read[0] += stop - start
        return values[start:stop].view(np.uint8)

    fused = Tensor("qkv", (400, 2), format_named("F32"), rows)
    config = {"heads": 36, "kv_heads": 2}  # two groups of 18 queries, a key and a value, of 10 rows each
    keys = transforms.ungroup("heads", "kv_heads", "k")(fused, config)
    wanted = values.reshape(2, 20, 10, 2)[:, 18].reshape(20, 2)
    assert np.array_equal(keys.float32(), wanted)
    assert read[0] == 20
    assert np.array_equal(keys.float32(5, 15), wanted[5:15])


def test_moves_keep_bits_and_format() -> None:
    result = transforms.interleave_rope("heads")(stored(MATRIX, "F16"), CONFIG)
    assert result.format.name == "F16"
    assert transforms.add_one(stored(MATRIX, "F16"), CONFIG).format.name == "F32"


def test_stacked_and_concatenated() -> None:
    parts = [from_array(f"part {i}", STACK[i]) for i in range(3)]
    stack = transforms.stacked(parts, "stack")
    assert stack.shape == STACK.shape
    np.testing.assert_array_equal(stack.float32().reshape(STACK.shape), STACK)
    assert_ranges_agree(stack)
    joined = transforms.concatenated(parts, "joined")
    assert joined.shape == (24, 6)
    np.testing.assert_array_equal(joined.float32(), STACK.reshape(24, 6))
    assert_ranges_agree(joined)
    vectors = transforms.concatenated([from_array("a", VECTOR[:5]), from_array("b", VECTOR[5:])], "vector")
    np.testing.assert_array_equal(vectors.float32().reshape(-1), VECTOR)


def test_stacking_different_formats_decodes_them() -> None:
    stack = transforms.stacked([stored(MATRIX, "F16"), from_array("b", MATRIX)], "stack")
    assert stack.format.name == "F32"
    np.testing.assert_array_equal(stack.float32()[1], MATRIX)
    np.testing.assert_array_equal(stack.float32()[0], MATRIX.astype(np.float16))


def test_stacking_different_shapes_names_both() -> None:
    with pytest.raises(FormatError, match=r"F32 \(8, 6\).*F32 \(24, 6\)"):
        transforms.stacked([from_array("a", MATRIX), from_array("b", STACK[0])], "stack")


def test_reshape_must_keep_the_size() -> None:
    assert transforms.reshape(from_array("a", MATRIX), (12, 12)).float32().shape == (12, 12)
    with pytest.raises(FormatError, match="cannot become"):
        transforms.reshape(from_array("a", MATRIX), (5, 5))


@pytest.mark.parametrize(
    "transform",
    [transforms.interleave_rope("five"), transforms.ungroup("five", "one"), transforms.ungroup("five", "five")],
)
def test_heads_that_do_not_divide_the_rows(transform: Callable[..., Tensor]) -> None:
    with pytest.raises(FormatError, match="24 rows"):
        transform(from_array("a", MATRIX), {"five": 5, "one": 1})


def test_blocks_cannot_be_moved_value_by_value() -> None:
    q8_0 = format_named("Q8_0")
    tensor = Tensor("a", (4, 32), q8_0, lambda start, stop: np.zeros((stop - start, 34), np.uint8), "file: a")
    with pytest.raises(FormatError, match="file: a is Q8_0"):
        transforms.transpose(tensor, CONFIG)


def test_decays_round_as_the_reference_does() -> None:
    """Falcon-H1's second layer in the zoo: the last value is not the rightly rounded one."""
    logarithms = [1.1328125, 0.625, 0.62890625, 1.359375, 1.25, 1.3984375, 0.470703125, 0.419921875]
    found = transforms.negative_exp(from_array("a", np.array(logarithms, np.float32)), CONFIG).float32()[:, 0]
    right = (-np.exp(np.array(logarithms))).astype(np.float32)
    assert (found.view(np.int32) - right.view(np.int32)).tolist() == [0] * 7 + [1]
