"""Trying again: what a busy server, a broken connection or a slow one may give another time."""

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from quants.errors import FileError

TRIES = 8  # in a row that bring next to nothing
FIRST_TRIES = 4  # the same where nothing was there before: a wrong address is more likely
SLOW_TRY = 3  # a connection that trickles takes long, and so counts as many
LEAST_BYTES = 4096  # within the timeout for a download; what brings less is as good as broken
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between them
PASSING = (408, 425, 429, 500, 502, 503, 504)  # statuses that may be others a little later
FIRST_HINT = "check the URL and the connection"
CUT_OFF = "check the connection; the same run with `resume` goes on from what was written"

Bytes = NDArray[np.uint8]
Receive = Callable[[int, bytearray], None]
T = TypeVar("T")


class PassingError(ConnectionError):
    """What another try may mend. wait: seconds before it, None for more each time. counts: for how many tries."""

    def __init__(self, reason: str, wait: float | None = None, counts: int = 1) -> None:
        super().__init__(reason)
        self.wait, self.counts = wait, counts


def gathered(what: str, begin: int, end: int, receive: Receive, is_first: bool = False) -> Bytes:
    """Bytes begin … end of an object; after a broken connection it goes on where that broke.

    receive(position, got): append the bytes from `position` on to `got`, as many as come; it raises PassingError for
    what another try may mend. is_first: whether nothing was heard of the store before.
    Raises FileError, caused by an OSError, when patience ends: what was written is kept.
    """
    got, failures = bytearray(), 0
    while len(got) < end - begin:
        before = len(got)
        trouble = PassingError("the connection ends early")
        try:
            receive(begin + before, got)
        except PassingError as error:
            trouble = error
        failures = 0 if len(got) - before >= LEAST_BYTES else failures + trouble.counts
        if len(got) >= end - begin:
            break
        if failures >= (FIRST_TRIES if is_first else TRIES):
            problem = f"{what} cannot be read on from byte {begin + len(got)}: {trouble}"
            raise FileError(problem, FIRST_HINT if is_first else CUT_OFF) from PassingError(str(trouble))
        time.sleep(_pause(failures, trouble))
    return np.frombuffer(bytes(got[: end - begin]), np.uint8)


def tried(
    what: str, call: Callable[[], T], stopped: Event | None = None, is_first: bool = False, hint: str = CUT_OFF
) -> T:
    """What a call returns that raises PassingError for what another try may mend. Raises FileError after some.

    stopped: no further tries when it is set. is_first: whether nothing was heard of the store before.
    """
    failures = 0
    while True:
        try:
            return call()
        except PassingError as error:
            trouble = error
        failures += trouble.counts
        if failures >= (FIRST_TRIES if is_first else TRIES) or (stopped is not None and stopped.is_set()):
            raise FileError(f"{what}: {trouble}", FIRST_HINT if is_first else hint) from PassingError(str(trouble))
        if stopped is None:
            time.sleep(_pause(failures, trouble))
        else:
            stopped.wait(_pause(failures, trouble))


def _pause(failures: int, trouble: PassingError) -> float:
    return min(LONGEST_WAIT, FIRST_WAIT * 2**failures if trouble.wait is None else trouble.wait)
