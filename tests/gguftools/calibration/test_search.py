"""The search's own steps, beside figures that are made up: what is chosen, measured, corrected, and kept."""

from types import SimpleNamespace

import numpy as np
import pytest

from gguftools.calibration import sensitivity
from gguftools.calibration.search import ROUNDS, STRONGEST, Search, digest_of, sample_windows
from gguftools.calibration.sensitivity import Part, Sensitivities, candidates_for, role_of
from gguftools.calibration.target import Sizing, Target, short_of
from gguftools.quantization.imatrix_entry import Entry
from gguftools.writing.report import OutputReport, TensorReport
from quants import format_named, from_array
from quants.errors import OptionError

FORMS = ("Q8_0", "Q6_K", "Q4_K", "Q2_K")
ERRORS = {"Q8_0": 0.01, "Q6_K": 0.2, "Q4_K": 1.0, "Q2_K": 3.0}
NAMES = [f"blk.{i}.{part}.weight" for i in range(4) for part in ("attn_q", "attn_v", "ffn_up", "ffn_down")]
GAINS = dict(zip(NAMES, np.exp(np.random.default_rng(7).standard_normal(16)).tolist(), strict=True))


class Kept(SimpleNamespace):
    """What figures are noted in."""

    def note(self, figure, value):
        assert figure not in self.figures
        self.figures[figure] = value


def made_up(monkeypatch, truth):
    """A search whose measurements are truth(formats). Returns it and what was measured, in order."""
    parts = [Part(name, role_of(name), GAINS[name], ERRORS) for name in NAMES]
    tensors = {name: SimpleNamespace(rows=4, width=256) for name in NAMES}
    forms = [format_named(form) for form in FORMS]
    search = Search(
        SimpleNamespace(tensors=tensors, metadata={}, threads=1),
        dict.fromkeys(NAMES, forms),
        None,
        "held",
        "probe",
        Sensitivities(parts),
        None,
        Kept(figures={}),
        lambda where: None,
    )
    measured = []

    def divergence(self, windows, formats):
        measured.append((windows, dict(formats)))
        return truth(formats)

    monkeypatch.setattr(Search, "_divergence", divergence)
    return search, measured


def additive(factors):
    """What costs add up to where those of groups are other than was predicted."""
    return lambda formats: sum(
        factors.get(role_of(name), 1.0) * GAINS[name] * ERRORS[form] for name, form in formats.items()
    )


def size_of(formats, size=lambda nbytes: nbytes):
    return sum(size(4 * format_named(form).row_bytes(256)) for form in formats.values())


BUDGET = 16 * 4 * 150  # about Q4_K


def test_what_is_measured_is_what_is_chosen(monkeypatch):
    search, measured = made_up(monkeypatch, additive({}))
    chosen = search.choose(BUDGET, lambda nbytes: nbytes)
    assert [formats for windows, formats in measured if windows == "held"] == [chosen.formats]
    assert set(chosen.formats) == set(NAMES)
    assert chosen.predicted == pytest.approx(chosen.measured)
    assert chosen.nbytes == size_of(chosen.formats)
    assert 0.97 * BUDGET < chosen.nbytes <= BUDGET


def test_groups_that_cost_more_or_less_are_corrected(monkeypatch):
    factors = {"feed-forward down": 3.0, "attention scores": 0.5}
    search, _ = made_up(monkeypatch, additive(factors))
    chosen = search.choose(BUDGET, lambda nbytes: nbytes)
    wanted = dict.fromkeys(map(role_of, NAMES), 1.0) | factors
    assert search.corrections == pytest.approx(wanted)
    assert chosen.predicted == pytest.approx(chosen.measured)  # by the corrected costs
    uncorrected, _ = made_up(monkeypatch, additive({}))
    assert chosen.measured < additive(factors)(uncorrected.choose(BUDGET, lambda nbytes: nbytes).formats)


def test_a_correction_has_bounds(monkeypatch):
    search, _ = made_up(monkeypatch, additive({"feed-forward down": 50.0, "attention scores": 0.0}))
    search.choose(BUDGET, lambda nbytes: nbytes)
    assert search.corrections["feed-forward down"] == STRONGEST
    assert search.corrections["attention scores"] == 1 / STRONGEST


