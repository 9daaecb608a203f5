"""The site builds without a warning; what pages show runs, those of a page one after the other, in one folder."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

import gguftools
from gguftools.cli.usage import options_of

from . import template
from .conftest import ROOT
from .gguftools.command_line import program

sys.path.insert(0, str(ROOT / "docs"))
import sessions

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r'^```(console|python|\w+ title="[\w.-]+")\n(.*?)^```', re.MULTILINE | re.DOTALL)
CALL = re.compile(r"gguftools ([a-z][a-z-]*)([^`\n]*)")
SHORT = 14_000  # characters
PROGRAM: Any = program()


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of a page's console sessions, Python examples, and files, which have a title."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def shape(lines: list[str]) -> list[str]:
    """Lines of an output without what differs from run to run: numbers, widths of columns, paths of temporary files."""
    return [re.sub(r"[-+−\d][\d.,e+-]*( ?[kMG]?B\b)?", "#", " ".join(line.split())) for line in lines]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a checkout to whoever types the commands, but that the novel is short: eight windows of
    512 tokens, the most that a command asks for.
    """
    monkeypatch.setenv("COLUMNS", str(sessions.COLUMNS))
    monkeypatch.setenv("NO_COLOR", "1")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    novel = tmp_path / "examples" / "persuasion.txt"
    novel.write_text(novel.read_text(encoding="utf-8")[:SHORT], encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_examples_run(page: Path, folder: Path):
    for language, group in groupby(blocks(page), key=itemgetter(0)):
        texts = [text for _, text in group]
        if language == "python":
            done = template.run(texts, folder, timeout=300, python=True)
            assert done.returncode == 0, f"{page.name}: {done.stdout}{done.stderr}"
            continue
        if name := sessions.file_of(language):
            (folder / name).write_text("".join(texts), encoding="utf-8")
            continue
        for _, line, output in sessions.commands("".join(texts)):
            if sessions.is_ours(line):
                check_command(page, folder, line, output)


def check_command(page: Path, folder: Path, line: str, output: list[str]) -> None:
    """Run what a page shows typed, and compare what is printed with what the page shows."""
    words, interrupted = shlex.split(line, comments=True), sessions.is_interrupted(output)
    assert words[0] in ("gguftools", "python"), f"{page.name} shows {line!r}"
    if interrupted:
        done = template.run([sessions.INTERRUPTED.format(arguments=words)], folder, timeout=300, python=True)
    elif words[0] == "python":
        done = template.run([(folder / words[1]).read_text("utf-8")], folder, timeout=300, python=True)
    else:
        done = template.run(words[1:], folder, timeout=300)
    assert done.returncode == sessions.STOPPED * interrupted, f"{line} failed: {done.stdout}{done.stderr}"
    if output:
        text = "^C\n" * interrupted + sessions.printed(done.stdout, done.stderr, folder)
        printed = sessions.shown(text).splitlines()
        assert shape(output) == shape(printed), f"{page.name}: {line}: run python docs/generate.py"


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command[2:]} failed: {done.stdout}{done.stderr}"
    return done.stdout


def test_every_command_is_documented():
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for path in sorted((ROOT / "gguftools" / "cli" / "commands").glob("[a-z]*.py")):
        assert f"gguftools {path.stem.replace('_', '-')}" in pages, f"no page shows `gguftools {path.stem}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_and_options_that_a_page_names_exist(page: Path):
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    shown = [span for span in re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL) if not span.startswith("```python")]
    for name, arguments in CALL.findall("\n".join(shown)):
        assert name in PROGRAM.commands, f"gguftools {name}"
        options = re.findall(r"(?<=\s)--?[a-z][a-z0-9-]*", arguments.partition(" #")[0])
        assert set(options) <= {*options_of(PROGRAM.commands[name]), "--help", "-h"}, f"gguftools {name}{arguments}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path):
    named = re.findall(r"`((?:archs|benchmarks|docs|gguftools|quants|runtime|tests)/[\w./-]*)", page.read_text("utf-8"))
    assert not [name for name in named if not (ROOT / name).exists()]


def test_generated_parts_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stderr}: run python docs/generate.py"


