"""Other processes for tests: an executor to which work goes as to one, and those that a pool has spawned."""

import os
import pickle
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any


class Elsewhere(Executor):
    """Does work in this process, but what goes to it and comes back are bytes. sizes: of the tasks' batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        sent = pickle.dumps((fn, args))
        self.sizes.append(len(sent))
        function, arguments = pickle.loads(sent)
        done: Future[Any] = Future()
        try:
            done.set_result(pickle.loads(pickle.dumps(function(*arguments))))
        except Exception as error:
            done.set_exception(error)
        return done


def spawned() -> list[int]:
    """Processes of this one that were spawned to work."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and "spawn_main" in (path / "cmdline").read_text():
                found.append(int(path.name))
        except (OSError, IndexError, ValueError):
            pass
    return found
