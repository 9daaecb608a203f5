"""Divergences of rows and windows, in float64 and by the reference's own functions; figures made of them."""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass

import numpy as np
import pytest

from quants.errors import ModelError, OptionError
from runtime.evaluation import statistics
from runtime.evaluation.divergence import Rows, compare, divergence, row_figures
from runtime.evaluation.stored_logits import StoredLayout, encode_rows, stored_logits
from runtime.evaluation.windows import Window, text_windows
from tests.one_perplexity import perplexity

from ...conftest import ROOT

DATA = ROOT / "tests" / "data" / "divergence"
VOCABULARY = 300
rng = np.random.default_rng(0)
TABLE = rng.standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32) * 3
NOISE = rng.standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32) * 0.05
TOKENS = rng.integers(0, VOCABULARY, 200).tolist()
WINDOWS = text_windows(TOKENS, 32, bos=None)
TARGETS = np.concatenate([window.targets for window in WINDOWS])


@dataclass
class Made:
    """Logits that depend on the last token alone."""

    table: np.ndarray
    lower_bound = False

    @property
    def vocabulary(self):
        return self.table.shape[1]

    def rows(self, window, start, stop, targets, threads):
        logits = self.table[WINDOWS[window].inputs[WINDOWS[window].scored[start:stop]]]
        return row_figures(logits, targets, threads)

    def compare(self, base: Rows, other: Rows, threads):
        return compare(base, other, threads)


def figures(base, other, windows=WINDOWS):
    found = divergence(windows, base, {"x": other})
    targets = np.concatenate([window.targets for window in windows])
    return statistics.figures(found.base, found.others["x"], found.apart["x"], targets), found


def log_softmax(rows):
    wide = rows.astype(np.float64)
    return wide - np.logaddexp.reduce(wide, axis=1, keepdims=True)


