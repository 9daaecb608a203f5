"""Options of `generate` by vLLM's names and meaning, and how they are given."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from gguftools.models.generation import GenerateOptions
from quants.errors import OptionError
from runtime.generation import Generation
from runtime.sampling.parameters import Sampling

from .command_line import EXAMPLE, typed

GREEDY = Sampling(temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("options") / "austen.gguf"
    gguftools.convert(EXAMPLE, file, "f32")
    return file


@pytest.fixture(scope="module")
def model(path: Path) -> gguftools.Model:
    return gguftools.open(path)


def written(generation: Generation) -> str:
    return "".join(piece.text for piece in generation)


def test_options_are_an_object_or_keywords(model: gguftools.Model):
    whole = GenerateOptions(sampling=Sampling(temperature=0.7, seed=3), max_tokens=8)
    wanted = written(model.generate("Anne", whole))
    assert written(model.generate("Anne", Sampling(temperature=0.7, seed=3), max_tokens=8)) == wanted
    assert written(model.generate("Anne", temperature=0.7, seed=3, max_tokens=8)) == wanted
    assert written(model.generate("Anne", whole, seed=4)) != wanted
    assert model.generate("Anne", whole, max_tokens=5).max_tokens == 5


def test_keywords_go_over_what_the_file_advises(path: Path):
    model = gguftools.open(path)
    model.metadata["general.sampling.temp"] = 0.25
    assert model.generate("Anne", top_k=5).sampler.sampling.temperature == 0.25
    assert model.generate("Anne", temperature=0.5).sampler.sampling.temperature == 0.5
    assert model.generate("Anne", Sampling(top_k=5)).sampler.sampling.temperature == 0.8


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"max_token": 5}, "no option is called 'max_token'", "did you mean max_tokens"),
        ({"temperatur": 5}, "no option is called 'temperatur'", "did you mean temperature"),
        ({"n": 3}, "n is 3, and `generate` writes one text", "max_tokens limits"),
        ({"max_tokens": -1}, "max_tokens is -1", None),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0", None),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1", None),
        ({"grammar": 'root ::= "a"', "json_schema": "{}"}, "grammar and json_schema are both given", None),
        ({"sampling": {"tempp": 1}}, "no parameter of sampling is called 'tempp'", None),
        ({"truncate_prompt_tokens": 3, "images": ["a.png"]}, "need a prompt of text alone", None),
    ],
    ids=str,
)
def test_options_that_do_not_fit(model: gguftools.Model, options: dict[str, Any], message: str, hint: str | None):
    with pytest.raises(OptionError) as caught:
        model.generate("Anne", **options)
    assert message in str(caught.value)
    assert hint is None or hint in str(caught.value.hint)


def test_stop_strings_can_be_kept(model: gguftools.Model):
    whole = written(model.generate("Anne", GREEDY, max_tokens=20))
    stop = whole[10:13]
    without, kept = (
        model.generate("Anne", GREEDY, max_tokens=20, stop=stop, include_stop_str_in_output=keep)
        for keep in (False, True)
    )
    assert written(kept) == written(without) + stop
    assert (kept.stop_reason, kept.stopped_by) == ("stop", stop)


def test_a_token_that_ends_the_text_can_be_kept(model: gguftools.Model):
    tokens = [piece.token for piece in model.generate("Anne", GREEDY, max_tokens=6)]
    ends = Sampling(temperature=0, stop_token_ids=(tokens[3],))
    kept = model.generate("Anne", ends, max_tokens=20, include_stop_str_in_output=True)
    text = written(kept)
    assert kept.stop_reason == "end"
    assert text == written(model.generate("Anne", ends, max_tokens=20)) + model.tokenizer.piece(tokens[3]).decode()


def test_logprobs_of_the_prompt_are_the_models(model: gguftools.Model):
    generation = model.generate("Anne Elliot was", GREEDY, max_tokens=2, prompt_logprobs=2)
    list(generation)
    ids, found = generation.prompt, generation.prompt_logprobs
    logits = gguftools.load(model).forward(np.array(ids)).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert len(found) == len(ids)
    assert found[0] is None
    for place, each in enumerate(found[1:], 1):
        assert each is not None
        assert each.token == ids[place]
        assert each.logprob == pytest.approx(logprobs[place - 1, ids[place]], abs=1e-4)
        assert each.ids.tolist() == np.argsort(-logprobs[place - 1], kind="stable")[:2].tolist()
    assert generation.tokens == [each.token for each in model.generate("Anne Elliot was", GREEDY, max_tokens=2)]


def test_prompts_lose_their_beginning(model: gguftools.Model):
    ids = model.generate("Anne Elliot was", GREEDY).prompt
    assert model.generate("Anne Elliot was", GREEDY, truncate_prompt_tokens=3).prompt == ids[-3:]
    assert model.generate(ids, truncate_prompt_tokens=100).prompt == ids
    fitting = model.generate([5] * 100, truncate_prompt_tokens=-1, context=40, max_tokens=10)
    assert fitting.prompt_tokens == 30


def test_bad_words_are_not_written(model: gguftools.Model):
    word = written(model.generate("Anne", GREEDY, max_tokens=20)).split()[1]
    assert word not in written(model.generate("Anne", GREEDY, max_tokens=20, bad_words=[word])).split()


def test_the_command_has_them(path: Path):
    words = ["generate", path, "-p", "Anne Elliot", "-n", "12", "--temp", "0", "--json"]
    plain = json.loads(typed(*words).stdout)
    stop = plain["text"][8:10]
    more = ["--stop", stop, "--include-stop-str-in-output", "--prompt-logprobs", "1", "--truncate-prompt-tokens", "3"]
    found = json.loads(typed(*words, *more[:5]).stdout)
    assert found["text"] == plain["text"][: plain["text"].index(stop) + len(stop)]
    assert found["prompt_logprobs"][0] is None
    assert len(found["prompt_logprobs"][1]["top"]) == 1
    assert json.loads(typed(*words, *more[5:]).stdout)["prompt_tokens"] == 3
    best = json.loads(typed(*words[:5], "4", "--seed", "1", "--best-of", "3", "--json").stdout)
    texts = gguftools.open(path).generate_samples("Anne Elliot", seed=1, best_of=3, max_tokens=4)
    assert best["tokens"] == texts[0].tokens
