"""Settings of numba that would make its import fail."""

import logging
import os

VARIABLE = "NUMBA_NUM_THREADS"
log = logging.getLogger(__name__)


def drop_unusable_threads() -> None:
    """Remove NUMBA_NUM_THREADS from the environment if it is below 1, which makes numba's import fail.

    It only affects loops that numba runs in parallel. No kernel here has any: threads are always an argument.
    """
    try:
        is_unusable = int(os.environ.get(VARIABLE, "1")) < 1
    except ValueError:  # numba uses its default then
        return
    if is_unusable:
        log.info("%s=%s is ignored: it is below 1", VARIABLE, os.environ.pop(VARIABLE))
