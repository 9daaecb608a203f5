"""Checks of argument types: convert an argument to the expected type, or raise an error that names it."""

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import OptionError

MAX_THREADS = 1024
PathLike = str | os.PathLike[str]


def as_path(given: PathLike, what: str) -> Path:
    """Return a path. Raises OptionError, naming `what`."""
    if not isinstance(given, (str, os.PathLike)):
        raise wrong(what, given, "a path")
    return Path(given)


def as_count(given: Any, what: str, minimum: float = -math.inf) -> int:
    """Return a whole number that is not too small. Raises OptionError, naming `what`."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise wrong(what, given, "a whole number")
    if given < minimum:
        raise OptionError(f"{what} is {given}; {minimum} or more is expected")
    return int(given)


def thread_count(given: int | None) -> int:
    """Return `given`; None: as many threads as there are processors for this process. Raises OptionError below 1."""
    if given is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if as_count(given, "threads") < 1:
        raise OptionError(f"{given} threads cannot work; 1 or more are needed")
    if given > MAX_THREADS:
        problem = f"{given} threads are wanted; at most {MAX_THREADS} are started"
        raise OptionError(problem, "as many as there are processors do best")
    return given


def as_texts(given: str | Iterable[str], what: str) -> list[str]:
    """Return a list of strings; a single string becomes a list of one. Raises OptionError, naming `what`."""
    texts = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else None
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise wrong(what, given, "a text, or several,")
    return texts


def as_mapping(given: Mapping[str, Any] | None, what: str) -> Mapping[str, Any]:
    """Return a mapping with string keys; None becomes an empty one. Raises OptionError, naming `what`."""
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(key, str) for key in given)):
        raise wrong(what, given, "a mapping with texts as keys")
    return given or {}


def wrong(what: str, given: Any, expected: str) -> OptionError:
    """Return the error for an argument of another type."""
    shown = repr(given) if isinstance(given, (int, float, str)) else type(given).__name__
    return OptionError(f"{what} is {shown}; {expected} was expected")
