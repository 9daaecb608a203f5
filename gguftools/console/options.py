"""Options that several commands have, with one meaning each, and what stands for a value in help.

A text in place of an Option is one with this help.
"""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from typer import Argument, Option
from typer.models import OptionInfo

# What a parameter of this name is in every command that says no more of it than its type.
SHARED: Mapping[str, Any] = {
    "files": Argument(help="GGUF files (of a split set, any shard)."),
    "threads": Option("--threads", "-j", min=1, help="Threads; all processors if not given."),
    "workers": Option("--workers", min=1, help="Processes of this machine that share the work."),
    "scheduler": "Dask scheduler whose workers share the work, as tcp://host:8786.",
    "plan": "Say what the work would take: bytes, requests, memory, hours, cost; write nothing.",
    "rate": "With --plan: bytes a second that a worker reads or writes, as 200M.",
    "prices": "With --plan: a price table, JSON.",
    "memory": "What running work may hold, such as 512M.",
    "reserve": "Slack in the header for later edits, as 64K.",
    "resume": "Go on where an interrupted run stopped.",
    "manifest": "Also write OUTPUT.manifest.json: what decided the bytes, and digests.",
    "dry_run": "Say what would be written; write nothing.",
    "overwrite": "Replace what is there.",
    "json": "Print the result as JSON.",
    "markdown": "Print tables as Markdown.",
    "ctx": Option("--ctx", "-c", min=4, help="Tokens of a window."),
    "chunks": Option("--chunks", min=1, help="Read the first so many windows only."),
    "html": "Write a report: one page of HTML.",
    "record": "Note what is measured here, and go on from it after a kill.",
    "file": Option("--file", "-f", help="Text for the model to read."),
    "texts": Option(
        "--file", "-f", metavar="[NAME=]PATH", help="Text for the model to read: one of several, if repeated."
    ),
    "imatrix": "Importance matrix, GGUF or legacy form.",
    "new": "Add keys that no program is known to read, too.",
    "split_max_tensors": Option("--split-max-tensors", min=1, help="Tensors of a shard of the output."),
    "split_max_size": "Tensor bytes of a shard of the output, as 2G.",
}
Quiet = Annotated[
    bool, Option("--quiet", "-q", help="Print the result (of what writes: names of files), warnings and errors alone.")
]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Say what is read, compiled and written, and when.")]
Debug = Annotated[bool, Option("--debug", help="Show the tracebacks of errors.")]

# What stands for the value of an option in help: its own metavar, or what its name always means, or what its type says.
BY_NAME = {
    "exclude_weights": "PART",
    "fail_on": "SEVERITY",
    "fallback": "TYPE",
    "from_json": "FILE",
    "frontier": "BITS,…",
    "against": "PATH",
    "html": "FILE",
    "imatrix": "FILE",
    "gptq": "[NAME=]FILE",
    "gptq_memory": "SIZE",
    "include_weights": "PART",
    "key": "KEY",
    "memory": "SIZE",
    "merge": "PATH",
    "merge_lora": "ADAPTER[=SCALE]",
    "outtype": "OUTTYPE",
    "output_tensor_type": "FORMAT",
    "override_kv": "KEY=TYPE:VALUE",
    "pre": "NAME",
    "prune_layers": "LAYERS",
    "donors": "DONOR PATTERN…",
    "drop": "PATTERN",
    "drop_experts": "EXPERTS",
    "drop_layers": "LAYERS",
    "manifest_file": "FILE",
    "recipe": "RECIPE",
    "recipes": "RECIPE",
    "record": "FILE",
    "remove": "KEY",
    "rename": "OLD=NEW",
    "reserve": "SIZE",
    "cost_ratio": "RATIO",
    "temps": "T,…",
    "prices": "FILE",
    "rate": "SIZE",
    "scheduler": "ADDRESS",
    "special_token": "ROLE=TOKEN",
    "split_max_size": "SIZE",
    "tensor_type": "REGEX=FORMAT",
    "target_bpw": "BITS",
    "target_size": "BYTES",
    "tensors": "REGEX",
    "token_embedding_type": "FORMAT",
    "type": "KEY=TYPE",
    "vram": "SIZE",
}
BY_TYPE = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
# By that word: what of `arguments` reads the value, and whether its VALUES say what it may be. Only names, because that
# module takes long to import.
PARSERS = {
    "ADAPTER[=SCALE]": "parse_merge",
    "KEY=TYPE:VALUE": "parse_override",
    "LAYERS": "parse_layers",
    "BITS,…": "parse_bits",
    "BYTES": "parse_file_size",
    "REGEX=FORMAT": "parse_rule",
    "SEVERITY": "severity_named",
    "RATIO": "parse_ratio",
    "T,…": "parse_temperatures",
    "SIZE": "parse_size",
    "DONOR PATTERN…": "parse_donor",
}
PARSERS_BY_NAME = {"split_max_size": "parse_shard_size"}  # of single parameters, before those by word
COMPLETED = ("FORMAT", "OUTTYPE", "RECIPE", "SEVERITY")


def parser(name: str) -> Callable[[str], Any]:
    """A function of `arguments`, which is imported when there is a text to be read."""

    def parse(text: str) -> Any:
        from . import arguments

        return getattr(arguments, name)(text)

    return parse


def with_word(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter of a command whose option has a word for its value, which says how that is read and completed."""
    own = parameter.annotation
    annotation, info = get_args(own) if get_origin(own) is Annotated else (own, SHARED[parameter.name])
    if isinstance(info, str):  # of --output: a file or a folder, and which one if it is not given
        to_write = Option("--output", "-o", metavar="PATH", help=f"Where to write: {info}")
        info = to_write if parameter.name == "output" else Option(help=info)
    parameter = parameter.replace(annotation=Annotated[annotation, info])
    while inner := [each for each in get_args(annotation) if each is not NoneType]:
        annotation = inner[0]  # Path of Path | None, str of list[str] | None
    word = info.metavar or BY_NAME.get(parameter.name, BY_TYPE.get(annotation, ""))
    if isinstance(info, OptionInfo):
        info.metavar = word
        if info.default is ...:  # typer keeps the first spelling there
            info.param_decls = (f"--{parameter.name.replace('_', '-')}",)  # for flags, no --no-…
    if reader := PARSERS_BY_NAME.get(parameter.name) or PARSERS.get(word):
        info.parser = parser(reader)
    if word in COMPLETED:
        info.autocompletion = _completion(word)
    return parameter


def _completion(word: str) -> Callable[[str], list[str]]:
    def matching(incomplete: str) -> list[str]:
        from .arguments import VALUES

        return [value for value in VALUES[word]() if value.lower().startswith(incomplete.lower())]

    return matching
