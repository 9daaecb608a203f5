"""Ctrl-C that always arrives: not lost where Python swallows exceptions, and not in the middle of compiling.

For a process of our own command line only: it takes over the signal.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

COMPILER = str(Path("llvmlite", "binding"))  # what it calls back swallows exceptions, and then lacks its result
LATER = 0.02  # seconds


def take_interruptions() -> None:
    """Have SIGINT raise KeyboardInterrupt in the main thread, if need be a moment later; not where it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _interrupt_after_all


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if COMPILER in frame.f_code.co_filename:
            _again()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _interrupt_after_all(unraisable: Any) -> None:
    """Instead of a note on an exception that nobody can catch."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        _again()
    else:
        sys.__unraisablehook__(unraisable)


def _send() -> None:
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:  # ends a wait, too
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _again() -> None:
    timer = threading.Timer(LATER, _send)
    timer.daemon = True
    timer.start()
