"""Drafts by a model's own layer that reads ahead: what it says through a cache, and texts that stay the same."""

from pathlib import Path

import numpy as np
import pytest

import gguftools
from quants import Tensor, from_array
from runtime.model import Model
from runtime.sampling.parameters import Sampling
from runtime.speculation.decoding import Speculation, speculation_of
from runtime.speculation.parameters import Drafting
from tests.archs import checkpoints

from .test_distribution import LENGTH
from .toys import PROMPT, WORDS, Remembering, primed, texts_of, too_unlikely, write

PLAIN = Sampling(temperature=1.0, samplers=("temperature",))


@pytest.fixture(scope="module", params=["qwen3-5", "qwen3-next", "glm4-moe-lite"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return converted(request.param, tmp_path_factory.mktemp("ahead"))


def converted(entry: str, folder: Path) -> Model:
    checkpoints.build(entry, folder / entry)
    gguftools.convert(folder / entry, folder / "f32.gguf", "f32")
    return gguftools.load(folder / "f32.gguf")


def few_words(model: Model, further: dict[str, Tensor] | None = None, more: dict[str, int] | None = None) -> Model:
    """The model with the first few tokens alone."""
    tensors = {**model.tensors, **(further or {})}
    for name in ("token_embd.weight", "output.weight"):
        if name in tensors:
            tensors[name] = from_array(name, tensors[name].float32()[:WORDS] * np.float32(3))
    metadata = {key: value for key, value in model.metadata.items() if not key.startswith("tokenizer.")}
    return Remembering({**metadata, **(more or {})}, tensors, threads=1)


def begun(model: Model, sampling: Sampling, drafting: Drafting) -> tuple[Speculation, object]:
    """With a prompt in the cache but for its last token."""
    speculation = speculation_of(model, primed(sampling), "mtp", model.vocabulary_size, drafting)
    cache = model.new_cache()
    cache.memory = speculation.most
    speculation.drafter.follow(model.lazy_forward(PROMPT[:-1], cache).x)
    return speculation, cache


def test_a_draft_is_what_the_layer_says_of_the_whole_text(model: Model, monkeypatch: pytest.MonkeyPatch):
    sampling = Sampling(temperature=1.0, samplers=("temperature",), seed=3)
    speculation, cache = begun(model, sampling, Drafting(3))
    asked: list[np.ndarray] = []
    drawing = speculation.drafter.drawing
    candidates = drawing.candidates

    def noted(logits, state):
        asked.append(logits)
        return candidates(logits, state)

    monkeypatch.setattr(drawing, "candidates", noted)
    text, stood = list(PROMPT), 0
    while len(text) < 40:
        asked.clear()
        ids = np.array([text])
        truth = model.further_logits(ids, model.lazy_logits(ids).x).float32()[0, -1]
        written = speculation.cycle(text, cache, 10)
        assert np.abs(asked[0] - truth).max() < 1e-3 * truth.std()
        stood += len(written) - 1
        text += [each.token for each in written]
        speculation.sampler.state = written[-1].state
    assert stood


def counted(model: Model, drafting: Drafting, draws: int) -> tuple[np.ndarray, int]:
    counts, stood = np.zeros((WORDS,) * LENGTH, np.int64), 0
    for seed in range(draws):
        speculation, cache = begun(model, Sampling(temperature=1.0, samplers=("temperature",), seed=seed), drafting)
        counts[write(speculation, cache, LENGTH)] += 1
        stood += speculation.counts.accepted
    return counts, stood


def with_a_layer_that_reads_ahead(model: Model) -> Model:
    """Its last layer once more, behind what puts states and tokens together."""
    name, last = model.architecture.name, len(model.network.layers) - 1
    names = {each: each.replace(f"blk.{last}.", f"blk.{last + 1}.") for each in model.tensors}
    tensors = {new: model.tensors[old].renamed(new) for old, new in names.items() if new != old}
    width, rng = model.network.hyper.width, np.random.default_rng(0)
    for role, shape in {"eh_proj": (width, 2 * width), "enorm": (width,), "hnorm": (width,)}.items():
        values = rng.standard_normal(shape) / np.sqrt(width) if len(shape) > 1 else np.ones(shape)
        tensor = from_array(f"blk.{last + 1}.nextn.{role}.weight", values.astype(np.float32))
        tensors[tensor.name] = tensor
    return few_words(model, tensors, {f"{name}.nextn_predict_layers": 1, f"{name}.block_count": last + 2})


METHODS = [("qwen3-5", Drafting(3)), ("glm4v-moe", Drafting(2, children=2))]


def agrees(entry: str, drafting: Drafting, folder: Path, draws: int) -> None:
    whole = converted(entry, folder)
    model = with_a_layer_that_reads_ahead(whole) if drafting.children > 1 else few_words(whole)
    counts, stood = counted(model, drafting, draws)
    assert stood
    assert too_unlikely(counts, texts_of(model, PLAIN, LENGTH) * draws) < 4.5


@pytest.mark.parametrize(("entry", "drafting"), METHODS)
def test_texts_are_distributed_as_without_a_draft(entry: str, drafting: Drafting, tmp_path: Path):
    agrees(entry, drafting, tmp_path, 40)


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "drafting"), METHODS)
def test_very_many_texts_are_distributed_as_without_a_draft(entry: str, drafting: Drafting, tmp_path: Path):
    agrees(entry, drafting, tmp_path, 200_000)
