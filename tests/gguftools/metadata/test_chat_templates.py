"""What templates are given: messages, and which of a file's templates it is."""

from __future__ import annotations

from typing import Any

import pytest

from archs.metadata import Metadata
from gguftools.metadata.chat_templates import normalized_messages, render, rendered
from quants.errors import VocabularyError
from tests.conftest import ROOT

THOUGHTS = "{% for m in messages %}[{{ m.reasoning_content }}|{{ m.thinking }}]{{ m.content }}{% endfor %}"
MESSAGES: list[list[dict[str, Any]]] = [
    [{"role": "assistant", "content": "4", "reasoning_content": "2 and 2"}],
    [{"role": "assistant", "content": "4", "thinking": "2 and 2"}],
    [{"role": "assistant", "content": "4", "reasoning": "2 and 2"}],
    [{"role": "assistant", "content": "4", "reasoning": "c", "thinking": "b", "reasoning_content": "a"}],
    [{"role": "assistant", "content": "4", "reasoning": "c", "thinking": None}],
    [{"role": "assistant", "content": "4", "reasoning_content": ""}, {"role": "user", "content": None}],
]


@pytest.mark.parametrize("messages", MESSAGES)
def test_messages_are_those_that_transformers_renders(messages: list[dict[str, Any]]) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(ROOT / "examples" / "austen-4m")  # any tokenizer will do
    wanted = tokenizer.apply_chat_template(messages, chat_template=THOUGHTS, tokenize=False)
    assert render(THOUGHTS, [{"messages": messages}])[0].text == wanted


def test_reasoning_is_given_under_the_names_that_templates_read() -> None:
    found = normalized_messages([{"role": "assistant", "reasoning": "r", "tool_calls": None}, {"role": "user"}])
    assert found == [
        {"role": "assistant", "reasoning": "r", "reasoning_content": "r", "thinking": "r"},
        {"role": "user"},
    ]


def test_tools_have_a_template_of_their_own() -> None:
    metadata = Metadata({"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "with tools"})
    assert rendered(metadata, []) == "plain"
    assert rendered(metadata, [], tools=[{}]) == "with tools"


def test_templates_without_a_default_one_are_named() -> None:
    metadata = Metadata({"tokenizer.chat_template.rag": "r", "tokenizer.chat_templates": ["rag"]})
    with pytest.raises(VocabularyError, match="templates for rag, and no default one"):
        rendered(metadata, [])
