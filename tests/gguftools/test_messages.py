"""Messages of the library name parameters; only the command line has options. It puts them in (`in_options`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from ..conftest import ROOT

FILES = [
    path
    for package in ("quants", "archs", "runtime", "gguftools")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "cli" not in path.relative_to(ROOT).parts
]
OPTION = re.compile(r"(?<![\w-])--[a-z]")
QUOTED = re.compile(r"`gguftools [^`]*`")  # a whole call is an example
ALLOWED = (  # other programs' options, words of a call that is built, the table of architectures, colours of a page
    "llama-perplexity's --multiple-choice",
    "`llama-eval-callback",
    "needs --mmproj: ",
    "(--roll-back undoes it)",
    # commands in a model card, and in a file of settings
    " --mmproj X",
    "sha256sum --check",
    "hf download X",
    '--include "X/*"',
    "gguftools release X --settings",
    "gguftools reproduce X --source",
    "without `--gptq X`",
    "with --settings.",
)


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield texts of the code but docstrings, f-strings as one."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside | docs:
            yield node.lineno, node.value


def test_messages_name_no_options() -> None:
    found = []
    for path in FILES:
        for line, text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            rest = QUOTED.sub("", text)
            if " " in rest and OPTION.search(rest) and not any(each in rest for each in ALLOWED):
                found.append(f"{path.relative_to(ROOT)}:{line}: {text}")
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_wrong"), [("pass --overwrite to replace it", True), ("`gguftools convert --mtp` writes it", False)]
)
def test_the_check_sees_options(text: str, is_wrong: bool) -> None:
    assert bool(OPTION.search(QUOTED.sub("", text))) is is_wrong
