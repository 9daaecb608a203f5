"""Chat templates by static rules on their syntax tree; nothing of a template is ever run here.

A chat template is a program that runs wherever the model is used. Two kinds of harm are looked for: breaking out of
the sandbox (walks to Python's internals, calls, loops that never end), and prompts that the user does not see, above
all those that appear only for certain words, dates or users.
"""

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from jinja2 import TemplateSyntaxError, nodes

from ...metadata.child import ask
from ...metadata.sandbox import bounded_request, environment, tell
from .finding import Finding, Severity
from .folding import Values, called, fold, name_of, number
from .unicode import hidden, mixed_word
from .work import Work, growth

SECONDS = 5.0  # of processor time for the templates of a file
MAX_TEMPLATE = 200_000  # characters; the longest published ones have a tenth
ENOUGH_TEXT, MANY_VALUES = 2000, 8  # of a branch, of a name: more tells nothing new
INTERNAL = re.compile(r"__[A-Za-z]\w*?__|^_+[A-Za-z]")
# Names of Python's internals that have no underscores, and what is called on the way out.
GADGETS = frozenset({
    "mro", "func_globals", "func_code", "gi_frame", "gi_code", "cr_frame", "cr_code", "ag_frame", "tb_frame",
    "f_globals", "f_locals", "f_builtins", "f_back", "im_func", "im_self", "im_class", "co_code", "co_consts",
    "subclasses", "builtins", "globals", "getattr", "setattr", "popen", "system", "subprocess", "check_output",
    "load_module", "exec_module", "import_module", "format_map", "eval", "exec", "compile", "open", "spawn",
})  # fmt: skip
# Objects of web frameworks and of jinja2 that published attacks start from.
STARTS = frozenset({"lipsum", "cycler", "joiner", "self", "config", "request", "url_for", "get_flashed_messages",
                    "application", "environ", "os", "sys", "open", "eval", "exec", "getattr", "vars",
                    "globals"})  # fmt: skip
FUNCTIONS = frozenset({"raise_exception", "strftime_now", "range", "namespace", "dict", "caller", "tojson", "loop"})
METHODS = frozenset({
    "append", "capitalize", "count", "endswith", "extend", "find", "format", "get", "index", "insert", "isdigit",
    "isalpha", "isspace", "items", "join", "keys", "lower", "lstrip", "pop", "removeprefix", "removesuffix", "replace",
    "rfind", "rsplit", "rstrip", "setdefault", "split", "splitlines", "startswith", "strip", "title", "update",
    "upper", "values", "partition", "rpartition", "isalnum", "isupper", "islower", "cycle", "changed", "tojson",
})  # fmt: skip
BY_ATTRIBUTE = frozenset({"attr", "map", "selectattr", "rejectattr", "groupby", "sort", "unique", "sum", "min", "max"})
LONG_LOOP, ENDLESS_LOOP = 10_000, 1_000_000
MUCH_WORK, ENDLESS_WORK = 1e7, 1e9  # characters and rounds; published templates come to a hundredth
DOUBLES = 1.5
DEFINEDNESS = frozenset({"defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number",
                         "boolean", "true", "false"})  # fmt: skip
MESSAGES = frozenset({"messages", "message", "loop_messages", "msg", "m"})
CONTENT = frozenset({"content", "text", "reasoning_content", "thinking"})
WHO = re.compile(r"user_?(name|id|mail|agent)|^user$|e?mail|locale|country|host_?name|ip_?addr|environ", re.IGNORECASE)
SENTENCE = re.compile(r"(?:[^\W\d_]{2,}[,;]?\s+){2,}[^\W\d_]{2,}|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{6,}")
LETTERS = re.compile(r"[^\W\d_]{2,}")
MARKUP = re.compile(r"^\s*[</\[{|#`*(\\:!_-]|[>\]}|:]\s*$|<\|?/?\w+")  # tags, switches such as /think, tokens
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


