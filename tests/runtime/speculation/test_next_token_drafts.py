"""Drafts by a model's own layer that reads ahead: what it says through a cache, and texts that stay the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gguftools
from archs.hparams.file_keys import Keys
from archs.mtp import faults_beyond
from archs.registry import of_file
from quants import Tensor, from_array
from quants.errors import ModelError
from runtime.model import RunningModel
from runtime.sampling.parameters import Sampling
from runtime.speculation.decoding import Speculation, speculation_of
from runtime.speculation.draft_files import reader_of
from runtime.speculation.parameters import Drafting
from tests.archs import checkpoints

from .test_distribution import LENGTH
from .toys import PROMPT, WORDS, Remembering, primed, texts_of, too_unlikely, write

PLAIN = Sampling(temperature=1.0, samplers=("temperature",))


@pytest.fixture(scope="module", params=["qwen3-5", "qwen3-next", "glm4-moe-lite", "qwen4-exp", "glm5-next"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunningModel:
    return converted(request.param, tmp_path_factory.mktemp("ahead"))


def converted(entry: str, folder: Path) -> RunningModel:
    checkpoints.build(entry, folder / entry)
    gguftools.convert(folder / entry, folder / "f32.gguf", "f32")
    return gguftools.load(folder / "f32.gguf")


def few_words(
    model: RunningModel, further: dict[str, Tensor] | None = None, more: dict[str, int] | None = None
) -> RunningModel:
    """The model with the first few tokens alone."""
    tensors = {**model.tensors, **(further or {})}
    for name in ("token_embd.weight", "output.weight"):
        if name in tensors:
            tensors[name] = from_array(name, tensors[name].float32()[:WORDS] * np.float32(3))
    metadata = {key: value for key, value in model.metadata.items() if not key.startswith("tokenizer.")}
    return Remembering({**metadata, **(more or {})}, tensors, threads=1)


def begun(model: RunningModel, sampling: Sampling, drafting: Drafting) -> tuple[Speculation, object]:
    """With a prompt in the cache but for its last token."""
    speculation = speculation_of(model, primed(sampling), "mtp", model.vocabulary_size, drafting)
    cache = model.new_cache()
    cache.memory = speculation.max_tokens
    speculation.drafter.follow(model.lazy_forward(PROMPT[:-1], cache).states)
    return speculation, cache


def test_a_draft_is_what_the_layer_says_of_the_whole_text(model: RunningModel, monkeypatch: pytest.MonkeyPatch):
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
        truth = model.mtp_logits(ids, model.lazy_logits(ids).states).float32()[0, -1]
        written = speculation.cycle(text, cache, 10)
        assert np.abs(asked[0] - truth).max() < 1e-3 * truth.std()
        stood += len(written) - 1
        text += [each.token for each in written]
        speculation.sampler.state = written[-1].state
    assert stood


@pytest.mark.parametrize("entry", ["qwen3-5", "qwen3-next"])
def test_a_layer_that_reads_ahead_attends_where_a_period_says_which_layers_do(entry: str, tmp_path: Path):
    model = converted(entry, tmp_path)
    metadata = {key: value for key, value in model.metadata.items() if not key.endswith(".recurrent_layers")}
    assert len(metadata) < len(model.metadata)
    ids, last = np.array([PROMPT]), f"blk.{len(model.network.layers)}."
    wanted, other = model.lazy_logits(ids), RunningModel(metadata, model.tensors)
    found = other.lazy_logits(ids)
    np.testing.assert_array_equal(found.float32(), wanted.float32())
    ahead = model.mtp_logits(ids, wanted.states).float32()
    np.testing.assert_array_equal(other.mtp_logits(ids, found.states).float32(), ahead)
    alone = {name: tensor for name, tensor in model.tensors.items() if not name.startswith("blk.") or last in name}
    assert not list(faults_beyond(model.architecture, metadata, alone))


def counted(model: RunningModel, drafting: Drafting, draws: int) -> tuple[np.ndarray, int]:
    counts, stood = np.zeros((WORDS,) * LENGTH, np.int64), 0
    for seed in range(draws):
        speculation, cache = begun(model, Sampling(temperature=1.0, samplers=("temperature",), seed=seed), drafting)
        counts[write(speculation, cache, LENGTH)] += 1
        stood += speculation.counts.accepted
    return counts, stood


def with_a_layer_that_reads_ahead(model: RunningModel) -> RunningModel:
    """Its last layer once more, behind what puts states and tokens together."""
    name, last = model.architecture.name, len(model.network.layers) - 1
    names = {each: each.replace(f"blk.{last}.", f"blk.{last + 1}.") for each in model.tensors}
    tensors = {new: model.tensors[old].renamed(new) for old, new in names.items() if new != old}
    width, rng = model.network.hparams.width, np.random.default_rng(0)
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


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and the file of its further layer."""
    return parted("glm4-moe-lite", tmp_path_factory.mktemp("apart"))


