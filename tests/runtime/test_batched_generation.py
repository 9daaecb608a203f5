"""Texts that go through a model together are those that each is alone."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from archs.metadata import Metadata
from quants import from_array
from quants.errors import ModelError, OptionError
from runtime.arrays import Floats
from runtime.batched_generation import write_together, written_together
from runtime.generation import Generation, TextOptions, sampler_of
from runtime.graph import operations as op
from runtime.graph import region_writers, writers
from runtime.graph.text import COMPUTE
from runtime.kv_cache import CacheType
from runtime.model import RunningModel
from runtime.sampling.parameters import Sampling

from .. import zoo_build
from ..gguftools.command_line import EXAMPLE
from ..zoo import ZOO

GREEDY = Sampling(temperature=0, ignore_eos=True)
FAMILIES = (
    "llama3-gqa-rope-tied",
    "gemma2",
    "mpt",
    "qwen3-moe",
    "gpt-oss-mxfp4",
    "deepseek-v2-lite",
    "mamba2",
    "falcon-h1",
    "granite-hybrid",
    "jamba",
    "lfm2",
    "phi3-longrope",
)
PROMPTS = (
    "Anne",
    "It is a truth universally acknowledged, that a single man",
    "I",
    "She had never, said Emma,",
    "No",
    "The park was very large, and contained great variety of ground.",
)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> gguftools.Model:
    file = tmp_path_factory.mktemp("together") / "austen.gguf"
    gguftools.convert(EXAMPLE, file, "f32")
    return gguftools.open(file)


@pytest.mark.parametrize("entry", FAMILIES)
def test_logits_are_those_of_a_text_alone(entry: str, tmp_path: Path):
    """To the bit, of more tokens than go in one pass, of texts of different lengths; one has two tokens, one none."""
    zoo_build.build(ZOO, entry, tmp_path / "checkpoint")
    gguftools.convert(tmp_path / "checkpoint", tmp_path / "f32.gguf", "f32")
    check_together(gguftools.load(gguftools.open(tmp_path / "f32.gguf"), threads=2))


@pytest.mark.parametrize("entry", ["qwen3-moe", "falcon-h1"])
def test_operations_that_are_called_in_the_middle(entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for region in ("attention", "experts", "mamba2"):
        monkeypatch.setitem(region_writers.REGIONS, region, lambda *_: False)
    monkeypatch.delitem(writers.WRITERS, op.Gated)
    zoo_build.build(ZOO, entry, tmp_path / "checkpoint")
    gguftools.convert(tmp_path / "checkpoint", tmp_path / "f32.gguf", "f32")
    model = gguftools.load(gguftools.open(tmp_path / "f32.gguf"), threads=2)
    assert model._compiled is not None
    assert model._compiled.lowering.calls
    check_together(model)


def check_together(model: RunningModel) -> None:
    rng = np.random.default_rng(1)
    begun = [rng.integers(0, 60, size) for size in (1, 3, 17, 40, 9, 2, 5, 30, 11)]
    steps = [[rng.integers(0, 60, 2 if i == 3 else 0 if i == 5 else 1) for i in range(9)] for _ in range(4)]
    alone, together = ([model.new_cache() for _ in begun] for _ in range(2))
    for text, *caches in zip(begun, alone, together, strict=True):
        for each in caches:
            model.forward(text, each)
    for tokens in steps:
        found = model.forward_together(tokens, together)
        for own, wanted in zip(found, map(model.forward, tokens, alone), strict=True):
            assert not isinstance(own, ModelError)
            np.testing.assert_array_equal(own, wanted)


def test_caches_of_several_kinds(opened: gguftools.Model):
    kinds: tuple[CacheType, ...] = "f32", "q8_0", "f16", "f32"
    model = gguftools.load(opened, threads=2)
    alone, together = ([model.new_cache(kind) for kind in kinds] for _ in range(2))
    for step in range(3):
        found = model.forward_together([[5 + step + i] for i in range(4)], together)
        for i, own in enumerate(found):
            assert not isinstance(own, ModelError)
            np.testing.assert_array_equal(own, model.forward([5 + step + i], alone[i]))


def test_a_token_that_there_is_not_is_its_texts_fault(opened: gguftools.Model):
    model = gguftools.load(opened, threads=2)
    found = model.forward_together([[5], [10**6]], [model.new_cache(), model.new_cache()])
    assert isinstance(found[1], ModelError)
    np.testing.assert_array_equal(found[0], model.forward([5], model.new_cache()))


def test_models_that_are_watched_run_one_text_after_another(opened: gguftools.Model):
    model = RunningModel(opened.metadata, opened.tensors, precision="llama.cpp", threads=2)
    assert not model.runs_together
    found = model.forward_together([[5], [6, 7]], [model.new_cache(), model.new_cache()])
    np.testing.assert_array_equal(found[1], model.forward([6, 7], model.new_cache()))


@cache
def passes(model: RunningModel) -> list[int]:
    """Notes how many texts go in each pass from now on."""
    counts, forward = list[int](), model.forward_together

    def noted(tokens: Any, caches: Any) -> list[Floats | ModelError]:
        counts.append(len(caches))
        return forward(tokens, caches)

    model.forward_together = noted  # type: ignore[method-assign]
    return counts


def different_texts(opened: gguftools.Model) -> Iterator[Generation]:
    """Each with options of its own; some end early."""
    greedy = Sampling(temperature=0)
    yield opened.generate(PROMPTS[0], GREEDY, max_tokens=20)
    yield opened.generate(PROMPTS[1], Sampling(seed=7, logprobs=2), max_tokens=9)
    yield opened.generate(PROMPTS[2], Sampling(seed=1, temperature=1.5), max_tokens=24, stop=["ee", "th"])
    yield opened.generate(PROMPTS[3], Sampling(seed=5), max_tokens=30, grammar='root ::= "yes" | "no"')
    yield opened.generate(PROMPTS[4], greedy, max_tokens=0)
    yield opened.generate(PROMPTS[5], Sampling(seed=3, mirostat=2, logprobs=0), max_tokens=1)
    yield opened.generate(PROMPTS[0], greedy, context=30, skip_special_tokens=False)
    yield from opened.generate_samples(PROMPTS[1], Sampling(seed=11), n=3, max_tokens=12, parallel=1)


def described(generation: Generation) -> tuple[Any, ...]:
    pieces = list(generation)
    assert [each.token for each in pieces if each.token is not None] == generation.tokens
    assert "".join(each.text for each in pieces) == generation.text
    numbers = [(each.token, each.logprob, each.rank) for each in generation.logprobs]
    return pieces, generation.stop_reason, generation.stopped_by, numbers, generation.sampler.state


@pytest.mark.parametrize("parallel", [2, 4, 9])
def test_texts_are_those_of_each_alone(opened: gguftools.Model, parallel: int):
    wanted = [described(each) for each in different_texts(opened)]
    assert {each[1] for each in wanted} >= {"stop", "length", "context", "end"}
    counts = passes(gguftools.load(opened))
    counts.clear()
    assert [described(each) for each in written_together(different_texts(opened), parallel)] == wanted
    assert max(counts) == min(parallel, 8)


def test_what_is_ahead_is_not_seen(opened: gguftools.Model):
    """Who reads a text by halves, or stops it, finds what is there without others."""
    alone = opened.generate(PROMPTS[1], Sampling(seed=4, logprobs=0), max_tokens=20, stop=["zzz"])
    for _ in zip(range(3), alone, strict=False):
        pass
    alone.stop()
    first, second = written_together(
        (opened.generate(each, Sampling(seed=4, logprobs=0), max_tokens=20, stop=["zzz"]) for each in PROMPTS[:2]), 2
    )
    list(first)
    assert (second.tokens, second.text, second.logprobs, second.stop_reason) == ([], "", [], None)
    assert second.decode_seconds == 0 < second.prefill_seconds
    for _ in zip(range(3), second, strict=False):
        pass
    assert len(second.tokens) == len(second.logprobs) == 3
    second.stop()
    assert (second.tokens, second.text) == (alone.tokens, alone.text)
    assert second.cumulative_logprob == alone.cumulative_logprob
    assert second.finish() == alone.finish()
    assert (second.text, second.stop_reason) == (alone.text, "stopped")


def test_a_text_that_nobody_reads_on_waits(opened: gguftools.Model):
    texts = [opened.generate(each, GREEDY, max_tokens=12) for each in PROMPTS[:2]]
    write_together(texts, 2)
    next(iter(texts[0]))
    list(texts[1])
    assert len(texts[0].tokens) == 1
    counts = passes(gguftools.load(opened))
    counts.clear()
    list(texts[0])
    assert (len(texts[0].tokens), counts) == (12, [])  # its companion has ended


def test_texts_that_ended_let_their_caches_go(opened: gguftools.Model):
    texts = [opened.generate(each, GREEDY, max_tokens=n) for each, n in zip(PROMPTS[:3], (12, 3, 12), strict=True)]
    going = written_together(iter(texts), 2)
    list(next(going))
    assert (texts[1]._cache, texts[1].cache_bytes > 0) == (None, True)
    assert texts[2]._cache is not None  # joined in its place
    assert [len(each.tokens) for each in texts] == [12, 0, 0]


def damaged(opened: gguftools.Model, token: int) -> RunningModel:
    """The model with a token whose embedding is NaN."""
    tensors = dict(opened.tensors)
    table = tensors["token_embd.weight"].float32().copy()
    tensors.setdefault("output.weight", from_array("output.weight", table.copy()))
    table[token] = np.nan
    tensors["token_embd.weight"] = from_array("token_embd.weight", table)
    return RunningModel(opened.metadata, tensors, threads=2)


@pytest.mark.parametrize("called", [False, True])
def test_a_text_whose_numbers_break_does_not_take_others_along(
    opened: gguftools.Model, called: bool, monkeypatch: pytest.MonkeyPatch
):
    if called:
        monkeypatch.setitem(region_writers.REGIONS, "attention", lambda *_: False)
        opened = gguftools.open(opened.path)
    wanted = [opened.generate(each, GREEDY, max_tokens=15) for each in PROMPTS[:3]]
    for each in wanted:
        list(each)
    others = {*wanted[0].tokens, *wanted[2].tokens, *wanted[0].prompt, *wanted[2].prompt, *wanted[1].prompt}
    at, token = next((i, token) for i, token in enumerate(wanted[1].tokens) if token not in others)
    model, tokenizer, metadata = damaged(opened, token), opened.tokenizer, Metadata(opened.metadata)
    made = [
        Generation(model, tokenizer, each.prompt, sampler_of(tokenizer, metadata, GREEDY), TextOptions(15))
        for each in wanted
    ]
    found = written_together(made, 3)
    assert [piece.token for piece in next(found)] == wanted[0].tokens
    with pytest.raises(ModelError, match="not finite"):
        list(next(found))
    assert made[1].tokens == wanted[1].tokens[: at + 1]
    assert [piece.token for piece in next(found)] == wanted[2].tokens


def test_an_interruption_leaves_other_texts_whole(opened: gguftools.Model, monkeypatch: pytest.MonkeyPatch):
    alone = opened.generate(PROMPTS[1], GREEDY, max_tokens=15)
    list(alone)
    first, second = (opened.generate(each, GREEDY, max_tokens=15) for each in PROMPTS[:2])
    write_together([first, second], 2)
    model, calls = first.model, iter(range(99))
    with monkeypatch.context() as patch:
        forward = model.forward_together

        def interrupted(*given: Any) -> Any:
            if next(calls) == 4:
                raise KeyboardInterrupt
            return forward(*given)

        patch.setattr(model, "forward_together", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(first)
    assert len(first.tokens) == 5
    first.finish()
    list(second)
    assert second.tokens == alone.tokens


def test_a_prompt_that_cannot_be_taken_is_its_own_error(opened: gguftools.Model):
    def coming() -> Iterator[Generation]:
        yield opened.generate(PROMPTS[0], GREEDY, max_tokens=3)
        yield opened.generate([5] * 30, context=16)

    texts = written_together(coming(), 4)
    assert len(list(next(texts))) == 3
    with pytest.raises(OptionError, match="has no room"):
        next(texts)


def test_a_prompt_that_is_read_ahead_shows_no_progress(opened: gguftools.Model):
    told = list[int]()
    texts = written_together(
        (
            opened.generate(each, GREEDY, max_tokens=4, progress=lambda done, total: told.append(total))
            for each in PROMPTS[:2]
        ),
        2,
    )
    list(next(texts))
    assert {*told} == {len(opened.tokenizer.encode(PROMPTS[0]))}


def test_fewer_texts_than_one_are_refused(opened: gguftools.Model):
    with pytest.raises(OptionError, match="parallel is 0"):
        written_together([], 0)


def test_an_operation_that_raises_in_the_middle_is_its_texts_fault(
    opened: gguftools.Model, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(region_writers.REGIONS, "attention", lambda *_: False)
    model, compute = gguftools.load(gguftools.open(opened.path), threads=2), COMPUTE[op.Attention]

    def broken(forward: Any, *given: Any) -> Any:
        if 6 in forward.tokens:
            raise ModelError("numbers are not finite")
        return compute(forward, *given)

    wanted = [model.forward([token], model.new_cache()) for token in (5, 7)]
    monkeypatch.setitem(COMPUTE, op.Attention, broken)
    found = model.forward_together([[5], [6], [7]], [model.new_cache() for _ in range(3)])
    assert isinstance(found[1], ModelError)
    for own, alone in zip((found[0], found[2]), wanted, strict=True):
        np.testing.assert_array_equal(own, alone)
