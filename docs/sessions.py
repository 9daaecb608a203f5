"""Run the commands of pages: the output under each command, and the picture of a terminal.

A page's ```console blocks are run from top to bottom in one folder with the examples. `filled` writes what each command
prints on standard output under it; a long output is cut. Lines that measure the machine (speeds, times) are left out.
A block with a title is a file of that name. A command with `^C` under it is interrupted at its first progress.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r'^```(console|\w+ title="[\w.-]+")\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COLUMNS = 100
PICTURE_COLUMNS = 118
MAX_LINES = 18  # of one command's output on a page
CUT = "…"
SPEED = re.compile(r"^[\d.]+ (s|min)\b.*\n|, [\d.,]+ tokens/s .*|^.* measured in [\d.]+ s.*\n", re.MULTILINE)
NOTES = re.compile(r"^(?:resumed:|finished work) .*\n", re.MULTILINE)  # on standard error, and shown
INTERRUPTED = """
import os, signal, sys
from contextlib import contextmanager
from gguftools.cli import ui
from gguftools.__main__ import main

bar = ui.bytes_progress

@contextmanager
def stopping(title):
    with bar(title) as progress:
        def stop(done, total, item):
            progress(done, total, item)
            if done:
                os.kill(os.getpid(), signal.SIGINT)
        yield stop

ui.bytes_progress = stopping
sys.argv = {arguments!r}
main()
"""
STOPPED = 130  # exit code
OTHER_PROGRAMS = ("make ", "pip ", "pipx ", "uv ", "git ", "cd ")


def commands(session: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (lines as typed, command, lines under it) of each command after `$ ` in a block."""
    for part in re.split(r"^(?=\$ )", session, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        count = next(n for n, line in enumerate(lines, 1) if not line.endswith("\\"))
        typed = "\n".join(lines[:count])
        yield typed, typed[2:].replace("\\\n", " "), lines[count:]


def is_ours(command: str) -> bool:
    return not command.startswith(OTHER_PROGRAMS)


def shown(output: str) -> str:
    """Return the part of an output that a page shows."""
    lines = [line.rstrip() for line in SPEED.sub("", output).rstrip().splitlines()]
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 1], CUT]
    return "".join(f"{line}\n" for line in lines)


def folder_with_examples(folder: Path) -> None:
    """Link what pages read, so that commands run as in a clone."""
    (folder / "examples").symlink_to(ROOT / "examples", target_is_directory=True)


def is_interrupted(output: Sequence[str]) -> bool:
    return output[:1] == ["^C"]


def printed(stdout: str, stderr: str, folder: Path) -> str:
    """Return what a page shows of the output of a command that ran in a folder."""
    return "".join(NOTES.findall(stderr)) + stdout.replace(f"{folder}/", "")


def run(command: str, folder: Path, interrupted: bool = False) -> str:
    words = shlex.split(command, comments=True)
    if words[0] not in ("gguftools", "python"):
        sys.exit(f"a page shows {command!r}, which is no call of gguftools")
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    arguments = words[1:] if words[0] == "python" else ["-m", *words]
    if interrupted:
        arguments = ["-c", INTERRUPTED.format(arguments=words)]
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != STOPPED * interrupted:
        sys.exit(f"{command}: exit code {done.returncode}: {done.stderr}")
    return "^C\n" * interrupted + printed(done.stdout, done.stderr, folder)


def filled(page: str) -> str:
    """Return a page with the output of each command under it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder_with_examples(folder)

        def block(match: re.Match[str]) -> str:
            if file := file_of(match[1]):
                (folder / file).write_text(match[2], encoding="utf-8")
                return match[0]
            parts = [
                f"{lines}\n{shown(run(command, folder, is_interrupted(output))) if is_ours(command) else ''}"
                for lines, command, output in commands(match[2])
            ]
            return f"```console\n{''.join(parts)}```"

        return BLOCK.sub(block, page)


def file_of(language: str) -> str:
    """Return the name of the file that a block holds, from its title; "" without one."""
    return language.partition('title="')[2].rstrip('"')


def on_terminal(command: str, folder: Path) -> str:
    """Return what a command prints on a terminal, with colours, without progress bars."""
    import pty  # POSIX alone

    own, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(PICTURE_COLUMNS), "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    words = shlex.split(command.replace("\\\n", " "))[1:]
    process = subprocess.Popen(
        [sys.executable, "-m", "gguftools", *words],
        cwd=folder,
        env=environment,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(own, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(own)
    if process.wait():
        sys.exit(f"{command}: exit code {process.returncode}")
    return b"".join(parts).decode().replace("\r\n", "\n")


def digest(session: Sequence[tuple[str, str]]) -> str:
    """Return a hash of the commands, which the picture holds."""
    return hashlib.sha256(repr(session).encode()).hexdigest()[:16]


def picture(session: Sequence[tuple[str, str]], title: str) -> str:
    """Return an SVG of a terminal in which commands ran. session: commands, each with the first words to show."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=PICTURE_COLUMNS, file=io.StringIO(), highlight=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder_with_examples(folder)
        for number, (command, start) in enumerate(session):
            output = SPEED.sub("", on_terminal(command, folder))
            console.print(Text.assemble("\n" if number else "", ("$ ", "bold green"), (command, "bold")))
            if start:
                output = f"{CUT}\n" + output[output.index(start) :]
            lines = Text.from_ansi(output).split("\n")
            while lines and not lines[-1].plain.strip():
                lines.pop()
            console.print(Text("\n").join(lines))
    template = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # nothing is fetched
    template = template.replace("Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace")
    svg: str = console.export_svg(title=title, code_format=template, unique_id="terminal")
    return svg.replace("</svg>", f"<!-- {digest(session)} --></svg>")
