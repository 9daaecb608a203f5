"""Prompts with images and sounds together: what stands where, and what is said where that is not clear."""

from __future__ import annotations

import re
import wave
from pathlib import Path

import numpy as np
import pytest

import gguftools
from quants import from_array
from quants.errors import OptionError
from runtime.sampling.parameters import Sampling

from ...archs.checkpoints import build_encoder, lettered, scene, waveform
from ...runtime.multimodal.test_vision import text_model
from ..command_line import typed

Image = pytest.importorskip("PIL.Image")
GREEDY = Sampling(temperature=0, ignore_eos=True)
SPECIAL = ("<|vision_bos|>", "<|vision_eos|>", "<|audio_bos|>", "<|audio_eos|>", "<|IMAGE|>", "<|AUDIO|>")
PARTS = (
    "{% for each in messages %}{{ each.role }}:{% for part in each.content %}"
    "{% if part.type == 'image' %}<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif part.type == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
TEXTS = "{% for each in messages %}{{ each.role }}:{{ each.content }}{% endfor %}"
IMAGE, SOUND = "<|vision_bos|>6<|vision_eos|>", "<|audio_bos|>27<|audio_eos|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2.5-Omni with letters and the tokens around both, its encoders, an image and a sound."""
    made = tmp_path_factory.mktemp("media")
    build_encoder("qwen2-5-omni", made / "qwen2-5-omni")
    gguftools.convert(made / "qwen2-5-omni", made / "mmproj.gguf", "f32", part="mmproj")
    running = text_model(made / "qwen2-5-omni")
    words = lettered(SPECIAL[2:])
    tokens = words["tokenizer.ggml.tokens"]
    words["tokenizer.ggml.tokens"] = [*tokens[:58], *SPECIAL[:2], *tokens[60:]]
    for name, template in (("parts", PARTS), ("texts", TEXTS)):
        metadata = dict(running.metadata) | words | {"tokenizer.chat_template": template}
        gguftools.Model(metadata, running.tensors).save(made / f"{name}.gguf")
    Image.fromarray(scene(61, 97)).save(made / "a.png")
    with wave.open(str(made / "a.wav"), "wb") as sound:
        sound.setparams((1, 2, 16_000, 0, "NONE", ""))
        sound.writeframes((waveform() * 32_767).astype("<i2").tobytes())
    return made


def written(folder: Path, prompt, name: str = "parts", **more) -> str:
    model = gguftools.open(folder / f"{name}.gguf")
    given = {"images": [folder / "a.png"], "audio": [folder / "a.wav"]} | more
    generation = model.generate(prompt, GREEDY, max_tokens=1, context=128, projector=folder / "mmproj.gguf", **given)
    list(generation)
    names = model.metadata["tokenizer.ggml.tokens"]
    text = "".join(names[token] for token in generation.prompt).replace("▁", " ")
    return re.sub(r"(<\|IMAGE\|>|<\|AUDIO\|>)\1*", lambda found: str(len(found[0]) // 9), text)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("what", f"<s>{IMAGE}{SOUND}what"),
        ("a<__audio__>b<__image__>c", f"<s>a{SOUND}b{IMAGE}c"),
        ("a<|vision_bos|><|IMAGE|><|vision_eos|>b<__audio__>c", f"<s>a{IMAGE}b{SOUND}c"),
        ("so <__audio__>", f"<s>{IMAGE}so {SOUND}"),
    ],
)
def test_both_stand_where_they_are_marked_or_in_front(folder, prompt, text):
    assert written(folder, prompt) == text


@pytest.mark.parametrize("name", ["parts", "texts"])
def test_chat_templates_mark_both_or_are_given_marks(folder, name):
    assert written(folder, [{"role": "user", "content": "so"}], name) == f"<s>user:{IMAGE}{SOUND}so"
    parts = [{"type": "audio"}, {"type": "text", "text": "in"}, {"type": "image"}]
    assert written(folder, [{"role": "user", "content": parts}], name) == f"<s>user:{SOUND}in{IMAGE}"
    said = [{"role": "user", "content": "a<__audio__>b<__image__>"}]
    assert written(folder, said, name) == f"<s>user:a{SOUND}b{IMAGE}"


def test_one_kind_alone_may_have_its_own_mark(folder):
    assert written(folder, "a<__image__>", audio=()) == f"<s>a{IMAGE}"
    assert written(folder, "a<__media__>", images=()) == f"<s>a{SOUND}"
    generations = written(folder, "b<__image__><__image__>", images=[folder / "a.png", scene(40, 40)], audio=())
    assert generations == f"<s>b{IMAGE}<|vision_bos|>4<|vision_eos|>"


@pytest.mark.parametrize("prompt", ["a<__media__>b", [{"role": "user", "content": "<__media__>"}]])
def test_a_mark_that_may_be_either_is_refused(folder, prompt):
    with pytest.raises(OptionError, match="<__media__> may be an image or a sound of this prompt"):
        written(folder, prompt)
    with pytest.raises(OptionError, match="images and sounds stand in a text"):
        written(folder, [3, 4])
    with pytest.raises(OptionError, match="2 sounds are marked in the prompt; 1 are given"):
        written(folder, "<__audio__><__audio__>")


def test_files_that_lie_are_one_line(folder, monkeypatch):
    """Cut short, a text model, no GGUF file, and a width that its tensors don't have."""
    monkeypatch.chdir(folder)
    whole = Path("mmproj.gguf").read_bytes()
    Path("cut.gguf").write_bytes(whole[: len(whole) // 2])
    Path("head.gguf").write_bytes(whole[:200])
    for name, width in (("other", 64), ("said", 32)):
        with gguftools.open("mmproj.gguf") as model:
            model.metadata["clip.vision.projection_dim"] = width
            if name == "said":
                model.tensors["mm.2.weight"] = from_array("mm.2.weight", np.ones((16, 128), np.float32))
                model.tensors["mm.2.bias"] = from_array("mm.2.bias", np.ones(16, np.float32))
            model.save(f"{name}.gguf", overwrite=True)
    wrong = {
        "cut.gguf": "the file is cut short",
        "head.gguf": "claims",
        "parts.gguf": "no encoder for images",
        "a.png": "is not a GGUF file",
        "absent.gguf": "there is no file",
        "other.gguf": "64 wide, those of the model 32",
        "said.gguf": "16 wide, those of the model 32",
    }
    for file, said in wrong.items():
        done = typed("generate", "parts.gguf", "-p", "so", "--mmproj", file, "--image", "a.png", "-n", "1")
        assert done.returncode == 1, file
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) <= 2


def test_the_command_sees_and_hears(folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = ("--mmproj", "mmproj.gguf", "--audio", "a.wav", "--image", "a.png", "--temp", "0", "-n", "3")
    done = typed("generate", "parts.gguf", "-p", "<__image__> or <__audio__>", *words)
    assert done.returncode == 0, done.stderr
    assert "prompt 42 tokens" in done.stderr
