"""Fold constant string expressions of a template: computed from the syntax tree, never run.

Disguises are undone here: concatenation, joins, replacements, reversals, formats, repetition, characters by number.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from jinja2 import nodes

LIMIT = 10_000  # characters; longer results are not followed
HUGE = 1 << 512  # numbers: larger ones are not multiplied
FIELD = re.compile(r"\{([^}]*)")


@dataclass
class Constants:
    """Values assigned to each name in a template; a name with exactly one value is constant.

    folded: results by the node's identity; each is computed once, so that a template which doubles a text forty times
    costs nothing.
    """

    names: dict[str, tuple[nodes.Expr, ...]] = field(default_factory=dict)
    folded: dict[int, Any] = field(default_factory=dict)


def fold(node: Any, values: Constants) -> Any:
    """Return the constant value of an expression: str, int, list, …; None if it is not constant."""
    if id(node) not in values.folded:
        values.folded[id(node)] = None  # a name that is made from itself has no plain value
        try:
            value = _fold(node, values)
        except (TypeError, ValueError, IndexError, KeyError, ArithmeticError, AttributeError):
            value = None
        values.folded[id(node)] = value if not isinstance(value, (str, list)) or len(value) <= LIMIT else None
    return values.folded[id(node)]


def _fold(node: Any, values: Constants) -> Any:
    match node:
        case nodes.Const():
            return node.value
        case nodes.TemplateData():
            return node.data
        case nodes.Name() if len(values.names.get(node.name, ())) == 1:
            return fold(values.names[node.name][0], values)
        case nodes.List() | nodes.Tuple():
            items = [fold(item, values) for item in node.items]
            return items if None not in items else None
        case nodes.Concat():
            parts = [fold(part, values) for part in node.nodes]
            return _joined("", parts) if None not in parts else None
        case nodes.Add() | nodes.Mul() | nodes.Mod() | nodes.Pow():
            return _arithmetic(node, fold(node.left, values), fold(node.right, values))
        case nodes.Dict():
            pairs = {fold(pair.key, values): fold(pair.value, values) for pair in node.items}
            return pairs if None not in pairs else None
        case nodes.Call(node=nodes.Name(name="dict")):
            return {argument.key: fold(argument.value, values) for argument in node.kwargs}
        case nodes.Getitem(arg=nodes.Slice(start=start, stop=stop, step=step)):
            return fold(node.node, values)[slice(*(end and fold(end, values) for end in (start, stop, step)))]
        case nodes.Getitem():
            return fold(node.node, values)[fold(node.arg, values)]
        case nodes.Filter(name=name, node=target) | nodes.Call(node=nodes.Getattr(node=target, attr=name)):
            return _filtered(name, fold(target, values), [fold(argument, values) for argument in node.args])
    return None


def _plain(value: Any) -> str:
    """Return a text or a number as text. Raises TypeError for containers, whose text could have any length."""
    if not isinstance(value, (str, int, float)):
        raise TypeError
    return str(value)


def _joined(separator: str, items: Any) -> str | None:
    texts = [_plain(item) for item in items]
    return separator.join(texts) if sum(map(len, texts)) + len(separator) * len(texts) <= LIMIT else None


def _arithmetic(node: nodes.BinExpr, left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    if isinstance(node, nodes.Pow):
        return left if abs(left) >= 1 << 16 else left ** min(right, 64)
    if isinstance(node, nodes.Mul):
        text, count = (left, right) if isinstance(left, str) else (right, left)
        if isinstance(text, int) and isinstance(count, int):
            return text * count if max(abs(text), abs(count)) < HUGE else max(text, count, key=abs)
        return text * count if isinstance(text, str) and isinstance(count, int) and count <= LIMIT else None
    if isinstance(node, nodes.Mod):
        return _formatted(left, right if isinstance(right, list) else [right]) if isinstance(left, str) else None
    return left + right


def _formatted(text: str, arguments: list[Any]) -> str | None:
    """Apply `%` formatting, without widths, which could need gigabytes."""
    wide = any(character.isdigit() or character == "*" for character in text.replace("%%", "").split("%", 1)[-1][:12])
    values = [each if isinstance(each, (int, float)) else _plain(each) for each in arguments]
    return None if wide else text % tuple(values)


def _filtered(name: str, value: Any, arguments: list[Any]) -> Any:
    """Apply the filters and methods that are used to hide text."""
    if value is None or None in arguments:
        return None
    text = isinstance(value, str)
    match name:
        case "join" if text and arguments:  # the method: the separator comes first
            return _joined(value, arguments[0])
        case "join":
            return _joined(_plain(arguments[0]) if arguments else "", value)
        case "replace" if text and len(arguments) > 1:
            old, new = arguments[:2]
            return value.replace(old, new) if value.count(old) * len(new) <= LIMIT else None
        case "reverse":
            return value[::-1] if text else list(value)[::-1]
        case "format" if text and "%" in value:
            return _formatted(value, arguments)
        case "format" if text and all(field in ("", "0", "1", "2") for field in FIELD.findall(value)):
            return value.format(*map(_plain, arguments))
        case "lower" | "upper" | "title" | "capitalize" | "swapcase" if text:
            return getattr(value, name)()
        case "trim" | "strip":
            return value.strip(*arguments)
        case "string" | "safe" | "escape" | "e":
            return _plain(value)
        case "list" | "first" | "last":
            items = list(value)
            return items if name == "list" else items[0 if name == "first" else -1]
        case "split" if text:
            return value.split(*arguments)
    return None


def number(node: Any, values: Constants) -> int | None:
    """Return a constant whole number; None for anything else."""
    value = fold(node, values)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def name_of(node: Any) -> str | None:
    """Return "x", or "ns.x" for a member of a namespace; None for other nodes."""
    if isinstance(node, nodes.NSRef):
        return f"{node.name}.{node.attr}"
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return f"{node.node.name}.{node.attr}"
    return node.name if isinstance(node, nodes.Name) else None


def called(node: Any) -> str | None:
    """Return the name of the called function, macro or variable; None for methods and for nodes that are no call."""
    return node.node.name if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) else None
