"""Encoders for images give transformers' embeddings (tests/data/towers/*/embeddings.npz)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gguftools
from archs.config import normalized
from archs.metadata import Metadata
from archs.plans.mmproj import without_encoders
from archs.plans.text import architecture_metadata, map_tensors
from archs.registry import of_config
from gguftools.io.checkpoint.folder import open_checkpoint
from quants.errors import ModelError, OptionError
from runtime import prefill
from runtime.images import EmbeddedImage, parts_of, pieces, rotated_at, together_at, within
from runtime.model import RunningModel
from runtime.multimodal.assembly import assembled
from runtime.multimodal.places import Embedded, places
from runtime.multimodal.preprocessing import Tiles
from runtime.multimodal.vision import VisionEncoder

from ...archs.checkpoints import ENCODERS, build_encoder, image, recorded

RUN = recorded("size")
WITH_TEXT = [name for name in RUN if "logits" in np.load(ENCODERS / name / "embeddings.npz")]  # the others' is nowhere
CLOSE = 2e-5  # of the standard deviation; a wrong activation or rotation makes 1e-3 and more


@pytest.fixture
def encoder(tmp_path: Path):
    def made(name: str, outtype: str = "f32") -> VisionEncoder:
        build_encoder(name, tmp_path / name)
        gguftools.convert(tmp_path / name, tmp_path / f"{name}.gguf", outtype, part="mmproj")
        model = gguftools.open(tmp_path / f"{name}.gguf")
        return VisionEncoder(model.metadata, model.tensors)

    return made


def seen(encoder: VisionEncoder, name: str) -> Embedded:
    """What the recorded image gives, or its tiles together."""
    truth = np.load(ENCODERS / name / "embeddings.npz")
    if "tiles" not in truth:
        return encoder.embedded(image(name, *map(int, truth["size"])))
    rows, columns, *size = map(int, truth["tiles"])
    pixels = [image(f"{name}/{i}", *map(int, truth["size"])) for i in range(rows * columns + 1)]
    tiles = Tiles(pixels, rows, columns, (size[0], size[1]))
    return assembled(encoder, tiles, [encoder.embedded(each) for each in pixels])[0]


def error(encoder: VisionEncoder, name: str) -> float:
    wanted, found = np.load(ENCODERS / name / "embeddings.npz")["embeddings"], seen(encoder, name).embeddings
    assert found.shape == wanted.shape
    assert found.dtype == np.float32
    return float(np.abs(found - wanted).max() / wanted.std())


@pytest.mark.parametrize("name", RUN)
def test_embeddings_are_those_of_transformers(encoder, name):
    assert len(RUN) >= 7
    assert error(encoder(name), name) < CLOSE


def test_the_layer_that_is_read_is_the_listed_one_or_the_last_but_one(encoder):
    """As llama.cpp reads LLaVA's files, of which old ones list none."""
    made, last = encoder("llava-1-5"), "clip.vision.feature_layer"
    count, pixels = int(made.key("block_count")), image("llava-1-5", *[made.image_size] * 2)

    def found(*listed: int) -> np.ndarray:
        metadata = {key: made.metadata[key] for key in made.metadata if key != last}
        metadata |= {last: list(listed)} if listed else {}
        return VisionEncoder(metadata, made.weights.tensors).embeddings(pixels)

    assert not np.array_equal(found(), found(count))
    np.testing.assert_array_equal(found(), found(count - 1))
    with pytest.raises(ModelError, match="do not fit"):
        found(count - 1, count)  # both together are wider than what reads them


def test_a_quantized_encoder_is_near(encoder):
    assert CLOSE < error(encoder("gemma3", "q8_0"), "gemma3") < 0.1


def test_images_are_normalized(encoder):
    made = encoder("gemma3")
    found = made.normalized(np.full((56, 56, 3), 255, np.uint8))
    np.testing.assert_array_equal(found, np.ones((3, 56, 56), np.float32))
    with pytest.raises(OptionError, match="height, width, 3"):
        made.normalized(np.zeros((3, 56, 56)))
    for std in ([], [0.5] * 6, [0.5, 0.5, 0.0]):
        wrong = VisionEncoder(dict(made.metadata) | {"clip.vision.image_std": std}, made.weights.tensors)
        with pytest.raises(ModelError, match="images are normalized by means"):
            wrong.normalized(np.zeros((56, 56, 3)))


