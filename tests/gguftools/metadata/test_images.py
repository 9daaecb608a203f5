"""Prompts with images: what stands where, and what is said of images and encoders that do not fit."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools.io.images import open_image
from quants.errors import FileError, GgufToolsError, ModelError, OptionError
from runtime.multimodal.places import Embedded
from runtime.multimodal.prompts import WORDINGS, Seen, marked, wording_of
from runtime.multimodal.vision import VisionEncoder
from runtime.sampling.parameters import Sampling

from ...archs.checkpoints import build_encoder, lettered, scene
from ...runtime.multimodal.test_vision import text_model
from ..command_line import typed

Image = pytest.importorskip("PIL.Image")
GREEDY = Sampling(temperature=0, ignore_eos=True)
NAMED = {
    "gemma3": ("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
    "qwen2-5-vl": ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>"),
    "pixtral": ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    "hunyuan-vl": tuple(f"<｜hy_place▁holder▁no▁{number}｜>" for number in (102, 100, 101)),
    "cogvlm": ("<unk>", "<image>", "[x]"),  # a vocabulary like the first CogVLM's
    "kimi-k2-5": ("<|image|>", "<|begin_of_image|>", "<|end_of_image|>"),  # as in GLM 5V's vocabulary
}
PARTS = (
    "{% for each in messages %}{{ each.role }}:{% for part in each.content %}"
    "{% if part.type == 'image' %}MARKER{% else %}{{ part.text }}{% endif %}{% endfor %}{{ '\\n' }}{% endfor %}"
)
TEXTS = "{% for each in messages %}{{ each.role }}:{{ each.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with 64 tokens, letters and those around images, their encoders, and images."""
    made = tmp_path_factory.mktemp("pictures")
    for name, special in NAMED.items():
        build_encoder(name, made / name)
        gguftools.convert(made / name, made / f"mmproj-{name}.gguf", "f32", part="mmproj")
        running = text_model(made / name)
        marker = WORDINGS[VisionEncoder(*opened(made / f"mmproj-{name}.gguf")).projector].alone
        words = lettered(special) | {"tokenizer.chat_template": PARTS.replace("MARKER", marker)}
        gguftools.Model(dict(running.metadata) | words, running.tensors).save(made / f"{name}.gguf")
    Image.fromarray(scene(61, 97)).save(made / "a.png")
    Image.fromarray(scene(40, 40)).save(made / "b.jpg")
    return made


def opened(path: Path):
    model = gguftools.open(path)
    return model.metadata, model.tensors


def written(folder: Path, name: str, prompt, images=("a.png",), **more) -> str:
    """The prompt as it is read: its tokens' texts, a run of an image's as how many there are."""
    model = gguftools.open(folder / f"{name}.gguf")
    files = [folder / each if isinstance(each, str) else each for each in images]
    projector = folder / f"mmproj-{name}.gguf"
    generation = model.generate(prompt, GREEDY, max_tokens=1, images=files, projector=projector, **more)
    list(generation)
    names = model.metadata["tokenizer.ggml.tokens"]
    text = "".join(names[token] for token in generation.prompt).replace("▁", " ")
    token = NAMED[name][0].replace("▁", " ")
    return re.sub(f"(?:{re.escape(token)})+", lambda found: str(found[0].count(token)), text)


@pytest.mark.parametrize(
    ("name", "prompt", "text"),
    [
        ("gemma3", "what", "<s>\n\n<start_of_image>4<end_of_image>\n\nwhat"),
        ("gemma3", "in <__media__> is", "<s>in \n\n<start_of_image>4<end_of_image>\n\n is"),
        ("gemma3", "in<start_of_image>is", "<s>in\n\n<start_of_image>4<end_of_image>\n\nis"),
        ("qwen2-5-vl", "what", "<s><|vision_start|>6<|vision_end|>what"),
        ("qwen2-5-vl", "a<__media__>b", "<s>a<|vision_start|>6<|vision_end|>b"),
        ("pixtral", "what", "<s>4[IMG_BREAK]4[IMG_BREAK]4[IMG_END]what"),
    ],
)
def test_a_image_stands_where_it_is_marked_or_in_front(folder, name, prompt, text):
    assert written(folder, name, prompt) == text