@dataclass
class Template:
    """A parsed template.

    folding: what is assigned to each name ("ns.x" for members of namespaces), and what expressions come to.
    user_text: names that hold what a message says; dates: names that hold the time; triggers: names whose value was
    decided by a keyword in a message, with the keyword. macros: by name.
    """

    key: str
    source: str
    tree: nodes.Template
    macros: dict[str, nodes.Macro]
    folding: Values = field(default_factory=Values)
    user_text: set[str] = field(default_factory=set)
    dates: set[str] = field(default_factory=set)
    triggers: dict[str, str] = field(default_factory=dict)

    def found(self, severity: Severity, rule: str, node: Any, message: str) -> Finding:
        line = node if isinstance(node, int) else getattr(node, "lineno", None)
        return Finding(severity, rule, self.key, message, line)

    def text(self, node: Any) -> str | None:
        """The string that an expression comes to."""
        found = fold(node, self.folding)
        return found if isinstance(found, str) else None


def audit_templates(templates: Mapping[str, str]) -> list[Finding]:
    """`audit_template` of each by its key, in a process of its own: reading some would never end."""
    lines, death = ask(__name__, {"templates": templates}, SECONDS)
    found = [Finding(**finding) for line in lines for finding in line]
    return found + [Finding("high", "size", key, f"looking into it {death}") for key in [*templates][len(lines) :]]


def serve() -> None:
    """Answer the one request of `audit_templates`: a list of findings for each."""
    for key, source in bounded_request()["templates"].items():
        tell([asdict(finding) for finding in audit_template(key, source)])