@pytest.mark.parametrize(
    ("name", "shape", "wrong"),
    [
        ("gemma3", (3, 28, 56), "8 patches; the encoder is for 16"),
        ("gemma3", (3, 57, 56), "sides that 14 divides"),
        ("mistral3", (3, 42, 56), "sides that 28 divides"),
        ("gemma3", (56, 56), "3, height, width"),
        ("gemma3", (3, 0, 56), "sides that 14 divides"),
    ],
)
def test_pixels_of_a_wrong_size_are_refused(encoder, name, shape, wrong):
    with pytest.raises(OptionError, match=wrong):
        encoder(name).embeddings(np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("patch_size", 0, "clip.vision.patch_size is 0"),
        ("patch_size", 300, "patches of 300 pixels a side; 256 are"),
        ("patch_size", 7, "do not fit each other"),
        ("attention.head_count", 5, "do not fit each other"),
        ("block_count", 9, r"no tensor 'v\.blk\.2"),
        ("attention.layer_norm_epsilon", None, "no clip.vision.attention.layer_norm_epsilon"),
    ],
)
def test_files_that_lie_are_refused(encoder, key, value, wrong):
    made = encoder("gemma3")
    metadata = made.metadata.copy()
    metadata.pop(f"clip.vision.{key}")
    if value is not None:
        metadata[f"clip.vision.{key}"] = value
    with pytest.raises(ModelError, match=wrong):
        VisionEncoder(metadata, made.weights.tensors).embeddings(image("gemma3", 56, 56))


def test_heads_that_do_not_fit_are_refused(encoder):
    made = encoder("deepseek-ocr2-small")
    metadata = dict(made.metadata) | {"clip.vision.attention.head_count": 2}
    with pytest.raises(ModelError, match="do not fit each other"):
        VisionEncoder(metadata, made.weights.tensors).embeddings(np.zeros((3, 64, 64)))


def test_files_without_such_a_encoder_are_refused(encoder):
    made = encoder("gemma3")
    with pytest.raises(ModelError, match="'other' are not run"):
        VisionEncoder(dict(made.metadata) | {"clip.projector_type": "other"}, made.weights.tensors)
    with pytest.raises(ModelError, match="no encoder for images"):
        encoder("voxtral")


def text_model(folder: Path) -> RunningModel:
    """The text model of a checkpoint that has no vocabulary."""
    checkpoint = open_checkpoint(folder)
    tensors, _ = without_encoders(checkpoint.config, checkpoint.tensors)
    architecture = of_config(checkpoint.config)
    config = normalized(checkpoint.config, architecture.defaults, architecture.keys, tensors)
    if architecture.prepare:
        config, tensors = architecture.prepare(config, tensors)
    metadata = Metadata({"general.architecture": architecture.name} | architecture_metadata(architecture, config))
    return RunningModel(metadata, map_tensors(architecture, config, tensors).tensors)


def relative_error(found, wanted) -> float:
    return float(np.abs(found - wanted).max() / wanted.std())


@pytest.mark.parametrize("name", WITH_TEXT)
def test_a_image_and_a_text_give_the_logits_of_transformers(encoder, tmp_path, name):
    near = 1e-3 if name == "gemma3n-pictures" else 1e-4  # its products of many tokens are of whole numbers
    truth = np.load(ENCODERS / name / "embeddings.npz")
    made = encoder(name)
    found = seen(made, name)
    ids, wanted = truth["ids"], truth["logits"]
    images, model = places(ids, int(ids[3]), [found]), text_model(tmp_path / name)
    assert relative_error(model.forward(ids, images=images), wanted) < near
    cache, begin = model.new_cache(), images[-1].stop
    cache.memory = len(ids)
    for start, stop in pieces(begin, 2, images):
        logits = model.forward(ids[start:stop], cache, images=within(images, start, stop))
        assert relative_error(logits, wanted[start:stop]) < near
    for place in range(begin, len(ids)):
        assert relative_error(model.forward(ids[place : place + 1], cache), wanted[place : place + 1]) < near
    cache.truncate(begin + 1)
    assert relative_error(model.forward(ids[begin + 1 :], cache), wanted[begin + 1 :]) < near
    cache.truncate(images[0].start)
    assert cache.next_position == (0 if name.startswith("nemotron") else images[0].start)  # whose states begin anew