def test_a_framed_image_has_tokens_around_it_and_behind_its_rows(folder):
    _, begin, end = (name.replace("▁", " ") for name in NAMED["hunyuan-vl"])
    assert written(folder, "hunyuan-vl", "what", image_tokens=6) == f"<s>{begin}10{end}what"


def test_a_encoder_of_two_text_models_takes_the_tokens_that_the_vocabulary_has(folder):
    assert written(folder, "kimi-k2-5", "what", image_tokens=6) == "<s><|begin_of_image|>6<|end_of_image|>what"
    usual = WORDINGS["kimik25"]
    assert usual.alone == "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"


def test_a_image_of_cogvlm_stands_for_an_unknown_token(folder):
    assert written(folder, "cogvlm", "what") == "<s>18what"


def test_several_images_stand_one_after_the_other(folder):
    text = written(folder, "qwen2-5-vl", "a<__media__>b<__media__>", ["a.png", scene(40, 40)])
    assert text == "<s>a<|vision_start|>6<|vision_end|>b<|vision_start|>4<|vision_end|>"
    with pytest.raises(OptionError, match="1 images are marked in the prompt; 2 are given"):
        written(folder, "qwen2-5-vl", "a<__media__>b", ["a.png", "b.jpg"])


@pytest.mark.parametrize("template", [PARTS, TEXTS])
def test_chat_templates_mark_images_or_are_given_marks(folder, template):
    model = gguftools.open(folder / "qwen2-5-vl.gguf")
    model.chat_template = template.replace("MARKER", WORDINGS["qwen2vl_merger"].alone)
    model.save(folder / "chat.gguf", overwrite=True)
    (folder / "mmproj-chat.gguf").write_bytes((folder / "mmproj-qwen2-5-vl.gguf").read_bytes())
    NAMED["chat"] = NAMED["qwen2-5-vl"]
    seen = "<|vision_start|>6<|vision_end|>"
    said = [{"role": "user", "content": "hi"}, {"role": "user", "content": "what"}]
    assert written(folder, "chat", said) == f"<s>user:hi\nuser:{seen}what\n"
    said[0]["content"] = "see<__media__>here"
    assert written(folder, "chat", said) == f"<s>user:see{seen}here\nuser:what\n"
    parts = [{"type": "text", "text": "see"}, {"type": "image"}]
    assert written(folder, "chat", [{"role": "user", "content": parts}]) == f"<s>user:see{seen}\n"
    with pytest.raises(OptionError, match="1 images are marked in the messages; 2 are given"):
        written(folder, "chat", said, ["a.png", "b.jpg"])
    with pytest.raises(OptionError, match="no message is a user's"):
        written(folder, "chat", [{"role": "system", "content": "hi"}])


def test_crops_of_a_long_image_are_told_of(folder):
    text = written(folder, "gemma3", "what", [scene(300, 700)], image_tokens=20)
    one = "\n\n<start_of_image>4<end_of_image>\n\n"
    unknown = "<unk>"  # the vocabulary has no capital letters
    said = f"<s>{unknown}ere is the original image {one} and here are some crops to help you see better {one} {one}what"
    assert text == said
    assert written(folder, "gemma3", "what", [scene(300, 700)]) == f"<s>{one}what"


