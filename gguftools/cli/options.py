"""Options that several commands have, each with one meaning; their value names, panels and completion.

A text in place of an Option is an Option with this help. A parameter whose type is a dataclass is a group: each field
is an option of the command, and the command gets an object of them.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from typer import Argument, Context, Option
from typer.models import OptionInfo

# What a parameter of this name is in every command that gives only its type.
SHARED: Mapping[str, Any] = {
    "files": Argument(help="GGUF files (of a split set, any shard)."),
    "threads": Option("--threads", "-t", "-j", min=1, help="CPU threads (default: all cores)."),
    "workers": Option("--workers", min=1, help="Share the work among this many local processes."),
    "scheduler": "Share the work with the workers of a Dask scheduler, e.g. tcp://host:8786.",
    "plan": "Only estimate what it takes: bytes, requests, memory, hours and cost.",
    "rate": "With --plan: bytes per second that one worker reads or writes, e.g. 200M.",
    "prices": "With --plan: price table (JSON).",
    "memory": "Memory limit: of tensors in flight, e.g. 512M.",
    "reserve": "Leave room in the header for later edits, e.g. 64K.",
    "resume": "Continue an interrupted run.",
    "manifest": "Also write OUTPUT.manifest.json: the inputs, the options and checksums.",
    "dry_run": "Print what would be written; write nothing.",
    "overwrite": Option("--overwrite", "-y", help="Replace existing files."),
    "json": "Print the result as JSON.",
    "markdown": "Print tables as Markdown.",
    "ctx": Option("--ctx", "-c", min=4, help="Context size in tokens."),
    "chunks": Option("--chunks", min=1, help="Read only the first N chunks of the text."),
    "html": "Write a report as one HTML page.",
    "record": "Save results as they are measured; a second run continues from them.",
    "file": Option("--file", "-f", help="Text to read (- for stdin)."),
    "texts": Option("--file", "-f", metavar="[NAME=]PATH", help="Text to read (- for stdin)."),
    "imatrix": "Importance matrix (GGUF or legacy .dat).",
    "precision": "Arithmetic: float32, exact (slower) or llama.cpp (rounds activations as it does).",
    "round_activations": "Round activations as llama.cpp does: the same as --precision llama.cpp.",
    "allow_requantize": "Allow requantizing tensors that are already quantized; quality suffers.",
    "exclude": "Leave out files that match.",
    "revision": "Branch, or another revision such as refs/pr/1 (default main).",
    "force": "Also store values that make no valid model.",
    "prompts": Option(
        "--prompts", metavar="FILE", help="File of prompts: one per line, or .jsonl with a text or messages per line."
    ),
    "reader": Option("--for", help="Program that will read the image model: comfyui, sdcpp or diffusers."),
    "new": "Also accept keys that no known program reads.",
    "split_max_tensors": Option("--split-max-tensors", min=1, help="Maximum number of tensors per shard."),
    "split_max_size": "Maximum size of a shard, e.g. 2G.",
}
Quiet = Annotated[
    bool, Option("--quiet", "-q", help="Print only the result (or names of written files), warnings and errors.")
]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Log what is read, compiled and written, with times.")]
Debug = Annotated[bool, Option("--debug", help="Show tracebacks of errors.")]

# Panels of --help. A command's module may name panels of its own, in order: PANELS = {"Sampling": ("temp", "top_k")}.
# What no panel has stands first, under Options; these come after the command's own.
COMMON = "Common options"
SHARED_PANELS: Mapping[str, Sequence[str]] = {
    "Sharing the work": ("workers", "scheduler", "plan", "rate", "prices"),
    COMMON: ("quiet", "verbose", "debug", "version", "install_completion", "show_completion", "help"),
}
HIDDEN_SPELLINGS = ("-j",)  # accepted, but not shown in help
# First arguments that -m and --model give, too.
MODEL_ARGUMENTS = ("model", "models", "file", "files", "source", "target")
MODEL_SPELLINGS = ("-m", "--model")

# Name of an option's value in help: its own metavar, or one by the parameter's name, or one by its type.
BY_NAME = {
    "exclude": "PATTERN",
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
    "include": "PATTERN",
    "include_weights": "PART",
    "key": "KEY",
    "memory": "SIZE",
    "merge": "PATH",
    "merge_lora": "ADAPTER[=SCALE]",
    "outtype": "OUTTYPE",
    "output_tensor_type": "FORMAT",
    "override_kv": "KEY=TYPE:VALUE",
    "pre": "NAME",
    "precision": "PRECISION",
    "pooling": "TYPE",
    "sort": "ORDER",
    "cache_type": "TYPE",
    "cache_type_v": "TYPE",
    "prune_layers": "LAYERS",
    "donors": "DONOR PATTERN…",
    "device": "DEVICE",
    "device_memory": "SIZE",
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
    "reader": "READER",
    "revision": "REVISION",
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
# By that name: the function of `arguments` that parses the value. Only names, because that module takes long to import.
PARSERS = {
    "ADAPTER[=SCALE]": "parse_merge",
    "KEY=TYPE:VALUE": "parse_override",
    "LAYERS": "parse_layers",
    "BITS,…": "parse_bits",
    "BYTES": "parse_file_size",
    "REGEX=FORMAT": "parse_rule",
    "READER": "reader_named",
    "SEVERITY": "severity_named",
    "RATIO": "parse_ratio",
    "T,…": "parse_temperatures",
    "SIZE": "parse_size",
    "MEMORY": "parse_memory",
    "MARGIN": "parse_margin",
    "DONOR PATTERN…": "parse_donor",
}
PARSERS_BY_NAME = {"split_max_size": "parse_shard_size"}  # of single parameters, before those by word
# Parameter, or the name of its value -> kind of value in `completion.VALUES` that the shell completes.
COMPLETED: Mapping[str, str] = {
    "cache_type": "CACHE_TYPE",
    "cache_type_v": "CACHE_TYPE",
    "fallback": "FALLBACK",
    "override_kv": "OVERRIDE",
    "pooling": "POOLING",
    "precision": "PRECISION",
    "rename": "KEY=",
    "sort": "SORT",
    "type": "KEY=",
    "FORMAT": "FORMAT",
    "KEY": "KEY",
    "OUTTYPE": "OUTTYPE",
    "RECIPE": "RECIPE",
    "READER": "READER",
    "SEVERITY": "SEVERITY",
}


def parser(name: str) -> Callable[[str], Any]:
    """Return a function of `arguments`, which is imported when there is a text to be read."""

    def parse(text: str) -> Any:
        from . import arguments

        return getattr(arguments, name)(text)

    return parse


def panel_of(name: str, own: Mapping[str, Sequence[str]]) -> str | None:
    """Return the panel of a parameter; own: the panels of its command."""
    return next((title for title, names in (*own.items(), *SHARED_PANELS.items()) if name in names), None)


def option_groups(parameters: Iterable[inspect.Parameter]) -> dict[str, Any]:
    """Return the groups of options among a command's parameters: their dataclasses by name."""
    return {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}


