"""Report a mapped file that is cut short while it is read by one line, instead of a silent death of the process.

Touching bytes after the new end of a file, or on a failing disk, raises SIGBUS in the thread that touches them.
Python's own signal handlers never run then: they wait for the instruction to end. For processes of our own command line
only.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

MAPPED: dict[Path, int] = {}  # files that were mapped, and how many bytes they had
HINT = "leave the file alone while it is read; if nobody wrote to it, check the disk"
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)


def take_bus_errors() -> None:
    """Make SIGBUS end the process with a message and exit code 1. Windows has no such signal."""
    if not hasattr(signal, "SIGBUS"):
        return
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, _HANDLER), ctypes.c_void_p
    set_handler(signal.SIGBUS, _CALLED)


def _end(number: int) -> None:
    # Only instructions that read from a map come here, none of the interpreter's own: Python code may run.
    without_bar = "\r\x1b[K\x1b[?25h" if sys.stderr.isatty() else ""
    os.write(2, f"{without_bar}error: {_what_happened()}\nhint: {HINT}\n".encode("utf-8", "backslashreplace"))
    os._exit(1)


_CALLED = _HANDLER(_end)  # kept, as the system keeps no reference


def _what_happened() -> str:
    for path, size in MAPPED.items():
        try:
            left = path.stat().st_size
        except OSError:
            continue
        if left < size:
            name = str(path).encode("unicode_escape").decode()
            return f"{name} was cut short while it was read: it had {size} bytes, and has {left}"
    return "a file cannot be read any more"
