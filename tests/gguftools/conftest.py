"""Share a process that runs the command line many times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .forks import Tool


@pytest.fixture(scope="session")
def tool() -> Iterator[Tool]:
    """The tool, imported once and forked for each run."""
    tool = Tool()
    yield tool
    tool.close()
