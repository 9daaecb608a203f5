"""The chain: probabilities without a change of state, draws by them, roll-back, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from quants.errors import ModelError, OptionError
from runtime.sampling.candidates import largest
from runtime.sampling.mirostat import next_mu
from runtime.sampling.parameters import Sampling
from runtime.sampling.sampler import Sampler


def logits_of(*p: float) -> np.ndarray:
    return np.log(np.array(p, np.float32))


def random_logits(size: int = 1000, seed: int = 0) -> np.ndarray:
    return (3 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def fits(counts: np.ndarray, p: np.ndarray) -> bool:
    """Whether draws are of a distribution, by a χ² test."""
    from scipy import stats  # here, because it takes a second to import

    some = p > 0
    assert not counts[~some].any()
    return stats.chisquare(counts[some], counts.sum() * p[some] / p[some].sum()).pvalue > 1e-4


def test_probabilities_sum_to_one_and_change_nothing():
    sampler = Sampler(Sampling(seed=1, repeat_penalty=1.3))
    sampler.prime(range(20))
    before = sampler.state
    first = sampler.probabilities(random_logits())
    again = sampler.probabilities(random_logits())
    assert first.p.sum() == pytest.approx(1)
    assert (first.p > 0).all()
    assert len(first.ids) <= 40
    np.testing.assert_array_equal(first.p, again.p)
    assert sampler.state is before
    assert first.over(1000)[first.ids] == pytest.approx(first.p)
    assert first.of(int(first.ids[0])) == first.p[0]
    assert first.of(int(random_logits().argmin())) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"samplers": ()},
        {},
        {"xtc_probability": 0.4, "xtc_threshold": 0.05, "top_p": 1.0, "min_p": 0.0},
        {"mirostat": 1},
        {"mirostat": 2, "mirostat_tau": 2.0},
        {"samplers": "adaptive_p", "adaptive_target": 0.2},
    ],
    ids=str,
)
def test_draws_are_of_the_probabilities(options):
    sampler = Sampler(Sampling(seed=3, **options))
    logits = random_logits(12)
    distribution = sampler.probabilities(logits)
    counts = np.bincount([sampler.choose(distribution) for _ in range(20000)], minlength=12)
    assert fits(counts, distribution.over(12))


def test_both_sides_of_the_coin_of_xtc_are_in_the_probabilities():
    logits = logits_of(0.4, 0.3, 0.2, 0.1)
    sampler = Sampler(Sampling(samplers="xt", xtc_probability=0.25, xtc_threshold=0.19, temperature=1.0))
    left = np.array([0, 0, 2 / 3, 1 / 3])
    assert sampler.probabilities(logits).over(4) == pytest.approx(0.75 * np.array([0.4, 0.3, 0.2, 0.1]) + 0.25 * left)
    sure = Sampler(Sampling(samplers=("xtc",), xtc_probability=1.0, xtc_threshold=0.19))
    assert sure.probabilities(logits).over(4) == pytest.approx(left)


def test_a_state_can_be_put_back():
    sampler = Sampler(Sampling(seed=5, mirostat=2, mirostat_tau=2.0))
    logits = random_logits(50)
    before, p = sampler.state, sampler.probabilities(logits).over(50)
    for _ in range(10):
        sampler.draw(logits)
    after = sampler.state
    assert len(after.generated) == 10
    assert after.mu != before.mu
    np.testing.assert_array_equal(sampler.probabilities(logits, before).over(50), p)
    sampler.state = before
    np.testing.assert_array_equal(sampler.probabilities(logits).over(50), p)


def test_a_long_text_is_remembered_and_put_back():
    sampler = Sampler(Sampling(min_tokens=600), end_ids=[0])
    for token in range(700):
        assert sampler.state.count == token
        assert (sampler.probabilities(logits_of(0.9, 0.1)).of(0) == 0) == (token < 600)
        sampler.accept(token % 5)
        if token == 250:
            before = sampler.state
    assert sampler.state.generated == tuple(i % 5 for i in range(700))
    assert before.generated == tuple(i % 5 for i in range(251))
    assert len({before, sampler.after(before, 1), sampler.after(before, 251 % 5)}) == 2


@pytest.mark.parametrize("rest", ["ekpmt", "kt", "t", "spt", "tk", "dmt", "yt", "xkt"])
def test_temperature_0_leaves_the_first_of_the_likeliest(rest):
    """Whatever may be left out on the way: beside the chain with a temperature near 0."""
    options = {"samplers": rest, "top_n_sigma": 1.0, "typical_p": 0.5, "repeat_penalty": 1.5, "xtc_probability": 0.5}
    for seed in range(20):
        logits = random_logits(300, seed)
        logits[200:] = logits[:100]  # each of a hundred twice
        found, wanted = (Sampler(Sampling(temperature=t, **options)) for t in (0.0, 1e-4))
        for each in (found, wanted):
            each.prime([int(logits.argmax())])
        p, q = (each.probabilities(logits).over(300) for each in (wanted, found))
        np.testing.assert_allclose(q[:100] + q[200:], p[:100] + p[200:], atol=1e-3)  # near 0 both of a pair can come
        assert "x" in rest or np.count_nonzero(q) == 1


@pytest.mark.parametrize("size", [5, 131, 5000])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.0},
        {"ignore_eos": True},
        {"logit_bias": {3: 2.5, 4: -np.inf}},
        {"min_keep": 7, "top_p": 0.1},
        {"min_p": 0.0, "top_p": 1.0},
        {"samplers": "ktpm", "temperature": 2.5, "top_k": 200},
        {"temperature": 1e-40},
        {"samplers": "kkpkm", "top_k": 3},
        {"samplers": "k"},
        {"top_p": 0.0},
        {"min_p": 1.0},
        {"min_tokens": 400},
        {"samplers": "kpt", "temperature": 3e38},
    ],
    ids=str,
)
def test_quick_draws_are_those_of_the_chain(options, size):
    quick, slow = (Sampler(Sampling(seed=1, **options), end_ids=[1]) for _ in range(2))
    assert quick._quick
    slow._quick = None
    for seed in range(500):
        logits = random_logits(size, seed)
        if seed % 3 == 0:
            logits = np.round(logits)  # many are equal
        if seed % 5 == 0:
            logits[1:-1] = -np.inf
        found, wanted = quick.probabilities(logits), slow.probabilities(logits)
        np.testing.assert_allclose(found.over(size), wanted.over(size), rtol=1e-14)
        assert (found.p > 0).all()
        slow.accept(slow.choose(wanted))
        quick.draw(logits)
    assert quick.state == slow.state


def test_quick_draws_need_no_more_than_the_sum():
    sampler = Sampler(Sampling(seed=0, top_p=0.5))
    assert {sampler.draw(np.zeros(4, np.float32)) for _ in range(100)} == {0, 1}


@pytest.mark.parametrize("place", [0, 20, 99])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_quick_draws_refuse_what_is_not_finite(place, wrong):
    logits = random_logits(100)
    logits[place] = wrong
    for sampler in (Sampler(), Sampler(Sampling(temperature=0))):
        with pytest.raises(ModelError, match="1 of 100 logits"):
            sampler.draw(logits)
        with pytest.raises(ModelError, match="each of 9 logits is minus infinity"):
            sampler.draw(np.full(9, -np.inf, np.float32))


@pytest.mark.parametrize("size", [300, 70_000])
@pytest.mark.parametrize("count", [1, 40, 128, 200])
def test_the_largest_are_found_in_large_vocabularies(size, count):
    for values in (random_logits(size), np.round(random_logits(size)), np.full(size, -np.inf, np.float32)):
        np.testing.assert_array_equal(largest(values, count), np.argsort(-values, kind="stable")[:count])


def test_history_counts_prompt_and_text():
    sampler = Sampler(Sampling(samplers=("penalties",), presence_penalty=1.0, repeat_last_n=3))
    logits = np.zeros(6, np.float32)
    sampler.prime([0, 1, 2])
    sampler.accept(3)
    punished = sampler.probabilities(logits).over(6)
    assert punished[[1, 2, 3]] == pytest.approx([punished[1]] * 3)
    assert punished[[0, 4, 5]] == pytest.approx([np.e * punished[1]] * 3)
    assert sampler.state.generated == (3,)


def test_the_same_seed_draws_the_same():
    one, two, other = (Sampler(Sampling(seed=seed)) for seed in (7, 7, 8))
    drawn = [[sampler.draw(random_logits(seed=step)) for step in range(30)] for sampler in (one, two, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    one.reset()
    assert [one.draw(random_logits(seed=step)) for step in range(30)] == drawn[0]


def test_forks_go_on_by_themselves():
    sampler = Sampler(Sampling(seed=7, samplers=()))
    logits = np.zeros(5000, np.float32)
    sampler.draw(logits)
    state = sampler.state
    forks = [sampler.fork(), sampler.fork(), sampler.fork(3), sampler.fork(3)]
    assert all(fork.state is state for fork in forks)
    texts = [tuple(fork.draw(logits) for _ in range(4)) for fork in forks]
    assert len(set(texts)) == 3
    assert texts[2] == texts[3]
    assert sampler.state is state


def test_no_seed_draws_anew():
    for seed in (None, 0xFFFFFFFF):
        one, two = (Sampler(Sampling(samplers=(), temperature=1.0, seed=seed)) for _ in "ab")
        logits = np.zeros(5000, np.float32)
        assert [one.draw(logits) for _ in range(4)] != [two.draw(logits) for _ in range(4)]


def test_temperature_0_takes_the_first_of_the_likeliest():
    logits = np.array([0, 3, 3, 1], np.float32)
    assert Sampler(Sampling(temperature=0)).probabilities(logits).ids.tolist() == [1]
    assert Sampler(Sampling(temperature=0, samplers="t")).draw(logits) == 1
    assert Sampler(Sampling(temperature=1e-39, samplers="t")).draw(logits) == 1  # logits overflow


def test_bias_and_suppressed_tokens():
    logits = np.zeros(4, np.float32)
    sampler = Sampler(Sampling(samplers=(), logit_bias={0: np.log(3), 1: -np.inf}), suppressed=[2])
    assert sampler.probabilities(logits).over(4) == pytest.approx([0.75, 0, 0, 0.25])
    sampler = Sampler(Sampling(samplers=(), ignore_eos=True), end_ids=[3])
    assert sampler.probabilities(logits).over(4)[3] == 0
    assert not sampler.ends(3)


def test_a_text_has_min_tokens_before_it_ends():
    sampler = Sampler(Sampling(samplers=(), min_tokens=2, stop_token_ids=(1,), seed=0), end_ids=[0])
    logits = np.zeros(4, np.float32)
    for _ in range(2):
        assert set(sampler.probabilities(logits).ids.tolist()) == {2, 3}
        assert not sampler.ends(sampler.draw(logits))
    assert set(sampler.probabilities(logits).ids.tolist()) == {0, 1, 2, 3}
    assert [sampler.ends(token) for token in range(4)] == [True, True, False, False]


def test_mirostat_goes_on_from_the_probability_drawn():
    for version in (1, 2):
        sampler = Sampler(Sampling(mirostat=version, mirostat_tau=3.0, mirostat_eta=0.2, temperature=1.0, seed=4))
        distribution = sampler.probabilities(random_logits())
        token = sampler.choose(distribution)
        sampler.accept(token, distribution)
        assert sampler.state.mu == pytest.approx(next_mu(6.0, distribution.of(token), 3.0, 0.2))
        sampler.accept(token)
        assert sampler.state.mu == pytest.approx(next_mu(6.0, distribution.of(token), 3.0, 0.2))


def test_mirostat_comes_near_the_wanted_surprise():
    """Over many draws from logits that are the same, the mean surprise within the tokens left goes to tau."""
    for version in (1, 2):
        sampler = Sampler(Sampling(mirostat=version, mirostat_tau=3.0, temperature=1.0, seed=4))
        logits = (1.5 * np.random.default_rng(1).standard_normal(2000)).astype(np.float32)
        surprise = []
        for _ in range(1500):
            distribution = sampler.probabilities(logits)
            token = sampler.choose(distribution)
            sampler.accept(token, distribution)
            surprise.append(-np.log2(distribution.of(token)))
        assert np.mean(surprise[300:]) == pytest.approx(3.0, abs=0.1)


def test_adaptive_p_goes_on_from_the_original_probability():
    options = {"samplers": ("adaptive_p",), "adaptive_target": 0.3, "adaptive_decay": 0.5, "seed": 2}
    sampler = Sampler(Sampling(**options))
    logits = logits_of(0.5, 0.3, 0.15, 0.05)
    assert (sampler.state.weighted_sum, sampler.state.total_weight) == (0.6, 2.0)
    distribution = sampler.probabilities(logits)
    sampler.accept(2, distribution)
    assert sampler.state.weighted_sum == pytest.approx(0.15 + 0.5 * 0.6)
    assert sampler.state.total_weight == 2.0
    assert sampler.probabilities(logits).of(0) > distribution.of(0)  # an unlikely token was chosen; now a likely one


def test_adaptive_p_remembers_one_side_of_the_coin():
    """Of a token that both ways give, its probability before one of them, as often as that way was gone."""
    options = {"xtc_probability": 0.5, "xtc_threshold": 0.25, "adaptive_target": 0.5, "adaptive_decay": 0.0, "seed": 2}
    sampler = Sampler(Sampling(samplers=("xtc", "adaptive_p"), **options))
    distribution = sampler.probabilities(logits_of(0.4, 0.3, 0.2, 0.1))
    start = sampler.state
    sums = [sampler.after(start, 3, distribution).weighted_sum for _ in range(4000)]
    values, counts = np.unique(np.round(sums, 5), return_counts=True)
    assert values == pytest.approx([0.1, 1 / 6], abs=1e-5)
    ways = [float(branch.p[branch.ids == 3].sum()) for branch in distribution.branches]
    order = np.argsort([float(branch.seen[branch.ids == 3].sum()) for branch in distribution.branches])
    assert fits(counts, np.array(ways)[order])


def test_samplers_may_come_twice():
    twice = Sampler(Sampling(samplers="tt", temperature=0.5)).probabilities(random_logits())
    once = Sampler(Sampling(samplers="t", temperature=0.25)).probabilities(random_logits())
    assert twice.p == pytest.approx(once.p)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([0, np.nan, np.nan], "2 of 3 logits are NaN, the first that of token 1"),
        ([0, np.inf, 0], "1 of 3 logits are infinite, the first that of token 1"),
        ([-np.inf] * 3, "each of 3 logits is minus infinity"),
        ([], "each of 0 logits is minus infinity"),
    ],
    ids=str,
)
def test_logits_that_no_token_can_be_drawn_from(wrong, message):
    with pytest.raises(ModelError, match=message):
        Sampler().draw(np.array(wrong, np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logit_bias": {0: -np.inf, 1: -np.inf, 2: -np.inf}}, "biases left none"),
        ({"logit_bias": {3: 1.0}}, "token 3 has a bias, but the vocabulary has 3 tokens"),
        ({"frequency_penalty": -3e38, "samplers": "e"}, "penalties made a logit infinite"),
        ({"presence_penalty": 3e38, "frequency_penalty": 3e38, "samplers": "e"}, "penalties left none"),
        ({"dry_multiplier": 3e38, "dry_base": 9.0, "samplers": "kd", "top_k": 1}, "DRY left none"),
    ],
    ids=str,
)
def test_options_that_leave_no_token(options, message):
    sampler = Sampler(Sampling(**options))
    sampler.prime([0, 1, 2] * 3)
    with pytest.raises(OptionError, match=message):
        sampler.draw(np.zeros(3, np.float32))


def test_what_is_certain_is_what_the_chain_leaves():
    """At temperature 0, where the likeliest token is found without candidates."""
    logits, sampling = random_logits(), Sampling(temperature=0, logit_bias={7: 50.0, 9: float("-inf")})
    for own in (sampling, Sampling(temperature=0)):
        found = Sampler(own, suppressed=[3]).probabilities(logits)
        first = Sampling(temperature=1, top_k=1, samplers=("top_k",), logit_bias=own.logit_bias)
        wanted = Sampler(first, suppressed=[3])
        assert found.ids.tolist() == wanted.probabilities(logits).ids.tolist()
        assert found.p.tolist() == [1]
    ties = np.zeros(10, np.float32)
    assert Sampler(Sampling(temperature=0), suppressed=[0]).probabilities(ties).ids.tolist() == [1]
    ended = Sampler(Sampling(temperature=0, min_tokens=1), end_ids=[1], suppressed=[0]).probabilities(ties)
    assert ended.ids.tolist() == [2]
    for broken in (np.nan, np.inf):
        with pytest.raises(ModelError):
            Sampler(Sampling(temperature=0)).probabilities(np.array([0, broken, 1], np.float32))
    with pytest.raises(OptionError):
        Sampler(Sampling(temperature=0, logit_bias={12: 1.0})).probabilities(ties)