def audit_template(key: str, source: str) -> list[Finding]:
    """Everything that the rules find in one template, line by line."""
    found = list(_characters(key, source))
    if len(source) > MAX_TEMPLATE:
        return [*found, Finding("high", "size", key, f"{len(source):,} characters: not looked into")]
    try:
        tree = environment().parse(source)
    except (TemplateSyntaxError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        return [*found, Finding("medium", "syntax", key, f"is not valid: {str(error)[:120]}", line)]
    ways_out = (_internals, _calls, _loops, _work, _growing, _recursion)
    try:
        template = Template(key, source, tree, {macro.name: macro for macro in _find(tree, nodes.Macro)})
        _follow(template)
        for rule in (*ways_out, _triggers, _dates, _users, _texts, _rewriting):
            found += rule(template)
    except RecursionError:
        found.append(Finding("high", "size", key, "nests so deeply that it cannot be looked into"))
    return sorted(dict.fromkeys(found), key=lambda each: (each.line or 0, each.rule))


def _find(tree: nodes.Node, *kinds: type[nodes.Node]) -> Iterator[Any]:
    return tree.find_all(kinds)


def _characters(key: str, source: str) -> Iterator[Finding]:
    """Invisible and deceptive characters, as they are in the file or written as escapes."""
    for at, line in enumerate(source.splitlines(), 1):
        for severity, name in hidden(line):
            yield Finding(severity, "invisible text", key, f"has {name}, which a reader doesn't see", at)
        if word := mixed_word(line):
            yield Finding("medium", "look-alike letters", key, f"mixes alphabets in the word {word!r}", at)


# What names stand for


def _follow(template: Template) -> None:
    """Fill in what is assigned to each name, then pass on what came from messages, dates and keywords."""
    assignments = list(_assignments(template.tree))
    for target, value in assignments:
        template.folding.names[target] = (*template.folding.names.get(target, ()), value)
    for _ in range(4):  # assignments in a row
        for target, value in assignments:
            if _is_user_text(template, value):
                template.user_text.add(target)
            if _is_date(template, value):
                template.dates.add(target)
        for branch in _find(template.tree, nodes.If):
            if keyword := _keyword(template, branch.test):
                for target, _ in _assignments(nodes.Template(branch.body)):
                    template.triggers.setdefault(target, keyword)
        for target, value in assignments:
            if not isinstance(value, nodes.Const) and (keyword := _keyword(template, value)):
                template.triggers.setdefault(target, keyword)


def _assignments(tree: nodes.Node) -> Iterator[tuple[str, nodes.Expr]]:
    for node in _find(tree, nodes.Assign, nodes.For, nodes.AssignBlock):
        if isinstance(node, nodes.AssignBlock):
            value: Any = nodes.Concat([part for output in node.body for part in getattr(output, "nodes", ())])
        else:
            value = node.node if isinstance(node, nodes.Assign) else node.iter
        yield from _pairs(node.target, value)
    macros = {macro.name: macro for macro in _find(tree, nodes.Macro)}
    for call in _find(tree, nodes.Call):
        if (macro := macros.get(called(call) or "")) is not None:
            yield from ((parameter.name, each) for parameter, each in zip(macro.args, call.args, strict=False))
    for assign in _find(tree, nodes.Assign):
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


def _is_user_text(template: Template, node: Any) -> bool:
    """Whether an expression is (part of) what a message says."""
    if name_of(node) in template.user_text:
        return True
    match node:
        case nodes.Getattr():
            return node.attr in CONTENT
        case nodes.Getitem():
            key = template.text(node.arg)
            return key in CONTENT if key is not None else _is_user_text(template, node.node)
        case nodes.Filter(name="map"):
            names = [argument.value for argument in node.kwargs if argument.key == "attribute"]
            return any(template.text(name) in CONTENT for name in names) or _is_user_text(template, node.node)
        case nodes.Filter(node=nodes.Name(name=name), name="string" | "tojson" | "join" | "items") if name in MESSAGES:
            return True
        case nodes.Filter():
            return node.name not in ("length", "count") and _is_user_text(template, node.node)
        case nodes.Call(node=nodes.Getattr(node=inner, attr=attribute)):
            if attribute == "get" and node.args and template.text(node.args[0]) in CONTENT:
                return True
            all_of_it = attribute in ("items", "values") and isinstance(inner, nodes.Name) and inner.name in MESSAGES
            return all_of_it or _is_user_text(template, inner)
        case nodes.Concat() | nodes.Add():
            return any(_is_user_text(template, part) for part in node.iter_child_nodes())
        case nodes.CondExpr():
            return _is_user_text(template, node.expr1) or _is_user_text(template, node.expr2)
    return False


def _is_date(template: Template, node: Any) -> bool:
    """Whether an expression depends on the time."""
    if name_of(node) in template.dates or called(node) == "strftime_now":
        return True
    if isinstance(node, nodes.Test) and node.name in DEFINEDNESS:
        return False
    return isinstance(node, nodes.Expr) and any(_is_date(template, child) for child in node.iter_child_nodes())


# Ways out of the sandbox


def _internals(template: Template) -> Iterator[Finding]:
    """Attributes and subscripts that lead to Python's internals, strings that spell their names, and other files."""
    for node in _find(template.tree, nodes.Node):
        match node:
            case nodes.Getattr() | nodes.NSRef() if _is_internal(node.attr):
                yield template.found("high", "internals", node, f"reads the attribute {node.attr!r}")
            case nodes.Getitem() if (key := template.text(node.arg)) and _is_internal(key):
                yield template.found("high", "internals", node, f"reads the item {key!r}")
            case nodes.Filter() if node.name in BY_ATTRIBUTE:
                yield from _by_attribute(template, node)
            case nodes.Keyword() if INTERNAL.search(node.key):
                yield template.found("high", "internals", node, f"spells the name {node.key!r} as an argument")
            case nodes.Name() if node.name in STARTS and node.name not in template.folding.names:
                yield template.found("high", "internals", node, f"uses {node.name!r}, which attacks start from")
            case nodes.Import() | nodes.FromImport() | nodes.Include() | nodes.Extends():
                yield template.found("high", "other files", node, "reads another template")
    for node in _find(template.tree, nodes.Expr):
        text = template.text(node)
        if text and (match := re.search(r"__[A-Za-z]\w*?__", text)):
            how = "spells" if isinstance(node, (nodes.Const, nodes.TemplateData)) else "puts together"
            yield template.found("high", "internals", node, f"{how} the name {match[0]!r}")


def _is_internal(name: str) -> bool:
    return bool(INTERNAL.search(name)) or name in GADGETS


def _by_attribute(template: Template, node: nodes.Filter) -> Iterator[Finding]:
    """Filters that read an attribute by its name."""
    names = [a.value for a in node.kwargs if a.key == "attribute"]
    names += node.args[:1] if node.name in ("attr", "selectattr", "rejectattr", "groupby") else []
    for argument in names:
        name = template.text(argument)
        if name is None and fold(argument, template.folding) is None:
            message = f"reads an attribute whose name is computed (|{node.name})"
            yield template.found("high" if node.name == "attr" else "medium", "internals", node, message)
        elif name is not None and any(map(_is_internal, name.split("."))):
            yield template.found("high", "internals", node, f"reads the attribute {name!r} (|{node.name})")
        elif node.name == "attr":
            yield template.found("low", "internals", node, f"reads the attribute {name!r} by a filter (|attr)")
    if node.name == "map" and node.args and template.text(node.args[0]) in ("attr", None):
        yield template.found("medium", "internals", node, "maps a filter that reads attributes or is computed")


def _calls(template: Template) -> Iterator[Finding]:
    """Calls of what transformers' sandbox does not offer."""
    for node in _find(template.tree, nodes.Call):
        target = node.node
        if (name := called(node)) is not None:
            if name not in FUNCTIONS | STARTS | template.macros.keys():
                what = "which is a variable" if name in template.folding.names else "which templates don't have"
                yield template.found("medium", "call", node, f"calls {name!r}, {what}")
        elif isinstance(target, nodes.Getattr):
            if not _is_internal(target.attr) and target.attr not in METHODS:
                yield template.found("medium", "call", node, f"calls the method {target.attr!r}")
            if target.attr == "format" and template.text(target.node) is None:
                yield template.found("medium", "call", node, "formats by a pattern that is not in the template")
        else:
            yield template.found("medium", "call", node, "calls the result of an expression")


def _loops(template: Template) -> Iterator[Finding]:
    """Loops, powers and repetitions without a reasonable bound."""
    for node in _find(template.tree, nodes.Call, nodes.Mul, nodes.Pow, nodes.Filter):
        count: Any = None
        if called(node) == "range":
            count = max((abs(number(argument, template.folding) or 0) for argument in node.args), default=0)
            if any(_is_user_text(template, argument) for argument in node.args):
                yield template.found("medium", "loop", node, "counts as far as a message says")
        elif isinstance(node, nodes.Mul):
            numbers = [number(side, template.folding) for side in (node.left, node.right)]
            count = max(n or 0 for n in numbers) if None in numbers else None
        elif isinstance(node, nodes.Pow):
            yield template.found("medium", "loop", node, "computes a power, which can take any time and memory")
        elif isinstance(node, nodes.Filter) and node.name in ("center", "indent", "wordwrap") and node.args:
            count = number(node.args[0], template.folding)
        if count is not None and count > LONG_LOOP:
            yield template.found("high" if count > ENDLESS_LOOP else "medium", "loop", node, f"repeats {count:,} times")


def _work(template: Template) -> Iterator[Finding]:
    """What takes too long or fills memory without a large number in it."""
    bodies: list[list[Any]] = [[template.tree], *(macro.body for macro in template.macros.values())]
    total = max(Work(template.folding, template.macros).of(body) for body in bodies)
    if total > MUCH_WORK:
        severity: Severity = "high" if total > ENDLESS_WORK else "medium"
        yield template.found(severity, "loop", template.tree, f"may write {total:.0e} characters, or go so many rounds")


def _growing(template: Template) -> Iterator[Finding]:
    """Values that are doubled in each round of a loop, or again and again."""
    loops = [*_find(template.tree, nodes.For), *template.macros.values()]
    inner = [assign for loop in loops for assign in _find(loop, nodes.Assign)]
    kept = {id(assign) for assign in inner if isinstance(assign.target, nodes.NSRef)}
    factors: dict[str, list[float]] = {}
    for assign in _find(template.tree, nodes.Assign):
        name = name_of(assign.target)
        if name is None or (factor := growth(assign.node, name, template.folding, template.macros)) == 1:
            continue
        factors.setdefault(name, []).append(factor)
        if factor > DOUBLES and id(assign) in kept:
            yield template.found("high", "loop", assign, f"makes {name!r} {factor:.2g} times as long in each round")
        elif factor > DOUBLES and math.prod(filter(None, factors[name])) > LONG_LOOP:
            yield template.found("high", "loop", assign, f"makes {name!r} longer and longer")


def _recursion(template: Template) -> Iterator[Finding]:
    """Macros and loops that call themselves with no smaller part of what they were given."""
    for macro in template.macros.values():
        given = {argument.name for argument in macro.args}
        for call in _find(macro, nodes.Call):
            arguments = [*call.args, *(each.value for each in call.kwargs)]
            if called(call) == macro.name and not any(_is_part(argument, given) for argument in arguments):
                yield template.found("medium", "loop", call, f"the macro {macro.name!r} calls itself without an end")
    for loop in _find(template.tree, nodes.For):
        for call in _find(loop, nodes.Call) if loop.recursive else ():
            if called(call) == "loop" and name_of(loop.iter) in map(name_of, call.args):
                yield template.found("medium", "loop", call, "the loop calls itself without an end")


def _is_part(argument: Any, given: Container[str]) -> bool:
    """Whether an argument may be a part of the macro's own: not a constant, nor one as it was given or a number."""
    if isinstance(argument, (nodes.Const, nodes.TemplateData)) or name_of(argument) in given:
        return False
    return not isinstance(argument, (nodes.BinExpr, nodes.Neg, nodes.Concat))


# Prompts that the user does not see


def _conditions(template: Template) -> Iterator[tuple[Any, Any, list[Any]]]:
    """What depends on a condition, that, and all its parts."""
    for node in _find(template.tree, nodes.If, nodes.CondExpr, nodes.For):
        if node.test is not None:
            yield node, node.test, [node.test, *node.test.find_all(nodes.Expr)]


def _triggers(template: Template) -> Iterator[Finding]:
    """Text that appears only where a message has certain words."""
    for node, test, _ in _conditions(template):
        if (keyword := _keyword(template, test)) is None:
            continue
        text = _written(template, node)
        if _is_sentence(text):
            known = keyword.startswith("/") or template.source.count(keyword) > 1  # a switch, or a tag it writes itself
            severity: Severity = "high" if _is_words(keyword) else "low" if known else "medium"
            message = f"whether it writes {_cut(text)} depends on {_cut(keyword)} in a message"
            yield template.found(severity, "trigger", node, message)
        elif _is_words(keyword) and not keyword.isidentifier():  # one word may be the name of a part of the message
            yield template.found("low", "trigger", node, f"does something else where a message has {_cut(keyword)}")


def _keyword(template: Template, test: Any) -> str | None:
    """The words that a condition looks for in what a message says; None where it looks for none."""
    parts = (test, *test.find_all(nodes.Expr))
    mappings = [each.node for each in parts if isinstance(each, nodes.Test) and each.name == "mapping"]
    for node in parts:
        name = name_of(node)
        if name in template.triggers:
            return template.triggers[name]
        compared: list[Any] = []
        match node:
            case nodes.Compare() if any(_is_user_text(template, e) and e not in mappings for e in _sides(node)):
                compared = _sides(node)
            case nodes.Call(node=nodes.Getattr(node=said)) if _is_user_text(template, said):
                compared = node.args
            case nodes.Test() if node.name not in DEFINEDNESS:
                sides = [node.node, *node.args]
                compared = sides if any(_is_user_text(template, side) for side in sides) else []
            case nodes.Filter(args=arguments) if _is_user_text(template, node.node):
                compared = arguments
            case nodes.Filter(name="selectattr" | "rejectattr", args=[of, _, *wanted]) if template.text(of) in CONTENT:
                compared = wanted
        folded = [fold(part, template.folding) for part in compared]
        words = [word for part in folded for word in (part if isinstance(part, list) else [part])]
        if texts := [word for word in words if isinstance(word, str) and word.strip()]:
            return max(texts, key=_is_words)
    return None


def _dates(template: Template) -> Iterator[Finding]:
    """Decisions by date; writing it is what it is for."""
    for node, _, parts in _conditions(template):
        if any(_decides_by_date(template, part) for part in parts):
            yield template.found("high", "date", node, "does something else on certain days")


def _decides_by_date(template: Template, node: Any) -> bool:
    if isinstance(node, nodes.Test):
        return node.name not in DEFINEDNESS and _is_date(template, node.node)
    if isinstance(node, nodes.Compare):
        return _is_date(template, node) and all(template.text(side) != "" for side in _sides(node))
    called_on = node.node if isinstance(node, nodes.Call) else None
    return isinstance(called_on, nodes.Getattr) and _is_date(template, called_on.node)


def _sides(compare: nodes.Compare) -> list[Any]:
    return [compare.expr, *(operand.expr for operand in compare.ops)]


def _users(template: Template) -> Iterator[Finding]:
    """Decisions by who the user is, by the length of the conversation, or by chance."""
    for node, _, parts in _conditions(template):
        for sides in (_sides(part) for part in parts if isinstance(part, nodes.Compare)):
            who = [name for side in sides if (name := name_of(side)) and WHO.search(name.split(".")[-1])]
            if who and any(map(template.text, sides)):
                yield template.found("medium", "user", node, f"decides by {who[0]!r}")
            late = [n for side in sides if (n := number(side, template.folding)) and n > 2]
            if late and any(map(_counts_turns, sides)) and _is_sentence(text := _written(template, node)):
                yield template.found("medium", "turn", node, f"writes {_cut(text)} from message {late[0]} on")
    for node in _find(template.tree, nodes.Filter):
        if node.name == "random":
            yield template.found("medium", "chance", node, "chooses by chance")


def _counts_turns(node: Any) -> bool:
    if isinstance(node, nodes.Filter):
        return node.name in ("length", "count") and name_of(node.node) in ("messages", "loop_messages")
    return name_of(node) in ("loop.index", "loop.index0")


def _texts(template: Template) -> Iterator[Finding]:
    """What the template itself says to the model."""
    for node in _find(template.tree, nodes.TemplateData, nodes.Const, nodes.Concat, nodes.Add):
        text = template.text(node)
        if not text:
            continue
        if match := ORDERS.search(text):
            around = text[max(0, match.start() - 20) : match.end() + 40]
            yield template.found("medium", "instruction", node, f"tells the model {_cut(around)}")
        if match := URL.search(text):
            severity: Severity = "low" if match[0].lower().startswith("http") else "medium"
            yield template.found(severity, "link", node, f"writes the link {_cut(match[0])}")
        if match := ENCODED.search(text):
            yield template.found("medium", "encoded text", node, f"holds {len(match[0])} characters of encoded data")
        for worse, name in hidden(text):
            yield template.found(worse, "invisible text", node, f"writes {name}")


def _rewriting(template: Template) -> Iterator[Finding]:
    """Words of a message that are replaced by others."""
    for node in _find(template.tree, nodes.Filter, nodes.Call):
        match node:
            case (
                nodes.Filter(name="replace", node=said, args=[old, new, *_])
                | nodes.Call(node=nodes.Getattr(node=said, attr="replace"), args=[old, new, *_])
            ) if _is_user_text(template, said):
                before, after = template.text(old) or "", template.text(new) or ""
                if _is_words(before) and _is_words(after):
                    yield template.found("high", "rewriting", node, f"replaces {before!r} by {after!r} in messages")


def _written(template: Template, node: nodes.If | nodes.CondExpr | nodes.For) -> str:
    """What the branches of a condition write or keep for later."""
    branch: Iterable[Any] = (node.expr1, node.expr2) if isinstance(node, nodes.CondExpr) else (*node.body, *node.else_)
    pieces: list[str] = []
    for part in filter(None, branch):
        for each in _literals(part):
            values = template.folding.names.get(each.name, ()) if isinstance(each, nodes.Name) else (each,)
            for text in map(template.text, values[:MANY_VALUES]):
                if text and text not in "\n".join(pieces):
                    pieces.append(text)
            if sum(map(len, pieces)) > ENOUGH_TEXT:
                break
    return " … ".join(piece.strip() for piece in pieces if LETTERS.search(piece))


def _literals(node: nodes.Node) -> Iterator[nodes.Node]:
    """Everything within a node that may be written, larger pieces first: no keys, conditions or error messages."""
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


def _is_words(text: str) -> bool:
    """Whether a text is plain language, not markup or a switch."""
    return bool(LETTERS.search(text)) and not MARKUP.search(text)


def _is_sentence(text: str) -> bool:
    """At least three words of plain language in a row, or six characters of a script that has no spaces."""
    return bool(SENTENCE.search(re.sub(r"<[^<>]*>", " . ", text)))


def _cut(text: str) -> str:
    shown = " ".join(text.split())
    return repr(shown if len(shown) <= 80 else f"{shown[:80]}…")

