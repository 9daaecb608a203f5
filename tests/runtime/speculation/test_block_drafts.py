"""DFlash and DSpark drafts: what they say is what their graph gives, and texts stay the same.

tests/data/drafts/NAME-truth.json: recorded by `tests.verify.drafts` from transformers' target and a draft in torch.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools.conversion.options import ConvertOptions
from quants import from_array
from quants.errors import GgufToolsError
from runtime.sampling.parameters import Sampling
from runtime.speculation.blocks import BlockDrafter, BlockWriter
from runtime.speculation.decoding import speculation_of
from runtime.speculation.draft_files import reader_of
from runtime.speculation.drafts import Drawing
from runtime.speculation.parameters import Drafting
from tests.archs.drafts import DRAFTS, build, build_files

from .test_distribution import LENGTH, PLAIN
from .test_next_token_drafts import few_words
from .toys import PROMPT, WORDS, logits_asked, primed, texts_of, too_unlikely, write

OF_WORDS = ("markov_w1.weight", "markov_w2.weight", "selector_predecessor.weight", "selector_successor.weight")
CHAINED = ("dspark", "dflash2")  # whose tokens depend on those drawn before


NAMES = ("dflash", "dflash2", "dspark", "dspark-speculator", "muse-assistant", "deepseek4-dspark")


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """A draft's name, its target and itself as files."""
    return build_files(request.param, tmp_path_factory.mktemp(request.param))


def test_logits_are_those_of_the_graph(pair: tuple[str, Path, Path], monkeypatch: pytest.MonkeyPatch):
    name, target, draft = pair
    truth = json.loads((DRAFTS / f"{name}-truth.json").read_text(encoding="utf-8"))
    model, file = gguftools.load(target), gguftools.open(draft)
    writer = reader_of(model, file.metadata, file.tensors)
    assert isinstance(writer, BlockWriter)
    sampler = primed(Sampling(temperature=0))
    drafter = BlockDrafter(writer, Drawing(sampler, Drafting(3), model.vocabulary_size))
    asked = logits_asked(drafter.drawing, monkeypatch)
    cache, text, seen = model.new_cache(), truth["text"], 0
    for each in truth["drafts"]:
        part = each["part"]
        drafter.follow(model.forward_with_inputs(text[seen : part - 1], writer.layers, cache)[1])
        asked.clear()
        drafter.propose(text[:part], 3, sampler.state)
        wanted = np.array([[-np.inf if value is None else value for value in row] for row in each["logits"]])
        drafted = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(asked), drafted)
        assert np.abs(np.array(asked)[drafted] - wanted[drafted]).max() < 1e-4 * wanted[drafted].std()
        seen = part - 1


def test_greedy_texts_are_those_without_a_draft(pair: tuple[str, Path, Path]):
    model = gguftools.open(pair[1])
    plain, drafted = (
        model.generate([7, 130, 22], Sampling(temperature=0), max_tokens=12, draft=draft) for draft in (None, pair[2])
    )
    assert [each.token for each in drafted] == [each.token for each in plain]
    assert drafted.speculated is not None
    assert drafted.speculated.drafted > 8


def test_what_a_selector_leaves_may_be_barred(pair: tuple[str, Path, Path]):
    if pair[0] != "dflash2":
        return
    model, draft = gguftools.open(pair[1]), gguftools.open(pair[2])
    one = Sampling(temperature=1, logit_bias=dict.fromkeys(set(range(288)) - {5}, -np.inf))
    assert [each.token for each in model.generate([7, 130, 22], one, max_tokens=3, draft=draft)] == [5, 5, 5]
    name = "selector_successor.weight"
    draft.tensors[name] = draft.tensors[name].float32() * np.nan
    with pytest.raises(GgufToolsError, match="selector does not give finite scores"):
        list(model.generate([7, 130, 22], Sampling(temperature=0), max_tokens=3, draft=draft))