def test_figures():
    got, found = figures(Made(TABLE), Made(TABLE + NOISE))
    at = np.concatenate([np.arange(start + 16, start + 31) for start in range(0, 192, 32)])
    p, q = log_softmax(TABLE[np.array(TOKENS)[at]]), log_softmax((TABLE + NOISE)[np.array(TOKENS)[at]])
    n, rows = len(at), np.arange(len(at))
    kl, reverse = (np.exp(p) * (p - q)).sum(1), (np.exp(q) * (q - p)).sum(1)
    target = np.array(TOKENS)[at + 1]
    change = np.exp(q[rows, target]) - np.exp(p[rows, target])
    assert n == 90
    np.testing.assert_allclose(found.apart["x"][:, 0], kl, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(found.apart["x"][:, 1], reverse, rtol=1e-5, atol=1e-9)
    assert got["kl_divergence"]["mean"] == pytest.approx(kl.mean(), rel=1e-6)
    assert got["kl_divergence"]["standard_error"] == pytest.approx(kl.std() / np.sqrt(89), rel=1e-5)
    assert got["kl_divergence"]["median"] == pytest.approx(np.median(kl), rel=1e-5)
    assert got["kl_divergence"]["p99"] == pytest.approx(np.quantile(kl, 0.99), rel=1e-5)
    assert got["kl_divergence"]["p0_1"] == pytest.approx(np.quantile(kl, 0.001), rel=1e-4)
    assert got["kl_reverse"]["mean"] == pytest.approx(reverse.mean(), rel=1e-6)
    least = np.minimum(np.exp(p), np.exp(q)).sum(1)
    assert got["acceptance"]["mean"] == pytest.approx(least.mean(), rel=1e-6)
    assert got["total_variation"]["mean"] == pytest.approx((1 - least).mean(), rel=1e-5)
    entropy = -(np.exp(p) * p).sum(1), -(np.exp(q) * q).sum(1)
    assert got["entropy_change"]["mean"] == pytest.approx((entropy[1] - entropy[0]).mean(), rel=1e-4)
    assert got["same_top"] == (p.argmax(1) == q.argmax(1)).mean()
    assert got["same_top_standard_error"] == pytest.approx(np.sqrt(got["same_top"] * (1 - got["same_top"]) / 89))
    assert got["flips"] == ((p.argmax(1) == target) != (q.argmax(1) == target)).mean()
    assert got["p_change"]["mean"] == pytest.approx(change.mean(), rel=1e-4)
    assert got["p_change"]["rms"] == pytest.approx(np.sqrt((change**2).mean()), rel=1e-4)

    def measured(table):
        return perplexity(TOKENS, lambda ids, first: table[ids[first:]], 32, bos=None).perplexity

    assert got["perplexity"] == pytest.approx(measured(TABLE + NOISE), rel=1e-6)
    assert got["perplexity_ratio"] == pytest.approx(measured(TABLE + NOISE) / measured(TABLE), rel=1e-6)
    both = p[rows, target], q[rows, target]
    assert got["correlation"] == pytest.approx(np.corrcoef(*both)[0, 1], rel=1e-6)
    assert got["log_ratio_standard_error"] == pytest.approx((both[0] - both[1]).std() / np.sqrt(89), rel=1e-4)


def test_a_model_does_not_diverge_from_itself():
    got, _ = figures(Made(TABLE), Made(TABLE))
    assert got["kl_divergence"]["max"] == got["total_variation"]["mean"] == got["p_change"]["rms"] == 0
    assert got["same_top"] == 1
    assert got["acceptance"]["mean"] == 1


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0, 30.0])
def test_divergences_of_every_size_are_exact(size):
    rows = np.concatenate([TABLE[:50], 30 * TABLE[50:100]])  # flat ones and sharp ones
    noise = (NOISE[:100] * 20 * size + 5).astype(np.float32)
    targets = np.zeros(100, np.int64)
    base, other = row_figures(rows, targets), row_figures(rows + noise, targets)
    p, q = log_softmax(rows), log_softmax(rows + noise)
    got = compare(base, other)
    with np.errstate(under="ignore"):
        np.testing.assert_allclose(got[:, 0], (np.exp(p) * (p - q)).sum(1), rtol=2e-5, atol=1e-11)
        np.testing.assert_allclose(got[:, 1], (np.exp(q) * (q - p)).sum(1), rtol=2e-5, atol=1e-11)
        np.testing.assert_allclose(got[:, 2], 0.5 * abs(np.exp(p) - np.exp(q)).sum(1), rtol=1e-5, atol=1e-6)


def test_tokens_that_are_never_generated_add_nothing_to_the_entropy():
    barred = TABLE[:20].copy()
    barred[:, 40:200] = np.finfo(np.float32).min
    left = np.delete(barred, np.s_[40:200], axis=1)
    wanted, got = (row_figures(each, np.zeros(20, np.int64)).values for each in (left, barred))
    np.testing.assert_allclose(got[:, 1], wanted[:, 1], rtol=1e-5)
    np.testing.assert_allclose(got[:, 0], wanted[:, 0], rtol=1e-6)


def test_vocabularies_must_be_equal():
    with pytest.raises(OptionError, match="vocabulary of 300 tokens, x one of 299; they have to be equal"):
        figures(Made(TABLE), Made(TABLE[:, :299]))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_named(value):
    table = TABLE.copy()
    table[WINDOWS[2].inputs[WINDOWS[2].scored[3]], 7] = value
    with pytest.raises(ModelError, match=r"^x: logits of window \d are not finite"):
        figures(Made(TABLE), Made(table))
    with pytest.raises(ModelError, match=r"^the base: logits of window \d are not finite"):
        figures(Made(table), Made(TABLE))


def test_logits_that_predict_nothing_are_refused():
    with pytest.raises(ModelError, match=r"the mean loss is .*; the logits are no predictions"):
        figures(Made(TABLE), Made(TABLE * 1000))


