"""Memory of arrays that are made and forgotten in every layer: the C library keeps it for the next ones.

By itself glibc gives what is freed at its end back to the system as soon as that is twice its largest piece so far, and
gets it page by page again: a tenth of a text's time. Other libraries are left as they are.
"""

import ctypes
import functools
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # numbers of options in malloc.h
KEPT, LARGE = 256 << 20, 32 << 20  # bytes kept at most; of pieces that are always given back


@functools.cache
def keep_freed() -> bool:
    """Ask the C library to keep up to 256 MB of what is freed. Gives whether it does."""
    if sys.platform != "linux":
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(set_option(TRIM_THRESHOLD, KEPT) and set_option(MMAP_THRESHOLD, LARGE))
