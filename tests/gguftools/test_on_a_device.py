"""`generate`, `chat`, `embed` and `evaluate` on a device: the same as on the processor, or one clear line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguftools
from gguftools.measurement.evaluation import evaluate
from gguftools.measurement.options import EvaluationOptions
from gguftools.models.devices import DeviceOptions
from gguftools.models.running import running_model
from quants.errors import OptionError
from runtime.prefill import CHUNK
from runtime.sampling.parameters import Sampling
from runtime.sampling.sampler import Sampler
from runtime.speculation.decoding import speculation_of
from runtime.speculation.parameters import Drafting

from .. import zoo_build
from ..archs import checkpoints
from ..archs.checkpoints import build_encoder, lettered, scene
from ..runtime.multimodal.test_vision import text_model
from ..verify.embeddings import HEADS, PAIRS, TEXTS, made
from ..zoo import ZOO
from .command_line import EXAMPLE, refused, typed

pytestmark = pytest.mark.device
GREEDY = Sampling(temperature=0, ignore_eos=True)
PROMPT = "It is a truth universally acknowledged, that a single man"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("device") / "austen.gguf"
    gguftools.convert(EXAMPLE, file, "f32")
    gguftools.open(file).save(file.with_name("small.gguf"), "Q2_K")
    return file


def almost_enough(model: gguftools.Model) -> DeviceOptions:
    """Return a device without room for the whole model and some tokens."""
    return DeviceOptions("cpu", memory=running_model(model, device="cpu").bytes_on_device(8) - 1)


def texts(path: Path, device: Any, **options: Any) -> list[list[int]]:
    options = {"max_tokens": 30, **options}
    if options.get("draft") == "model":
        options["draft"] = path.with_name("small.gguf")
    made = gguftools.open(path).generate_samples(PROMPT, options.pop("sampling", GREEDY), device=device, **options)
    for each in made:
        list(each)
    return [each.tokens for each in made]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cache_type": "f16"},
        {"n": 3, "sampling": Sampling(temperature=0.7, seed=3)},
        {"n": 2, "best_of": 3, "sampling": Sampling(temperature=0.9, seed=5)},
        {"n": 2, "beam_width": 3},
        {"draft": "lookup"},
        {"draft": "model"},
        {"draft": "model", "drafting": Drafting(children=2)},
        {"prompt_logprobs": 2},
    ],
    ids=lambda each: " ".join(each) or "greedy",
)
def test_the_same_texts_as_on_the_processor(path: Path, options: dict[str, Any]) -> None:
    assert texts(path, "cpu", **options) == texts(path, None, **options)


def test_a_rounded_cache_is_as_large_as_on_the_processor(path: Path) -> None:
    sizes = []
    for device in ("cpu", None):
        generation = gguftools.open(path).generate(PROMPT, GREEDY, device=device, cache_type="q8_0", max_tokens=8)
        list(generation)
        sizes.append(generation.cache_bytes)
    assert sizes[0] == sizes[1]


def test_weights_stay_on_the_device_from_text_to_text(path: Path) -> None:
    model = gguftools.open(path)
    runs = [model.generate(PROMPT, GREEDY, device=device, max_tokens=2).model for device in ("cpu", "cpu", None)]
    assert runs[0] is runs[1]
    assert runs[2].device is None


def test_a_conversation_reads_only_what_is_new(path: Path) -> None:
    model, answers = gguftools.open(path), []
    model.chat_template = "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}"
    for device in ("cpu", None):
        chat = model.chat(GREEDY, device=device, max_tokens=12)
        said = ["".join(piece.text for piece in chat.ask(text)) for text in ("Who is she?", "And he?")]
        answers.append((said, chat.tokens_read))
    assert answers[0] == answers[1]
    assert answers[0][1] < 40


@pytest.mark.parametrize("entry", ["bert", "modernbert", "qwen3", "t5", "falcon-h1"])
def test_vectors_are_those_of_the_processor(entry: str, tmp_path: Path, shared: Path) -> None:
    model = gguftools.open(made(entry, tmp_path, head=False))
    for pooling in ("mean", "cls", "last", "none"):
        wanted = model.embed(TEXTS, pooling=pooling).vectors
        for device in ("cpu", *([] if entry == "t5" else [almost_enough(model)])):  # whose layers alone fit
            found = model.embed([*TEXTS], pooling=pooling, device=device).vectors
            np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("entry", HEADS)
def test_scores_are_those_of_the_processor(entry: str, tmp_path: Path, shared: Path) -> None:
    model = gguftools.open(made(entry, tmp_path, head=True))
    wanted = model.embed(PAIRS, pooling="rank").vectors
    np.testing.assert_allclose(model.embed(PAIRS, pooling="rank", device="cpu").vectors, wanted, atol=1e-5)


def test_tasks_are_scored_as_on_the_processor(path: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.txt"
    endings = ["smiled at her sister", "was a man of fortune", "rained", "went to Bath in the morning"]
    tasks.write_text("".join(f"Elizabeth {i}\n{i % 4}\n" + "\n".join(endings) + "\n" for i in range(6)))
    reports = [
        evaluate(
            [path, path.with_name("small.gguf")],
            hellaswag=tasks,
            options=EvaluationOptions(precision="exact", device=device),
        )
        for device in (None, "cpu", almost_enough(gguftools.open(path)))
    ]
    assert [report.device for report in reports] == ["", "the processor (torch)", "the processor (torch)"]
    for report in reports[1:]:
        for one, other in zip(report.files, reports[0].files, strict=True):
            np.testing.assert_allclose(one.tests["hellaswag"].scores, other.tests["hellaswag"].scores, atol=2e-5)


@pytest.mark.parametrize("options", [{}, {"draft": "model"}], ids=["alone", "with a draft"])
def test_a_model_that_does_not_fit(path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"need[s]? [\d,]+ bytes on the processor \(torch\), which has [\d,]+ bytes"):
        texts(path, almost_enough(gguftools.open(path)), **options)


def test_a_draft_takes_room_next_to_the_model(path: Path) -> None:
    room = DeviceOptions(
        "cpu", memory=running_model(gguftools.open(path), device="cpu").bytes_on_device(CHUNK) * 3 // 2
    )
    assert texts(path, room)
    with pytest.raises(OptionError, match="model and draft need"):
        texts(path, room, draft="model")


@pytest.mark.parametrize("entry", ["mamba", "falcon-h1", "deepseek-v2-lite"])
def test_drafts_of_other_layers(entry: str, tmp_path: Path, shared: Path) -> None:
    zoo_build.build(ZOO, entry, tmp_path / "checkpoint")
    gguftools.convert(tmp_path / "checkpoint", tmp_path / "f32.gguf", "f32")
    model = gguftools.open(tmp_path / "f32.gguf")
    wanted, _ = speak(model, None)
    for draft in ("lookup", small_of(model, tmp_path)):
        found, counts = speak(model, "cpu", draft)
        assert found == wanted
        assert counts.accepted > 0 or draft == "lookup"


def small_of(model: gguftools.Model, folder: Path) -> Path:
    model.save(folder / "small.gguf", "Q8_0")
    return folder / "small.gguf"


def speak(model: gguftools.Model, device: str | None, draft: Any = None) -> tuple[list[int], Any]:
    """Return a text that nothing ends, and the counts of its drafts."""
    prompt, drafting = [5, 9, 13, 5, 9, 13, 5, 9], None if draft is None else Drafting(4)
    generation = model.generate(prompt, GREEDY, max_tokens=24, device=device, draft=draft, drafting=drafting)
    generation.sampler.end_ids = frozenset()
    list(generation)
    return generation.tokens, generation.speculated


@pytest.mark.parametrize("entry", ["qwen3-5", "glm4-moe-lite", "qwen4-exp"])
def test_the_models_own_layer_drafts(entry: str, tmp_path: Path) -> None:
    checkpoints.build(entry, tmp_path / entry)
    gguftools.convert(tmp_path / entry, tmp_path / "f32.gguf", "f32")
    model = gguftools.open(tmp_path / "f32.gguf")
    (found, counts), (wanted, theirs) = (speak(model, device, "mtp") for device in ("cpu", None))
    assert found == wanted
    assert counts == theirs


def test_files_that_read_a_models_states_are_refused(path: Path) -> None:
    net = running_model(gguftools.open(path), device="cpu")
    with pytest.raises(OptionError, match="drafts of a file that reads a model's states are computed on the processor"):
        speculation_of(net, Sampler(GREEDY), object(), net.vocabulary_size)  # type: ignore[arg-type]


# The commands


def called(command: str, path: Path, *options: object) -> subprocess.CompletedProcess[str]:
    tasks = path.with_name("tasks.txt")
    tasks.write_text("She\n0\nwent to Bath\nrained\nwas\nmarried a man of fortune\n")
    own = {
        "generate": ("-p", PROMPT, "-n", "8", "--temp", "0"),
        "embed": ("-p", PROMPT, "--pooling", "mean"),
        "evaluate": ("--hellaswag", tasks, "--precision", "exact"),
    }
    return typed(command, path, *own[command], *options)


@pytest.mark.parametrize("command", ["generate", "embed", "evaluate"])
def test_a_command(command: str, path: Path) -> None:
    done = [called(command, path, "--json", *options) for options in ((), ("--device", "cpu"))]
    assert [each.returncode for each in done] == [0, 0], done[1].stderr
    results = [json.loads(each.stdout) for each in done]
    assert [each["device"] for each in results] == ["", "the processor (torch)"]
    for name in ("text", "tokens", "width", "precision"):
        assert results[0].get(name) == results[1].get(name)


@pytest.mark.parametrize("command", ["generate", "embed", "evaluate"])
def test_what_a_command_refuses(command: str, path: Path) -> None:
    refused(called(command, path, "--device", "cuda:99"), "torch finds no device 'cuda:99' here", "there are:")
    refused(called(command, path, "--device", "gpu"), "device is 'gpu'", "auto, cpu, cuda")
    refused(called(command, path, "--device-memory", "1G"), "--device-memory needs --device", code=2)


def test_generate_refuses_a_model_that_does_not_fit(path: Path) -> None:
    done = called("generate", path, "--device", "cpu", "--device-memory", "40M")
    refused(done, "the model needs", "which has 40,000,000 bytes for them", "or one in F16", "or no device")


def test_chat_answers_on_a_device(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = path.with_name("chat.gguf")
    model = gguftools.open(path)
    model.chat_template = "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}"
    model.save(file, overwrite=True)
    said = []
    for options in ((), ("--device", "cpu")):
        monkeypatch.setattr("sys.stdin", open_lines("Who is she?\n"))
        done = typed("chat", file, "-n", "8", "--temp", "0", *options)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]
    assert said[0].strip()


def open_lines(text: str) -> Any:
    import io

    return io.StringIO(text)


@pytest.mark.parametrize("command", ["generate", "chat", "embed", "evaluate"])
def test_help_has_a_panel(command: str) -> None:
    shown = typed(command, "--help").stdout
    assert "Device" in shown
    assert all(option in shown for option in ("--device", "--device-memory", "--fast"))


SPECIAL = {
    "gemma3": ("<image_soft_token>", "<start_of_image>", "<end_of_image>"),  # tokens of an image see each other
    "qwen2-5-vl": ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>"),  # and have rows and columns
    "qwen3-vl": ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>"),  # and are added to layers' outputs
    "cogvlm": ("<unk>", "<image>", "[x]"),  # and have weights of their own
}


@pytest.mark.parametrize("name", SPECIAL)
def test_an_image_in_the_prompt(name: str, tmp_path: Path, shared: Path) -> None:
    pytest.importorskip("PIL")
    build_encoder(name, tmp_path / name)
    gguftools.convert(tmp_path / name, tmp_path / "mmproj.gguf", "f32", part="mmproj")
    running = text_model(tmp_path / name)
    words = lettered(SPECIAL[name])
    model = gguftools.Model(dict(running.metadata) | words, running.tensors)
    texts = []
    for device in ("cpu", None):
        media = {"images": [scene(61, 97)], "projector": tmp_path / "mmproj.gguf"}
        generation = model.generate("what", GREEDY, max_tokens=6, device=device, **media)
        list(generation)
        texts.append(generation.tokens)
    assert texts[0] == texts[1]
