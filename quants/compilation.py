"""Compile codecs before they are used, on more than one processor.

numba compiles one kernel at a time in a process. Helper processes compile others; this process then loads them from
numba's cache.
"""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .format import format_named

SERVE = "from quants.compilation import serve; serve()"


@dataclass(frozen=True)
class Codec:
    """A kernel to compile for a format. operation: "encode", "weighted" (with importance weights), "decode" or
    "deviation".
    """

    format: str
    operation: str

    def run(self) -> None:
        """Run the kernel once on a block, which compiles it or loads it."""
        form = format_named(self.format)
        if self.operation == "deviation":
            from .kernels.deviation import deviation

            deviation(np.zeros(1, np.float32), np.zeros(1, np.float32))
        elif self.operation == "decode":
            form.load_codec().decode(form, np.zeros((1, form.block_bytes), np.uint8))
        else:
            values = np.linspace(-1, 1, form.block_size, dtype=np.float32)[None]
            form.encode(values, np.ones(form.block_size, np.float32) if self.operation == "weighted" else None)

    @property
    def kernel(self) -> Any:
        """Return the numba function; None if it is unknown."""
        kernels = getattr(format_named(self.format).load_codec(), "KERNELS", {})
        return getattr(kernels.get(self.format), self.operation, None)

    @property
    def is_cached(self) -> bool:
        """Whether it was compiled before, as far as one can tell."""
        from .kernels.numba_internals import is_cached

        return self.kernel is None or is_cached(self.kernel)

    @property
    def family(self) -> str:
        """Return the family of the format: its formats share most functions, so the second one compiles in half the
        time.
        """
        return format_named(self.format).codec or self.format

    @property
    def cost(self) -> int:
        """Return the relative compile time."""
        if self.operation in ("decode", "deviation"):
            return 0
        return 2 * format_named(self.format).compile_cost + (self.operation == "weighted")


def compile_codecs(
    codecs: Iterable[Codec], processes: int = 1, tell: Callable[[str], None] = lambda format: None
) -> float:
    """Compile codecs for this process. Returns the seconds that took.

    processes: how many may compile at the same time. tell: called with each format that this process starts.
    """
    started = time.perf_counter()
    work = _Work(sorted(dict.fromkeys(codecs), key=lambda codec: -codec.cost))
    with _without_collection():
        unknown = sum(not codec.is_cached for codec in work.waiting) if processes > 1 else 0
        with _helpers(work, min(processes, unknown) - 1):
            while codec := work.take("us"):
                tell(codec.format)
                codec.run()
        for codec in work.given_away:
            tell(codec.format)
            codec.run()
    return time.perf_counter() - started


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector: scanning a compilation's millions of objects takes a sixteenth of its
    time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass
class _Work:
    """Codecs that nobody has started yet, and those that helpers took.

    owners: who started a family first. starting: helpers that took nothing yet. done: nothing is given away any more.
    """

    waiting: list[Codec]
    given_away: list[Codec] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)
    starting: list[subprocess.Popen[str]] = field(default_factory=list)
    done: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, taker: str) -> Codec | None:
        """Return the next codec: of the taker's own families, else of a family nobody started, else any."""
        with self.lock:
            return self._next(taker)

    def start(self, helper: subprocess.Popen[str]) -> None:
        with self.lock:
            self.starting.append(helper)
            if self.done:
                helper.kill()

    def give(self, helper: subprocess.Popen[str]) -> Codec | None:
        """Return the next codec for a helper; None if there is none left or the work is done."""
        with self.lock:
            if helper in self.starting:
                self.starting.remove(helper)
            codec = None if self.done else self._next(str(helper.pid))
            if codec is not None:
                self.given_away.append(codec)
            return codec

    def end(self) -> None:
        """Give no more codecs away, and stop helpers that took nothing."""
        with self.lock:
            self.done = True
            for helper in self.starting:
                helper.kill()

    def _next(self, taker: str) -> Codec | None:
        if not self.waiting:
            return None
        owners = [self.owners.get(codec.family, "") for codec in self.waiting]
        at = next((owners.index(owner) for owner in (taker, "") if owner in owners), 0)
        codec = self.waiting.pop(at)
        self.owners.setdefault(codec.family, taker)
        return codec


@contextmanager
def _helpers(work: _Work, count: int) -> Iterator[None]:
    """Let `count` other processes take codecs while the block runs and until they finish what they took."""
    threads = list[threading.Thread]()
    with suppress(RuntimeError):  # without another thread there is less help
        for _ in range(count):
            thread = threading.Thread(target=_help, args=(work,), daemon=True)
            thread.start()
            threads.append(thread)
    try:
        yield
    finally:
        work.end()
        for thread in threads:
            thread.join()


def _help(work: _Work) -> None:
    """Let another process take codecs. If it fails, its codecs are compiled here in the end."""
    if getattr(sys, "frozen", False):  # a single-file program, whose executable is no Python
        return
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {SERVE}"]
    pipe = subprocess.PIPE
    with (
        suppress(OSError),
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as helper,
    ):
        assert helper.stdin
        assert helper.stdout
        work.start(helper)
        while helper.stdout.readline() and (codec := work.give(helper)):
            helper.stdin.write(f"{codec.format} {codec.operation}\n")
            helper.stdin.flush()
        helper.kill()  # what it compiled is in the cache; an orderly exit takes long


def serve() -> None:
    """Run the codecs named on standard input, one a line; print a line when ready for the next."""
    with _without_collection():
        _say_ready()
        for line in sys.stdin:
            Codec(*line.split()).run()
            _say_ready()


def _say_ready() -> None:
    sys.stdout.write("\n")
    sys.stdout.flush()
