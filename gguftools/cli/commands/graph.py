"""Show a model's compute graph and values, and compare runs.

With --values, runs a text and shows each node's values, as llama-eval-callback does. With --against, finds the first
node that differs from another run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

if TYPE_CHECKING:
    from ...inspection.graph import GraphNode, LayerGroup, ModelGraph
    from ...lab.graph_values import Cause, Comparison, NodeDifference, NodeValues
    from ...models.model import Model

EXAMPLES = (
    "gguftools graph model.gguf",
    "gguftools graph model.gguf --layer 3",
    "gguftools graph model.gguf --dot",
    'gguftools graph model.gguf --values -p "It is a truth"',
    'gguftools graph model-Q4_K_M.gguf --against model-f16.gguf -p "It is a truth"',
    'gguftools graph model.gguf --against checkpoint/ -p "It is a truth"',
    "gguftools graph model.gguf --against eval-callback.log",
)
GROUP = "Expert"
MAX_WEIGHTS = 4  # that are shown of a node; --json has all
MAX_KEYS = 6


@dataclass(frozen=True)
class ValueOptions:
    """Options for computing values, and for printing, saving and comparing them."""

    values: Annotated[bool, "Run a text and show each node's values."] = False
    against: Annotated[
        Path | None,
        Option(
            help="Hugging Face folder or GGUF file to compare with: or a file of --save, or llama-eval-callback's"
            " output; prints the first node that differs."
        ),
    ] = None
    save: Annotated[str | None, Option(metavar="FILE", help="Run a text and write all values to a .npz file.")] = None
    prompt: Annotated[str | None, Option("--prompt", "-p", help="Prompt (- for stdin).")] = None
    tokens: Annotated[str | None, Option(metavar="ID,…", help="Token ids to run, e.g. 1,15043,3186.")] = None
    tolerance: Annotated[
        float | None, Option(min=0, help="Difference to report, in standard deviations (default 0.001).")
    ] = None
    precision: str = "float32"
    overwrite: bool = False
    threads: int | None = None


def graph(
    model: Annotated[Path, Argument(help="GGUF file (of a split set, any shard).")],
    layer: Annotated[int | None, Option(min=0, help="Show one layer only.")] = None,
    all: Annotated[bool, "Include all: layers that are built alike, too."] = False,
    dot: Annotated[bool, "Print the graph for Graphviz."] = False,
    *,
    run: ValueOptions,
    json: bool = False,
) -> None:
    from ...inspection.graph import graph as graph_of
    from ...models.model import opened_gguf
    from ..ui import print_json, print_line, usage

    if layer is not None and (all or run.against):
        usage(f"--layer cannot be combined with {'--all' if all else '--against'}", "choose one layer or all of them")

    source = opened_gguf(model)
    shown = graph_of(source)
    if layer is not None:
        shown = shown.of_layer(layer)
    if not (run.values or run.save or run.against):
        _print_graph(shown, all or layer is not None, dot, json)
        return
    values, comparison = _run(source, run)
    if json:
        print_json(values if comparison is None else comparison)
    elif comparison is not None:
        _print_comparison(comparison, shown, all)
    elif run.values and values is not None:
        _print_values(values, shown, layer)
    if run.save is not None and values is not None and not json:
        print_line(f"{run.save}: {len(values.values)} values of {len(values.tokens)} tokens")
    if comparison is not None and not comparison.equal:
        raise Exit(1)


def _run(source: "Model", run: ValueOptions) -> "tuple[NodeValues | None, Comparison | None]":
    """Run the text; save the values and compare them on request."""
    from ...io.atomic import InputFiles
    from ...lab.graph_values import TOLERANCE, check_output, compare_values, node_values
    from ...metadata.prompts import check_unicode, read_stdin
    from ..ui import named_progress, note_before_running, usage

    text = read_stdin() if run.prompt == "-" else run.prompt
    check_unicode(text or "")
    given = _ids(run.tokens) if run.tokens is not None else text
    if given is None and not run.against:
        usage("there is no text to run", "give a text with -p, or ids with --tokens")
    read = run.against if run.against and run.against.is_file() else None
    reads = InputFiles(parameter="save").also([*source.files, read])
    target = None if run.save is None else check_output(run.save, run.overwrite, reads)
    note_before_running(source, run.threads)
    comparison = None
    with named_progress(f"run {source.path.name}") as progress:
        how: Any = {"precision": run.precision, "threads": run.threads, "progress": progress}
        values = None if given is None else node_values(source, given, **how)
        if run.against:
            tolerance = TOLERANCE if run.tolerance is None else run.tolerance
            comparison = compare_values(source, run.against, given, tolerance=tolerance, values=values, **how)
            if values is None and target is not None:
                values = node_values(source, comparison.tokens, **how)
    if target is not None and values is not None:
        values.save(target, overwrite=run.overwrite, reads=reads)
    return values, comparison


def _ids(text: str) -> tuple[int, ...]:
    from quants.errors import OptionError

    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise OptionError(f"{text!r} are no ids of tokens", "for example 1,15043,3186") from None


def _print_graph(shown: "ModelGraph", every: bool, dot: bool, json: bool) -> None:
    from ..ui import print_json, print_line, print_table

    if json:
        print_json(shown)
        return
    if dot:
        for line in shown.dot().splitlines():
            print_line(line)
        return
    columns = ("", "name", "operation", "inputs", "weights", "shape")
    for each in shown.groups() if every else shown.distinct_groups():
        print_table(_title(each), columns, [_row(node) for node in each.nodes], "r")


def _title(each: "LayerGroup") -> str | None:
    if each.layer is None:
        return None
    others, number = _ranges(each.others), each.layer
    if each.prefix not in ("", f"blk.{number}"):
        return each.prefix + (f"; {others} as {number}" if others else "")
    if not others:
        return f"layer {number}"
    return f"layer {number}; layer{'s' if len(each.others) > 1 else ''} {others} as layer {number}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Format numbers as `1 to 4, 6`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _row(node: "GraphNode") -> tuple[str, ...]:
    weights = [f"{each.name} {each.format} {_shape(each.shape)}" for each in node.weights]
    more = len(weights) - MAX_WEIGHTS
    if more > 0:
        weights = [*weights[:MAX_WEIGHTS], f"{more} more"]
    return str(node.number), node.name, node.operation, ", ".join(node.inputs), ", ".join(weights), _shape(node.shape)


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _print_values(node_values: "NodeValues", shown: "ModelGraph", layer: int | None) -> None:
    from ...lab.graph_values import summary
    from ..ui import print_line

    nodes = {node.name: node for node in shown.nodes}
    for name, array in node_values.values.items():
        if layer is not None and not name.endswith(f"-{layer}"):
            continue
        of, node = summary(array), nodes.get(name)
        what = f"{node.operation}({', '.join(node.inputs)})" if node else "weights of the chosen experts"
        print_line(f"{name} = {what}: {_shape(tuple(of['shape']))}")
        print_line(_values_line(of["first"], array[0].size))
        if len(array) > 1:
            print_line(_values_line(of["last"], array[0].size))
        print_line(f"    sum = {of['sum']:.6f}")


def _values_line(ends: list[float], size: int) -> str:
    words = [f"{value:10.4f}" for value in ends]
    if size > len(words):
        words[len(words) // 2 : len(words) // 2] = ["..."]
    return f"    [{', '.join(words)}]"


def _print_comparison(comparison: "Comparison", shown: "ModelGraph", every: bool) -> None:
    from ..ui import print_line, print_table

    labels = {"model": "", "values": ", saved values", "transformers": ", run by transformers", "log": ", a log"}
    total = len(comparison.nodes) + len(comparison.not_compared)
    count = f"{len(comparison.tokens)} token{'s' if len(comparison.tokens) != 1 else ''}"
    compared = f"{len(comparison.nodes)} of {total} values of {count}"
    print_line(f"{comparison.file} beside {comparison.other}{labels[comparison.kind]}: {compared}")
    rows = [
        (
            each.name,
            each.operation,
            f"{each.relative:.2g}",
            f"{each.rms:.2g}",
            f"{each.jump:.2f}" if each.jump else "",
            "differs" if each.differs else "equal",
        )
        for each in comparison.nodes
        if every or _is_shown(each, comparison, shown)
    ]
    print_table(None, ("node", "operation", "largest / std", "rms / std", "growth", ""), rows, "llrrrl")
    if comparison.first is None:
        print_line(f"no node differs by more than {comparison.tolerance:g} standard deviations")
        return
    _print_difference("first difference", comparison.first, comparison.cause)
    if comparison.jump is not None:
        _print_difference("first jump", comparison.jump, comparison.jump_cause)
    for key, (here, there) in [*comparison.keys.items()][:MAX_KEYS]:
        print_line(f"  {key} is {_of_key(here)} here, {_of_key(there)} there")


def _is_shown(each: "NodeDifference", comparison: "Comparison", shown: "ModelGraph") -> bool:
    """Return True for the output of a layer, a node outside the layers, and the nodes named below the table."""
    ends = {node.name for node in shown.nodes if node.layer is None}
    ends |= {run.nodes[-1].name for run in shown.groups()}
    return each.name in ends or each in (comparison.first, comparison.jump)


def _print_difference(title: str, each: "NodeDifference", cause: "Cause | None") -> None:
    from ..ui import print_line

    print_line(f"{title}: {each.name} (node {each.number}, {each.operation})")
    amount = f"{each.largest:.4g}, {each.relative:.3g} standard deviations"
    print_line(
        f"  by {amount}, at token {each.token}, element {each.element}:"
        f" {each.value:.6g} here, {each.other_value:.6g} there"
    )
    if each.jump:
        print_line(f"  its error is {each.jump:.1f} times that of what it reads")
    if cause is None:
        return
    if cause.between:
        start = ", ".join(cause.reads) or "the tokens"
        print_line(f"  between {start} and it, not compared: {', '.join(cause.between)}")
    changed = {weight.name: weight for weight in cause.changed or ()}
    for name in cause.weights:
        if name not in changed:
            print_line(f"  reads {name}{', which is the same in both' if cause.changed is not None else ''}")
            continue
        weight = changed[name]
        if weight.other_format is None:
            print_line(f"  reads {name}, which the other file does not have")
        elif weight.rms is None:
            print_line(f"  reads {name}, which has another shape there")
        else:
            print_line(
                f"  reads {name}, which differs: {weight.format} here, {weight.other_format} there,"
                f" by {weight.rms:.2g} standard deviations (rms), at most {weight.largest:.2g}"
            )
    for name, (here, there) in (cause.attributes or {}).items():
        print_line(f"  {name} is {here} here, {there} there")


def _of_key(value: object) -> str:
    from quants.spelling import quote

    return "absent" if value is None else quote(value) if isinstance(value, str) else str(value)[:60]
