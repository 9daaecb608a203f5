"""Rules for ways out of the sandbox that templates run in: Python's internals, calls, endless work."""

import math
import re
from collections.abc import Container, Iterator
from typing import Any

from jinja2 import nodes

from .constant_folding import called, fold, name_of, number
from .cost_estimate import CostEstimate, growth_factor
from .finding import Finding, Severity
from .template_tree import Template, find, is_user_text


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


INTERNAL = re.compile(r"__[A-Za-z]\w*?__|^_+[A-Za-z]")
# Names of Python's internals without underscores, and functions that exploits call.
GADGETS = _names(
    "mro func_globals func_code gi_frame gi_code cr_frame cr_code ag_frame tb_frame f_globals f_locals f_builtins "
    "f_back im_func im_self im_class co_code co_consts subclasses builtins globals getattr setattr popen system "
    "subprocess check_output load_module exec_module import_module format_map eval exec compile open spawn"
)
# Objects of web frameworks and of jinja2 that published attacks start from.
STARTS = _names(
    "lipsum cycler joiner self config request url_for get_flashed_messages application environ os sys open eval "
    "exec getattr vars globals"
)
FUNCTIONS = frozenset({"raise_exception", "strftime_now", "range", "namespace", "dict", "caller", "tojson", "loop"})
METHODS = _names(
    "append capitalize count endswith extend find format get index insert isdigit isalpha isspace items join keys "
    "lower lstrip pop removeprefix removesuffix replace rfind rsplit rstrip setdefault split splitlines "
    "startswith strip title update upper values partition rpartition isalnum isupper islower cycle changed tojson"
)
BY_ATTRIBUTE = frozenset({"attr", "map", "selectattr", "rejectattr", "groupby", "sort", "unique", "sum", "min", "max"})
LONG_LOOP, ENDLESS_LOOP = 10_000, 1_000_000
MUCH_WORK, ENDLESS_WORK = 1e7, 1e9  # characters and rounds; published templates need a hundredth
DOUBLES = 1.5


def internals(template: Template) -> Iterator[Finding]:
    """Find attributes and items that lead to Python's internals, strings that spell their names, and included files."""
    for node in find(template.tree, nodes.Node):
        match node:
            case nodes.Getattr() | nodes.NSRef() if _is_internal(node.attr):
                yield template.finding("high", "internals", node, f"reads the attribute {node.attr!r}")
            case nodes.Getitem() if (key := template.text(node.arg)) and _is_internal(key):
                yield template.finding("high", "internals", node, f"reads the item {key!r}")
            case nodes.Filter() if node.name in BY_ATTRIBUTE:
                yield from _by_attribute(template, node)
            case nodes.Keyword() if INTERNAL.search(node.key):
                yield template.finding("high", "internals", node, f"spells the name {node.key!r} as an argument")
            case nodes.Name() if node.name in STARTS and node.name not in template.constants.names:
                yield template.finding("high", "internals", node, f"uses {node.name!r}, which attacks start from")
            case nodes.Import() | nodes.FromImport() | nodes.Include() | nodes.Extends():
                yield template.finding("high", "other files", node, "reads another template")
    for node in find(template.tree, nodes.Expr):
        text = template.text(node)
        if text and (match := re.search(r"__[A-Za-z]\w*?__", text)):
            how = "spells" if isinstance(node, (nodes.Const, nodes.TemplateData)) else "puts together"
            yield template.finding("high", "internals", node, f"{how} the name {match[0]!r}")


def _is_internal(name: str) -> bool:
    return bool(INTERNAL.search(name)) or name in GADGETS


def _by_attribute(template: Template, node: nodes.Filter) -> Iterator[Finding]:
    """Find filters that read an attribute by its name."""
    names = [a.value for a in node.kwargs if a.key == "attribute"]
    names += node.args[:1] if node.name in ("attr", "selectattr", "rejectattr", "groupby") else []
    for argument in names:
        name = template.text(argument)
        if name is None and fold(argument, template.constants) is None:
            message = f"reads an attribute whose name is computed (|{node.name})"
            yield template.finding("high" if node.name == "attr" else "medium", "internals", node, message)
        elif name is not None and any(map(_is_internal, name.split("."))):
            yield template.finding("high", "internals", node, f"reads the attribute {name!r} (|{node.name})")
        elif node.name == "attr":
            yield template.finding("low", "internals", node, f"reads the attribute {name!r} by a filter (|attr)")
    if node.name == "map" and node.args and template.text(node.args[0]) in ("attr", None):
        yield template.finding("medium", "internals", node, "maps a filter that reads attributes or is computed")


