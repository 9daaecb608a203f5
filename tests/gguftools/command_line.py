"""Run the command line: in this process, in one forked from a template, in one of its own, or on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .. import template
from ..conftest import ROOT

EXAMPLE = ROOT / "examples" / "austen-4m"
TEXT = ROOT / "examples" / "persuasion.txt"


def run(
    *arguments: object,
    cwd: Path,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    memory: int | None = None,
    timeout: float = 300,
    counted: bool = False,
) -> subprocess.CompletedProcess[str]:
    """`gguftools ARGUMENTS` in folder `cwd`. memory: bytes of address space it may have. counted: its time is to count
    among that of this process's children.
    """
    if not environment and not counted:
        return template.run([str(each) for each in arguments], cwd, stdin, timeout, memory)
    assert memory is None
    return subprocess.run(
        [sys.executable, "-m", "gguftools", *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
    )


def refused(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> str:
    """Assert that the call ended with one error line (and perhaps a hint) that has these words; returns it."""
    assert done.returncode == code, f"exit code {done.returncode}: {done.stdout[-500:]}{done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    error = done.stderr.replace("\n", " ")
    for word in words:
        assert word in error, f"{word!r} is not in {error!r}"
    return done.stderr


@cache
def program() -> Any:
    """The command line, built once."""
    import typer.main

    from gguftools.__main__ import build_app

    return typer.main.get_command(build_app())


def typed(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`gguftools ARGUMENTS` in this process, which is faster: for calls that end before they do much."""
    out, said = io.StringIO(), io.StringIO()
    words = [str(each) for each in arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
        try:
            program()(words)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return subprocess.CompletedProcess(words, code, out.getvalue(), said.getvalue())


def on_terminal(
    *arguments: object, cwd: Path, columns: int = 80, environment: Mapping[str, str] | None = None, timeout: float = 300
) -> tuple[int, str]:
    """The exit code of `gguftools ARGUMENTS` on a terminal so wide, and all that was written to it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-m", "gguftools", *map(str, arguments)],
        cwd=cwd,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "PYTHONPATH": str(ROOT), "TERM": "xterm", **(environment or {})},
    ) as process:
        os.close(theirs)
        kill = threading.Timer(timeout, process.kill)
        kill.start()
        written = b""
        while piece := _read(ours):
            written += piece
        kill.cancel()
    os.close(ours)
    return process.returncode, written.decode(errors="replace").replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # nobody writes there any more
        return b""