def test_what_is_written_around_tiles():
    """By transformers' `models/{smolvlm,internvl,lfm2_vl,llama4,step3p7}/processing_*.py`, and MiniCPM-V's own code."""
    tile = Embedded(np.zeros((2, 4), np.float32))
    assert "".join(map(str, WORDINGS["idefics3"].written(Seen((tile,))))) == (
        "<fake_token_around_image><global-img>2<fake_token_around_image>"
    )
    assert "".join(map(str, WORDINGS["idefics3"].written(Seen((tile,) * 5, 2, 2)))) == (
        "<fake_token_around_image><row_1_col_1>2<fake_token_around_image><row_1_col_2>2\n"
        "<fake_token_around_image><row_2_col_1>2<fake_token_around_image><row_2_col_2>2\n"
        "\n<fake_token_around_image><global-img>2<fake_token_around_image>"
    )
    assert WORDINGS["internvl"].written(Seen((tile,) * 3)) == ["<img>", 6, "</img>"]
    assert "".join(map(str, WORDINGS["lfm2"].written(Seen((tile,) * 3, 1, 2)))) == (
        "<|image_start|><|img_row_1_col_1|>2<|img_row_1_col_2|>2<|img_thumbnail|>2<|image_end|>"
    )
    assert "".join(map(str, WORDINGS["lfm2"].written(Seen((tile,))))) == "<|image_start|>2<|image_end|>"
    assert "".join(map(str, WORDINGS["llama4"].written(Seen((tile,) * 5, 2, 2)))) == (
        "<|image_start|>2<|tile_x_separator|>2<|tile_y_separator|>2<|tile_x_separator|>2<|tile_y_separator|>"
        "<|image|>2<|image_end|>"
    )
    assert "".join(map(str, WORDINGS["step3vl"].written(Seen((tile,) * 5, 2, 2)))) == (
        "<patch_start>2<patch_end><patch_start>2<patch_end><patch_newline><patch_start>2<patch_end>"
        "<patch_start>2<patch_end><im_start>2<im_end>"
    )
    assert "".join(map(str, WORDINGS["minicpmv4_6"].written(Seen((tile,) * 5, 2, 2, 1)))) == (
        "<image_id>1</image_id><image>2</image><slice>2</slice><slice>2</slice>\n<slice>2</slice><slice>2</slice>"
    )
    oldest = wording_of("resampler", {"clip.minicpmv_version": 2}, None)  # type: ignore[arg-type]
    assert wording_of("resampler", {}, None) is oldest  # type: ignore[arg-type]
    assert "".join(map(str, oldest.written(Seen((tile,) * 3, 2, 1)))) == (
        "<image>2</image><slice><image>2</image>\n<image>2</image></slice>"
    )
    assert "".join(map(str, oldest.written(Seen((tile,))))) == "<image>2</image>"
    assert marked("so", WORDINGS["mlp"], 2) == "<image><image>so"
    assert WORDINGS["minimax_m3"].written(Seen((tile,))) == ["]<]start of image[>[", 2, "]<]end of image[>["]
    assert WORDINGS["ling3vl"].written(Seen((tile,))) == ["<|vision_start|>", 2, "<|vision_end|>\n"]


def test_images_change_what_is_said_and_are_run_once(folder, monkeypatch):
    model, encoder = gguftools.open(folder / "qwen2-5-vl.gguf"), gguftools.open(folder / "mmproj-qwen2-5-vl.gguf")
    ran: list[int] = []
    run = VisionEncoder.embeddings
    monkeypatch.setattr(VisionEncoder, "embeddings", lambda *given: ran.append(1) or run(*given))
    chosen = Sampling(temperature=0, ignore_eos=True, logprobs=0)

    def logprob(file: str) -> float:
        generation = model.generate("what", chosen, max_tokens=3, images=[folder / file], projector=encoder)
        list(generation)
        return sum(each.logprob for each in generation.logprobs)

    assert logprob("a.png") == logprob("a.png") != logprob("b.jpg")
    assert len(ran) == 2


def test_progress_is_told_of_layers_and_tokens(folder):
    told: list[tuple[int, int]] = []
    written(folder, "qwen2-5-vl", "what", progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4), (0, 13), (13, 13)]


def test_fewer_tokens_than_a_image_has(folder):
    assert written(folder, "qwen2-5-vl", "what", image_tokens=2) == "<s><|vision_start|>1<|vision_end|>what"


