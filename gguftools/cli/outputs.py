"""Options that name a file to write: - is standard output where that works; a name ending in / is a folder."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .exclusions import flag

WRITTEN = ("output", "html", "plot", "save", "save_base", "record", "merge")  # parameters that name an output
PRINTED = ("embed", "hash")  # print their output without --output, or with `--output -`
FOLDERS = ("demo", "export")  # write a folder of that name themselves


def with_standard_output(command: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without --output where that is - and the command prints its result.

    Raises OptionError for other files that are named -.
    """
    given = dict(options)
    if command in PRINTED and str(given.get("output")) == "-":
        given["output"] = None
    for name in WRITTEN:
        if str(given.get(name)) == "-":
            _refuse_standard_output(name)
    return given


@contextmanager
def output_folder(command: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Make the folder that --output names by a slash at its end.

    A folder that was made is removed again if nothing is in it when the block ends. Raises FileError.
    """
    output = options.get("output")
    is_local = isinstance(output, str) and "://" not in output
    if not is_local or not str(output).endswith("/") or command in FOLDERS or os.path.lexists(str(output)):
        yield
        return
    from ..io.folders import named_folder

    with named_folder(Path(str(output))):
        yield


def _refuse_standard_output(name: str) -> None:
    from quants.errors import OptionError

    raise OptionError(f"{flag(name)} -: this file cannot be written to standard output", "name a file")