def test_the_site_builds_without_a_warning(tmp_path: Path):
    run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "-f",
            str(ROOT / "mkdocs.yml"),
            "-d",
            str(tmp_path / "site"),
        ],
        ROOT,
    )
    assert (tmp_path / "site" / "python" / "index.html").is_file()
    assert "gguftools.convert" in (tmp_path / "site" / "api" / "make" / "index.html").read_text(encoding="utf-8")
    for page in (tmp_path / "site").rglob("*.html"):  # readers without a network see everything
        assert not re.search(r"""(src|href)="https?://[^"]*\.(js|css|woff2?)""", page.read_text(encoding="utf-8")), page


@pytest.mark.parametrize("name", [name for name in gguftools.__all__ if not name.startswith("__")])
def test_the_reference_explains_every_argument(name: str):
    """But for the first, which is what the docstring's first sentence is about."""
    public = getattr(gguftools, name)
    text = (inspect.getdoc(public) or "") + (inspect.getdoc(public.__init__) or "" if isinstance(public, type) else "")
    parameters = list(inspect.signature(public).parameters)[1:]
    assert text
    assert not [parameter for parameter in parameters if not re.search(rf"\b{parameter}\b", text)]


def test_every_command_is_a_function():
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert "Every command has its function" in text
    assert {name.replace("-", "_") for name in PROGRAM.commands} <= set(gguftools.__all__)
    assert not set(re.findall(r"(?<!\.)`([a-z_]+)`", text[text.index("each has a") : text.index("Two classes")])) - {
        *gguftools.__all__
    }


def test_every_page_is_in_the_navigation_that_the_readme_links() -> None:
    assert "(docs/index.md)" in (ROOT / "README.md").read_text()
    listed = (ROOT / "mkdocs.yml").read_text().split()
    assert [page.name for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in listed] == []


def test_the_docs_say_how_near_rounded_activations_come() -> None:
    text = (ROOT / "docs" / "perplexity.md").read_text()
    assert "within 0.03 %" in text[text.index("--round-activations") :]


def test_ten_walks_each_show_an_output() -> None:
    parts = (ROOT / "docs" / "walks.md").read_text("utf-8").split("\n## ")[1:]
    assert [part.split(".")[0] for part in parts] == [str(number) for number in range(1, 11)]
    for part in parts:
        shown = [
            output
            for language, text in BLOCK.findall(part)
            if language == "console"
            for *_, output in sessions.commands(text)
        ]
        assert any(shown), part.partition("\n")[0]
    assert "(docs/walks.md)" in (ROOT / "README.md").read_text("utf-8")


GROUPS_OF_ENTRY_POINTS = {"gguftools.architectures", "gguftools.commands", "gguftools.formats"}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_that_a_page_names_exist(page: Path):
    named = set(re.findall(r"`((?:archs|gguftools|quants|runtime)(?:\.\w+)+)[`(]", page.read_text("utf-8")))
    assert [name for name in sorted(named - GROUPS_OF_ENTRY_POINTS) if not exists(name)] == []


def exists(name: str) -> bool:
    """Whether a dotted name is of a module, or of what a module has."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def test_options_of_llama_cpp_that_a_page_lists_exist():
    """In the recorded build, where all options of a program are recorded."""
    recorded = json.loads((ROOT / "tests" / "data" / "llama_cpp_options.json").read_text("utf-8"))
    for command, names in re.findall(r"<!-- begin flags: (\S+) (.*?) -->", (ROOT / "docs/llama-cpp.md").read_text()):
        if command in recorded and command != "hash":
            known = {name.rstrip("=") for name in f"{recorded['common']} {recorded[command]}".split()}
            assert [name for name in names.split() if name not in known] == [], command


def test_pages_of_a_newcomer_can_be_typed_one_after_the_other():
    """In one folder, where each refuses to replace what another one wrote."""
    written: list[str] = []
    for name in ("README.md", "docs/walks.md", "docs/tutorial.md"):
        text = "".join(text for language, text in blocks(ROOT / name) if language == "console")
        written += sorted(set(re.findall(r"(?<![\w\\-])[\w-]+\.(?:gguf|html)\b", text)))
    assert [each for each in written if written.count(each) > 1] == []
