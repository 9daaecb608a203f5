"""`generate` with drafts: greedy texts are those without, whatever drafts; what can't draft is told in a line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from quants.errors import ModelError, OptionError
from runtime.sampling.parameters import Sampling
from runtime.speculation.parameters import Drafting

from .. import zoo_build
from ..archs import checkpoints
from ..zoo import ZOO
from .command_line import EXAMPLE, typed

GREEDY = Sampling(temperature=0, ignore_eos=True)
PROMPT = "Anne could not"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speculation")
    gguftools.convert(EXAMPLE, folder / "austen.gguf", "q8_0")
    gguftools.convert(EXAMPLE, folder / "f32.gguf", "f32")
    with gguftools.open(folder / "f32.gguf") as model:
        model.save(folder / "small.gguf", "Q2_K")
        noise = np.random.default_rng(0)
        for name, tensor in model.tensors.items():
            if name.endswith("ffn_down.weight"):
                model.tensors[name] = noise.standard_normal(tensor.shape).astype(np.float32)
        model.save(folder / "bad.gguf")
    return folder / "austen.gguf"


@pytest.fixture(scope="module")
def plain(path: Path) -> list[int]:
    return tokens(gguftools.open(path), PROMPT, max_tokens=40)


def tokens(model: gguftools.Model, prompt: Any, sampling: Sampling = GREEDY, **options: Any) -> list[int]:
    generation = model.generate(prompt, sampling, **options)
    list(generation)
    return generation.tokens


@pytest.mark.parametrize("draft", ["small.gguf", "bad.gguf", "lookup"])
@pytest.mark.parametrize("most", [1, 3, 12])
def test_a_greedy_text_is_the_same_with_any_draft(path: Path, plain: list[int], draft: str, most: int):
    by = draft if draft == "lookup" else path.with_name(draft)
    generation = gguftools.open(path).generate(PROMPT, GREEDY, max_tokens=40, draft=by, drafting=Drafting(most))
    list(generation)
    assert generation.tokens == plain
    counts = generation.speculated
    assert counts is not None
    assert counts.accepted == sum(counts.accepted_per_position) <= counts.drafted == sum(counts.drafted_per_position)
    assert 39 <= counts.accepted + counts.cycles <= 39 + most  # the first token came with the prompt
    assert draft != "small.gguf" or counts.accepted_per_position[0] > counts.drafted_per_position[0] / 2


def test_a_draft_reads_the_prompt_when_the_model_does(path: Path):
    """Its time is that of the prompt, not that of the tokens behind it."""
    generation = gguftools.open(path).generate([5, 9, 13, 40], GREEDY, max_tokens=4, draft=path.with_name("small.gguf"))
    next(iter(generation))
    assert generation._speculation is not None
    assert generation._speculation.drafter.cache.length == len(generation.prompt) == 4
    assert generation.decode_seconds == 0 < generation.prefill_seconds


@pytest.mark.parametrize("draft", ["small.gguf", "bad.gguf"])
def test_a_greedy_text_is_the_same_with_several_candidates(path: Path, plain: list[int], draft: str):
    drafting, by = Drafting(3, children=3), path.with_name(draft)
    generation = gguftools.open(path).generate(PROMPT, GREEDY, max_tokens=40, draft=by, drafting=drafting)
    list(generation)
    assert generation.tokens == plain
    assert generation.speculated is not None
    assert generation.speculated.drafted > 2 * sum(generation.speculated.drafted_per_position)


def test_penalties_and_grammar_see_what_stands(path: Path):
    sampling = Sampling(temperature=0, repeat_penalty=1.3, mirostat=0, ignore_eos=True)
    model, small = gguftools.open(path), path.with_name("small.gguf")
    assert tokens(model, PROMPT, sampling, max_tokens=40, draft=small) == tokens(model, PROMPT, sampling, max_tokens=40)
    pytest.importorskip("llguidance")
    grammar = 'root ::= ("one " | "two " | "three ")+'
    assert tokens(model, PROMPT, max_tokens=20, draft=small, grammar=grammar) == tokens(
        model, PROMPT, max_tokens=20, grammar=grammar
    )


def test_what_is_looked_up_keeps_the_draws_of_a_seed(path: Path):
    sampling = Sampling(temperature=0.3, seed=5, ignore_eos=True)
    model = gguftools.open(path)
    prompt = "It was so. " * 8
    generation = model.generate(prompt, sampling, max_tokens=80, draft="lookup")
    list(generation)
    assert generation.tokens == tokens(model, prompt, sampling, max_tokens=80)
    assert generation.speculated is not None
    assert generation.speculated.accepted > 0


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_more_is_written_than_was_asked_for(path: Path, plain: list[int], n: int):
    model = gguftools.open(path)
    assert tokens(model, PROMPT, max_tokens=n, draft=path.with_name("small.gguf")) == plain[:n]
    prompt = len(model.tokenizer.encode(PROMPT))
    generation = model.generate(PROMPT, GREEDY, context=prompt + n, draft=path.with_name("small.gguf"))
    list(generation)
    assert (generation.tokens, generation.stop_reason) == (plain[:n], "context")


def test_a_stop_string_ends_it_inside_a_draft(path: Path):
    model = gguftools.open(path)
    whole = model.generate(PROMPT, GREEDY, max_tokens=40)
    list(whole)
    stop = whole.text[21:24]
    texts = []
    for draft in (None, path.with_name("small.gguf")):
        generation = model.generate(PROMPT, GREEDY, max_tokens=40, stop=[stop], draft=draft)
        list(generation)
        assert generation.stop_reason == "stop"
        texts.append((generation.text, generation.tokens, generation.sampler.state))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "entry",
    ["olmoe", "mamba", "mamba2", "falcon-h1", "lfm2", "nemotron-h", "deepseek-v2-lite", "gemma3", "gpt-oss-bf16"],
)
def test_a_greedy_text_is_the_same_for_other_layers(entry: str, tmp_path: Path, shared: Path):
    zoo_build.build(ZOO, entry, tmp_path / "checkpoint")
    gguftools.convert(tmp_path / "checkpoint", tmp_path / "f32.gguf", "f32")
    model, other = gguftools.open(tmp_path / "f32.gguf"), gguftools.open(tmp_path / "f32.gguf")
    noise = np.random.default_rng(0)
    table = other.tensors["token_embd.weight"].float32()
    other.tensors["token_embd.weight"] = table + np.float32(0.3 * table.std()) * noise.standard_normal(
        table.shape
    ).astype(np.float32)
    other.save(tmp_path / "other.gguf")
    prompt = [5, 9, 13, 5, 9, 13, 5, 9]
    wanted, _ = speak(model, prompt)
    found, counts = speak(model, prompt, tmp_path / "other.gguf", Drafting(4))
    assert found == wanted
    assert 0 < counts.accepted < counts.drafted
    assert speak(model, prompt, "lookup", Drafting(5))[0] == wanted


def speak(model: gguftools.Model, prompt: list[int], draft: Any = None, drafting: Any = None) -> tuple[list[int], Any]:
    """A text that nothing ends."""
    generation = model.generate(prompt, Sampling(temperature=0), max_tokens=24, draft=draft, drafting=drafting)
    generation.sampler.end_ids = frozenset()
    list(generation)
    return generation.tokens, generation.speculated


def test_a_grafted_layer_reads_ahead(tmp_path: Path):
    checkpoints.build("qwen3-5", tmp_path / "qwen3-5")
    whole, trunk, small, mixed = (tmp_path / f"{name}.gguf" for name in ("whole", "trunk", "small", "mixed"))
    gguftools.convert(tmp_path / "qwen3-5", whole, "f32")
    gguftools.graft(whole, trunk, drop="mtp")
    gguftools.quantize(trunk, "Q8_0", small)
    gguftools.graft(small, mixed, [(whole, "mtp")])
    prompt, sampling = [5, 9, 13, 40, 41], Sampling(temperature=1.0, top_k=0, top_p=1, min_p=0, seed=3, ignore_eos=True)
    with pytest.raises(ModelError, match="no MTP layer"):
        gguftools.open(small).generate(prompt, draft="mtp")
    assert speak(gguftools.open(mixed), prompt, "mtp")[0] == speak(gguftools.open(small), prompt)[0]
    generation = gguftools.open(mixed).generate(prompt, sampling, max_tokens=30, draft="mtp")
    list(generation)
    assert generation.speculated is not None
    assert generation.speculated.accepted > 0


def test_typical_acceptance_is_another_rule(path: Path):
    sampling, small = Sampling(temperature=1.0, seed=4, ignore_eos=True), path.with_name("small.gguf")
    model = gguftools.open(path)
    rules = Drafting(3), Drafting(3, typical=True)
    texts = [tokens(model, PROMPT, sampling, max_tokens=40, draft=small, drafting=each) for each in rules]
    assert texts[0] != texts[1]
    assert tokens(model, PROMPT, max_tokens=20, draft=small, drafting=Drafting(3, typical=True)) == tokens(
        model, PROMPT, max_tokens=20
    )


def test_samples_and_logprobs_are_those_without_a_draft(path: Path):
    sampling, small = Sampling(temperature=0, logprobs=2, ignore_eos=True), path.with_name("small.gguf")
    model, found = gguftools.open(path), []
    for draft in (None, small):
        (one, other) = model.generate_samples(PROMPT, sampling, n=2, max_tokens=10, draft=draft)
        list(one)
        list(other)
        assert one.tokens == other.tokens == [each.token for each in one.logprobs]
        found.append([each.logprob for each in one.logprobs])
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_the_command_says_what_stood(path: Path):
    words = ("generate", path, "-p", PROMPT, "-n", "20", "--temp", "0", "--draft", path.with_name("small.gguf"))
    found = json.loads(typed(*words, "--json").stdout)
    assert found["cycles"] + found["accepted"] >= len(found["tokens"]) - 1
    assert len(found["accepted_per_position"]) == 3
    assert "drafted stood" in typed(*words).stderr


def told(words: tuple[Any, ...]) -> str:
    done = typed("generate", *words, "-n", "8", "--temp", "0")
    assert done.returncode == 1
    (line, *hint) = done.stderr.splitlines()
    assert len(hint) < 2
    return line


def test_what_cannot_draft_is_told(path: Path, tmp_path: Path):
    assert "the model itself" in told((path, "-p", PROMPT, "--draft", path))
    assert "no MTP layer" in told((path, "-p", PROMPT, "--draft-mtp"))
    other = tmp_path / "other.gguf"
    with gguftools.open(path) as model:
        words = list(model.metadata["tokenizer.ggml.tokens"])
        model.metadata["tokenizer.ggml.tokens"] = [*words[:-2], "one", "two"]
        model.save(other)
    assert "other.gguf can't draft for" in told((path, "-p", PROMPT, "--draft", other))
    with gguftools.open(path) as model:
        raw = model.tensors["output_norm.weight"].float32().copy()
        model.tensors["output_norm.weight"] = raw * np.float32(1e38)
        model.save(other, overwrite=True)
    assert "the draft can't be run: logits are not finite" in told((path, "-p", PROMPT, "--draft", other))


def test_what_cannot_be_asked_for(path: Path):
    model = gguftools.open(path)
    with pytest.raises(OptionError, match="max_tokens is 0"):
        Drafting(0)
    with pytest.raises(OptionError, match="children is 0"):
        Drafting(children=0)
    with pytest.raises(OptionError, match="min_p is 2"):
        Drafting(min_p=2)
    with pytest.raises(OptionError, match="nothing that drafts"):
        model.generate(PROMPT, drafting=Drafting())
    with pytest.raises(OptionError, match="is one draft"):
        model.generate(PROMPT, draft="lookup", drafting=Drafting(children=2))