def calls(template: Template) -> Iterator[Finding]:
    """Find calls of functions that transformers' sandbox does not offer."""
    for node in find(template.tree, nodes.Call):
        target = node.node
        if (name := called(node)) is not None:
            if name not in FUNCTIONS | STARTS | template.macros.keys():
                what = "which is a variable" if name in template.constants.names else "which templates don't have"
                yield template.finding("medium", "call", node, f"calls {name!r}, {what}")
        elif isinstance(target, nodes.Getattr):
            if not _is_internal(target.attr) and target.attr not in METHODS:
                yield template.finding("medium", "call", node, f"calls the method {target.attr!r}")
            if target.attr == "format" and template.text(target.node) is None:
                yield template.finding("medium", "call", node, "formats by a pattern that is not in the template")
        else:
            yield template.finding("medium", "call", node, "calls the result of an expression")


def loops(template: Template) -> Iterator[Finding]:
    """Find loops, powers and repetitions without a reasonable bound."""
    for node in find(template.tree, nodes.Call, nodes.Mul, nodes.Pow, nodes.Filter):
        count: Any = None
        if called(node) == "range":
            count = max((abs(number(argument, template.constants) or 0) for argument in node.args), default=0)
            if any(is_user_text(template, argument) for argument in node.args):
                yield template.finding("medium", "loop", node, "counts up to a number in a message")
        elif isinstance(node, nodes.Mul):
            numbers = [number(side, template.constants) for side in (node.left, node.right)]
            count = max(n or 0 for n in numbers) if None in numbers else None
        elif isinstance(node, nodes.Pow):
            yield template.finding("medium", "loop", node, "computes a power, which can take any time and memory")
        elif isinstance(node, nodes.Filter) and node.name in ("center", "indent", "wordwrap") and node.args:
            count = number(node.args[0], template.constants)
        if count is not None and count > LONG_LOOP:
            yield template.finding(
                "high" if count > ENDLESS_LOOP else "medium", "loop", node, f"repeats {count:,} times"
            )


def work(template: Template) -> Iterator[Finding]:
    """Find work that takes too long or fills memory without a large number in the template."""
    bodies: list[list[Any]] = [[template.tree], *(macro.body for macro in template.macros.values())]
    cost = max(CostEstimate(template.constants, template.macros).total(body) for body in bodies)
    if cost > MUCH_WORK:
        severity: Severity = "high" if cost > ENDLESS_WORK else "medium"
        yield template.finding(
            severity, "loop", template.tree, f"may write {cost:.0e} characters, or go so many rounds"
        )


def growing(template: Template) -> Iterator[Finding]:
    """Find values that are doubled in each round of a loop, or repeatedly."""
    loops = [*find(template.tree, nodes.For), *template.macros.values()]
    inner = [assign for loop in loops for assign in find(loop, nodes.Assign)]
    kept = {id(assign) for assign in inner if isinstance(assign.target, nodes.NSRef)}
    factors: dict[str, list[float]] = {}
    for assign in find(template.tree, nodes.Assign):
        name = name_of(assign.target)
        if name is None or (factor := growth_factor(assign.node, name, template.constants, template.macros)) == 1:
            continue
        factors.setdefault(name, []).append(factor)
        if factor > DOUBLES and id(assign) in kept:
            yield template.finding("high", "loop", assign, f"makes {name!r} {factor:.2g} times as long in each round")
        elif factor > DOUBLES and math.prod(filter(None, factors[name])) > LONG_LOOP:
            yield template.finding("high", "loop", assign, f"makes {name!r} longer and longer")


def recursion(template: Template) -> Iterator[Finding]:
    """Find macros and loops that call themselves without a smaller argument."""
    for macro in template.macros.values():
        given = {argument.name for argument in macro.args}
        for call in find(macro, nodes.Call):
            arguments = [*call.args, *(each.value for each in call.kwargs)]
            if called(call) == macro.name and not any(_is_part(argument, given) for argument in arguments):
                yield template.finding("medium", "loop", call, f"the macro {macro.name!r} calls itself without an end")
    for loop in find(template.tree, nodes.For):
        for call in find(loop, nodes.Call) if loop.recursive else ():
            if called(call) == "loop" and name_of(loop.iter) in map(name_of, call.args):
                yield template.finding("medium", "loop", call, "the loop calls itself without an end")


def _is_part(argument: Any, given: Container[str]) -> bool:
    """Return whether an argument may be a part of the macro's own: no constant, number or unchanged argument."""
    if isinstance(argument, (nodes.Const, nodes.TemplateData)) or name_of(argument) in given:
        return False
    return not isinstance(argument, (nodes.BinExpr, nodes.Neg, nodes.Concat))
