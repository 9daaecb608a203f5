"""Render conversations with a file's chat template, and compare them with another file's."""

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quants.arguments import PathLike
from quants.errors import VocabularyError

from ..metadata.chat_templates import SAMPLES, render, special_texts
from ..metadata.prompts import Message, as_conversations, conversations
from ..models.model import Model, opened, opened_gguf, path_of
from ..writing.report import verdict_word

Messages = PathLike | Sequence[Sequence[Message]]  # a file of conversations, or conversations
TODAY = "2026-01-01T12:00:00"  # for templates that write the date: the same text whenever it is rendered


@dataclass(frozen=True)
class RenderedText:
    """A conversation's text, or the template's error."""

    name: str
    text: str | None
    error: str | None

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "text": self.text, "error": self.error}


@dataclass(frozen=True)
class TemplateReport:
    """Conversations rendered with a file's chat template."""

    file: Path
    texts: list[RenderedText]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"file": str(self.file), "texts": [each.as_dict() for each in self.texts]}


@dataclass(frozen=True)
class TemplateComparison:
    """Conversations that two chat templates render differently. differences: by name, lines of a unified diff."""

    file: Path
    other: Path
    differences: dict[str, list[str]]

    @property
    def equal(self) -> bool:
        """Return whether all texts are the same."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        about = {"file": str(self.file), "other": str(self.other), "verdict": verdict_word(self.equal)}
        return about | {"differences": self.differences}


def chat_template(source: PathLike | Model, messages: Messages | None = None) -> TemplateReport:
    """Render conversations with a file's chat template, up to where an answer begins; it runs in a sandbox.

    source: a GGUF file, any shard of a split set, its URL, or a Model. messages: a file of conversations, JSON or
    JSON lines, or conversations, each a list of {"role": …, "content": …}; None for a few samples.
    Raises FileError, OptionError, VocabularyError for a template that is missing, or takes too long.
    """
    return TemplateReport(path_of(source), _rendered(opened_gguf(source), messages))


def compare_chat_templates(
    source: PathLike | Model, other: PathLike | Model, messages: Messages | None = None
) -> TemplateComparison:
    """Compare conversations rendered with two files' chat templates.

    source: as of `chat_template`; other: also a Hugging Face folder. messages, errors: as of `chat_template`.
    """
    one, two = opened_gguf(source), opened(other)
    pairs = zip(_rendered(one, messages), _rendered(two, messages), strict=True)
    differences = {
        ours.name: _difference(_lines(ours), _lines(theirs), str(one.path), str(two.path))
        for ours, theirs in pairs
        if (ours.text, bool(ours.error)) != (theirs.text, bool(theirs.error))
    }
    return TemplateComparison(path_of(source), path_of(other), differences)


def _rendered(model: Model, messages: Messages | None) -> list[RenderedText]:
    """Return a text for each conversation."""
    template = model.chat_template
    if not isinstance(template, str):
        raise VocabularyError(f"{model.path} has no chat template", "set one with `gguftools set-metadata`")
    asked: Mapping[str, Mapping[str, Any]] = SAMPLES
    if messages is not None:
        if isinstance(messages, (str, os.PathLike)):
            given = conversations(Path(messages))
        else:
            given = as_conversations(messages)
        asked = {f"conversation {number}": {"messages": each} for number, each in enumerate(given, 1)}
    common: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": True}
    common |= special_texts(model.metadata)
    answers = render(template, [{**common, **each} for each in asked.values()], now=TODAY)
    return [RenderedText(name, each.text, each.error) for name, each in zip(asked, answers, strict=True)]


def _lines(rendered: RenderedText) -> list[str]:
    if rendered.text is None:
        return [f"refused: the chat template {rendered.error}"]
    return rendered.text.split("\n")


def _difference(one: Sequence[str], other: Sequence[str], name: str, other_name: str) -> list[str]:
    return list(difflib.unified_diff(one, other, name, other_name, lineterm=""))
