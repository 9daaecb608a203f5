"""What holds of every option that names a file to write: - is no file, and a name that ends in a slash is a folder."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .usage import flag

WRITTEN = ("output", "html", "plot", "save", "save_base", "record", "merge")  # parameters that name what is written
PRINTED = ("embed", "hash")  # what these write to a file is printed where --output is left out
FOLDERS = ("demo", "export")  # write a folder of that name themselves


@contextmanager
def output_folder(command: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Refuse - as the name of a file; make the folder that --output names by a slash at its end.

    A folder that was made is removed again if nothing is in it when the block ends. Raises OptionError, FileError.
    """
    for name in WRITTEN:
        if str(options.get(name)) == "-":
            _refuse_standard_output(command, name)
    output = options.get("output")
    is_local = isinstance(output, str) and "://" not in output
    if not is_local or not str(output).endswith("/") or command in FOLDERS or os.path.lexists(str(output)):
        yield
        return
    from ..files.folders import named_folder

    with named_folder(Path(str(output))):
        yield


def _refuse_standard_output(command: str, name: str) -> None:
    from quants.errors import OptionError

    hint = f"leave {flag(name)} out: what it would have is printed" if command in PRINTED else "name a file"
    raise OptionError(f"{flag(name)} -: files are not written to standard output", hint)