@pytest.fixture(scope="module")
def of_streams(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same of a model whose states are several streams."""
    return parted("qwen4-exp", tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="module")
def of_latents(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same of DeepSeek V3, whose layer has an embedding and a head of its own."""
    return parted("deepseek-v3-mtp", tmp_path_factory.mktemp("latents"))


@pytest.fixture(scope="module")
def of_mixed_streams(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same of one whose layer has a file to itself."""
    return parted("deepseek-v4", tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def of_one_stream(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same, where one stream goes through the layer."""
    return parted("hy-v4", tmp_path_factory.mktemp("one"))


def parted(entry: str, folder: Path) -> tuple[Path, Path]:
    checkpoints.build(entry, folder / entry)
    gguftools.convert(folder / entry, folder / "model.gguf", "f32")
    gguftools.convert(folder / entry, folder / "mtp.gguf", "f32", part="mtp")
    return folder / "model.gguf", folder / "mtp.gguf"


@pytest.mark.parametrize("files", ["apart", "of_streams"])
def test_a_layer_in_a_file_of_its_own_says_the_same(files: str, request: pytest.FixtureRequest):
    apart: tuple[Path, Path] = request.getfixturevalue(files)
    model, file = gguftools.load(apart[0]), gguftools.open(apart[1])
    reader = reader_of(model, file.metadata, file.tensors)
    assert reader is not None
    ids = [7, 130, 22, 61, 201, 9, 22, 61]
    states = model.lazy_logits(ids).states
    ahead, made = reader.read(reader.begin(states[:-1]), ids[1:], None)
    own = model.mtp_logits(np.array([ids]), states[None])
    np.testing.assert_array_equal(ahead.float32(), own.float32()[0])
    np.testing.assert_array_equal(made, own.states[0])


@pytest.mark.parametrize("files", ["apart", "of_streams", "of_latents", "of_mixed_streams", "of_one_stream"])
def test_texts_with_such_a_file_are_those_without(files: str, request: pytest.FixtureRequest):
    apart: tuple[Path, Path] = request.getfixturevalue(files)
    model = gguftools.open(apart[0])
    plain, drafted = (
        model.generate([7, 130, 22], Sampling(temperature=0), max_tokens=12, draft=draft) for draft in (None, apart[1])
    )
    assert [each.token for each in drafted] == [each.token for each in plain]
    assert drafted.speculated is not None
    assert drafted.speculated.drafted > 8


def test_a_layer_put_into_the_model_s_file_says_the_same(of_latents: tuple[Path, Path], tmp_path: Path):
    """DeepSeek V3's, which llama.cpp's graph runs from there."""
    gguftools.graft(of_latents[0], tmp_path / "both.gguf", [(of_latents[1], "mtp")])
    both, file = gguftools.load(tmp_path / "both.gguf"), gguftools.open(of_latents[1])
    ids = [7, 130, 22, 61, 201, 9, 22, 61]
    states = both.lazy_logits(ids).states
    reader = reader_of(gguftools.load(of_latents[0]), file.metadata, file.tensors)
    assert reader is not None
    ahead, _ = reader.read(reader.begin(states[:-1]), ids[1:], None)
    np.testing.assert_array_equal(ahead.float32(), both.mtp_logits(np.array([ids]), states[None]).float32()[0])


def test_such_a_file_is_no_model(apart: tuple[Path, Path], tmp_path: Path):
    with pytest.raises(ModelError, match="they make no checkpoint"):
        gguftools.export(apart[1], tmp_path / "checkpoint")
    with pytest.raises(ModelError, match="only the MTP layers"):
        gguftools.load(apart[1])


def test_what_stands_around_streams_is_looked_at(of_streams: tuple[Path, Path]):
    assert not [problem for file in of_streams for problem in gguftools.validate(file).problems]
    model, file = gguftools.load(of_streams[0]), gguftools.open(of_streams[1])
    for role in ("hnorm", "hc_head_norm", "hc_head_down", "hc_head_up"):
        name = f"blk.4.nextn.{role}.weight"
        lacking = {key: each for key, each in file.tensors.items() if key != name}
        other = {**file.tensors, name: from_array(name, np.ones(5, np.float32))}
        for lie, said in ((lacking, "missing"), (other, "has shape")):
            with pytest.raises(ModelError, match=f"{name}.*{said}"):
                reader_of(model, file.metadata, lie)
    without = {key: each for key, each in model.tensors.items() if not key.endswith("nextn.hc_head_down.weight")}
    with pytest.raises(ModelError, match=r"blk.4.nextn.hc_head_down.weight.*missing"):
        _ = RunningModel(model.metadata, without).next_tokens
    lying = {**file.metadata, "qwen4exp.hyper_connection.count": 4}
    with pytest.raises(ModelError, match="has shape"):
        reader_of(model, lying, file.tensors)
    plain = gguftools.load(of_streams[0])
    keys = {**plain.metadata, "qwen4exp.hyper_connection.count": 1}
    plain.network = replace(plain.network, keys=Keys("qwen4exp", keys))
    with pytest.raises(ModelError, match="2 streams; the model has 1"):
        reader_of(plain, file.metadata, file.tensors)


def test_what_stands_around_mixed_streams_is_looked_at(of_mixed_streams: tuple[Path, Path]):
    model, file = gguftools.load(of_mixed_streams[0]), gguftools.open(of_mixed_streams[1])
    for name in ("blk.4.nextn.hnorm", "output_hc_fn", "blk.4.hc_ffn_base", "blk.4.attn_output_a"):
        lacking = {key: each for key, each in file.tensors.items() if key != f"{name}.weight"}
        other = {**file.tensors, f"{name}.weight": from_array(f"{name}.weight", np.ones(5, np.float32))}
        for lie in (lacking, other):
            with pytest.raises(ModelError, match=name.replace("ffn_base", "ffn_")):
                reader_of(model, file.metadata, lie)
    for key, value in (("attention.compress_ratios", [0, 4]), ("hyper_connection.count", 3), ("hash_layer_count", -1)):
        with pytest.raises(ModelError, match=key if key != "hyper_connection.count" else "hc_"):
            reader_of(model, {**file.metadata, f"deepseek4.{key}": value}, file.tensors)
    with pytest.raises(ModelError, match="it is not known how one of deepseek4 computes"):
        _ = RunningModel({**file.metadata}, {**model.tensors, **file.tensors}).next_tokens


def test_validate_finds_what_is_wrong_with_it(apart: tuple[Path, Path], tmp_path: Path):
    assert not gguftools.validate(apart[1]).problems
    with gguftools.open(apart[1]) as model:
        for name, said in (("nextn.eh_proj.weight", "is missing"), ("attn_output.weight", "is missing")):
            last = model.metadata["deepseek2.block_count"] - 1
            tensors = {key: each for key, each in model.tensors.items() if key != f"blk.{last}.{name}"}
            found = [*faults_beyond(of_file("deepseek2", model.metadata), model.metadata, tensors)]
            assert (found[0].where, found[0].problem[:10]) == (f"blk.{last}.{name}", said)
        lies = {"block_count": 1 << 31, "embedding_length": [1], "expert_used_count": 0, "context_length": [5, 5]}
        for key, lie in lies.items():
            lying = {**model.metadata, f"deepseek2.{key}": lie}
            assert [*faults_beyond(of_file("deepseek2", lying), lying, model.tensors)], key