@pytest.mark.parametrize(
    ("wanted", "wrong"),
    [
        ({"projector": None}, "images is given without projector"),
        ({"images": ()}, "projector is given without images"),
        ({"projector": "gemma3.gguf"}, "no encoder for images"),
        ({"projector": "mmproj-gemma3.gguf"}, "the vocabulary has no token '<image_soft_token>'"),
        ({"draft": "gemma3.gguf"}, "drafts do not see images"),
        ({"image_tokens": 0}, "image_tokens is 0"),
        ({"images": [3]}, "an image is a int"),
        ({"images": [np.zeros((4, 4))]}, r"an image is an array \[4, 4\] of float64"),
        ({"images": ["absent.png"]}, "absent.png does not exist"),
        ({"images": ["gemma3"]}, "is a folder"),
        ({"images": ["gemma3.gguf"]}, "is not an image that can be read"),
        ({"prompt": [3, 4]}, "not in token ids"),
    ],
)
def test_what_does_not_fit_is_one_error(folder, wanted, wrong, monkeypatch):
    monkeypatch.chdir(folder)
    given = {"prompt": "what", "images": ["a.png"], "projector": "mmproj-qwen2-5-vl.gguf"} | wanted
    with pytest.raises(GgufToolsError, match=wrong):
        gguftools.open("qwen2-5-vl.gguf").generate(given.pop("prompt"), max_tokens=1, **given)  # type: ignore[arg-type]


def test_a_encoder_of_another_width_is_refused(folder):
    encoder = gguftools.open(folder / "mmproj-gemma3.gguf")
    encoder.metadata["clip.vision.projection_dim"] = 48
    with pytest.raises(ModelError, match="embeddings are 48 wide, those of the model 32"):
        gguftools.open(folder / "gemma3.gguf").generate(
            "what", max_tokens=1, images=[folder / "a.png"], projector=encoder
        )


def test_images_are_opened_in_rgb_as_they_were_held(tmp_path):
    values = scene(20, 30)
    for mode in ("RGBA", "L", "P", "CMYK", "1", "LA", "I;16"):
        file = tmp_path / f"{mode[0]}.tif"
        Image.fromarray(values).convert(mode if mode != "I;16" else "I").convert(mode).save(file)
        assert (open_image(file).mode, open_image(file).size) == ("RGB", (30, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.fromarray(values).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(np.asarray(open_image(tmp_path / "turned.png")), np.rot90(values, -1))


def test_broken_and_huge_images_are_refused(tmp_path):
    whole = tmp_path / "whole.png"
    Image.fromarray(scene(200, 300)).save(whole)
    half = tmp_path / "half.png"
    half.write_bytes(whole.read_bytes()[:2000])
    with pytest.raises(FileError, match=r"half\.png is not a whole image"):
        open_image(half)
    for side, wrong in ((12_000, "12,000 × 12,000 pixels; at most 67,108,864"), (60_000, "at most 67,108,864")):
        content = bytearray(whole.read_bytes())
        content[16:24] = side.to_bytes(4, "big") * 2
        content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
        (tmp_path / "huge.png").write_bytes(content)
        with pytest.raises(OptionError, match=wrong):
            open_image(tmp_path / "huge.png")


def test_the_command_sees_images(folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = ("--mmproj", "mmproj-gemma3.gguf", "--image", "a.png", "--image", "b.jpg", "--temp", "0", "-n", "3")
    done = typed("generate", "gemma3.gguf", "-p", "what", "--chat", *words)
    assert done.returncode == 0, done.stderr
    assert "prompt 31 tokens" in done.stderr
    done = typed("generate", "mmproj-gemma3.gguf", "-p", "what", *words)
    assert done.returncode == 1
    assert "is an encoder for images or audio" in done.stderr


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("gemma3", "projector.scale_factor", 255, "scale_factor is 255; at most 64 is expected"),
        ("gemma3", "projector.scale_factor", 65535, "scale_factor is 65535; at most 64 is expected"),
        ("gemma3", "projector.scale_factor", 64, "do not fit each other"),
        ("gemma3", "image_size", 3, "do not fit each other|sides that"),
        ("gemma3", "image_size", 9000, "8,192 are the most"),
        ("qwen2-5-vl", "spatial_merge_size", 65535, "at most 64"),
        ("qwen2-5-vl", "image_min_pixels", 1 << 31, "at most"),
    ],
)
def test_numbers_that_do_not_fit_are_one_error(folder, name, key, value, message):
    projector = gguftools.open(folder / f"mmproj-{name}.gguf")
    projector.metadata[f"clip.vision.{key}"] = value
    with pytest.raises(GgufToolsError, match=message):
        gguftools.open(folder / f"{name}.gguf").generate(
            "x", max_tokens=1, images=[folder / "a.png"], projector=projector
        )
