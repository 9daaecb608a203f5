"""Encoding with error feedback: the output's error falls where inputs go together, in every format."""

import numpy as np
import pytest

from quants import FormatError, feedback, format_named, grid_feedback
from quants.feedback import encode_with_feedback, upper_factor
from quants.format import formats
from quants.kernels.grids import grid_levels

WIDTH = 512
NAMES = [form.name for form in formats().values() if form.is_quantized and form.has_codec and form.name[:2] != "Q8"]


@pytest.fixture(scope="module")
def hessian() -> np.ndarray:
    random = np.random.default_rng(0)
    mixed = random.standard_normal((WIDTH, WIDTH)) * np.exp(random.standard_normal(WIDTH))
    inputs = random.standard_normal((2000, WIDTH)) @ mixed
    return inputs.T @ inputs / len(inputs)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(2).standard_normal((48, WIDTH)).astype(np.float32)


def _lost(values: np.ndarray, rows: np.ndarray, hessian: np.ndarray) -> float:
    difference = (values - rows).astype(np.float64)
    return float(((difference @ hessian) * difference).sum())


def test_the_factor_is_that_of_the_inverse(hessian: np.ndarray) -> None:
    factor = upper_factor(hessian, 0.1).astype(np.float64)
    damped = hessian + (0.1 * np.median(hessian.diagonal()) + 1e-7 * hessian.diagonal().max()) * np.eye(WIDTH)
    assert np.array_equal(factor, np.triu(factor))
    assert np.allclose(factor.T @ factor @ damped, np.eye(WIDTH), atol=1e-3)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("Q4_0", 0.6),
        ("Q4_1", 0.6),
        ("Q5_0", 0.6),
        ("Q5_1", 0.6),
        ("Q8_0", 0.6),
        ("IQ4_NL", 0.6),
        ("MXFP4", 0.6),
        ("NVFP4", 0.52),
        ("Q1_0", 0.99),
        ("TQ2_0", 0.91),
        ("TQ1_0", 0.91),
        ("Q2_K", 0.7),
        ("Q3_K", 0.65),
        ("Q4_K", 0.65),
        ("Q5_K", 0.65),
        ("Q6_K", 0.65),
        ("IQ4_XS", 0.6),
        ("IQ3_S", 0.412),
        ("IQ3_XXS", 0.425),
        ("IQ2_S", 0.51),
        ("IQ2_XS", 0.51),
        ("IQ2_XXS", 0.56),
        ("IQ1_M", 0.52),
        ("IQ1_S", 0.54),
    ],
)
def test_outputs_are_nearer_than_the_format_s_own_encoder_gets(
    name: str, most: float, rows: np.ndarray, hessian: np.ndarray
) -> None:
    form, weights = format_named(name), hessian.diagonal().astype(np.float32)
    own = form.decode(form.encode(rows, weights))
    fed = form.decode(encode_with_feedback(form, rows, upper_factor(hessian, 0.1), weights))
    assert _lost(fed, rows, hessian) < most * _lost(own, rows, hessian)


def test_trits_are_chosen_once_for_both_formats(rows: np.ndarray, hessian: np.ndarray) -> None:
    weights, factor = hessian.diagonal().astype(np.float32), upper_factor(hessian, 0.1)
    forms = [format_named(name) for name in ("TQ1_0", "TQ2_0")]
    first, second = (form.decode(encode_with_feedback(form, rows, factor, weights)) for form in forms)
    assert np.array_equal(first, second)
    assert len(np.unique(first[0, :256])) == 3


@pytest.mark.parametrize("name", ["Q1_0", "Q2_0", "TQ1_0", "TQ2_0"])
def test_values_that_are_codes_already_stay(name: str, hessian: np.ndarray) -> None:
    form, weights = format_named(name), hessian.diagonal().astype(np.float32)
    trits = np.random.default_rng(4).integers(-1, 2, (8, WIDTH)).astype(np.float32)
    trits = np.where(trits == 0, 1, trits) if name == "Q1_0" else trits
    raw = encode_with_feedback(form, trits / 8, upper_factor(hessian, 0.1), weights)
    assert np.array_equal(form.decode(raw), trits / 8)


