"""Conversations: what is sent, what is read again, how reasoning is split off, and the command on a terminal."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import gguftools
from gguftools.models.chat import Conversation, ConversationFullError, Splitter, reasoning_marks
from quants.errors import OptionError, VocabularyError

from ... import zoo_build
from ...conftest import ROOT
from ...zoo import ZOO
from ..command_line import EXAMPLE, run, typed

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}"
    "</think>{% endif %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    gguftools.convert(EXAMPLE, folder / "austen.gguf", "f32")
    model = gguftools.open(folder / "austen.gguf")
    model.chat_template = TEMPLATE
    model.save(folder / "chat.gguf")
    return folder / "chat.gguf"


@pytest.fixture(scope="module")
def model(path: Path) -> gguftools.Model:
    return gguftools.open(path)


def answer(chat: Conversation, text: str) -> str:
    return "".join(piece.text for piece in chat.ask(text))


def test_turns_are_those_of_the_template_and_only_new_tokens_are_read(model: gguftools.Model):
    chat = model.chat(system="Be brief.", **GREEDY)
    first = answer(chat, "Hello")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "And then?"},
    ]
    second = answer(chat, "And then?")
    assert chat.messages == [*messages, {"role": "assistant", "content": second}]
    alone = model.generate(messages, **GREEDY)
    text = "".join(piece.text for piece in alone)
    assert chat.generation is not None
    assert (chat.generation.prompt, second) == (alone.prompt, text.lstrip())
    assert chat.tokens_read < len(alone.prompt) - len(first) // 4  # neither the first turn nor its answer


def test_answers_are_written_anew(model: gguftools.Model):
    chat = model.chat(temperature=1.0, seed=1, max_tokens=12)
    with pytest.raises(OptionError, match="no answer to write anew"):
        list(chat.regenerate())
    first = answer(chat, "Hello")
    again = "".join(piece.text for piece in chat.regenerate())
    assert [each["content"] for each in chat.messages] == ["Hello", again]
    assert again != first
    assert chat.tokens_read == 1


def test_a_conversation_begins_anew(model: gguftools.Model):
    chat = model.chat(**GREEDY)
    first = answer(chat, "Hello")
    answer(chat, "And?")
    chat.clear()
    assert answer(chat, "Hello") == first
    chat.system = "Be brief."
    assert chat.messages == [{"role": "system", "content": "Be brief."}]


def test_an_answer_that_is_broken_off_stays(model: gguftools.Model):
    chat = model.chat(**GREEDY)
    pieces = chat.ask("Hello")
    begun = next(pieces).text
    pieces.close()  # type: ignore[attr-defined]
    assert chat.messages[-1] == {"role": "assistant", "content": begun.rstrip()}
    assert answer(chat, "And?")


def test_a_conversation_that_fills_the_context(model: gguftools.Model):
    chat = model.chat(context=60, **GREEDY)
    answer(chat, "Hello")
    with pytest.raises(ConversationFullError, match=r"the conversation has \d+ tokens; the context of 60 has no room"):
        answer(chat, "word " * 60)
    assert [each["role"] for each in chat.messages] == ["user", "assistant"]  # the turn is dropped
    chat.clear()
    assert answer(chat, "Hello")


def test_templates_that_are_missing(path: Path):
    model = gguftools.open(path)
    model.chat_template = None
    with pytest.raises(VocabularyError, match="the file has no chat template"):
        model.chat()
    with pytest.raises(OptionError, match="one answer a turn"):
        gguftools.open(path).chat(n=2)


def test_states_of_recurrent_layers_are_not_gone_back_over(tmp_path: Path):

    zoo_build.build(ZOO, "mamba", tmp_path / "checkpoint")
    gguftools.convert(tmp_path / "checkpoint", tmp_path / "mamba.gguf", "f32")
    model = gguftools.open(tmp_path / "mamba.gguf")
    model.chat_template = TEMPLATE
    chat = model.chat(context=400, ignore_eos=True, **GREEDY)
    for text in ("Hello", "And?", "Then?"):
        answer(chat, text)
        assert chat.generation is not None
        alone = model.generate(chat.generation.prompt, context=400, ignore_eos=True, **GREEDY)
        list(alone)
        assert chat.generation.tokens == alone.tokens


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        (TEMPLATE, ("<think>", "</think>")),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", ("<think>", "</think>")),
        ("{% for m in messages %}{{ m.content.split('[/THINK]')[-1] }}\n{% endfor %}", ("[THINK]", "[/THINK]")),
        (
            "{% for m in messages %}<|start|>{{ m.role }}{% if m.thinking %}<|channel|>analysis<|message|>"
            "{{ m.thinking }}<|end|><|start|>assistant{% endif %}<|channel|>final<|message|>{{ m.content }}<|return|>"
            "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
            ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
        ),
        (
            "{% for m in messages %}<{{ m.role }}>\n{% if m.role == 'assistant' %}<think>\n{{ m.reasoning_content }}\n"
            "</think>\n\n{% endif %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>\n<think>\n"
            "{% endif %}",
            ("<think>", "</think>"),
        ),
    ],
)
def test_marks_of_reasoning_are_the_templates(model: gguftools.Model, template: str, marks: tuple[str, str]):
    metadata = type(model.metadata)(model.metadata)
    metadata["tokenizer.chat_template"] = template
    assert reasoning_marks(metadata) == marks


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("text", "prompt", "thought", "said"),
    [
        ("<think>a b</think>\n\nyes", "user: ?", "a b", "\n\nyes"),
        ("a < b</thin </think>yes <think>", "<think>\n", "a < b</thin ", "yes <think>"),
        ("<the answer", "", "", "<the answer"),
        ("no <think>x</think>", "<think>\n\n</think>\n\n", "", "no <think>x</think>"),
        ("<think>never ends </th", "", "never ends </th", ""),
    ],
)
def test_reasoning_is_split_off(size: int, text: str, prompt: str, thought: str, said: str):
    splitter = Splitter(("<think>", "</think>"), prompt)
    pieces = [each for at in range(0, len(text), size) for each in splitter.add(text[at : at + size])]
    pieces += splitter.end()
    found = ["".join(each.text for each in pieces if each.is_reasoning is is_it) for is_it in (True, False)]
    assert found == [thought, said]


def test_reasoning_is_kept_apart_and_the_template_decides(model: gguftools.Model, monkeypatch: pytest.MonkeyPatch):
    chat = model.chat(**GREEDY)
    tokens = iter(model.tokenizer.encode("<think>so</think>yes", add_special=False))
    running = gguftools.load(model)
    forward = running.forward

    def scripted(*arguments: Any) -> Any:
        logits = forward(*arguments).copy()
        logits[:] = -30
        logits[-1, next(tokens, model.tokenizer.eos)] = 9
        return logits

    monkeypatch.setattr(running, "forward", scripted)
    answer(chat, "Why?")
    assert chat.messages[-1] == {"role": "assistant", "content": "yes", "reasoning_content": "so"}
    monkeypatch.undo()
    answer(chat, "Why?")
    assert chat.generation is not None
    assert "<think>" not in model.tokenizer.decode(chat.generation.prompt)


def test_lines_of_a_pipe_are_turns(path: Path, tmp_path: Path, model: gguftools.Model):
    file = tmp_path / "saved.json"
    lines = f"Hello\n\nAnd?\n/regen\n/save {file}\n/exit\nnever\n"
    done = run("chat", path, "-n", "12", "--temp", "0", cwd=tmp_path, stdin=lines)
    assert done.returncode == 0, done.stderr
    chat = model.chat(**GREEDY)
    first, second = answer(chat, "Hello"), answer(chat, "And?")
    assert done.stdout == f"{first}\n{second}\n{second}\n"
    assert json.loads(file.read_text())["messages"] == chat.messages
    again = typed("generate", path, "--prompts", file, "-n", "2")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/what\n", "error: there is no command /what"),
        ("/regen\n", "no answer to write anew"),
        ("/save\n", "/save needs the name of a file"),
        ("word " * 600 + "\n", "/clear begins a new one, and --ctx takes a larger context"),
    ],
)
def test_errors_in_a_pipe_end_it(path: Path, tmp_path: Path, line: str, words: str):
    done = run("chat", path, "-n", "2", cwd=tmp_path, stdin=line)
    assert done.returncode == 1
    assert words in done.stderr


HANDLED = 30  # seconds in which Ctrl-C is answered on a busy machine


def test_ctrl_c_on_a_terminal_stops_the_answer_and_not_the_program(path: Path):
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "gguftools", "chat", str(path), "--temp", "0", "--ctx", "100000", "--threads", "1"]
    words += ["--sampling", "logit_bias=0-inf"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"}
    child = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True, close_fds=True
    )
    os.close(theirs)
    shown = ""

    def until(text: str, seconds: float = 240) -> None:
        nonlocal shown
        end = time.monotonic() + seconds
        while text not in shown:
            assert time.monotonic() < end, f"{text!r} did not come: {shown!r}"
            if select.select([ours], [], [], 0.2)[0]:
                shown += os.read(ours, 4096).decode("utf-8", "replace")
        shown = shown.split(text, 1)[1]

    def interrupt(answer: str) -> None:
        """Press Ctrl-C, and once more if Python lost it between showing the prompt and waiting for a key."""
        child.send_signal(signal.SIGINT)
        try:
            until(answer, HANDLED)
        except AssertionError:
            child.send_signal(signal.SIGINT)
            until(answer)

    try:
        until("> ")
        os.write(ours, b"Hello\n")
        until("Hello\r\n")
        until("the")  # the answer goes on
        child.send_signal(signal.SIGINT)
        until("stopped")
        until("> ")
        interrupt("Ctrl-C again")
        until("> ")
        os.write(ours, b"/help\n")
        until("/regen")
        until("> ")
        interrupt("Ctrl-C again")
        until("> ")
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.send_signal(signal.SIGINT)
            child.wait(HANDLED)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=120) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)
