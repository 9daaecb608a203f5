"""Images are prepared as transformers' image processors do it (tests/data/towers/*/prepared.npz)."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from quants.errors import ModelError, OptionError
from runtime.multimodal.preprocessing import PREPARED, area_size, tiles
from runtime.multimodal.prompts import WORDINGS

from ...archs.checkpoints import ENCODERS, encoders, scene
from .test_vision import encoder

Image = pytest.importorskip("PIL.Image")
RUN = [name for name in encoders() if (ENCODERS / name / "prepared.npz").is_file()]
__all__ = ["encoder"]


# Those of these are resized by torchvision, whose pixels differ by one, and Llama 4's are computed in bfloat16.
APART = {
    "lfm2-vl": 1.01,
    "llama4": 2.01,
    "step3p7": 2.01,
    "gemma4-unified": 1.01,
    "unlimited-ocr-small": 2.01,
    "kimi-vl": 1.01,
    "kimi-k2-5": 1.01,
    "minimax-m3": 1.01,
    "muse-glimmer": 2.01,
}
# Sides that small models' encoders with positions by axes have positions for.
MOST = {"gemma4v": 64 * 16, "gemma4uv": 20 * 12}


# Large images of these are read in tiles of a fixed size, which takes long.
TILED = ("lfm2-vl", "step3p7", "deepseek-ocr2-small", "unlimited-ocr-small")


def is_large(size: str) -> bool:
    return max(map(int, size.split("/")[0].split("x"))) >= 500


@pytest.mark.parametrize("name", RUN)
def test_pixels_are_those_of_transformers(encoder, name):
    same_pixels(encoder, name, lambda size: name not in TILED or not is_large(size))


@pytest.mark.slow
@pytest.mark.parametrize("name", TILED)
def test_pixels_of_a_large_image_in_tiles(encoder, name):
    same_pixels(encoder, name, is_large)


def same_pixels(encoder, name: str, wanted_sizes: Callable[[str], bool]) -> None:
    made, truth = encoder(name), np.load(ENCODERS / name / "prepared.npz")
    mean, std = (np.reshape(made.key(f"image_{each}"), (3, 1, 1)) for each in ("mean", "std"))
    for key in filter(wanted_sizes, truth):
        size, step, number = key.split("/")
        found = tiles(made, Image.fromarray(scene(*map(int, size.split("x")))))
        if found.rows:
            assert len(found.pixels) == found.rows * found.columns + 1
        wanted, own = truth[key], found.pixels
        own = own if wanted.ndim == 4 else own[int(number) : int(number) + 1]
        grey = np.stack([(each * std + mean) * 255 for each in own])[..., :: int(step), :: int(step)]
        assert np.abs(grey - wanted).max() < APART.get(name, 0.01), key


def test_every_kind_that_is_prepared_is_written():
    assert {*PREPARED} == {*WORDINGS}


@pytest.mark.slow
def test_every_kind_that_is_prepared_is_tried(encoder):
    assert {encoder(name).projector for name in RUN} == {*PREPARED}


@pytest.mark.parametrize("name", RUN)
@pytest.mark.parametrize("size", [(1, 1), (1, 200), pytest.param((120, 1), marks=pytest.mark.slow)])
def test_small_and_thin_images_are_prepared(encoder, name, size):
    made = encoder(name)
    for pixels in tiles(made, Image.new("RGB", size)).pixels:
        if max(pixels.shape) > MOST.get(made.projector, math.inf):
            with pytest.raises(OptionError, match="the encoder has positions for"):
                made.embedded(pixels)
        else:
            assert len(made.embedded(pixels).embeddings)


def test_kinds_that_are_not_prepared_are_refused(encoder):
    with pytest.raises(ModelError, match="'deepseek4v' are not prepared"):
        tiles(encoder("deepseek-v4-vision"), Image.new("RGB", (20, 20)))


def test_a_image_that_is_too_thin_is_refused(encoder):
    with pytest.raises(OptionError, match="201 × 1 pixels; at most 200 times"):
        tiles(encoder("gemma3"), Image.new("RGB", (201, 1)))


@pytest.mark.parametrize(
    "name", ["qwen2-5-vl", "pixtral", "mistral3", "hunyuan-vl", "kimi-vl", "glm5-next", "muse-glimmer"]
)
def test_a_image_has_no_more_tokens_than_wanted(encoder, name):
    made = encoder(name)
    for size in ((300, 200), (1, 1), (9, 900)):
        pixels = tiles(made, Image.new("RGB", size), 3).pixels
        assert 1 <= math.prod(pixels[0].shape[1:]) / made.token_side**2 <= 3


def test_long_images_of_gemma3_are_cropped_where_tokens_are_wanted(encoder):
    """4 tokens an image: 20 hold it and four crops, as transformers has them."""
    made, truth = encoder("gemma3"), np.load(ENCODERS / "gemma3" / "cropped.npz")
    mean, std = (np.reshape(made.key(f"image_{each}"), (3, 1, 1)) for each in ("mean", "std"))
    counts = {}
    for key in truth:
        image = Image.fromarray(scene(*map(int, key.split("x"))))
        found = np.stack(tiles(made, image, 20).pixels)
        assert found.shape == truth[key].shape
        np.testing.assert_allclose((found * std + mean) * 255, truth[key], atol=0.01)
        counts[key] = len(found)
        assert len(tiles(made, image).pixels) == len(tiles(made, image, 11).pixels) == 1
    assert counts == {"300x700": 3, "1100x257": 5, "256x1400": 5, "260x300": 1, "200x900": 1}
    assert len(tiles(made, Image.new("RGB", (1400, 256)), 16).pixels) == 4


def test_the_longest_side_of_lighton_ocr_may_have_a_key():
    """Else it is the encoder's own size; Idefics 3's images are as large as they are without one."""
    large = Image.new("RGB", (400, 200))
    for keys, width in (({}, 100), ({"preproc_image_size": 300}, 300)):
        known = {"spatial_merge_size": 1, "preproc_image_size": 100} | keys
        made = SimpleNamespace(projector="lightonocr", image_size=100, patch_size=10, key=known.get)
        cut, _, _ = PREPARED["lightonocr"](made, large, None)  # type: ignore[arg-type]
        assert cut[0].size == (width, width // 2)
    made = SimpleNamespace(projector="idefics3", image_size=100, key={"preproc_image_size": 0}.get)
    assert PREPARED["idefics3"](made, large, None)[1:] == (2, 4)  # type: ignore[arg-type]


def test_areas_by_hand():
    assert area_size(100, 200, 28, 3136, 10**7) == (112, 196)
    assert area_size(1000, 2000, 28, 3136, 100_000) == (196, 420)
    assert area_size(10, 20, 28, 3136, 10**7) == (56, 84)


def test_tiles_of_internvl_by_hand():
    """1 × 2 and 2 × 4 tiles have one proportion; the larger one is taken where the image fills half of it."""
    keys = {"preproc_max_tiles": 12, "preproc_min_tiles": 1}
    made = SimpleNamespace(image_size=100, key=keys.get)
    for width, count in ((200, 3), (299, 9)):
        cut, _, _ = PREPARED["internvl"](made, Image.new("RGB", (width, width // 2)), None)  # type: ignore[arg-type]
        assert len(cut) == count
