"""EAGLE-3 drafts: what they say is what their published definition gives, and texts stay the same.

tests/data/drafts/NAME-truth.json: recorded by `tests.verify.drafts` from transformers' target and a draft in torch.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import gguftools
from quants import from_array
from quants.errors import GgufToolsError
from runtime.model import RunningModel
from runtime.sampling.parameters import Sampling
from runtime.speculation.decoding import Speculation, speculation_of
from runtime.speculation.draft_files import reader_of
from runtime.speculation.drafts import Drawing, StatesDrafter
from runtime.speculation.parameters import Drafting
from runtime.speculation.readers import Reader
from tests.archs.drafts import DRAFTS, build_files

from .test_distribution import LENGTH, PLAIN
from .toys import KEYS, PROMPT, SHAPES, WIDTH, WORDS, logits_asked, primed, texts_of, too_unlikely, toy, write


@pytest.fixture(scope="module", params=["speculator", "shared"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """A draft's name, its target and itself as files."""
    return build_files(request.param, tmp_path_factory.mktemp(request.param))


def test_logits_are_those_of_the_published_definition(pair: tuple[str, Path, Path], monkeypatch: pytest.MonkeyPatch):
    name, target, draft = pair
    truth = json.loads((DRAFTS / f"{name}-truth.json").read_text(encoding="utf-8"))
    model = gguftools.load(target)
    file = gguftools.open(draft)
    reader = reader_of(model, file.metadata, file.tensors)
    assert reader is not None
    sampler = primed(Sampling(temperature=0))
    drafter = StatesDrafter(reader, Drawing(sampler, Drafting(3), model.vocabulary_size))
    asked = logits_asked(drafter.drawing, monkeypatch)
    cache, text, seen = model.new_cache(), truth["text"], 0
    for each in truth["drafts"]:  # the text comes in pieces, whose drafts are forgotten
        part = each["part"]
        drafter.follow(model.forward_with_inputs(text[seen : part - 1], reader.layers, cache)[1])
        asked.clear()
        drafter.propose(text[:part], 3, sampler.state)
        wanted = np.array([[-np.inf if value is None else value for value in row] for row in each["logits"]])
        drafted = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(asked), drafted)
        assert np.abs(np.array(asked)[drafted] - wanted[drafted]).max() < 1e-4 * wanted[drafted].std()
        seen = part - 1


def test_greedy_texts_are_those_without_a_draft(pair: tuple[str, Path, Path]):
    _, target, draft = pair
    model = gguftools.open(target)
    plain = [each.token for each in model.generate([7, 130, 22], Sampling(temperature=0), max_tokens=24)]
    for drafting in (Drafting(3), Drafting(1)):
        again = model.generate([7, 130, 22], Sampling(temperature=0), max_tokens=24, draft=draft, drafting=drafting)
        assert [each.token for each in again] == plain
        assert again.speculated is not None
        assert again.speculated.drafted > 8


def eagle3(model: RunningModel) -> Reader:
    """A draft of no use, but for five of the six tokens."""
    drawn, shapes = np.random.default_rng(5), {name: shape for name, shape in SHAPES.items() if "token" not in name}
    wide = {name: (shape[0], 2 * shape[1]) for name, shape in shapes.items() if name[-2:] in ("_q", "_k", "_v")}
    shapes |= {**wide, "output": (WORDS - 1, WIDTH), "fc": (WIDTH, 3 * WIDTH)}
    tensors = {
        f"{name}.weight": from_array(
            f"{name}.weight", (drawn.standard_normal(shape) * 1.5 / np.sqrt(shape[1])).astype(np.float32)
        )
        for name, shape in shapes.items()
    }
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm"):
        tensors[f"{name}.weight"] = from_array(f"{name}.weight", np.ones(WIDTH, np.float32))
    tensors["d2t"] = from_array("d2t", np.array([0, 1, 2, 4, 5]))
    keys = {**KEYS, "feed_forward_length": 48, "target_layers": [0, 1, 1], "target_hidden_size": WIDTH}
    metadata = {"general.architecture": "eagle3", **{f"eagle3.{key}": value for key, value in keys.items()}}
    reader = reader_of(model, {**metadata, "eagle3.vocab_size": WORDS}, tensors)
    assert reader is not None
    return reader


