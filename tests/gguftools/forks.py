"""Run the command line many times, also several at once: a process that has imported it forks for each run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """A run that has ended."""

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        return f"{' '.join(self.arguments)}: {self.code} {self.err.strip()[:300]}"


class Tool:
    """The tool, ready to run in a folder."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def together(self, folder: Path, *runs: Sequence[object], apart: float = 0.0) -> list[Done]:
        """Runs that begin at once, or so many seconds after each other."""
        from ..template import without_notes_of_the_machine  # not in the process, which runs this file as a script

        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = [[str(word) for word in run] for run in runs]
        print(json.dumps([str(folder), words, apart]), file=self._process.stdin, flush=True)
        found = json.loads(self._process.stdout.readline())
        return [
            Done(tuple(run), code, out, without_notes_of_the_machine(err))
            for run, (code, out, err) in zip(words, found, strict=True)
        ]

    def run(self, folder: Path, *arguments: object) -> Done:
        return self.together(folder, arguments)[0]

    def close(self) -> None:
        self._process.communicate()


def _serve() -> None:
    answers = os.dup(1)
    with tempfile.TemporaryDirectory() as folder:  # what is imported and compiled here need not be again
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        for run in (
            f"convert {ROOT / 'examples' / 'austen-4m'} -o m.gguf --outtype f16",
            "quantize m.gguf Q8_0 -o q.gguf",
            "hash m.gguf -o h",
            "split m.gguf",
            "set-metadata m.gguf general.name=x -o n.gguf",
            "show m.gguf --key x",
        ):
            _run(folder, run.split())
        os.chdir("/")
    for line in sys.stdin:
        where, runs, apart = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            outputs = [(Path(folder) / f"{i}.out", Path(folder) / f"{i}.err") for i in range(len(runs))]
            children = []
            for run, files in zip(runs, outputs, strict=True):
                children.append(_fork(where, run, *files))
                time.sleep(apart)
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            texts = [[path.read_text(errors="replace") for path in files] for files in outputs]
            found = [[code, *text] for code, text in zip(codes, texts, strict=True)]
            os.write(answers, json.dumps(found).encode() + b"\n")


def _fork(folder: str, arguments: list[str], out: Path, err: Path) -> int:
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), number)
        code = _run(folder, arguments)
    finally:
        os._exit(code)


def _run(folder: str, arguments: list[str]) -> int:
    import traceback

    from gguftools.__main__ import main

    os.chdir(folder)
    sys.argv = ["gguftools", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    _serve()
