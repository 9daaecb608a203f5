"""Estimate how many characters and loop rounds a template may produce, from its syntax tree; nothing is run.

Values that only a conversation decides count as one message's length, or as the messages of a short chat.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jinja2 import nodes

from .constant_folding import Constants, fold, name_of, number

UNKNOWN_TEXT, UNKNOWN_ROUNDS = 100.0, 8.0
LARGE = 10_000  # longer lists count with their length, shorter ones may be the messages
MAX_COST = 10**18
WIDTH = re.compile(r"%[^%A-Za-z]*?(\d+)[^%A-Za-z]*?(\d*)[A-Za-z]|\{[^{}]*:[^{}]*?(\d+)[^{}]*?(\d*)")
PADDING = frozenset({"center", "ljust", "rjust", "zfill", "batch", "slice", "expandtabs"})


@dataclass
class CostEstimate:
    """The cost of parts of a template. values: constants by name. given: lengths to assume for some names."""

    values: Constants
    macros: Mapping[str, nodes.Macro]
    given: Mapping[str, float] = field(default_factory=dict)
    _known: dict[int, float] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)

    def total(self, statements: Iterable[nodes.Node]) -> float:
        """Return the cost of statements, one after the other."""
        return sum(map(self._statement, statements))

    def _statement(self, node: nodes.Node) -> float:
        match node:
            case nodes.Macro():
                return 0  # until it is called
            case nodes.For():
                return self._rounds(node) * (1 + self.total(node.body)) + self.text(node.iter) + self.total(node.else_)
            case nodes.CallBlock():
                return self.text(node.call) * (1 + self.total(node.body))
            case nodes.Expr():
                return self.text(node)
        return self.total(node.iter_child_nodes())

    def _rounds(self, loop: nodes.For) -> float:
        length = self.text(loop.iter)
        match loop.iter:
            case nodes.Call(node=nodes.Name(name="range")) if length > 1:
                return length
            case nodes.List() | nodes.Tuple():
                return float(len(loop.iter.items))
        return length if length > LARGE else UNKNOWN_ROUNDS

    def text(self, node: Any) -> float:
        """Return the possible length of an expression's value plus the cost of computing it."""
        if id(node) not in self._known:
            self._known[id(node)] = UNKNOWN_TEXT
            self._known[id(node)] = min(self._text(node), MAX_COST)
        return self._known[id(node)]

    def _text(self, node: Any) -> float:
        name = name_of(node)
        if name is not None:
            return self._named(name)
        match node:
            case nodes.Const() | nodes.TemplateData():
                return float(len(text)) if isinstance(text := node.as_const(), str) else 1
            case nodes.CondExpr():
                branches = (node.expr1, node.expr2)
                return self.text(node.test) + max(self.text(each) for each in branches if each is not None)
            case nodes.Mul():
                sides = (node.left, node.right)
                return sum(map(self.text, sides)) * self._largest(sides, 1)
            case nodes.Mod():
                return self._formatted(node.left, [node.right])
            case nodes.Filter() if node.node is not None:
                return self._method(node.name, node.node, node.args)
            case nodes.Call(node=nodes.Name(name=called)):
                return self._call(called, node)
            case nodes.Call(node=nodes.Getattr(node=target, attr=attribute)):
                return self._method(attribute, target, node.args)
        return max(sum(map(self.text, node.iter_child_nodes())), 1)

    def _named(self, name: str) -> float:
        if name in self.given:
            return self.given[name]
        if name in self._open or name not in self.values.names:
            return UNKNOWN_TEXT
        self._open.add(name)
        length = max(map(self.text, self.values.names[name]))
        self._open.discard(name)
        return length

    def _call(self, name: str, call: nodes.Call) -> float:
        passed = sum(map(self.text, call.args))
        if name in ("range", "lipsum"):
            return self._largest(call.args, 1)
        if name in self.macros and name not in self._open:
            self._open.add(name)
            passed += self.total(self.macros[name].body)
            self._open.discard(name)
        return passed + 1

    def _method(self, name: str, target: Any, arguments: list[Any]) -> float:
        """Return the cost of a filter or a method by its name."""
        base, passed = self.text(target), sum(map(self.text, arguments))
        if name == "format":
            return self._formatted(target, arguments)
        if name in PADDING:
            return base + self._largest(arguments, 0)
        if name == "indent":
            return base * (1 + self._largest(arguments, 0))
        if name == "join":
            return base * (1 + passed / 8) + passed  # separator or items, of a few characters each
        if name == "replace" and len(arguments) > 1:
            old = fold(arguments[0], self.values)
            return base * max(1, self.text(arguments[1]) / max(1, len(old) if isinstance(old, str) else 1))
        return base + passed

    def _formatted(self, pattern: Any, arguments: list[Any]) -> float:
        constant = fold(pattern, self.values)
        text = constant if isinstance(constant, str) else ""
        widths = [int(each) for constant in WIDTH.findall(text) for each in constant if each]
        if "*" in text:
            parts = [part for each in arguments for part in getattr(each, "items", (each,))]
            widths += [abs(number(part, self.values) or 0) for part in parts]
        return self.text(pattern) + sum(map(self.text, arguments)) + min(sum(widths), MAX_COST)

    def _largest(self, arguments: Iterable[Any], default: int) -> float:
        """Return the largest constant number among arguments."""
        counts = [abs(count) for argument in arguments if (count := number(argument, self.values))]
        return float(min(max(counts, default=default), MAX_COST))


def growth_factor(value: nodes.Expr, name: str, values: Constants, macros: Mapping[str, nodes.Macro]) -> float:
    """Return the factor by which a value grows with the length of `name`: 2 if it is doubled, 0 if it is not used."""
    without, with_long = (CostEstimate(values, macros, {name: length}).text(value) for length in (0.0, 1e9))
    return (with_long - without) / 1e9