def begun(model: RunningModel, reader: Reader, seed: int, drafting: Drafting) -> tuple[Speculation, object]:
    sampler = primed(Sampling(temperature=1.0, samplers=("temperature",), seed=seed))
    speculation = speculation_of(model, sampler, reader, WORDS, drafting)
    cache = model.new_cache()
    speculation.drafter.follow(model.forward_with_inputs(PROMPT[:-1], reader.layers, cache)[1])
    return speculation, cache


def agrees(drafting: Drafting, draws: int) -> None:
    model = toy(3)
    reader, counts, stood = eagle3(model), np.zeros((WORDS,) * LENGTH, np.int64), 0
    for seed in range(draws):
        speculation, cache = begun(model, reader, seed, drafting)
        counts[write(speculation, cache, LENGTH)] += 1
        stood += speculation.counts.accepted
    assert stood
    assert too_unlikely(counts, texts_of(model, PLAIN, LENGTH) * draws) < 4.5


METHODS = [Drafting(3), Drafting(2, children=2)]


@pytest.mark.parametrize("drafting", METHODS)
def test_texts_are_distributed_as_without_a_draft(drafting: Drafting):
    agrees(drafting, 60)


@pytest.mark.slow
@pytest.mark.parametrize("drafting", METHODS)
def test_very_many_texts_are_distributed_as_without_a_draft(drafting: Drafting):
    agrees(drafting, 4_000)


def test_what_does_not_fit_the_model_is_refused(pair: tuple[str, Path, Path]):
    name, target, draft = pair
    model, file = gguftools.load(target), gguftools.open(draft)
    wrong = [
        ({"eagle3.target_layers": [0, 1, 9]}, {}, "reads layers 0, 1, 9 of its target; this model has 4"),
        ({"eagle3.target_hidden_size": 32}, {}, "has shape"),
        ({"eagle3.target_layers": "x"}, {}, "target_layers"),
        ({"eagle3.target_layers": 7}, {}, "target_layers"),
        ({"eagle3.target_layers": []}, {}, "target_layers"),
        ({"eagle3.block_count": float("nan")}, {}, "block_count"),
        ({}, {"rope_freqs.weight": from_array("rope_freqs.weight", np.ones(3, np.float32))}, "rope_freqs.weight"),
        ({"eagle3.block_count": 2}, {}, "blk.1"),
        ({"eagle3.attention.head_count": 3}, {}, "attention.head_count"),
        ({}, {"fc.weight": file.tensors["blk.0.attn_q.weight"].renamed("fc.weight")}, "fc.weight"),
    ]
    for keys, tensors, said in wrong:
        with pytest.raises(GgufToolsError, match=said):
            reader_of(model, {**file.metadata, **keys}, {**file.tensors, **tensors})
    if name == "shared":
        with pytest.raises(GgufToolsError, match="was made for states 64 wide; the model's are 32 wide"):
            reader_of(toy(3), {**file.metadata, "eagle3.target_layers": [0, 1, 1]}, file.tensors)
    else:
        without = {key: tensor for key, tensor in file.tensors.items() if key != "token_embd.weight"}
        with pytest.raises(GgufToolsError, match=r"states are 32 wide, 'token_embd\.weight' is 64"):
            reader_of(model, file.metadata, without)


def test_a_draft_alone_is_no_model(pair: tuple[str, Path, Path]):
    with pytest.raises(GgufToolsError, match="a draft, which reads") as refused:
        gguftools.load(pair[2])
    assert "--draft FILE" in str(refused.value.hint)
