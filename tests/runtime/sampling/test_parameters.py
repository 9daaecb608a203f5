"""Names, orders and limits of parameters, beside llama.cpp's."""

from __future__ import annotations

import pickle
import re
from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from quants.errors import ModelError, OptionError
from runtime.sampling.parameters import (
    ADVISED,
    DEFAULT_CHAIN,
    LETTERS,
    LIMITS,
    Sampling,
    advised,
    parse_logit_bias,
    parse_parameters,
    parse_samplers,
)

from ...conftest import ROOT

# common_params_sampling of llama.cpp b11434, by the names of its server.
LLAMA = {
    "min_keep": 0,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical_p": 1.0,
    "temperature": 0.8,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "mirostat": 0,
    "top_n_sigma": -1.0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "ignore_eos": False,
    "dry_sequence_breakers": ("\n", ":", '"', "*"),
    "samplers": ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
}


def test_defaults_are_those_of_llama():
    own = Sampling()
    assert {name: getattr(own, name) for name in LLAMA} == LLAMA
    assert own.seed is None
    assert {field.name for field in fields(own)} - LLAMA.keys() == {
        "seed",
        "logit_bias",
        "min_tokens",
        "stop_token_ids",
        "logprobs",
        "repetition_penalty",
        "bad_words",
        "allowed_token_ids",
        "logits_processors",
    }


def test_the_page_has_every_parameter_with_its_default():
    page = (ROOT / "docs" / "sampling.md").read_text("utf-8").partition("## Names in vLLM")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", page, re.MULTILINE)
    own = Sampling()
    assert {name for name, _ in rows} == {field.name for field in fields(own)}
    for name, shown in rows:
        value = getattr(own, name)
        if isinstance(value, (int, float)) or value is None:
            assert shown == str(value), name


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("edskypmxt", DEFAULT_CHAIN),
        ("penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature", DEFAULT_CHAIN),
        ("top-k; TOPP ;minp;nucleus;typ;adaptive-p;", ["top_k", "top_p", "min_p", "top_p", "typ_p", "adaptive_p"]),
        ("dkypmxt", ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]),
        ("temp", ["temperature"]),  # a name, though t, e, m and p are letters
        ("dry", ["dry"]),
        ("t", ["temperature"]),
        ("", []),
    ],
)
def test_samplers_by_name_or_letter(text, names):
    assert parse_samplers(text) == tuple(names)
    assert Sampling(samplers=text).samplers == tuple(names)


def test_parameters_can_be_copied_and_sent():
    own = Sampling(logit_bias={3: 1.0}, samplers="kt")
    for sampling in (own, Sampling()):
        assert pickle.loads(pickle.dumps(sampling)) == sampling
        assert Sampling(**asdict(sampling)) == sampling
        assert replace(sampling, top_k=3).top_k == 3


def test_letters_are_distinct():
    assert len(set(LETTERS.values())) == len(LETTERS)


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("top_q", "top_q", "top_p or top_k"),
        ("kz", "kz", "letters are edskypmxta"),
        ("infill", "infill", "known are penalties, dry"),
        ("top_k;;tempo", "tempo", "temperature"),
    ],
)
def test_unknown_samplers(text, name, hint):
    with pytest.raises(OptionError, match=f"no sampler is called '{name}'") as caught:
        Sampling(samplers=text)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("value", ["0.5", None, float("nan"), float("inf"), True, 10**400, [1]], ids=str)