def test_the_best_that_was_measured_is_kept(monkeypatch):
    first = []

    def truth(formats):
        first.append(dict(formats))
        worse = len(formats) == len(NAMES) and formats != first[0]
        return additive({"feed-forward down": 3.0})(formats) + 1000 * worse

    search, measured = made_up(monkeypatch, truth)
    chosen = search.choose(BUDGET, lambda nbytes: nbytes)
    held = [formats for windows, formats in measured if windows == "held"]
    assert len(held) == 2
    assert chosen.formats == held[0] != held[1]


def test_it_ends_where_nothing_new_is_chosen_or_after_so_many(monkeypatch):
    search, measured = made_up(monkeypatch, additive({}))
    search.choose(BUDGET, lambda nbytes: nbytes)
    assert sum(windows == "held" for windows, _ in measured) == 1
    count = [0]

    def restless(formats):
        count[0] += 1
        return 1000 / count[0] + additive({"feed-forward down": 1 + count[0] % 3})(formats)

    search, measured = made_up(monkeypatch, restless)
    search.choose(BUDGET, lambda nbytes: nbytes)
    assert sum(windows == "held" for windows, _ in measured) <= ROUNDS


def test_it_ends_behind_a_recipe_that_is_worse(monkeypatch):
    search, _ = made_up(monkeypatch, additive({}))
    held, groups = [], ("feed-forward down", "attention values", "feed-forward up")

    def divergence(self, windows, formats):
        if windows == "held":
            held.append(formats)
            return len(held)
        return additive({groups[len(held)]: 3.0})(formats)  # the next is another, each time

    monkeypatch.setattr(Search, "_divergence", divergence)
    assert search.choose(BUDGET, lambda nbytes: nbytes).formats == held[0]
    assert len(held) == 2


def test_each_search_begins_uncorrected(monkeypatch):
    search, _ = made_up(monkeypatch, additive({"feed-forward down": 3.0}))
    once = search.choose(BUDGET, lambda nbytes: nbytes)
    search.choose(BUDGET + 3000, lambda nbytes: nbytes)
    assert search.choose(BUDGET, lambda nbytes: nbytes) == once


