"""Chat templates as syntax trees: values of names, and which values come from messages, dates and keywords."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jinja2 import nodes

from .constant_folding import Constants, called, fold, name_of
from .finding import Finding, Severity

DEFINEDNESS = frozenset(
    {"defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "true", "false"}
)
MESSAGES = frozenset({"messages", "message", "loop_messages", "msg", "m"})
CONTENT = frozenset({"content", "text", "reasoning_content", "thinking"})
LETTERS = re.compile(r"[^\W\d_]{2,}")
MARKUP = re.compile(r"^\s*[</\[{|#`*(\\:!_-]|[>\]}|:]\s*$|<\|?/?\w+")  # tags, switches such as /think, tokens


@dataclass
class Template:
    """A parsed template.

    constants: values assigned to each name ("ns.x" for members of namespaces), and folded expressions. user_text: names
    that hold text of messages; dates: names that hold the time; triggers: names whose value a keyword in a message
    decided, with the keyword. macros: by name.
    """

    key: str
    source: str
    tree: nodes.Template
    macros: dict[str, nodes.Macro]
    constants: Constants = field(default_factory=Constants)
    user_text: set[str] = field(default_factory=set)
    dates: set[str] = field(default_factory=set)
    triggers: dict[str, str] = field(default_factory=dict)

    def finding(self, severity: Severity, rule: str, node: Any, message: str) -> Finding:
        line = node if isinstance(node, int) else getattr(node, "lineno", None)
        return Finding(severity, rule, self.key, message, line)

    def text(self, node: Any) -> str | None:
        """Return the constant string that an expression evaluates to; None if it is not constant."""
        value = fold(node, self.constants)
        return value if isinstance(value, str) else None


def find(tree: nodes.Node, *node_types: type[nodes.Node]) -> Iterator[Any]:
    """Return all nodes of the given types."""
    return tree.find_all(node_types)


def follow(template: Template) -> None:
    """Record the values assigned to each name, then propagate text of messages, dates and keywords."""
    assignments = list(_assignments(template.tree))
    for target, value in assignments:
        template.constants.names[target] = (*template.constants.names.get(target, ()), value)
    for _ in range(4):  # assignments in a row
        for target, value in assignments:
            if is_user_text(template, value):
                template.user_text.add(target)
            if is_date(template, value):
                template.dates.add(target)
        for branch in find(template.tree, nodes.If):
            if keyword := keyword_of(template, branch.test):
                for target, _ in _assignments(nodes.Template(branch.body)):
                    template.triggers.setdefault(target, keyword)
        for target, value in assignments:
            if not isinstance(value, nodes.Const) and (keyword := keyword_of(template, value)):
                template.triggers.setdefault(target, keyword)


def _assignments(tree: nodes.Node) -> Iterator[tuple[str, nodes.Expr]]:
    for node in find(tree, nodes.Assign, nodes.For, nodes.AssignBlock):
        if isinstance(node, nodes.AssignBlock):
            value: Any = nodes.Concat([part for output in node.body for part in getattr(output, "nodes", ())])
        else:
            value = node.node if isinstance(node, nodes.Assign) else node.iter
        yield from _pairs(node.target, value)
    macros = {macro.name: macro for macro in find(tree, nodes.Macro)}
    for call in find(tree, nodes.Call):
        if (macro := macros.get(called(call) or "")) is not None:
            yield from ((parameter.name, each) for parameter, each in zip(macro.args, call.args, strict=False))
    for assign in find(tree, nodes.Assign):
        if called(assign.node) == "namespace":
            for argument in assign.node.kwargs:
                yield f"{name_of(assign.target)}.{argument.key}", argument.value


def _pairs(target: Any, value: Any) -> Iterator[tuple[str, nodes.Expr]]:
    if isinstance(target, nodes.Tuple):
        parts = value.items if isinstance(value, nodes.Tuple) else [value] * len(target.items)
        for each, part in zip(target.items, parts, strict=False):
            yield from _pairs(each, part)
    elif name := name_of(target):
        yield name, value


def is_user_text(template: Template, node: Any) -> bool:
    """Return whether an expression is text of a message, or contains it."""
    if name_of(node) in template.user_text:
        return True
    match node:
        case nodes.Getattr():
            return node.attr in CONTENT
        case nodes.Getitem():
            key = template.text(node.arg)
            return key in CONTENT if key is not None else is_user_text(template, node.node)
        case nodes.Filter(name="map"):
            names = [argument.value for argument in node.kwargs if argument.key == "attribute"]
            return any(template.text(name) in CONTENT for name in names) or is_user_text(template, node.node)
        case nodes.Filter(node=nodes.Name(name=name), name="string" | "tojson" | "join" | "items") if name in MESSAGES:
            return True
        case nodes.Filter():
            return node.name not in ("length", "count") and is_user_text(template, node.node)
        case nodes.Call(node=nodes.Getattr(node=inner, attr=attribute)):
            if attribute == "get" and node.args and template.text(node.args[0]) in CONTENT:
                return True
            all_of_it = attribute in ("items", "values") and isinstance(inner, nodes.Name) and inner.name in MESSAGES
            return all_of_it or is_user_text(template, inner)
        case nodes.Concat() | nodes.Add():
            return any(is_user_text(template, part) for part in node.iter_child_nodes())
        case nodes.CondExpr():
            return is_user_text(template, node.expr1) or is_user_text(template, node.expr2)
    return False


def is_date(template: Template, node: Any) -> bool:
    """Return whether an expression depends on the time."""
    if name_of(node) in template.dates or called(node) == "strftime_now":
        return True
    if isinstance(node, nodes.Test) and node.name in DEFINEDNESS:
        return False
    return isinstance(node, nodes.Expr) and any(is_date(template, child) for child in node.iter_child_nodes())


def keyword_of(template: Template, test: Any) -> str | None:
    """Return the words that a condition searches for in a message; None if it searches for none."""
    parts = (test, *test.find_all(nodes.Expr))
    mappings = [each.node for each in parts if isinstance(each, nodes.Test) and each.name == "mapping"]
    for node in parts:
        name = name_of(node)
        if name in template.triggers:
            return template.triggers[name]
        compared: list[Any] = []
        match node:
            case nodes.Compare() if any(is_user_text(template, e) and e not in mappings for e in sides_of(node)):
                compared = sides_of(node)
            case nodes.Call(node=nodes.Getattr(node=target)) if is_user_text(template, target):
                compared = node.args
            case nodes.Test() if node.name not in DEFINEDNESS:
                sides = [node.node, *node.args]
                compared = sides if any(is_user_text(template, side) for side in sides) else []
            case nodes.Filter(args=arguments) if is_user_text(template, node.node):
                compared = arguments
            case nodes.Filter(name="selectattr" | "rejectattr", args=[of, _, *wanted]) if template.text(of) in CONTENT:
                compared = wanted
        folded = [fold(part, template.constants) for part in compared]
        words = [word for part in folded for word in (part if isinstance(part, list) else [part])]
        if texts := [word for word in words if isinstance(word, str) and word.strip()]:
            return max(texts, key=is_words)
    return None


def sides_of(compare: nodes.Compare) -> list[Any]:
    return [compare.expr, *(operand.expr for operand in compare.ops)]


def is_words(text: str) -> bool:
    """Return whether a text is plain language, not markup or a switch."""
    return bool(LETTERS.search(text)) and not MARKUP.search(text)