def flat_parameters(parameters: Iterable[inspect.Parameter]) -> Iterator[inspect.Parameter]:
    """Yield a command's parameters, all as keywords; in place of a group its fields."""
    for each in parameters:
        if not is_dataclass(each.annotation):
            yield each.replace(kind=each.KEYWORD_ONLY)
            continue
        for field in fields(each.annotation):
            default = each.empty if field.default is MISSING else field.default
            yield inspect.Parameter(field.name, each.KEYWORD_ONLY, default=default, annotation=field.type)


def with_groups(given: Mapping[str, Any], groups: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options with those of each group as one object."""
    own = {name: group(**{each.name: given[each.name] for each in fields(group)}) for name, group in groups.items()}
    grouped = {each.name for group in groups.values() for each in fields(group)}
    return {name: value for name, value in given.items() if name not in grouped} | own


def with_word(parameter: inspect.Parameter, panel: str | None = None) -> inspect.Parameter:
    """Complete a command's parameter: its Option, a name for the value, how that is parsed and completed, its panel."""
    own = parameter.annotation
    annotation, info = get_args(own) if get_origin(own) is Annotated else (own, SHARED[parameter.name])
    if isinstance(info, str):
        to_write = Option("--output", "-o", metavar="PATH", help=f"Output: {info}")
        info = to_write if parameter.name == "output" else Option(help=info)
    info = copy(info)  # which commands may share
    parameter = parameter.replace(annotation=Annotated[annotation, info])
    while inner := [each for each in get_args(annotation) if each is not NoneType]:
        annotation = inner[0]  # Path of Path | None, str of list[str] | None
    word = info.metavar or BY_NAME.get(parameter.name, BY_TYPE.get(annotation, ""))
    if isinstance(info, OptionInfo):
        info.metavar = word
        if info.default is ...:  # typer keeps the first spelling there
            info.param_decls = (f"--{parameter.name.replace('_', '-')}",)  # for flags, no --no-…
        info.rich_help_panel = panel or info.rich_help_panel
    if reader := PARSERS_BY_NAME.get(parameter.name) or PARSERS.get(word):
        info.parser = parser(reader)
    if info.autocompletion is None and (completion := COMPLETED.get(parameter.name) or COMPLETED.get(word)):
        info.autocompletion = complete(completion)
    return parameter


def complete(word: str) -> Callable[[Context, str], list[str]]:
    """Return a function that completes values of a kind, which is imported when the shell asks."""

    def values(context: Context, incomplete: str) -> list[str]:
        from .completion import matching

        return matching(word, context, incomplete)

    return values
