"""All parameters of sampling, with llama.cpp's defaults and its server's names."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quants.errors import ModelError, OptionError
from quants.spelling import did_you_mean, quote

LogitsProcessor = Callable[..., Any]

# Each sampler by llama.cpp's name, with its letter in a sequence.
LETTERS = {
    "penalties": "e",
    "dry": "d",
    "top_n_sigma": "s",
    "top_k": "k",
    "typ_p": "y",
    "top_p": "p",
    "min_p": "m",
    "xtc": "x",
    "temperature": "t",
    "adaptive_p": "a",
}
DEFAULT_CHAIN = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
ALIASES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p", "typical_p": "typ_p", "typical": "typ_p"}
RANDOM_SEED = 0xFFFFFFFF  # llama.cpp's number for a seed that nobody chose
SEVERAL = ("logit_bias", "dry_sequence_breakers", "stop_token_ids", "bad_words", "allowed_token_ids")
MAX_FLOAT = 3.4e38  # beyond it float32 ends
# A file's key general.sampling.KEY → the parameter it sets.
ADVISED = {
    "sequence": "samplers",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "temp": "temperature",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "penalty_last_n": "repeat_last_n",
    "penalty_repeat": "repeat_penalty",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}


@dataclass(frozen=True)
class Limit:
    """The range of a number. words: its form in messages."""

    words: str
    fits: Callable[[float], bool]
    whole: bool = False


ANY_WHOLE = Limit("a whole number", lambda value: True, whole=True)
COUNT = Limit("a whole number, 0 or more", lambda value: value >= 0, whole=True)
ANY = Limit("a finite number", lambda value: True)
SHARE = Limit("a number from 0 to 1", lambda value: 0 <= value <= 1)
NOT_NEGATIVE = Limit("a number, 0 or more", lambda value: value >= 0)
LIMITS = {
    "temperature": NOT_NEGATIVE,
    "dynatemp_range": NOT_NEGATIVE,
    "dynatemp_exponent": NOT_NEGATIVE,
    "top_k": ANY_WHOLE,
    "top_p": SHARE,
    "min_p": SHARE,
    "typical_p": SHARE,
    "top_n_sigma": ANY,
    "xtc_probability": SHARE,
    "xtc_threshold": SHARE,
    "min_keep": COUNT,
    "repeat_penalty": Limit("a number above 0", lambda value: value > 1e-38),
    "repetition_penalty": Limit("a number above 0", lambda value: value > 1e-38),
    "repeat_last_n": COUNT,
    "frequency_penalty": ANY,
    "presence_penalty": ANY,
    "dry_multiplier": NOT_NEGATIVE,
    "dry_base": Limit("a number, 1 or more (0: off)", lambda value: value == 0 or value >= 1),
    "dry_allowed_length": COUNT,
    "dry_penalty_last_n": COUNT,
    "mirostat": Limit("0, 1 or 2", lambda value: value in (0, 1, 2), whole=True),
    "mirostat_tau": NOT_NEGATIVE,
    "mirostat_eta": NOT_NEGATIVE,
    "adaptive_target": Limit("a number up to 1 (below 0: off)", lambda value: value <= 1),
    "adaptive_decay": Limit("a number from 0 to 0.99", lambda value: 0 <= value <= 0.99),
    "min_tokens": COUNT,
}


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters.

    Defaults are llama.cpp's. samplers: names in the order they work in; mirostat works alone with temperature.
    temperature 0 takes the most likely token. seed: None for one that nobody chose. stop_token_ids: tokens that end a
    text in addition to the vocabulary's own. logprobs: how many of the likeliest tokens to report with each one; None
    for none. repetition_penalty: vLLM's, which sees all of prompt and text. bad_words: texts that may not be written.
    allowed_token_ids: no other token may come; None for all. logits_processors: functions of (tokens of the text,
    logits) or (tokens of the prompt, tokens of the text, logits) that return the logits to sample from, float32
    (vocabulary,). Raises OptionError for a value that a parameter cannot have.
    """

    seed: int | None = None
    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    min_keep: int = 0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    samplers: tuple[str, ...] = DEFAULT_CHAIN
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    repetition_penalty: float = 1.0
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logits_processors: tuple[LogitsProcessor, ...] = ()

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            _check(name, getattr(self, name), limit)
        for name in ("seed", "logprobs"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), COUNT)
        if not isinstance(self.logit_bias, Mapping):
            raise OptionError("logit_bias is no mapping: tokens with their biases are needed")
        for token in (*self.stop_token_ids, *self.logit_bias):
            _check("a token of stop_token_ids or logit_bias", token, COUNT)
        for token, bias in self.logit_bias.items():
            if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not bias < MAX_FLOAT:
                raise OptionError(f"the bias of token {token} is {quote(bias)}: a number is needed, or -inf to bar it")
        if isinstance(self.samplers, str):
            object.__setattr__(self, "samplers", parse_samplers(self.samplers))
        if not isinstance(self.samplers, Sequence):
            raise OptionError(f"samplers is {quote(self.samplers)}: names are needed")
        object.__setattr__(self, "samplers", tuple(map(_known, self.samplers)))
        if isinstance(self.dry_sequence_breakers, str):
            raise OptionError("dry_sequence_breakers is one text: give a list of them")
        self._check_masks()

    def _check_masks(self) -> None:
        """Check what bars tokens, and make tuples of it."""
        if isinstance(self.bad_words, str) or any(not isinstance(each, str) or not each for each in self.bad_words):
            raise OptionError(f"bad_words is {quote(self.bad_words)}: a list of texts that are not empty is needed")
        object.__setattr__(self, "bad_words", tuple(self.bad_words))
        if self.allowed_token_ids is not None:
            for token in self.allowed_token_ids:
                _check("a token of allowed_token_ids", token, COUNT)
            object.__setattr__(self, "allowed_token_ids", tuple(self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise OptionError("allowed_token_ids is empty", "give the tokens that may come, or None for all")
        object.__setattr__(self, "logits_processors", tuple(self.logits_processors))
        for each in self.logits_processors:
            if not callable(each):
                raise OptionError(f"{quote(each)} of logits_processors is no function")

    @property
    def chosen_seed(self) -> int | None:
        """Return the seed, None for a random one, which llama.cpp writes as 4294967295."""
        return None if self.seed == RANDOM_SEED else self.seed


def of_sample(sampling: Sampling, number: int) -> Sampling:
    """Return the parameters of one of several texts: seed plus its number, as in vLLM."""
    if sampling.chosen_seed is None or number == 0:
        return sampling
    return replace(sampling, seed=(sampling.chosen_seed + number) % RANDOM_SEED)


def parse_samplers(text: str) -> tuple[str, ...]:
    """Return names separated by semicolons, as in "top_k;temperature", or letters, as in "kt": llama.cpp's two
    notations.

    Names may have hyphens, or nothing, for underscores. Raises OptionError for an unknown one.
    """
    names = [name.strip() for name in text.split(";") if name.strip()]
    letters = {letter: name for name, letter in LETTERS.items()}
    if len(names) == 1 and _spelled(names[0]) is None and all(letter in letters for letter in names[0]):
        return tuple(letters[letter] for letter in names[0])
    return tuple(map(_known, names))


def parse_parameters(texts: Iterable[str]) -> dict[str, Any]:
    """Return arguments for `Sampling` from NAME=VALUE, as "mirostat=2", "logit_bias=15-inf"; list values accumulate.

    Hyphens may replace underscores in names. Raises OptionError for an unknown name, or a value that is no number.
    """
    parameters: dict[str, Any] = {}
    for text in texts:
        written, _, value = text.partition("=")
        name = written.strip().lower().replace("-", "_")
        if name == "logit_bias":
            parameters[name] = dict([*parameters.get(name, {}).items(), parse_logit_bias(value)])
        elif name in ("dry_sequence_breakers", "bad_words"):
            parameters[name] = (*parameters.get(name, ()), value)
        elif name in ("stop_token_ids", "allowed_token_ids"):
            parameters[name] = (*parameters.get(name, ()), _number(name, value, COUNT))
        elif name not in LIMITS:
            names = [*LIMITS, *SEVERAL]
            hint = did_you_mean(name, names, otherwise=f"known are {', '.join(names)}")
            raise OptionError(f"no parameter of sampling is called {quote(written)}", hint=hint)
        elif name in parameters:
            raise OptionError(f"{name} is given twice: {quote(parameters[name])} and {quote(value)}")
        else:
            parameters[name] = _number(name, value, LIMITS[name])
    return parameters


def _number(name: str, text: str, limit: Limit) -> float:
    try:
        return int(text) if limit.whole else float(text)
    except ValueError:
        raise OptionError(f"{name} is {quote(text)}: {limit.words} is needed") from None


def parse_logit_bias(text: str) -> tuple[int, float]:
    """Return token and bias from llama.cpp's form: "15043+1", "15043-0.5", "15043-inf". Raises OptionError for
    another.
    """
    match = re.fullmatch(r"\s*(\d+)\s*([+-])\s*(inf|\d+\.?\d*(?:e[+-]?\d+)?|\.\d+)\s*", text, re.IGNORECASE)
    if not match or (match[2] == "+" and match[3].lower() == "inf"):
        raise OptionError(f"{quote(text)} is no bias; one is a token, a sign and a number: 15043+1, 15043-inf")
    return int(match[1]), float(match[2] + match[3])


def advised(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters in a file's keys general.sampling.*, as arguments for `Sampling`.

    Raises ModelError for an invalid value.
    """
    advice = {}
    for key, name in ADVISED.items():
        value = metadata.get(f"general.sampling.{key}")
        if value is None:
            continue
        value = value.item() if isinstance(value, np.generic) else value
        try:
            advice[name] = getattr(Sampling(**{name: value}), name)
        except OptionError as error:
            message = f"the file's general.sampling.{key} cannot be used: {error}"
            raise ModelError(message, hint="gguftools set-metadata changes it") from error
    return advice


def _check(name: str, value: Any, limit: Limit) -> None:
    types = (int,) if limit.whole else (int, float)
    right = isinstance(value, types) and not isinstance(value, bool) and abs(value) < MAX_FLOAT and limit.fits(value)
    if not right:
        raise OptionError(f"{name} is {quote(value)}: {limit.words} is needed")


def _known(name: Any) -> str:
    if not isinstance(name, str) or (spelled := _spelled(name)) is None:
        known = f"known are {', '.join(LETTERS)}; letters are {''.join(LETTERS.values())}"
        hint = did_you_mean(str(name), LETTERS, otherwise=known)
        raise OptionError(f"no sampler is called {quote(name)}", hint=hint)
    return spelled


def _spelled(name: str) -> str | None:
    """Return the canonical name, None if there is none."""
    spellings = {each.replace("_", ""): known for each, known in ({each: each for each in LETTERS} | ALIASES).items()}
    return spellings.get(re.sub(r"[-_]", "", name.lower()))
