"""Run by test_kills.py in a process of its own: measure, be killed at a random moment, go on; again and again.

usage: kill_loop.py FOLDER KILLS SEED COMMAND…, which writes a record `record` and perhaps a base whose name begins with
`base`, in FOLDER's folders, whose parent has what it reads. Prints what happened as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any


def run(folder: Path, words: list[str]) -> int:
    """The command in a folder; what it prints is in `out` there."""
    from gguftools.__main__ import main

    os.chdir(folder)
    output = os.open("out", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    sys.argv = ["gguftools", *words]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.stdout.flush()
    return 0


def killed(folder: Path, words: list[str], lines: int = 0, seconds: float = 0.0) -> bool:
    """Whether the run was still going when it was killed: after so many more lines in the record, and then seconds."""
    before = len(noted(folder))
    child = os.fork()
    if not child:
        code = 70
        try:
            code = run(folder, words)
        finally:
            os._exit(code)
    while lines and os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if len(noted(folder)) >= before + lines:
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
            break
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, (folder / "out").read_text()
    return os.WIFSIGNALED(status)


def result(folder: Path) -> tuple[Any, dict[str, bytes]]:
    """What was printed, but for seconds; and the files that are there."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: timeless(each) for name, each in value.items() if name != "seconds"}
        return [timeless(each) for each in value] if isinstance(value, list) else value

    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return timeless(json.loads(files.pop("out"))), files


def noted(folder: Path) -> list[bytes]:
    """The record's whole lines."""
    try:
        return [line for line in (folder / "record").read_bytes().splitlines(True) if line.endswith(b"\n")]
    except FileNotFoundError:
        return []


def main() -> None:
    folder, kills, seed, words = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    chance, answers = random.Random(seed), os.dup(1)
    for name in ("warm", "wanted"):
        (folder / name).mkdir()
    assert run(folder / "warm", words) == 0  # what is imported here need not be again
    killed(folder / "wanted", words)
    wanted, base = result(folder / "wanted")
    seen = Counter(dict.fromkeys(("killed", "went on", "lost", "early", "wrong", "left"), 0))
    while seen["killed"] < kills:
        out = folder / str(seen["killed"])
        out.mkdir()
        before: list[bytes] = []
        while killed(out, words, chance.randint(1, 8), chance.uniform(0, 0.03)):
            seen["killed"] += 1
            seen["went on"] += len(before) > 1
            now = noted(out)
            if not now and (out / "out").stat().st_size:
                break  # all was printed, and the record had gone
            seen["lost"] += now[: len(before)] != before
            seen["early"] += any((out / name).exists() and (out / name).read_bytes() != base[name] for name in base)
            before = now
        found, files = result(out)
        seen["wrong"] += found != wanted or {name: files.get(name) for name in base} != base
        seen["left"] += set(files) != set(base)
    os.write(answers, json.dumps(seen).encode())


main()
