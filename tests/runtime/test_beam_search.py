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

from .. import zoo_build
from ..gguftools.command_line import EXAMPLE, typed
from ..zoo import ZOO

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


def by_transformers(model: Any, prompt: list[int], ends: list[int], **options: Any) -> list[tuple[list[int], float]]:
    """Tokens and scores of what `generate` of transformers finds, the best first."""
    import torch

    config = model.generation_config
    config.eos_token_id, config.pad_token_id, config.bos_token_id = ends, ends[0], None
    ids = torch.tensor([prompt])
    with torch.no_grad():
        done = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_return_sequences=options["num_beams"],
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    found = []
    for row, score in zip(done.sequences[:, len(prompt) :].tolist(), done.sequences_scores.tolist(), strict=True):
        stop = next((n for n, token in enumerate(row, 1) if token in ends), len(row))
        found.append((row[:stop], score))
    return found


BEAMS = [
    {"num_beams": width, "length_penalty": penalty, "early_stopping": early, "max_new_tokens": tokens}
    for width, tokens in ((2, 8), (5, 12), (8, 4))
    for penalty in (0.0, 1.0, 2.5, -1.0)
    for early in (False, True)
]


@pytest.mark.verify
@pytest.mark.parametrize("checkpoint", ["austen-4m", "gpt2", "llama3-gqa-rope-tied"])
@pytest.mark.parametrize("ends", [1, 3], ids=lambda count: f"{count} end tokens")
def test_texts_and_scores_are_those_of_transformers(checkpoint: str, ends: int, tmp_path: Path):
    import torch
    from transformers import AutoModelForCausalLM

    folder = EXAMPLE
    if checkpoint != "austen-4m":
        zoo_build.build(ZOO, checkpoint, folder := tmp_path / checkpoint)
    gguftools.convert(folder, tmp_path / "model.gguf", "f32")
    model = gguftools.open(tmp_path / "model.gguf")
    text = model.generate("Anne was")
    prompt, end_ids = list(text.prompt), text.sampler.end_ids
    (greedy,) = model.generate_samples(prompt, beam_width=1, max_tokens=20, ignore_eos=True)
    stops = list(dict.fromkeys(greedy.tokens[2:]))[:ends]  # so that some beams end early
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for options in BEAMS:
        expected = by_transformers(reference, prompt, [*stops, *end_ids], **options)
        penalty = options["length_penalty"]
        found = model.generate_samples(
            prompt,
            n=options["num_beams"],
            beam_width=options["num_beams"],
            max_tokens=options["max_new_tokens"],
            length_penalty=penalty,
            early_stopping=options["early_stopping"],
            stop_token_ids=tuple(stops),
        )
        assert [each.tokens for each in found] == [tokens for tokens, _ in expected], options
        scores = [each.cumulative_logprob / len(each.tokens) ** penalty for each in found]
        assert scores == pytest.approx([score for _, score in expected], rel=1e-4, abs=1e-4), options
