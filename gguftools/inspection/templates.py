"""What a file's chat template makes of conversations, beside what another's makes of them."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quants.errors import VocabularyError

from ..metadata.chat_templates import SAMPLES, render, special_texts
from ..metadata.prompts import conversations
from ..models.model import Model

TODAY = "2026-01-01T12:00:00"  # for templates that write the date: the same text whenever it is rendered


@dataclass(frozen=True)
class RenderedText:
    """A conversation's text, or why the template has none."""

    name: str
    text: str | None
    error: str | None

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "text": self.text, "error": self.error}


def rendered_texts(model: Model, messages: Path | None = None) -> list[RenderedText]:
    """Texts of conversations up to where an answer begins. messages: a file of them; None for a few usual ones.

    Raises FileError, OptionError, VocabularyError for a template that is missing, or takes too long.
    """
    template = model.chat_template
    if not isinstance(template, str):
        raise VocabularyError(f"{model.path} has no chat template", "set one with `gguftools set-metadata`")
    asked: Mapping[str, Mapping[str, Any]] = SAMPLES
    if messages is not None:
        given = enumerate(conversations(messages), 1)
        asked = {f"conversation {number}": {"messages": each} for number, each in given}
    common: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": True}
    common |= special_texts(model.metadata)
    answers = render(template, [{**common, **each} for each in asked.values()], now=TODAY)
    return [RenderedText(name, each.text, each.error) for name, each in zip(asked, answers, strict=True)]


def compare_templates(one: Model, other: Model, messages: Path | None = None) -> dict[str, list[str]]:
    """Conversation → lines of a diff, of those that differ. Raises as `rendered_texts` does."""
    pairs = zip(rendered_texts(one, messages), rendered_texts(other, messages), strict=True)
    return {
        ours.name: _difference(_lines(ours), _lines(theirs), str(one.path), str(other.path))
        for ours, theirs in pairs
        if (ours.text, bool(ours.error)) != (theirs.text, bool(theirs.error))
    }


def _lines(rendered: RenderedText) -> list[str]:
    if rendered.text is None:
        return [f"refused: the chat template {rendered.error}"]
    return rendered.text.split("\n")


def _difference(one: Sequence[str], other: Sequence[str], name: str, other_name: str) -> list[str]:
    return list(difflib.unified_diff(one, other, name, other_name, lineterm=""))
