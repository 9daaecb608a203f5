"""Settings of numba that would keep it from being imported."""

import logging
import os

VARIABLE = "NUMBA_NUM_THREADS"
log = logging.getLogger(__name__)


def drop_unusable_threads() -> None:
    """Take NUMBA_NUM_THREADS out of the environment if it is below 1, which numba refuses when it is imported.

    It is about loops that numba runs in parallel. No kernel of ours has any: threads are an argument everywhere.
    """
    try:
        is_unusable = int(os.environ.get(VARIABLE, "1")) < 1
    except ValueError:  # numba takes its default then
        return
    if is_unusable:
        log.info("%s=%s is ignored: it is below 1", VARIABLE, os.environ.pop(VARIABLE))