def agrees(target: Path, draft: Path, drafting: Drafting, draws: int) -> None:
    model, file = gguftools.load(target), gguftools.open(draft)
    few = few_words(model)
    cut = {name: from_array(name, file.tensors[name].float32()[:WORDS]) for name in OF_WORDS if name in file.tensors}
    keys = {"tokenizer.ggml.mask_token_id": 5, "tokenizer.ggml.tokens": ["a"] * WORDS, "dflash.selector_top_k": 4}
    writer = reader_of(few, {**file.metadata, **keys}, {**file.tensors, **cut})
    counts, stood = np.zeros((WORDS,) * LENGTH, np.int64), 0
    plain = type(model)(few.metadata, few.tensors, threads=1)
    for seed in range(draws):
        sampler = primed(Sampling(temperature=1.0, samplers=("temperature",), seed=seed))
        speculation = speculation_of(plain, sampler, writer, WORDS, drafting)
        cache = plain.new_cache()
        cache.memory = speculation.max_tokens
        speculation.drafter.follow(plain.forward_with_inputs(PROMPT[:-1], writer.layers, cache)[1])
        counts[write(speculation, cache, LENGTH)] += 1
        stood += speculation.counts.accepted
    assert stood
    assert too_unlikely(counts, texts_of(few, PLAIN, LENGTH) * draws) < 4.5


def test_texts_are_distributed_as_without_a_draft(pair: tuple[str, Path, Path]):
    if pair[0] == "dspark":
        agrees(*pair[1:], Drafting(3), 40)


@pytest.mark.slow
def test_very_many_texts_are_distributed_as_without_a_draft(pair: tuple[str, Path, Path]):
    if pair[0] in CHAINED:
        agrees(*pair[1:], Drafting(3), 4_000)


def test_what_does_not_fit_the_model_is_refused(pair: tuple[str, Path, Path]):
    model, file = gguftools.load(pair[1]), gguftools.open(pair[2])
    wrong = [
        ({"dflash.target_layers": [0, 1, 9][-len(file.metadata["dflash.target_layers"]) :]}, "reads layers"),
        ({"tokenizer.ggml.mask_token_id": 100_000}, "mask_token_id"),
        ({"dflash.target_layers": []}, "target_layers"),
        ({"tokenizer.ggml.mask_token_id": [1]}, "mask_token_id"),
        ({"dflash.block_size": "x"}, "block_size"),
        ({"dflash.attention.head_count": 3}, "blk.0|output_group_count"),
        ({"dflash.target_layers": [1]}, "was made for other states"),
    ]
    for keys, said in wrong:
        with pytest.raises(GgufToolsError, match=said):
            reader_of(model, {**file.metadata, **keys}, file.tensors)


def test_what_layers_in_streams_need_is_looked_at(tmp_path: Path):
    draft, target = build("deepseek4-dspark", tmp_path)
    gguftools.convert(target, tmp_path / "target.gguf", "f32")
    gguftools.convert(
        draft, tmp_path / "draft.gguf", "f32", options=ConvertOptions(target_model_dir=target, pre="qwen2")
    )
    assert gguftools.validate(tmp_path / "draft.gguf").ok
    model, file = gguftools.load(tmp_path / "target.gguf"), gguftools.open(tmp_path / "draft.gguf")
    needed = ("blk.1.attn_kv", "blk.0.attn_output_b", "output_hc_fn", "blk.0.ffn_down_exps")
    for name in (f"{each}.weight" for each in needed):
        lacking = {key: each for key, each in file.tensors.items() if key != name}
        other = {**file.tensors, name: from_array(name, np.ones((5, 5), np.float32))}
        for lie in (lacking, other):
            with pytest.raises(GgufToolsError, match=name.replace(".", "[.]")):
                reader_of(model, file.metadata, lie)
    lies = {"attention.compress_ratios": [4, 0], "hyper_connection.count": 3, "hyper_connection.epsilon": "x"}
    for key, value in lies.items():
        with pytest.raises(GgufToolsError):
            reader_of(model, {**file.metadata, f"dflash.{key}": value}, file.tensors)