def test_values_that_are_no_numbers(name, value):
    with pytest.raises(OptionError, match=f"^{name} is .*: .* is needed$") as caught:
        Sampling(**{name: value})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1: a number, 0 or more is needed"),
        ({"top_p": 1.1}, "top_p is 1.1: a number from 0 to 1 is needed"),
        ({"top_k": 1.5}, "top_k is 1.5: a whole number is needed"),
        ({"repeat_penalty": 0}, "repeat_penalty is 0: a number above 0 is needed"),
        ({"repeat_last_n": -1}, "repeat_last_n is -1: a whole number, 0 or more is needed"),
        ({"dry_base": 0.5}, "dry_base is 0.5: a number, 1 or more (0: off) is needed"),
        ({"mirostat": 3}, "mirostat is 3: 0, 1 or 2 is needed"),
        ({"adaptive_decay": 1.0}, "adaptive_decay is 1.0: a number from 0 to 0.99 is needed"),
        ({"adaptive_target": 2}, "adaptive_target is 2: a number up to 1 (below 0: off) is needed"),
        ({"seed": -5}, "seed is -5: a whole number, 0 or more is needed"),
        ({"logprobs": 1.0}, "logprobs is 1.0: a whole number, 0 or more is needed"),
        (
            {"stop_token_ids": (-1,)},
            "a token of stop_token_ids or logit_bias is -1: a whole number, 0 or more is needed",
        ),
        ({"repetition_penalty": 0}, "repetition_penalty is 0: a number above 0 is needed"),
        ({"allowed_token_ids": ()}, "allowed_token_ids is empty"),
        ({"allowed_token_ids": (-1,)}, "a token of allowed_token_ids is -1: a whole number, 0 or more is needed"),
        ({"bad_words": "ab"}, "bad_words is 'ab': a list of texts that are not empty is needed"),
        ({"bad_words": [""]}, "bad_words is ['']: a list of texts that are not empty is needed"),
        ({"logits_processors": [5]}, "5 of logits_processors is no function"),
        ({"logit_bias": {3: float("inf")}}, "the bias of token 3 is inf: a number is needed, or -inf to bar it"),
        ({"logit_bias": {3: "1"}}, "the bias of token 3 is '1': a number is needed, or -inf to bar it"),
        ({"samplers": ("k", 5)}, "no sampler is called 'k'"),
        ({"samplers": ("top_k", 5)}, "no sampler is called 5"),
        ({"logit_bias": [3]}, "logit_bias is no mapping: tokens with their biases are needed"),
        ({"dry_sequence_breakers": "ab"}, "dry_sequence_breakers is one text: give a list of them"),
    ],
    ids=str,
)
def test_values_that_do_not_fit(options, message):
    with pytest.raises(OptionError) as caught:
        Sampling(**options)
    assert str(caught.value) == message


def test_biases():
    assert parse_logit_bias("15043+1") == (15043, 1.0)
    assert parse_logit_bias(" 7 -0.5 ") == (7, -0.5)
    assert parse_logit_bias("7-inf") == (7, -np.inf)
    assert parse_logit_bias("7+1e2") == (7, 100.0)
    for wrong in ("7", "7+inf", "7+nan", "-7+1", "a+1", "7+", "7+1x", ""):
        with pytest.raises(OptionError, match="is no bias; one is a token, a sign and a number"):
            parse_logit_bias(wrong)


def test_parameters_by_name():
    assert parse_parameters([]) == {}
    given = [
        "Mirostat=2",
        "xtc-threshold=.3",
        "logit_bias=5+1",
        "logit_bias=7-inf",
        "stop_token_ids=3",
        "stop_token_ids=4",
    ]
    given += ["bad_words=a b", "allowed_token_ids=3", "repetition_penalty=1.5"]
    found = parse_parameters([*given, "dry_sequence_breakers==", "dry_sequence_breakers= a"])
    assert found == {
        "mirostat": 2,
        "xtc_threshold": 0.3,
        "logit_bias": {5: 1.0, 7: -np.inf},
        "stop_token_ids": (3, 4),
        "dry_sequence_breakers": ("=", " a"),
        "bad_words": ("a b",),
        "allowed_token_ids": (3,),
        "repetition_penalty": 1.5,
    }
    Sampling(**found)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["mirostt=1"], "no parameter of sampling is called 'mirostt'"),
        (["seed=1"], "no parameter of sampling is called"),
        (["top_k=1.5"], "top_k is '1.5': a whole number is needed"),
        (["min_p"], "min_p is '': a number from 0 to 1"),
        (["min_p=0", "min-p=1"], "min_p is given twice: 0.0 and '1'"),
        (["logit_bias=7"], "'7' is no bias"),
        (["stop_token_ids=x"], "stop_token_ids is 'x': a whole number, 0 or more is needed"),
    ],
)
def test_parameters_that_are_none(texts, message):
    with pytest.raises(OptionError) as caught:
        parse_parameters(texts)
    assert message in str(caught.value)


def test_what_a_file_advises():
    metadata = {
        "general.sampling.temp": np.float32(0.5),
        "general.sampling.top_k": np.int32(20),
        "general.name": "x",
        "general.sampling.penalty_last_n": 7,
        "general.sampling.sequence": "top_k;temp",
    }
    assert advised(metadata) == {
        "temperature": 0.5,
        "top_k": 20,
        "repeat_last_n": 7,
        "samplers": ("top_k", "temperature"),
    }
    assert Sampling(**advised(metadata)).top_k == 20
    assert advised({}) == {}


def test_every_key_of_a_file_is_known():
    from gguf.constants import Keys

    keys = [value for name, value in vars(Keys.General).items() if "SAMPLING" in name]
    assert {key.removeprefix("general.sampling.") for key in keys} == set(ADVISED)


def test_a_file_that_advises_nonsense():
    for key, value in (("temp", -1.0), ("top_p", "high"), ("sequence", "top_q"), ("mirostat", [1]), ("sequence", 5)):
        with pytest.raises(ModelError, match=f"the file's general.sampling.{key} cannot be used: ") as caught:
            advised({f"general.sampling.{key}": value})
        assert "\n" not in str(caught.value)
