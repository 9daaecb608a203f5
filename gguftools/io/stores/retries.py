"""Retry requests after errors that may pass: a busy server, a broken or a slow connection."""

import time
from collections.abc import Callable
from threading import Event
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from quants.errors import FileError

from .path import StorePath

TRIES = 8  # in a row with less than MIN_BYTES
FIRST_TRIES = 4  # for the first request: a wrong address is likely
SLOW_TRY = 3  # a slow connection counts as so many tries
MIN_BYTES = 4096  # within the timeout; a slower connection counts as broken
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between tries
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)  # statuses that may pass
FIRST_HINT = "check the URL and the connection"
CUT_OFF = "check the connection; the same run with `resume` goes on from what was written"

Bytes = NDArray[np.uint8]
T = TypeVar("T")


class Sink(Protocol):
    """Take bytes as they come: a bytearray, or what writes them to a file. Its length is how many came."""

    def __len__(self) -> int: ...
    def extend(self, data: bytes, /) -> None: ...


S = TypeVar("S", bound=Sink)
Receive = Callable[[int, bytearray], None]


class TransientError(ConnectionError):
    """Report an error that may pass.

    wait: seconds before the next try; None: longer each time. counts: as how many tries.
    """

    def __init__(self, reason: str, wait: float | None = None, counts: int = 1) -> None:
        super().__init__(reason)
        self.wait, self.counts = wait, counts


def lost_race(path: StorePath, existed: bool) -> FileError:
    """Return the error for an object that another program wrote meanwhile. existed: it was to be replaced."""
    if existed:
        return FileError(f"{path} was replaced by another program meanwhile", hint="run it again")
    return FileError(f"{path} already exists", "another program wrote it meanwhile; pass `overwrite` to replace it")


def receive_all(what: str, begin: int, end: int, receive: Receive, is_first: bool = False) -> Bytes:
    """Return bytes begin … end of an object, uint8; see `receive_into`."""
    got = bytearray()
    receive_into(got, what, begin, end, receive, is_first)
    return np.frombuffer(bytes(got[: end - begin]), np.uint8)


def receive_into(
    got: S, what: str, begin: int, end: int, receive: Callable[[int, S], None], is_first: bool = False
) -> None:
    """Pass bytes begin … end of an object to `got`. After a broken connection, continue where it broke.

    receive(position, got): appends bytes from `position` on to `got`, as many as come; raises TransientError for what
    may pass. is_first: this is the first request to the store. Raises FileError, caused by an OSError, after too many
    tries; the cause makes callers keep what was written.
    """
    failures = 0
    while len(got) < end - begin:
        before = len(got)
        trouble = TransientError("the connection ends early")
        try:
            receive(begin + before, got)
        except TransientError as error:
            trouble = error
        failures = 0 if len(got) - before >= MIN_BYTES else failures + trouble.counts
        if len(got) >= end - begin:
            break
        if failures >= (FIRST_TRIES if is_first else TRIES):
            problem = f"{what} cannot be read on from byte {begin + len(got)}: {trouble}"
            raise FileError(problem, FIRST_HINT if is_first else CUT_OFF) from TransientError(str(trouble))
        time.sleep(_pause(failures, trouble))


def retried(
    what: str, call: Callable[[], T], stopped: Event | None = None, is_first: bool = False, hint: str = CUT_OFF
) -> T:
    """Return the result of `call`; call it again after a TransientError. Raises FileError after too many tries.

    stopped: when set, no more tries. is_first: this is the first request to the store.
    """
    failures = 0
    while True:
        try:
            return call()
        except TransientError as error:
            trouble = error
        failures += trouble.counts
        if failures >= (FIRST_TRIES if is_first else TRIES) or (stopped is not None and stopped.is_set()):
            raise FileError(f"{what}: {trouble}", FIRST_HINT if is_first else hint) from TransientError(str(trouble))
        if stopped is None:
            time.sleep(_pause(failures, trouble))
        else:
            stopped.wait(_pause(failures, trouble))


def _pause(failures: int, trouble: TransientError) -> float:
    return min(LONGEST_WAIT, FIRST_WAIT * 2**failures if trouble.wait is None else trouble.wait)
