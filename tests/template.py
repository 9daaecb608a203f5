"""Runs of the command line in processes that are forked from one which has imported what commands need: half of what a
small command takes is that, and the suite runs some hundreds.

    python -m tests.template SOCKET        the process; `run` starts it, and it ends when its input does

For each connection a process waits for one that becomes the command; so many may run at once.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from . import hints
from .conftest import ROOT

IMPORTED = (
    "archs.hparams.deviations",
    "archs.plans.mmproj",
    "filelock",
    "gguftools.conversion.convert",
    "gguftools.conversion.quantize",
    "gguftools.conversion.shards",
    "gguftools.inspection.audits",
    "gguftools.inspection.validation",
    "gguftools.metadata.edit",
    "runtime.batched_generation",
    "runtime.evaluation.perplexity",
    "runtime.generation",
    "runtime.model",
    "tokenizers",
)
IMPORTED_IF_INSTALLED = ("pydantic.type_adapter", "threadpoolctl")  # by some versions of our dependencies
HELLO = 300.0  # seconds that it may take to start


def _prepare() -> None:
    """Do what each command would do first: import modules, find formats and families, set numba up."""
    from gguftools.cli import commands, startup

    startup.keep_numba_from_scipy()
    for module in IMPORTED:
        importlib.import_module(module)
    for module in IMPORTED_IF_INSTALLED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    from archs.plans.mmproj import all_encoders
    from archs.registry import architectures
    from quants.compilation import Codec

    commands.load(None)
    architectures()
    all_encoders()
    Codec("F16", "decode").run()
    hints.watch()
    gc.collect()
    gc.freeze()


def serve(path: str) -> None:
    _prepare()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how those who wait ended
        while True:
            if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:  # who started it has ended
                sys.exit()
            asked, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                break
            asked.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, fds, _, _ = socket.recv_fds(asked, 1 << 20, 3)
    wanted: dict[str, Any] = json.loads(text)
    child = os.fork()
    if child == 0:
        asked.close()
        _become(wanted, fds)
    else:
        asked.sendall(f"{child}\n".encode())
        asked.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
        os._exit(0)


def _become(wanted: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Run the command, with these as its streams; SystemExit ends the process as it ends any."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    if wanted["memory"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (wanted["memory"], wanted["memory"]))
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    if wanted["python"]:
        for number, text in enumerate(wanted["arguments"], 1):
            exec(compile(text, f"script {number}", "exec"), {"__name__": "__main__"})
        sys.exit()
    sys.argv = ["gguftools", *wanted["arguments"]]
    from gguftools.__main__ import main

    main()
    sys.exit()


STARTING = threading.Lock()


@cache
def _template() -> tuple[str, subprocess.Popen[bytes]]:
    """The path where the process listens, and the process, which is started by the first call."""
    folder = tempfile.mkdtemp(prefix="gguftools-", dir="/tmp")  # paths of sockets are short
    path = f"{folder}/template"
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.template", path],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    end = time.monotonic() + HELLO
    while not Path(path).exists():
        assert started.poll() is None, "the template ended"
        assert time.monotonic() < end, "the template does not start"
        time.sleep(0.01)
    return path, started


def without_notes_of_the_machine(printed: str) -> str:
    """Leave out what a command says of the variables of the environment that tests run in."""
    return re.sub(r"^note: (OpenBLAS|BLAS) multiplies .*\n", "", printed, flags=re.MULTILINE)


def run(
    arguments: Sequence[str],
    cwd: Path,
    stdin: str = "",
    timeout: float = 300,
    memory: int | None = None,
    python: bool = False,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` of the command line in folder `cwd`, with what it writes. memory: bytes of address space it
    may have. python: the arguments are scripts instead, which run one after another. Raises TimeoutExpired.
    """
    with STARTING:  # several threads may ask at once
        path, _ = _template()
    with tempfile.TemporaryFile() as read, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        read.write(stdin.encode(errors="surrogateescape"))
        read.seek(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            asked.settimeout(timeout)
            _connect(asked, path)
            wanted: dict[str, Any] = {"arguments": list(arguments), "cwd": str(cwd), "environment": dict(os.environ)}
            wanted |= {"memory": memory, "python": python}
            fds = [each.fileno() for each in (read, out, said)]
            socket.send_fds(asked, [json.dumps(wanted).encode()], fds)
            with asked.makefile("r") as answer:
                pid = int(answer.readline())
                try:
                    code = int(answer.readline())
                except TimeoutError:
                    os.kill(pid, signal.SIGKILL)
                    raise subprocess.TimeoutExpired(list(arguments), timeout) from None
        texts = []
        for each in (out, said):
            each.seek(0)
            text = each.read().decode(errors="surrogateescape").replace("\r\n", "\n")
            texts.append(without_notes_of_the_machine(text))
        return subprocess.CompletedProcess(list(arguments), code, *texts)


def _connect(asked: socket.socket, path: str) -> None:
    """Between its birth and `listen` nobody is there."""
    for _ in range(100):
        try:
            return asked.connect(path)
        except ConnectionRefusedError:
            time.sleep(0.01)
    return asked.connect(path)


if __name__ == "__main__":
    serve(sys.argv[1])
