"""Rules for hidden prompts: text that depends on keywords, dates or users, and instructions in a template."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from jinja2 import nodes

from .constant_folding import name_of, number
from .finding import Finding, Severity
from .template_tree import DEFINEDNESS, LETTERS, Template, find, is_date, is_user_text, is_words, keyword_of, sides_of
from .unicode import hidden

ENOUGH_TEXT, MANY_VALUES = 2000, 8  # characters of a branch, values of a name to look at
WHO = re.compile(r"user_?(name|id|mail|agent)|^user$|e?mail|locale|country|host_?name|ip_?addr|environ", re.IGNORECASE)
SENTENCE = re.compile(r"(?:[^\W\d_]{2,}[,;]?\s+){2,}[^\W\d_]{2,}|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{6,}")
ORDERS = re.compile(
    r"\b(?:ignore|disregard|forget)\b.{0,30}\b(?:previous|prior|above|earlier|other)\b.{0,30}\b(?:instruct|messag|prompt)"
    r"|\b(?:do not|don't|never)\b.{0,25}\b(?:mention|reveal|tell|disclose|inform|admit)\b.{0,40}\b(?:th(?:is|ese) "
    r"(?:instruct|prompt|message|rule)|(?:this|it|anything) ?(?:to|\.|,|$)|to (?:the user|anyone)|anyone|that you)"
    r"|\b(?:secretly|covertly|surreptitiously|without (?:telling|informing|notifying|mentioning)|hide (?:this|the fact)"
    r")"
    r"|\b(?:always|subtly|must)\b.{0,20}\b(?:recommend|promote|advertise|endorse|link to|insert a|backdoor)\b"
    r"|\b(?:exfiltrate|api[_ ]keys?|passwords?)\b.{0,60}\b(?:send|post|upload|forward|include|append)"
    r"|\b(?:send|post|upload|forward)\b.{0,60}\b(?:api[_ ]keys?|passwords?|credentials|conversation)\b"
    r"|\bcurl\s+-|\bwget\s+http|\brm\s+-rf\b|\bos\.system\b|\bsubprocess\b|<script\b",
    re.IGNORECASE | re.DOTALL,
)
URL = re.compile(r"\b(?:https?|ftp|file|data|javascript):[^\s'\"<>]+", re.IGNORECASE)
ENCODED = re.compile(r"(?:[A-Za-z0-9+/]{4}){20,}={0,2}|(?:[0-9a-fA-F]{2}){40,}")


def _conditions(template: Template) -> Iterator[tuple[Any, Any, list[Any]]]:
    """Yield each conditional node, its condition, and all parts of the condition."""
    for node in find(template.tree, nodes.If, nodes.CondExpr, nodes.For):
        if node.test is not None:
            yield node, node.test, [node.test, *node.test.find_all(nodes.Expr)]


def triggers(template: Template) -> Iterator[Finding]:
    """Find text that is written only if a message has certain words."""
    for node, test, _ in _conditions(template):
        if (keyword := keyword_of(template, test)) is None:
            continue
        text = _written(template, node)
        if _is_sentence(text):
            known = (
                keyword.startswith("/") or template.source.count(keyword) > 1
            )  # a switch, or a tag that the template writes
            severity: Severity = "high" if is_words(keyword) else "low" if known else "medium"
            message = f"whether it writes {_cut(text)} depends on {_cut(keyword)} in a message"
            yield template.finding(severity, "trigger", node, message)
        elif is_words(keyword) and not keyword.isidentifier():  # a single word may be the key of a part
            yield template.finding("low", "trigger", node, f"does something else where a message has {_cut(keyword)}")


def dates(template: Template) -> Iterator[Finding]:
    """Find decisions by date; writing the date is not one."""
    for node, _, parts in _conditions(template):
        if any(_decides_by_date(template, part) for part in parts):
            yield template.finding("high", "date", node, "does something else on certain days")


def _decides_by_date(template: Template, node: Any) -> bool:
    if isinstance(node, nodes.Test):
        return node.name not in DEFINEDNESS and is_date(template, node.node)
    if isinstance(node, nodes.Compare):
        return is_date(template, node) and all(template.text(side) != "" for side in sides_of(node))
    called_on = node.node if isinstance(node, nodes.Call) else None
    return isinstance(called_on, nodes.Getattr) and is_date(template, called_on.node)


def users(template: Template) -> Iterator[Finding]:
    """Find decisions by the user's identity, by the length of the conversation, or at random."""
    for node, _, parts in _conditions(template):
        for sides in (sides_of(part) for part in parts if isinstance(part, nodes.Compare)):
            who = [name for side in sides if (name := name_of(side)) and WHO.search(name.split(".")[-1])]
            if who and any(map(template.text, sides)):
                yield template.finding("medium", "user", node, f"decides by {who[0]!r}")
            late = [n for side in sides if (n := number(side, template.constants)) and n > 2]
            if late and any(map(_counts_turns, sides)) and _is_sentence(text := _written(template, node)):
                yield template.finding("medium", "turn", node, f"writes {_cut(text)} from message {late[0]} on")
    for node in find(template.tree, nodes.Filter):
        if node.name == "random":
            yield template.finding("medium", "chance", node, "chooses by chance")


