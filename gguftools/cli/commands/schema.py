"""Print the JSON Schema of what a command prints with --json."""

from typing import Annotated

from typer import Argument

EXAMPLES = ("gguftools schema perplexity", "gguftools schema")
GROUP = "Expert"


def schema(command: Annotated[str | None, Argument(help="Command (default: all, by name).")] = None) -> None:
    from quants.errors import OptionError

    from ..json_schema import schema as run
    from ..ui import print_value, usage

    try:
        print_value(run(command), True)
    except OptionError as error:
        usage(str(error), error.hint or "")
