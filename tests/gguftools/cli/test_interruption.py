"""Ctrl-C arrives, wherever it comes."""

from __future__ import annotations

import gc
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gguftools.cli.interruption import COMPILER, SIGNALS, take_interruptions, working


@pytest.fixture(autouse=True)
def taken() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what other tests left would speak up in the middle of these
    handlers, hook = {number: signal.getsignal(number) for number in SIGNALS}, sys.unraisablehook
    signal.signal(signal.SIGINT, signal.default_int_handler)
    take_interruptions()
    with working():
        yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    sys.unraisablehook = hook


def wait() -> None:
    time.sleep(60)


class Ends:
    """Does something where exceptions are swallowed."""

    def __init__(self, end: Callable[[], Any]) -> None:
        self.end = end

    def __del__(self) -> None:
        self.end()


def test_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_in_the_compiler_a_moment_later() -> None:
    names: dict[str, Any] = {"signal": signal}
    exec(compile("signal.raise_signal(signal.SIGINT)\nended = True", f"/x/{COMPILER}/y.py", "exec"), names)
    assert names["ended"]
    with pytest.raises(KeyboardInterrupt):
        wait()


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def end_and_wait(end: Callable[[], Any]) -> None:
    Ends(end)
    gc.collect()
    wait()


def test_not_lost_where_exceptions_are_swallowed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        end_and_wait(interrupt)
    assert capfd.readouterr().err == ""


def test_other_exceptions_are_still_noted(capfd: pytest.CaptureFixture[str]) -> None:
    Ends(lambda: int("of no use"))
    gc.collect()
    assert "of no use" in capfd.readouterr().err


def test_ignored_where_it_was_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    take_interruptions()
    interrupt()
