"""Make Ctrl-C and SIGTERM always arrive, and end with 128 + the signal's number, as shells expect.

Work is interrupted by KeyboardInterrupt, so that it tidies up: not lost where Python swallows exceptions, and not in
the middle of compiling. Before and after work the process ends at once.
For a process of our own command line only: it takes over the signals.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
COMPILER = os.path.join("llvmlite", "binding")  # noqa: PTH118  # what it calls back swallows exceptions
LATER = 0.02  # seconds

arrived: int | None = None  # the signal that interrupted the work
_working = False


def take_interruptions() -> None:
    """Handle the signals, except those that the parent process set to be ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupt)
    sys.unraisablehook = _interrupt_after_all


@contextmanager
def working() -> Iterator[None]:
    """Let signals raise KeyboardInterrupt."""
    global _working, arrived
    _working, arrived = True, None
    try:
        yield
    finally:
        _working = False


def go_on() -> None:
    """Raise KeyboardInterrupt if a signal's was suppressed; called at each step of long work."""
    if arrived is not None:
        raise KeyboardInterrupt


def leave() -> NoReturn:
    """End the process as interrupted, without the usual exit, at which an interrupted compiler would print errors."""
    os.write(2, b"interrupted\n")
    os._exit(128 + (arrived or signal.SIGINT))


def _interrupt(number: int, frame: FrameType | None) -> None:
    global arrived
    while frame is not None:
        if COMPILER in frame.f_code.co_filename:
            _again(number)
            return
        frame = frame.f_back
    arrived = number
    if not _working:
        leave()
    raise KeyboardInterrupt


def _interrupt_after_all(unraisable: Any) -> None:
    """Send the signal again if KeyboardInterrupt could not be caught."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _again(arrived or signal.SIGINT)
    else:
        sys.__unraisablehook__(unraisable)


def _again(number: int) -> None:
    """Send the signal once more in a moment."""
    import threading

    main = threading.main_thread().ident or 0
    timer = threading.Timer(LATER, signal.pthread_kill, (main, number))  # which ends a wait, too
    timer.daemon = True
    timer.start()