def test_few_predictions_have_figures():
    few = text_windows(TOKENS[:8], 4, bos=None)
    got, found = figures(Made(TABLE), Made(TABLE + NOISE), few)
    assert len(found.position) == 2
    assert got["perplexity_standard_error"] == got["kl_divergence"]["standard_error"] == 0
    assert got["correlation"] == 1
    assert statistics.by_position(found.apart["x"][:, 0], found.position)["edges"] == [2, 3]
    assert sum(statistics.histogram(found.apart["x"][:, 0])["counts"]) == 2


def test_groups_of_positions_change_nothing(monkeypatch):
    _, whole = figures(Made(TABLE), Made(TABLE + NOISE))
    saved = []
    monkeypatch.setattr("runtime.evaluation.divergence.LOGITS_AT_ONCE", 1)
    monkeypatch.setattr("runtime.evaluation.divergence.MIN_POSITIONS", 4)
    made = Made(TABLE), {"x": Made(TABLE + NOISE)}
    parts = divergence(WINDOWS, *made, save=lambda *given: saved.append(given))
    np.testing.assert_array_equal(whole.apart["x"], parts.apart["x"])
    np.testing.assert_array_equal(whole.base, parts.base)
    assert [given[:3] for given in saved[:5]] == [(0, 0, 4), (0, 4, 8), (0, 8, 12), (0, 12, 15), (1, 0, 4)]


# What llama.cpp's own functions said (see tests/data/divergence/README.md)

N_CTX, N_VOCAB, COUNT = 64, 301, 8
ROWS = N_CTX - 1 - N_CTX // 2