def test_prompts_in_pieces_give_the_same_as_at_once(encoder, tmp_path, monkeypatch):
    encoder("qwen2-5-vl")
    model, chance = text_model(tmp_path / "qwen2-5-vl"), np.random.default_rng(1)
    for size in (1, 3, 7, 20):
        monkeypatch.setattr(prefill, "CHUNK", size)
        ids, images, place = chance.integers(3, 60, 40).tolist(), [], 0
        while place < 30:
            rows, columns = map(int, chance.integers(1, 4, 2))
            embeddings = chance.normal(size=(rows * columns, 32)).astype(np.float32)
            images.append(EmbeddedImage(place, embeddings, (rows, columns)))
            place = images[-1].stop + int(chance.integers(0, 6))
        cache, logits, _ = prefill.Prefill(model, ids, images=images).read()
        assert relative_error(logits[-1], model.forward(ids, images=images)[-1]) < 1e-5
        following = model.forward([*ids, 5], images=images)[-1]
        assert relative_error(model.forward([5], cache)[-1], following) < 1e-5


def made_image(name: str):
    return image(name, *map(int, np.load(ENCODERS / name / "embeddings.npz")["size"]))


def test_images_that_do_not_fit_are_refused(encoder, tmp_path):
    made = encoder("gemma3")
    found, model = made.embedded(made_image("gemma3")), text_model(tmp_path / "gemma3")
    ids = [3, 60, 60, 60, 60, 5]
    with pytest.raises(OptionError, match="0 tokens 63 stand for"):
        places(ids, 63, [found])
    images = places(ids, 60, [found])
    with pytest.raises(OptionError, match="tokens 1 to 4; 0 to 3 are free"):
        model.forward(ids[:4], images=images)
    with pytest.raises(OptionError, match="tokens 1 to 4; 5 to 5 are free"):
        model.forward(ids, images=images * 2)
    with pytest.raises(OptionError, match="one text, not in 2"):
        model.forward([ids, ids], images=images)
    with pytest.raises(ModelError, match="31 wide, those of the model 32"):
        model.forward(ids, images=[replace(images[0], embeddings=found.embeddings[:, 1:])])
    with pytest.raises(OptionError, match="no 3 rows of 2"):
        model.forward(ids, images=[replace(images[0], grid=(3, 2))])


def test_pieces_of_a_text_have_whole_images():
    images = [EmbeddedImage(at, np.zeros((6, 4), np.float32), (2, 3)) for at in (3, 10)]
    assert pieces(20, 5, images) == [(0, 3), (3, 9), (9, 10), (10, 16), (16, 20)]
    for size in range(1, 25):
        cut = pieces(20, size, images)
        assert [start for start, _ in cut] == [0, *(stop for _, stop in cut[:-1])]
        assert cut[-1][1] == 20
        assert sum(len(within(images, *each)) for each in cut) == 2


def test_positions_behind_a_image_go_on_by_its_longer_side():
    found, following = rotated_at(9, 7, [EmbeddedImage(2, np.zeros((6, 4), np.float32), (2, 3))])
    rows, columns = [9, 9, 9, 10, 10, 10], [9, 10, 11, 9, 10, 11]
    np.testing.assert_array_equal(found, [[7, 8, *[9] * 6, 12], [7, 8, *rows, 12], [7, 8, *columns, 12]])
    assert following == 13


def test_a_framed_image_is_rotated_by_place_column_row_and_number():
    found, following = rotated_at(
        9, 7, [EmbeddedImage(1, np.zeros((6, 4), np.float32), (2, 2), layout="framed", number=3)]
    )
    order = list(range(7, 16))
    np.testing.assert_array_equal(
        found, [order, [7, 8, 0, 1, 0, 1, 13, 14, 15], [7, 8, 0, 0, 1, 1, 13, 14, 15], [7, 8, 3, 3, 3, 3, 13, 14, 15]]
    )
    assert following == 16


def test_a_image_whose_tokens_stand_together_takes_three_positions():
    found, following = together_at(9, 7, [EmbeddedImage(1, np.zeros((6, 4), np.float32), layout="together")])
    np.testing.assert_array_equal(found, [7, 8, 9, 9, 9, 9, 10, 11, 12])
    assert following == 13


@pytest.mark.parametrize(
    ("sections", "interleaved", "wanted"),
    [((1, 1, 2, 0), False, [0, 1, 2, 2]), ((3, 2, 2), True, [0, 1, 2, 0, 1, 2, 0, 0]), ((2, 1, 1), True, [0, 1, 2, 0])],
)
def test_which_part_of_a_position_turns_a_pair(sections, interleaved, wanted):
    np.testing.assert_array_equal(parts_of(sections, len(wanted), interleaved), wanted)
