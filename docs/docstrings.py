"""An extension of griffe: the docstrings of this project, in the sections that mkdocstrings lays out.

A docstring here explains a parameter by `name: what it is` after a sentence, and says in a sentence what is raised.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class Sections(griffe.Extension):
    """Give each function's docstring an `Args:` section."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        if func.docstring is not None:
            names = [each.name for each in func.parameters if each.name not in ("self", "cls")]
            func.docstring.value = sections(func.docstring.value, names)

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        if cls.docstring is not None:
            cls.docstring.value = sections(cls.docstring.value, [], list(cls.attributes))


def sections(text: str, parameters: list[str], attributes: list[str] | None = None) -> str:
    """A docstring with the explanations of parameters (or attributes) in a section of their own."""
    names = parameters or attributes or []
    if not names or re.search(r"^(Args|Attributes):", text, re.MULTILINE):
        return text
    parts = re.split(rf"(?:(?<=[.;)])[ \n]+|\n+)({'|'.join(map(re.escape, names))})(\([^)]*\))?:\s", text)
    called = [f"called with {each}: " if each else "" for each in parts[2::3]]  # as in progress(done, total): …
    before = parts[0]
    explained = dict(zip(parts[1::3], map("".join, zip(called, parts[3::3], strict=True)), strict=True))
    if not explained:
        return text
    last, after = next(reversed(explained)), ""
    end = re.search(r"\n\n|(?<=[.;)])[ \n]+(?=Raises |Returns )", explained[last])
    if end is not None:
        explained[last], after = explained[last][: end.start()], explained[last][end.end() :]
    lines = [f"    {name}: {_one_line(meaning)}" for name, meaning in explained.items()]
    title = "Args" if parameters else "Attributes"
    return "\n\n".join(filter(None, (before.strip(), after.strip(), f"{title}:\n" + "\n".join(lines))))


def _one_line(text: str) -> str:
    text = re.sub(r"\s*\n\s*", " ", text.strip().rstrip(";")).replace("> ", "\\> ")
    return text if text.endswith(".") else f"{text}."