def test_bytes_are_counted_as_a_file_has_them(monkeypatch):
    def in_a_file(nbytes):
        return -(-nbytes // 512) * 512

    search, _ = made_up(monkeypatch, additive({}))
    chosen = search.choose(16 * 1024, in_a_file)
    assert chosen.nbytes == size_of(chosen.formats, in_a_file) <= 16 * 1024
    fewest, most = search.limits(in_a_file)
    assert (fewest, most) == (16 * 512, 16 * 1536)
    with pytest.raises(OptionError, match=r"at least 8,192 bytes; 8,191 are left"):
        search.choose(fewest - 1, in_a_file)


def test_what_was_measured_is_not_measured_again(monkeypatch):
    search, _ = made_up(monkeypatch, additive({}))
    monkeypatch.undo()
    calls = []

    def judge(which):
        return SimpleNamespace(of_model=lambda net: calls.append((which, net)) or len(calls))

    search.judge, search.probe = judge("held"), judge("probe")
    monkeypatch.setattr(Search, "_rounded", lambda self, formats: dict(formats))
    some, other = {"a": "Q4_K", "b": "Q8_0"}, {"a": "Q8_0", "b": "Q4_K"}
    assert [search._divergence("held", each) for each in (some, other, some)] == [1.0, 2.0, 1.0]
    assert search._divergence("probe", some) == 3.0
    assert calls == [("held", some), ("held", other), ("probe", some)]
    assert search._divergence("held", dict(reversed(some.items()))) == 1.0
    assert len({digest_of(each) for each in (some, other, {"a": "Q4_K"})}) == 3


def test_costs_of_a_weight_in_two_places_add_up():
    parts = [
        Part("t", "embedding", 2.0, {"Q8_0": 1.0}),
        Part("t", "embedding", 3.0, {"Q8_0": 10.0}),
        Part("u", "others", 5.0, {"Q8_0": 1.0}),
    ]
    found = Sensitivities(parts)
    assert found.costs({}) == {"t": {"Q8_0": 32.0}, "u": {"Q8_0": 5.0}}
    assert found.costs({"embedding": 0.5}) == {"t": {"Q8_0": 16.0}, "u": {"Q8_0": 5.0}}
    assert found.by_group({"t": "Q8_0", "u": "Q8_0"}) == {"embedding": 32.0, "others": 5.0}


def test_parts_and_entries_are_the_same_from_plain_data():
    random = np.random.default_rng(1)
    tensors = {name: from_array(name, np.zeros((4, 32), np.float32)) for name in "ab"}
    entries = {
        name: Entry(random.random((i, 32)).astype(np.float32), np.ones(i, np.float32)) for i, name in enumerate("ab", 1)
    }
    whole = Sensitivities([Part(name, "others", float(random.random()), {"Q8_0": 1 / 3}) for name in "ab"], entries)
    again = Sensitivities(whole.parts[:1], {"a": entries["a"]})
    again.take(whole.as_dict(1), tensors)
    assert again.parts == whole.parts
    for name, entry in entries.items():
        assert np.array_equal(again.entries[name].sums, entry.sums)
        assert np.array_equal(again.entries[name].mean(), entry.mean())


def test_rows_are_read_a_few_at_a_time(monkeypatch):
    values = np.random.default_rng(2).standard_normal((100, 8)).astype(np.float32)
    tensor, rows = from_array("w", values), np.array([0, 3, 4, 50, 51, 99])
    for at_once in (8, 24, 800, 1 << 22):
        monkeypatch.setattr(sensitivity, "READ_AT_ONCE", at_once)
        assert np.array_equal(sensitivity._rows_of(tensor, rows), values[rows])


def test_which_formats_rows_may_have():
    assert "Q4_K" in {form.name for form in candidates_for(512)}
    assert {form.name for form in candidates_for(576)} == {"Q8_0", "Q5_1", "Q5_0", "Q4_1", "IQ4_NL", "Q4_0"}
    assert candidates_for(100) == []


def test_windows_are_from_all_over_the_texts():
    ids = np.arange(50)[:, None]
    assert sample_windows(ids, 5)[:, 0].tolist() == [0, 12, 24, 37, 49]
    assert sample_windows(ids[:3], 5)[:, 0].tolist() == [0, 1, 2]


def sizes():
    def report(name, rows, width, form, source="F16"):
        return TensorReport(name, (rows, width), source, form, rows * format_named(form).row_bytes(width))

    tensors = [
        report("blk.0.ffn_up.weight", 3, 256, "Q8_0"),
        report("blk.0.ffn_down.weight", 5, 256, "Q6_K"),
        TensorReport("blk.0.ffn_norm.weight", (256,), "F32", "F32", 1024),
    ]
    nbytes = 4096 + sum(-(-each.nbytes // 64) * 64 for each in tensors)
    return Sizing(OutputReport("x", None, (), nbytes, tuple(tensors)), {tensors[0].name: tensors[0]}, 64)


def test_what_is_not_searched_for_counts():
    some, whole, bits = sizes(), Target(size=10_000), Target(bpw=6.0)
    up, down = 3 * 272, 5 * 210
    assert some.fixed(whole) == 4096 + 1088 + 1024  # ffn_down's 1050 bytes end at a multiple of 64
    assert some.fixed(bits) == down + 1024
    assert (some.size_of(whole)(up), some.size_of(bits)(up)) == (832, 816)
    assert some.values == 256 * 9
    assert (some.total(whole), some.total(bits)) == (10_000, 6 * 256 * 9 // 8)
    assert some.formats() == {"blk.0.ffn_up.weight": "Q8_0", "blk.0.ffn_down.weight": "Q6_K"}


def test_what_a_target_leaves_unused_is_said():
    assert short_of(100_000, 99_900) is None
    assert short_of(100_000, 99_899) == "0.1 % of the target are unused: no larger formats are nearer to the original"
    assert short_of(100_000, 80_000) == "20.0 % of the target are unused: no larger formats are nearer to the original"
