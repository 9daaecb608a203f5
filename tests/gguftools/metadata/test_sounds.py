"""Prompts with sounds: what stands where, and what is said of sounds and encoders that do not fit."""

from __future__ import annotations

import re
import wave
from pathlib import Path

import numpy as np
import pytest

import gguftools
from gguftools.metadata.images import Sight, read_prompt
from quants.errors import GgufToolsError, ModelError
from runtime.multimodal.audio import AudioEncoder
from runtime.multimodal.gemma3n_audio import hard
from runtime.sampling.parameters import Sampling

from ...archs.checkpoints import build_encoder, lettered, waveform
from ...runtime.multimodal.test_vision import text_model
from ..command_line import typed

GREEDY = Sampling(temperature=0, ignore_eos=True)
NAMED = {
    "voxtral": ("[AUDIO]", "[BEGIN_AUDIO]"),
    "qwen3-asr": ("<|audio_pad|>", "<|audio_start|>", "<|audio_end|>"),
    "granite-speech": ("<|audio|>",),
    "qwen2-audio": ("<|AUDIO|>", "<|audio_bos|>"),
    "lfm2-audio": ("<|pad|>",),
    "gemma4": ("<|audio|>", "<|audio>", "<audio|>"),
    "mimo-v2-5": ("<|audio_pad|>", "<|mimo_audio_start|>", "<|mimo_audio_end|>"),
}
TEMPLATE = (
    "{% for each in messages %}{{ each.role }}:{% for part in each.content %}{% if part.type == 'audio' %}"
    "<|audio_start|><|audio_pad|><|audio_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with letters and the tokens around sounds, their encoders, and a sound of a second."""
    made = tmp_path_factory.mktemp("sounds")
    for name, special in NAMED.items():
        build_encoder(name, made / name)
        gguftools.convert(made / name, made / f"mmproj-{name}.gguf", "f32", part="mmproj")
        running = text_model(made / name)
        metadata = dict(running.metadata) | lettered(special) | {"tokenizer.chat_template": TEMPLATE}
        gguftools.Model(metadata, running.tensors).save(made / f"{name}.gguf")
    for file, rate in (("a.wav", 16_000), ("b.wav", 24_000)):
        with wave.open(str(made / file), "wb") as sound:
            sound.setparams((1, 2, rate, 0, "NONE", ""))
            sound.writeframes((waveform() * 32_767).astype("<i2").tobytes())
    return made


def written(folder: Path, name: str, prompt, audio=("a.wav",), **more) -> str:
    """The prompt as it is read: its tokens' texts, a run of a sound's as how many there are."""
    model = gguftools.open(folder / f"{name}.gguf")
    files = [folder / each if isinstance(each, str) else each for each in audio]
    generation = model.generate(
        prompt, GREEDY, max_tokens=1, audio=files, projector=folder / f"mmproj-{name}.gguf", **more
    )
    list(generation)
    names = model.metadata["tokenizer.ggml.tokens"]
    text = "".join(names[token] for token in generation.prompt).replace("▁", " ")
    token = NAMED[name][0]
    return re.sub(f"(?:{re.escape(token)})+", lambda found: str(found[0].count(token)), text)


@pytest.mark.parametrize(
    ("name", "prompt", "text"),
    [
        ("voxtral", "what", "<s>[BEGIN_AUDIO]18what"),
        ("granite-speech", "is <__media__> so", "<s>is 18 so"),
        ("qwen3-asr", "a<__media__>b", "<s>a<|audio_start|>14<|audio_end|>b"),
        ("gemma4", "so", "<s><|audio>27<audio|>so"),
        ("lfm2-audio", "so", "<s>14so"),
        ("qwen3-asr", [{"role": "user", "content": "so"}], "<s>user:<|audio_start|>14<|audio_end|>so"),
    ],
)
def test_a_sound_stands_where_it_is_marked_or_in_front(folder, name, prompt, text):
    assert written(folder, name, prompt) == text


def test_mimo_hears_more_samples_a_second(folder):
    wanted = "<s>is <|mimo_audio_start|>5<|mimo_audio_end|> so"  # 73 frames, 18 codes, 5 groups of four
    assert written(folder, "mimo-v2-5", "is <__media__> so", ["b.wav"]) == wanted
    with pytest.raises(GgufToolsError, match="16000 samples a second; 24000 were expected"):
        written(folder, "mimo-v2-5", "so")


GEMMA = {
    60: "<start_of_image>",
    61: "<start_of_audio>",
    324: "<end_of_image>",
    325: "<image_soft_token>",
    332: "<end_of_audio>",
    333: "<audio_soft_token>",
}


@pytest.fixture(scope="module")
def gemma3n(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3n, whose vocabulary ends with eight words for images and eight for sounds; its encoders, and a sound."""
    made = tmp_path_factory.mktemp("gemma3n")
    build_encoder("gemma3n", made / "gemma3n")
    gguftools.convert(made / "gemma3n", made / "mmproj.gguf", "f32", part="mmproj")
    running, words = text_model(made / "gemma3n"), lettered(())
    tokens = [GEMMA.get(i, each) for i, each in enumerate([*words["tokenizer.ggml.tokens"], *[""] * 276])]
    words |= {
        "tokenizer.ggml.tokens": [each or f"<{i}>" for i, each in enumerate(tokens)],
        "tokenizer.ggml.scores": [0.0] * 340,
        "tokenizer.ggml.token_type": [*words["tokenizer.ggml.token_type"][:60], *[3] * 280],
    }
    gguftools.Model(dict(running.metadata) | words, running.tensors).save(made / "m.gguf")
    return made


def test_gemma_3n_has_as_many_tokens_for_each_sound_and_words_of_its_encoder(gemma3n):
    with gguftools.open(gemma3n / "mmproj.gguf") as file, gguftools.open(gemma3n / "m.gguf") as model:
        encoder = AudioEncoder(file.metadata, file.tensors)
        ids, found = read_prompt("so<end_of_image>", [(Sight(encoder, model.metadata, model.tokenizer), [waveform()])])
        assert ids == [1, 4, 4, 61, *[333] * 188, 332, 4, 4, *model.tokenizer.encode("so", add_special=False), 324]
        assert [each.start for each in found] == [4, 192, len(ids) - 1]
        np.testing.assert_array_equal(found[1].embeddings, hard(encoder.weights, "mm.a.", [0]))
        np.testing.assert_array_equal(found[2].embeddings, hard(encoder.weights, "mm.", [0]))
        filled = found[0].embeddings[len(encoder.spectrograms(waveform())[0][0].T) // 16 + 1 :]
        np.testing.assert_array_equal(filled, np.repeat(hard(encoder.weights, "mm.a.", [7]), len(filled), axis=0))
        names = list(model.metadata["tokenizer.ggml.tokens"])
        names[60], names[333] = names[333], names[60]
        other = gguftools.Model(dict(model.metadata) | {"tokenizer.ggml.tokens": names}, model.tensors)
        sight = Sight(encoder, other.metadata, other.tokenizer)
        _, found = read_prompt("so<end_of_image>", [(sight, [waveform()])])
        assert len(found) == 1  # its last words are others


def test_gemma_3n_writes_after_a_sound(gemma3n):
    model = gguftools.open(gemma3n / "m.gguf")
    generation = model.generate("so", GREEDY, max_tokens=2, audio=[waveform()], projector=gemma3n / "mmproj.gguf")
    list(generation)
    assert len(generation.tokens) == 2
    long = np.tile(waveform(), 29)
    with pytest.raises(GgufToolsError, match=r"of 31\.4 seconds; Gemma 3n hears 30 at once"):
        model.generate("so", GREEDY, max_tokens=1, audio=[long], projector=gemma3n / "mmproj.gguf")


def test_samples_are_a_sound_too(folder):
    text = written(folder, "granite-speech", "a<__media__>b<__media__>", ["a.wav", waveform()[:8000]])
    assert text == "<s>a18b10"


def test_progress_is_told_of_layers_and_tokens(folder):
    for name, layers in (("granite-speech", 3), ("voxtral", 9)):
        told: list[tuple[int, int]] = []
        written(folder, name, "what", progress=lambda done, total, to=told: to.append((done, total)))
        assert told[:layers] == [(i, layers) for i in range(layers)]
        assert told[-1][0] == told[-1][1]


@pytest.mark.parametrize(
    ("wanted", "wrong"),
    [
        ({"projector": None}, "audio is given without projector"),
        ({"images": ["a.png"]}, "no encoder for images"),
        ({"audio": ["absent.wav"]}, "absent.wav can't be read"),
        ({"audio": ["voxtral.gguf"]}, "no WAV file"),
        ({"audio": [np.zeros((2, 4))]}, r"audio of shape \(2, 4\)"),
        ({"draft": "voxtral.gguf"}, "hear sounds"),
        ({"image_tokens": 3}, "image_tokens is given without images"),
        ({"prompt": [3, 4]}, "sounds stand in a text"),
        ({"prompt": "<__media__><__media__>"}, "2 sounds are marked in the prompt; 1 are given"),
        ({"projector": "voxtral.gguf"}, "no audio encoder"),
        ({"projector": "mmproj-granite-speech.gguf"}, r"no token '<\|audio\|>'"),
        ({"projector": "mmproj-qwen2-audio.gguf"}, "takes 109 frames; the encoder is for 48"),
    ],
)
def test_what_does_not_fit_is_one_error(folder, wanted, wrong, monkeypatch):
    monkeypatch.chdir(folder)
    given = {"prompt": "what", "audio": ["a.wav"], "projector": "mmproj-voxtral.gguf"} | wanted
    with pytest.raises(GgufToolsError, match=wrong):
        gguftools.open("voxtral.gguf").generate(given.pop("prompt"), max_tokens=1, **given)  # type: ignore[arg-type]


def test_the_command_hears_sounds(folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = ("--mmproj", "mmproj-granite-speech.gguf", "--audio", "a.wav", "--temp", "0", "-n", "3")
    done = typed("generate", "granite-speech.gguf", "-p", "what", *words)
    assert done.returncode == 0, done.stderr
    assert "prompt 23 tokens" in done.stderr
    done = typed("generate", "granite-speech.gguf", "-p", "what", *words, "--image", "a.png")
    assert done.returncode == 1
    assert "no encoder for images" in done.stderr


@pytest.mark.parametrize(("key", "most"), [("num_mel_bins", 4096), ("projector.stack_factor", 256)])
def test_numbers_that_would_fill_the_memory(key, most):
    metadata = {"clip.has_audio_encoder": True, "clip.projector_type": "ultravox", "clip.audio.num_mel_bins": 128}
    for value in (most + 1, 1 << 27):
        with pytest.raises(ModelError, match=f"{key} is {value}; at most {most} is expected"):
            AudioEncoder(metadata | {f"clip.audio.{key}": value}, {}).key(key)