def _counts_turns(node: Any) -> bool:
    if isinstance(node, nodes.Filter):
        return node.name in ("length", "count") and name_of(node.node) in ("messages", "loop_messages")
    return name_of(node) in ("loop.index", "loop.index0")


def texts(template: Template) -> Iterator[Finding]:
    """Find instructions, links, encoded data and invisible text in the template's own text."""
    for node in find(template.tree, nodes.TemplateData, nodes.Const, nodes.Concat, nodes.Add):
        text = template.text(node)
        if not text:
            continue
        if match := ORDERS.search(text):
            around = text[max(0, match.start() - 20) : match.end() + 40]
            yield template.finding("medium", "instruction", node, f"tells the model {_cut(around)}")
        if match := URL.search(text):
            severity: Severity = "low" if match[0].lower().startswith("http") else "medium"
            yield template.finding(severity, "link", node, f"writes the link {_cut(match[0])}")
        if match := ENCODED.search(text):
            yield template.finding("medium", "encoded text", node, f"holds {len(match[0])} characters of encoded data")
        for worse, name in hidden(text):
            yield template.finding(worse, "invisible text", node, f"writes {name}")


def rewriting(template: Template) -> Iterator[Finding]:
    """Find words of a message that are replaced by others."""
    for node in find(template.tree, nodes.Filter, nodes.Call):
        match node:
            case (
                nodes.Filter(name="replace", node=content, args=[old, new, *_])
                | nodes.Call(node=nodes.Getattr(node=content, attr="replace"), args=[old, new, *_])
            ) if is_user_text(template, content):
                before, after = template.text(old) or "", template.text(new) or ""
                if is_words(before) and is_words(after):
                    yield template.finding("high", "rewriting", node, f"replaces {before!r} by {after!r} in messages")


def _written(template: Template, node: nodes.If | nodes.CondExpr | nodes.For) -> str:
    """Return the text that the branches of a condition write or assign."""
    branch: Iterable[Any] = (node.expr1, node.expr2) if isinstance(node, nodes.CondExpr) else (*node.body, *node.else_)
    pieces: list[str] = []
    for part in filter(None, branch):
        for each in _literals(part):
            values = template.constants.names.get(each.name, ()) if isinstance(each, nodes.Name) else (each,)
            for text in map(template.text, values[:MANY_VALUES]):
                if text and text not in "\n".join(pieces):
                    pieces.append(text)
            if sum(map(len, pieces)) > ENOUGH_TEXT:
                break
    return " … ".join(piece.strip() for piece in pieces if LETTERS.search(piece))


def _literals(node: nodes.Node) -> Iterator[nodes.Node]:
    """Yield nodes whose text may be written, larger ones first: no keys, conditions or error messages."""
    if isinstance(node, (nodes.TemplateData, nodes.Const, nodes.Concat, nodes.Add, nodes.Filter, nodes.Name)):
        yield node
    match node:
        case nodes.Call(node=nodes.Name(name="raise_exception")) | nodes.Compare() | nodes.Test():
            return
        case nodes.Getitem(node=inner) | nodes.Filter(node=inner) | nodes.Assign(node=inner):
            within: Iterable[Any] = (inner,)
        case _:
            within = node.iter_child_nodes(exclude=("test",) if isinstance(node, (nodes.If, nodes.CondExpr)) else ())
    for child in filter(None, within):
        yield from _literals(child)


def _is_sentence(text: str) -> bool:
    """Return whether a text has three words of plain language in a row, or six characters of a script without
    spaces.
    """
    return bool(SENTENCE.search(re.sub(r"<[^<>]*>", " . ", text)))


def _cut(text: str) -> str:
    shown = " ".join(text.split())
    return repr(shown if len(shown) <= 80 else f"{shown[:80]}…")
