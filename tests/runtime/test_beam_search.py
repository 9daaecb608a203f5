"""Beam search beside a search of all texts, and what its options mean."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from quants.errors import OptionError
from runtime.generation import Generation

from ..gguftools.command_line import EXAMPLE, typed

ALLOWED = (265, 266, 271)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("beams") / "austen.gguf"
    gguftools.convert(EXAMPLE, file, "f32")
    return file


@pytest.fixture(scope="module")
def model(path: Path) -> gguftools.Model:
    return gguftools.open(path)


def found(model: gguftools.Model, **options: Any) -> list[Generation]:
    return model.generate_samples("Anne", **{"max_tokens": 3, "allowed_token_ids": ALLOWED, **options})


def logprobs(model: gguftools.Model, tokens: tuple[int, ...], allowed: tuple[int, ...] = ALLOWED) -> list[float]:
    """Of each token, among the allowed ones."""
    prompt = model.generate("Anne").prompt
    rows = gguftools.load(model).forward(np.array([*prompt, *tokens])).astype(np.float64)[len(prompt) - 1 : -1]
    pairs = zip(rows, tokens, strict=True)
    return [float(row[token] - np.log(np.exp(row[list(allowed)]).sum())) for row, token in pairs]


def test_wide_beams_find_the_best_of_all_texts(model: gguftools.Model):
    everything = sorted(itertools.product(ALLOWED, repeat=3), key=lambda each: -sum(logprobs(model, each)))
    assert [tuple(each.tokens) for each in found(model, beam_width=27, n=27)] == everything
    for width in (2, 4):
        beams = found(model, beam_width=width, n=width)
        assert len(beams) == width
        assert tuple(beams[0].tokens) == everything[0]


def test_one_beam_is_the_greedy_text(model: gguftools.Model):
    greedy = model.generate("Anne", temperature=0, max_tokens=12)
    list(greedy)
    (beam,) = model.generate_samples("Anne", beam_width=1, max_tokens=12)
    assert (beam.tokens, beam.text, beam.stop_reason) == (greedy.tokens, greedy.text, "length")
    assert list(beam) == []  # it is done


def test_more_beams_find_likelier_texts(model: gguftools.Model):
    best = [model.generate("Anne", beam_width=width, max_tokens=12).cumulative_logprob for width in (1, 4, 8)]
    assert best == sorted(best)


@pytest.mark.parametrize("length_penalty", [-2.0, 0.0, 1.0, 3.0])
def test_long_texts_pay_by_the_length_penalty(model: gguftools.Model, length_penalty: float):
    options = {"stop_token_ids": (271,), "length_penalty": length_penalty}
    beams = found(model, beam_width=15, n=15, **options)
    assert [tuple(each.tokens) for each in beams] == sorted(
        {tuple(each.tokens) for each in beams},
        key=lambda each: -sum(logprobs(model, each)) / len(each) ** length_penalty,
    )
    assert len({tuple(each.tokens) for each in beams}) == 15  # 1 + 2 + 4 that end, 8 that do not
    assert {each.stop_reason for each in beams} == {"end", "length"}


def test_early_stopping_ends_with_as_many_texts_as_beams(model: gguftools.Model):
    options: dict[str, Any] = {"stop_token_ids": (265, 271), "beam_width": 2, "n": 2, "max_tokens": 30}
    early = found(model, early_stopping=True, length_penalty=2.0, **options)
    whole = found(model, length_penalty=2.0, **options)
    assert all(each.stop_reason == "end" for each in early)
    assert max(len(each.tokens) for each in early) < max(len(each.tokens) for each in whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_width": 0}, "beam_width is 0"),
        ({"beam_width": 2, "n": 3}, "beam_width is 2"),
        ({"length_penalty": 2.0}, "mean nothing without beam_width"),
        ({"early_stopping": True}, "mean nothing without beam_width"),
        ({"beam_width": 2, "length_penalty": float("nan")}, "length_penalty is nan"),
        ({"beam_width": 2, "best_of": 3}, "beams do not go with best_of"),
        ({"beam_width": 2, "draft": "lookup"}, "beams do not go with best_of, a draft"),
    ],
    ids=str,
)
def test_options_that_do_not_fit(model: gguftools.Model, options: dict[str, Any], message: str):
    with pytest.raises(OptionError, match=message):
        found(model, **options)


def test_the_command_prints_the_best(path: Path, model: gguftools.Model):
    words = ["generate", path, "-p", "Anne", "-n", "8", "--beam-width", "3", "--samples", "2"]
    texts = [each.text for each in model.generate_samples("Anne", beam_width=3, n=2, max_tokens=8)]
    assert typed(*words).stdout == "".join(f"{text}\n" for text in texts)
    assert [each["text"] for each in json.loads(typed(*words, "--json").stdout)] == texts
