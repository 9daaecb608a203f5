"""Memory of short-lived arrays: keep freed memory in the C library for the next layers.

By default glibc returns freed memory at its end to the system once that is twice its largest piece so far, and gets it
page by page again: a tenth of a text's time. Other libraries are left as they are.
"""

import ctypes
import functools
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # numbers of options in malloc.h
KEPT, LARGE = 256 << 20, 32 << 20  # bytes kept at most; pieces from this size on are always returned


@functools.cache
def keep_freed() -> bool:
    """Make the C library keep up to 256 MB of freed memory. Returns whether it does."""
    if sys.platform != "linux":
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(set_option(TRIM_THRESHOLD, KEPT) and set_option(MMAP_THRESHOLD, LARGE))