def test_nothing_changes_where_inputs_have_nothing_in_common(rows: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without correlation there is nothing to carry: each value gets the nearest that the encoder's scales allow."""
    monkeypatch.setattr(feedback, "MOVES", ())
    monkeypatch.setattr(feedback, "MINIMUM_MOVES", ())
    form, weights = format_named("Q4_K"), np.ones(WIDTH, np.float32)
    raw = encode_with_feedback(form, rows, upper_factor(np.eye(WIDTH), 0.1), weights)
    assert np.array_equal(raw, form.encode(rows, weights))


@pytest.mark.parametrize("name", ["IQ1_M", "IQ2_XXS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_the_nearest_points_are_chosen(name: str, hessian: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first eight values of a block, among all points and signs that there are."""
    monkeypatch.setattr(grid_feedback, "MOVES", ())  # the scale that the encoder found
    form, weights = format_named(name), hessian.diagonal()[:256].astype(np.float32)
    rows = np.random.default_rng(5).standard_normal((3, 256)).astype(np.float32)
    factor = upper_factor(hessian[:256, :256], 0.1)
    chosen = form.decode(encode_with_feedback(form, rows, factor, weights))[:, :8]
    table = grid_feedback.meanings(form, form.points, form.encode(rows, weights))[:, 0]
    levels = grid_levels(name).astype(np.intp)
    if levels.shape[1] == 4:  # all points that are as near as those that were chosen, of either half
        halves = np.stack(np.meshgrid(np.arange(len(levels)), np.arange(len(levels)))).reshape(2, -1).T
        levels = levels[halves[np.random.default_rng(6).permutation(len(halves))[:4000]]].reshape(-1, 8)
    signs = (np.arange(256)[:, None] >> np.arange(8)) & 1
    if form.points.signs.bits == 7:
        signs = signs[signs.sum(1) % 2 == 0]
    elif form.points.signs.bits == 1:
        signs = signs[[0, 255]]
    inverse = np.linalg.inv(factor[:8, :8].astype(np.float64))
    for row, own, means in zip(rows, chosen, table, strict=True):
        cost = np.square((row[:8] - own) @ inverse).sum()
        least = min(np.square((row[:8] - means[levels + 8 * sign]) @ inverse).sum(1).min() for sign in signs)
        assert cost <= least * (1 + 1e-4)


@pytest.mark.parametrize(
    ("name", "most"),
    [("IQ2_XS", 0.97), ("IQ3_S", 0.97), ("Q4_K", 0.92), ("Q3_K", 0.942), ("Q4_0", 0.966), ("NVFP4", 0.448)],
)
def test_scales_are_chosen_too(
    name: str, most: float, rows: np.ndarray, hessian: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, weights = format_named(name), hessian.diagonal().astype(np.float32)
    factor = upper_factor(hessian, 0.1)
    chosen = form.decode(encode_with_feedback(form, rows, factor, weights))
    for module in (feedback, grid_feedback):
        monkeypatch.setattr(module, "MOVES", ())
    monkeypatch.setattr(feedback, "MINIMUM_MOVES", ())
    given = form.decode(encode_with_feedback(form, rows, factor, weights))
    assert _lost(chosen, rows, hessian) < most * _lost(given, rows, hessian)


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ3_S", "IQ1_S"])
def test_rows_of_zeros_and_of_what_is_no_number(name: str, rows: np.ndarray, hessian: np.ndarray) -> None:
    """Zeros stay as near to zero as the encoder gets them; what is not finite does no harm to other rows."""
    form, weights, factor = format_named(name), hessian.diagonal().astype(np.float32), upper_factor(hessian, 0.1)
    some = rows[:4].copy()
    some[1], some[2, 7] = 0, np.nan
    found = form.decode(encode_with_feedback(form, some, factor, weights))
    alone = form.decode(encode_with_feedback(form, rows[:1], factor, weights))
    assert np.abs(found[1]).max() <= np.abs(form.decode(form.encode(some[1:2], weights))).max()
    assert np.mean(found[0] != alone[0]) < 0.05


@pytest.mark.parametrize("name", ["Q4_0", "IQ2_XS"])
def test_rows_are_encoded_one_by_one(name: str, rows: np.ndarray, hessian: np.ndarray) -> None:
    form, weights = format_named(name), hessian.diagonal().astype(np.float32)
    factor = upper_factor(hessian, 0.1)
    together = encode_with_feedback(form, rows[:2], factor, weights)
    alone = [encode_with_feedback(form, rows[i : i + 1], factor, weights) for i in range(2)]
    values = [form.decode(raw) for raw in (together, np.concatenate(alone))]
    assert np.mean(values[0] != values[1]) < 0.01  # products of other shapes sum in another order


def test_columns_without_inputs_keep_their_nearest_values(rows: np.ndarray, hessian: np.ndarray) -> None:
    dead = hessian.copy()
    dead[64:96], dead[:, 64:96] = 0, 0
    form, weights = format_named("Q8_0"), dead.diagonal().astype(np.float32)
    lost = form.decode(encode_with_feedback(form, rows, upper_factor(dead, 0.1), weights)) - rows
    own = form.decode(form.encode(rows)) - rows
    assert np.square(lost[:, 64:96]).sum() <= 1.02 * np.square(own[:, 64:96]).sum()
    assert np.abs(lost).max() > 1.5 * np.abs(own).max()  # where errors are carried


def test_inputs_that_are_all_zero_are_no_error(rows: np.ndarray) -> None:
    assert np.isfinite(upper_factor(np.zeros((WIDTH, WIDTH)), 0.1)).all()


def test_a_width_that_blocks_do_not_fit(hessian: np.ndarray) -> None:
    narrow = np.zeros((1, 100), np.float32)
    with pytest.raises(FormatError, match="rows of 100 values; Q4_K needs a multiple of 256"):
        encode_with_feedback(format_named("Q4_K"), narrow, np.eye(100, dtype=np.float32), np.ones(100, np.float32))