def reference():
    """The logits and tokens that the golden data were made of: base, other (n, vocabulary), tokens (windows, n_ctx)."""
    frozen = np.random.RandomState(7)  # whose numbers numpy promises never to change
    base = (frozen.standard_normal((ROWS * COUNT, N_VOCAB)) * 4).astype(np.float32)
    other = base + frozen.standard_normal(base.shape) * frozen.standard_exponential((len(base), 1)) * 0.2
    tokens = frozen.randint(0, N_VOCAB, (COUNT, N_CTX))
    likely = np.where(frozen.random_sample(len(base)) < 0.6, base.argmax(1), np.argsort(base, 1)[:, -5])
    tokens[:, N_CTX // 2 + 1 :] = likely.reshape(COUNT, ROWS)
    return base, other.astype(np.float32), tokens.astype(np.int64)


def stored(name: str) -> np.ndarray:
    return np.frombuffer(gzip.decompress((DATA / name).read_bytes()), np.uint8)


def printed(name: str) -> dict[str, list[float]]:
    """Label → the numbers of a line."""
    lines = re.findall(r"^ ?([^:\n]+?) *: +(.*)$", (DATA / name).read_text(encoding="utf-8"), re.MULTILINE)
    return {label: [float(number) for number in re.findall(r"-?[\d.]+", rest)] for label, rest in lines}


def as_printed(got) -> dict[str, list[float]]:
    """Our figures under the labels of the reference's lines, in its units."""
    kl, change = got["kl_divergence"], got["p_change"]
    lines = {
        "Mean PPL(Q)": [got["perplexity"], got["perplexity_standard_error"]],
        "Cor(ln(PPL(Q)), ln(PPL(base)))": [100 * got["correlation"]],
        "Mean ln(PPL(Q)/PPL(base))": [got["log_ratio"], got["log_ratio_standard_error"]],
        "Mean PPL(Q)/PPL(base)": [got["perplexity_ratio"], got["perplexity_ratio_standard_error"]],
        "Mean PPL(Q)-PPL(base)": [got["perplexity_difference"], got["perplexity_difference_standard_error"]],
        "Mean    KLD": [kl["mean"], kl["standard_error"]],
        "Maximum KLD": [kl["max"]],
        "Median  KLD": [kl["median"]],
        "Minimum KLD": [kl["min"]],
        "Mean    Δp": [100 * change["mean"], 100 * change["standard_error"]],
        "Maximum Δp": [100 * change["max"]],
        "Median  Δp": [100 * change["median"]],
        "Minimum Δp": [100 * change["min"]],
        "RMS Δp": [100 * change["rms"], 100 * change["rms_standard_error"]],
        "Same top p": [100 * got["same_top"], 100 * got["same_top_standard_error"]],
    }
    for name in ("99.9", "99.0", "95.0", "90.0", "75.0", "25.0", "10.0", "5.0", "1.0", "0.1"):
        key = "p" + name.removesuffix(".0").replace(".", "_")
        if key in kl:
            lines[f"{name}%   KLD"] = [kl[key]]
        lines[f"{name}%   Δp"] = [100 * change[key]]
    return lines


@pytest.fixture
def beside_stored():
    base, (_, other, tokens) = stored_logits(stored("made.kld.gz")), reference()
    scored = np.arange(N_CTX // 2, N_CTX - 1)
    windows = [Window(row, scored, row[scored + 1]) for row in tokens]

    class Other:
        vocabulary = N_VOCAB

        def rows(self, window, start, stop, targets, threads):
            return row_figures(other[window * ROWS + start : window * ROWS + stop], targets, threads)

    return figures(base, Other(), windows)


def test_every_printed_statistic_is_that_of_the_reference(beside_stored):
    """To the last printed digit or, where float32 rounds sums in another order, the next one."""
    want, got = printed("made.txt"), as_printed(beside_stored[0])
    assert {"Mean PPL(base)"} == set(want) - set(got)
    assert set(got) < set(want)
    for label, numbers in got.items():
        step = 0.0011 if "Δp" in label or "top" in label else 0.011 if "Cor" in label else 1.1e-6
        np.testing.assert_allclose(numbers, want[label], rtol=0, atol=step, err_msg=label)


def test_what_is_written_is_what_the_reference_writes():
    raw, (base, _, tokens) = stored("made.kld.gz"), reference()
    written = StoredLayout(N_CTX, N_VOCAB, len(tokens)).header(tokens.reshape(-1))
    written += b"".join(encode_rows(base[start : start + 40]) for start in range(0, len(base), 40))
    assert len(written) == len(raw)
    ours, theirs = stored_logits(np.frombuffer(written, np.uint8)), stored_logits(raw)
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    np.testing.assert_array_equal(ours.words[..., :2], theirs.words[..., :2])  # scales
    apart = ours.words[..., 4:].astype(int) - theirs.words[..., 4:]
    assert np.abs(apart).max() <= 1
    assert (apart != 0).mean() < 2e-3  # halves, where its compiler fuses a product and a sum
    minima = (np.ascontiguousarray(each.words[..., 2:4]).view("<f4") for each in (ours, theirs))
    np.testing.assert_allclose(*minima, atol=2e-6)


def test_windows_that_were_measured_are_not_measured_again():
    class Kept(dict):
        def earlier(self, window):
            return self.get(window)

        def note(self, window, values):
            assert window not in self
            self[window] = values.copy()

    kept, models = Kept(), {"x": Made(TABLE + NOISE), "y": Made(TABLE - NOISE)}
    whole = divergence(WINDOWS, Made(TABLE), models, kept=kept)
    assert len(kept) == len(WINDOWS)
    del kept[1], kept[4]
    broken = Made(np.full_like(TABLE, np.nan))
    with pytest.raises(ModelError, match="window 2 "):
        divergence(WINDOWS, broken, models, kept=kept)
    again = divergence(WINDOWS, Made(TABLE), models, kept=kept)
    assert np.array_equal(again.base, whole.base)
    for name in models:
        assert np.array_equal(again.others[name], whole.others[name])
        assert np.array_equal(again.apart[name], whole.apart[name])
