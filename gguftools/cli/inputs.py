"""Read standard input where an option that names a text is given as -."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

READ = ("file", "texts", "prompts", "messages", "gptq", "calibrate", "measure", "results")  # parameters that name texts
STANDARD_INPUT = "/dev/stdin"


def with_standard_input(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a command with standard input in place of -. Raises OptionError where two are -."""
    given = {name: _named(value) if name in READ else value for name, value in options.items()}
    changed = [name for name in given if given[name] != options[name]]
    if sum(_count(options[name]) for name in changed) > 1:
        from quants.errors import OptionError

        raise OptionError("standard input is given twice", "it can be read only once; name a file in place of one -")
    return given


def _named(value: Any) -> Any:
    if isinstance(value, list):
        return [_named(each) for each in value]
    if isinstance(value, Path):
        return Path(STANDARD_INPUT) if str(value) == "-" else value
    if not isinstance(value, str):
        return value
    name, sign, path = value.rpartition("=")  # NAME=PATH
    return f"{name}{sign}{STANDARD_INPUT}" if path == "-" else value


def _count(value: Any) -> int:
    values = value if isinstance(value, list) else [value]
    return sum(_named(each) != each for each in values)
