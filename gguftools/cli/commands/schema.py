"""Print the JSON Schema of what a command prints with --json."""

from typing import Annotated

from typer import Argument

EXAMPLES = ("gguftools schema perplexity", "gguftools schema")
GROUP = "Expert"


def schema(command: Annotated[str | None, Argument(help="Command (default: all, by name).")] = None) -> None:
    from quants.spelling import did_you_mean

    from ..json_schema import command_schema
    from ..json_types import PRINTED
    from ..ui import print_value, usage

    if command is not None and command not in PRINTED:
        usage(f"there is no command {command!r} with --json", did_you_mean(command, PRINTED) or "see gguftools --help")
    found = {name: command_schema(name, results) for name, results in PRINTED.items() if command in (None, name)}
    print_value(found if command is None else found[command], True)
